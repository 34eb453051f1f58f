//! What standard output is drawn on.

use report::spark::Glyphs;
use report::table::Terminal;
use std::io::{IsTerminal, stdout};

/// The table's form for standard output.
pub fn form() -> Terminal {
    // A file is read elsewhere: its characters don't depend on this terminal's.
    let glyphs = if stdout().is_terminal() { Glyphs::detect() } else { Glyphs::Unicode };
    Terminal { width: report::terminal_width(), color: report::use_color(), glyphs }
}
