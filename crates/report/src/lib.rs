//! Tables, JSON, Markdown, CSV, HTML with SVG plots, and progress bars.
