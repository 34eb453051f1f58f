//! Where a program meets who runs it: its arguments, what standard output and standard error are
//! drawn on, and what an error says there.

use crate::spark::Glyphs;
use crate::table::Terminal;
use std::error::Error;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// The form that a table takes on standard output.
pub fn stdout_form() -> Terminal {
    // A file is read elsewhere: its characters don't depend on this terminal's.
    let glyphs = if std::io::stdout().is_terminal() { Glyphs::detect() } else { Glyphs::Unicode };
    Terminal { width: terminal_width(), color: use_color(), glyphs }
}

/// A program's arguments; else what they come to: 0 after help was asked for and printed, 2 for
/// wrong usage.
///
/// # Errors
/// The exit code.
pub fn arguments<C: clap::Parser>() -> Result<C, ExitCode> {
    let parse = || C::from_arg_matches(&with_negative_numbers(C::command()).try_get_matches()?);
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

/// The value of an option may be a negative number: what is wrong with it is for the option to say, not that `-1` is an
/// unknown option.
fn with_negative_numbers(command: clap::Command) -> clap::Command {
    let takes_value = |arg: &clap::Arg| arg.get_action().takes_values() && !arg.is_positional();
    command
        .mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
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

/// An error with its causes on one line, each said once: many an error names its cause itself.
pub fn error_line(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(e) = next {
        let cause = without_backtrace(&e.to_string());
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
        next = e.source();
    }
    crate::format::printable(&text)
}

/// What stands before the backtrace that some libraries put into their errors.
fn without_backtrace(text: &str) -> String {
    let is_frame = |line: &&str| line.trim_start().starts_with("0: ");
    text.lines().take_while(|line| !is_frame(line)).collect::<Vec<_>>().join("\n")
}

/// Columns of standard output: the terminal's, or 160 where it is none, so that a table in a
/// file is not cut up.
fn terminal_width() -> usize {
    terminal_size::terminal_size().map_or(160, |(width, _)| usize::from(width.0))
}

/// Whether to colour: a terminal, and `NO_COLOR` not set (no-color.org).
fn use_color() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backtrace_is_no_part_of_an_error() {
        let error =
            std::io::Error::other("a sum of [2] and [3]\n   0: candle_core::error::Error::bt\n             at x.rs:3");
        assert_eq!(error_line(&error), "a sum of [2] and [3]");
        assert_eq!(error_line(&std::io::Error::other("plain")), "plain");
    }
}
