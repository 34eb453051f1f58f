//! `qeval`: scores quantized artifacts against one reference, and measures serving.

mod args;
mod artifact;
mod bench;
mod builtin;
mod command_line;
mod compare;
mod comparison;
mod gate;
mod generate;
mod logits;
mod models;
mod perplexity;
mod request;
mod schedule;
#[cfg(test)]
mod schemas;
mod selftest;
mod speculate;
mod sweep;

use command_line::{Cli, Command};
use std::process::ExitCode;

/// The program's name, as it begins lines on standard error.
const NAME: &str = "qeval";

fn main() -> ExitCode {
    cli::run::<Cli>(NAME, |cli, progress| match &cli.command {
        Command::Compare(args) => compare::compare(args, progress),
        Command::Sweep(args) => sweep::sweep(args, progress),
        Command::Perplexity(args) => perplexity::perplexity(args, progress),
        Command::Generate(args) => generate::run(args),
        Command::Bench(args) => bench::run(args, progress),
        Command::Speculate(args) => speculate::run(args, progress),
        Command::Schedule(args) => schedule::run(args, progress),
        Command::Logits(args) => logits::logits(args),
        Command::Selftest(args) => selftest::run(args, progress),
    })
}

/// Prints the notes on a model's files on standard error, for commands whose results have no place for them.
fn say_notes(model: &str, files: &store::Model) {
    for note in &files.warnings {
        cli::say(NAME, &format!("{model}: note: {note}"));
    }
}
