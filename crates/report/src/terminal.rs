//! The form of output on this process's terminal: width, colour, characters.

use crate::spark::Glyphs;
use crate::table::Terminal;
use std::io::IsTerminal;

/// The form that a table takes on standard output.
pub fn stdout_form() -> Terminal {
    // A file is read elsewhere: its characters don't depend on this terminal's.
    let glyphs = if std::io::stdout().is_terminal() { Glyphs::detect() } else { Glyphs::Unicode };
    Terminal { width: terminal_width(), color: use_color(), glyphs }
}

/// Columns of standard output: the terminal's, or 160 where it is none, so that a table in a
/// file is not cut up.
fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(160, |(width, _)| usize::from(width.0))
}

/// Whether to colour: a terminal, and `NO_COLOR` not set (no-color.org).
fn use_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
