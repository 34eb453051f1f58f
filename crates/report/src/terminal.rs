//! What standard output is.

use std::io::IsTerminal;

/// Columns of standard output: the terminal's, or 160 where it is none, so that a table in a
/// file is not cut up.
pub fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(160, |(width, _)| usize::from(width.0))
}

/// Whether to colour: a terminal, and `NO_COLOR` not set (no-color.org).
pub fn use_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
