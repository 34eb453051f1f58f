//! `qeval`: scores quantized artifacts against one reference.

use std::process::ExitCode;

fn main() -> ExitCode {
    report::tidy_when_interrupted("qeval");
    qeval::cli::main()
}
