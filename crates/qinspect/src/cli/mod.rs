//! The program: arguments in, findings, one report.

mod activations;
mod activations_page;
pub mod args;
mod diff;
mod layers;
mod memory;
mod output;
mod tensors;
mod texts;
mod weights;
mod weights_page;

use crate::Error;
use args::{Cli, Command};
use report::progress::Bars;
use std::io::{self, Write};
use std::process::ExitCode;

/// A mistake on the command line that clap can't see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// Runs the program: exit code 0 when all went well, 1 on failure, 2 on wrong usage.
pub fn main() -> ExitCode {
    let cli = match report::arguments::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let progress = Bars::new();
    let outcome = runtime::instruction_set().map_err(Into::into).and_then(|_| match &cli.command {
        Command::Tensors(args) => tensors::run(args),
        Command::Weights(args) => weights::run(args, &progress),
        Command::Activations(args) => activations::run(args, &progress),
        Command::Layers(args) => layers::run(args, &progress),
        Command::Memory(args) => memory::run(args),
        Command::Diff(args) => diff::run(args, &progress),
    });
    progress.finish();
    match outcome {
        Ok(text) => print(&text),
        Err(e) => fail(&e),
    }
}

fn print(text: &str) -> ExitCode {
    match report::print_result(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => fail(&anyhow::Error::from(e).context("cannot print the result")),
    }
}

fn fail(e: &anyhow::Error) -> ExitCode {
    // There is nowhere else to report that standard error is closed.
    let _ = writeln!(io::stderr(), "qinspect: {}", report::error_line(e.as_ref()));
    let protocol = |e: &qeval::Error| matches!(e, qeval::Error::Protocol(_));
    let request = match e.downcast_ref::<Error>() {
        Some(Error::Request(_)) => true,
        Some(Error::Score(e)) => protocol(e),
        _ => e.downcast_ref().is_some_and(protocol) || e.downcast_ref().is_some_and(runtime::Error::is_usage),
    };
    ExitCode::from(if request || e.is::<Usage>() { 2 } else { 1 })
}
