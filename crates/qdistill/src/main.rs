//! `qdistill`: trains small models.

mod cli;
mod progress;

use std::process::ExitCode;

fn main() -> ExitCode {
    report::tidy_when_interrupted("qdistill");
    cli::main()
}
