//! `main` of a program.

use crate::bars::Bars;
use crate::exit::{Outcome, code};
use crate::{HasCommon, interrupt, man};
use anyhow::Result;
use clap::Parser;
use std::io::{self, Write};
use std::process::ExitCode;

/// Runs a program: reads its arguments as `C`, calls `command`, prints the outcome, and returns the exit code.
///
/// `name` is the program's name, which begins every line on standard error.
pub fn run<C: Parser + HasCommon>(name: &'static str, command: impl FnOnce(&C, &Bars) -> Result<Outcome>) -> ExitCode {
    interrupt::tidy_when_interrupted(name);
    if let Some(code) = man::answer::<C>(name) {
        return code;
    }
    let arguments = match arguments::<C>() {
        Ok(arguments) => arguments,
        Err(code) => return code,
    };
    let common = arguments.common();
    let bars = if common.quiet { Bars::hidden() } else { Bars::new(name) };
    if let Err(e) = common.apply() {
        return fail(name, &e);
    }
    // An instruction set that QEVAL_ISA asks for in vain is said before any work.
    let outcome = runtime::instruction_set().map_err(Into::into).and_then(|_| command(&arguments, &bars));
    bars.finish();
    match outcome {
        Ok(outcome) => print(name, outcome),
        Err(e) => fail(name, &e),
    }
}

/// Prints one line on standard error, after the program's name.
pub fn say(name: &str, line: &str) {
    // A closed standard error leaves no other place to report to.
    let _ = writeln!(io::stderr(), "{name}: {}", report::format::printable(line));
}

fn print(name: &str, outcome: Outcome) -> ExitCode {
    if let Err(e) = print_result(&outcome.text) {
        return fail(name, &anyhow::Error::from(e).context("cannot print the result"));
    }
    for line in outcome.problems.iter().chain(&outcome.failed_gates) {
        say(name, line);
    }
    match outcome.error {
        Some(e) => fail(name, &e),
        None if !outcome.problems.is_empty() => ExitCode::FAILURE,
        None if !outcome.failed_gates.is_empty() => ExitCode::from(3),
        None => ExitCode::SUCCESS,
    }
}

fn fail(name: &str, e: &anyhow::Error) -> ExitCode {
    say(name, &report::error_line(e.as_ref()));
    code(e)
}

/// Reads a program's arguments; otherwise returns the exit code: 0 after `--help` or `--version` was printed, 2 for wrong
/// usage.
fn arguments<C: Parser>() -> Result<C, ExitCode> {
    let parse = || C::from_arg_matches(&man::command::<C>().try_get_matches()?);
    parse().map_err(|e: clap::Error| {
        // A closed pipe while printing help is no failure.
        let _ = match e.kind() {
            // The value and what is wrong with it, without the hint at --help that follows.
            clap::error::ErrorKind::ValueValidation => {
                let text = e.render().to_string();
                writeln!(io::stderr(), "{}", text.lines().next().unwrap_or_default())
            }
            _ => e.print(),
        };
        ExitCode::from(if e.use_stderr() { 2 } else { 0 })
    })
}

/// Prints a program's result. A reader that has gone away (a closed pipe) is no failure.
///
/// # Errors
/// When standard output can't be written.
pub fn print_result(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_cause_is_said_once() {
        let cause = std::io::Error::new(std::io::ErrorKind::NotFound, "not there");
        let e = anyhow::Error::from(scoring::Error::io("a.txt", "read", cause)).context("scoring");
        assert_eq!(report::error_line(e.as_ref()), "scoring: a.txt: cannot read: not there");
    }
}
