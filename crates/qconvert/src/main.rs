//! `qconvert`: turns a checkpoint into quantized artifacts.

use std::process::ExitCode;

fn main() -> ExitCode {
    qconvert::cli::main()
}
