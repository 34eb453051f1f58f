//! `qeval`: scores quantized artifacts against one reference.

use std::process::ExitCode;

fn main() -> ExitCode {
    qeval::cli::main()
}
