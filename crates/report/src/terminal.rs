//! The form of output on this process's terminal: width, colour, characters.

use crate::spark::Glyphs;
use crate::table::Terminal;
use std::io::IsTerminal;
use std::sync::OnceLock;

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

/// The choice of [`set_color`].
static COLOR: OnceLock<bool> = OnceLock::new();

/// Decides for the rest of the process whether output is coloured. The first call decides.
pub fn set_color(is_colored: bool) {
    // A second choice has no effect.
    let _ = COLOR.set(is_colored);
}

/// Returns whether to colour: as [`set_color`] said, else on a terminal where `NO_COLOR` isn't set (no-color.org).
fn use_color() -> bool {
    if let Some(&is_colored) = COLOR.get() {
        return is_colored;
    }
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
