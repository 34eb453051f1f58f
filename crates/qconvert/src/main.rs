//! `qconvert`: turns a checkpoint into quantized artifacts.

use std::process::ExitCode;

fn main() -> ExitCode {
    report::tidy_when_interrupted("qconvert");
    qconvert::cli::main()
}
