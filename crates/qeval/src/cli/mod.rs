//! The program: arguments in, scores, one report.

pub mod args;
mod bench;
mod builtin;
mod generate;
mod legend;
mod logits;
mod open;
mod output;
mod page;
mod run;
mod schedule;
mod selftest;
mod speculate;
mod sweep;
mod table;

use crate::Error;
use args::{Cli, Command};
use report::progress::Bars;
use std::io::{self, Write};
use std::process::ExitCode;

/// A mistake on the command line that clap can't see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// What a run comes to.
struct Outcome {
    /// For standard output.
    text: String,
    /// Lines for standard error; any makes the exit code 1.
    problems: Vec<String>,
}

/// Runs the program: exit code 0 when all went well, 1 on failure, 2 on wrong usage.
pub fn main() -> ExitCode {
    let cli = match report::arguments::<Cli>() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let progress = Bars::new();
    let outcome = runtime::instruction_set().map_err(Into::into).and_then(|_| match &cli.command {
        Command::Compare(args) => run::compare(args, &progress),
        Command::Sweep(args) => sweep::sweep(args, &progress),
        Command::Perplexity(args) => run::perplexity(args, &progress),
        Command::Generate(args) => generate::run(args),
        Command::Bench(args) => bench::run(args, &progress),
        Command::Speculate(args) => speculate::run(args, &progress),
        Command::Schedule(args) => schedule::run(args, &progress),
        Command::Logits(args) => logits::logits(args),
        Command::Selftest(args) => selftest::run(args, &progress),
    });
    progress.finish();
    match outcome {
        Ok(outcome) => print(&outcome),
        Err(e) => fail(&e),
    }
}

fn print(outcome: &Outcome) -> ExitCode {
    if let Err(e) = report::print_result(&outcome.text) {
        return fail(&anyhow::Error::from(e).context("cannot print the result"));
    }
    for problem in &outcome.problems {
        say(problem);
    }
    if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn fail(e: &anyhow::Error) -> ExitCode {
    say(&report::error_line(e.as_ref()));
    let usage = e.is::<Usage>()
        || matches!(e.downcast_ref::<Error>(), Some(Error::Protocol(_)))
        || e.downcast_ref().is_some_and(runtime::Error::is_usage);
    ExitCode::from(if usage { 2 } else { 1 })
}

/// One line on standard error.
fn say(line: &str) {
    // There is nowhere else to report that standard error is closed.
    let _ = writeln!(io::stderr(), "qeval: {}", report::format::printable(line));
}

/// Notes on a model's files on standard error, for the commands whose results have no place for them.
fn say_notes(model: &str, files: &store::Model) {
    for note in &files.warnings {
        say(&format!("{model}: note: {note}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cause_is_said_once() {
        let cause = io::Error::new(io::ErrorKind::NotFound, "not there");
        let e = anyhow::Error::from(Error::io("a.txt", "read", cause)).context("scoring");
        assert_eq!(report::error_line(e.as_ref()), "scoring: a.txt: cannot read: not there");
    }
}
