//! `qinspect`: why a model is hard to quantize.

use std::process::ExitCode;

fn main() -> ExitCode {
    report::tidy_when_interrupted("qinspect");
    qinspect::cli::main()
}
