//! Tables, plots and HTML pages, as text.
//!
//! Nothing here knows what a model is. A program puts its findings into a
//! [`table::Table`] or a [`chart`] and gets back text: for a terminal, Markdown,
//! CSV, SVG, or one self-contained HTML [`page`].
//!
//! Three rules hold throughout:
//!
//! - Nothing is printed. Functions return strings.
//! - Nothing is said by colour alone: a [`table::Tone`] has a symbol and a word,
//!   a series has a marker of its own.
//! - Numbers that can't be shown (NaN, infinities, values that a log axis can't
//!   place) never break a drawing. They are left out, and a note says so.

pub mod chart;
mod error;
mod error_line;
pub mod format;
pub mod page;
pub mod spark;
pub mod table;
mod terminal;

pub use error::Error;
pub use error_line::error_line;
pub use terminal::{set_color, stdout_form};
