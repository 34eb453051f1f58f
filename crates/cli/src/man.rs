//! Shell completions and man pages, made from the definition of the options: `PROGRAM completions SHELL` and `PROGRAM man`.

use crate::program::{print_result, say};
use clap::{Arg, Command, Parser, ValueEnum};
use clap_complete::Shell;
use std::process::ExitCode;

/// The definition of a program's command line, as it is parsed and documented.
///
/// The value of an option may be a negative number: the option says what is wrong with it, instead of clap saying that
/// `-1` is an unknown option. Programs with commands list `completions` and `man` among them.
pub fn command<C: Parser>() -> Command {
    let command = with_negative_numbers(C::command());
    if command.has_subcommands() { command.subcommands(extra_commands()) } else { command }
}

/// Answers `completions SHELL` and `man`; returns nothing for every other request.
pub fn answer<C: Parser>(name: &str) -> Option<ExitCode> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let text = match given.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["man"] => man_page(command::<C>()).ok()?,
        ["completions", shell] => match Shell::from_str(shell, true) {
            Ok(shell) => completions(command::<C>(), name, shell),
            Err(_) => {
                say(name, &format!("no completions for '{shell}': bash, zsh, fish, elvish or powershell"));
                return Some(ExitCode::from(2));
            }
        },
        _ => return None,
    };
    Some(if print_result(&text).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn extra_commands() -> [Command; 2] {
    let shell = Arg::new("shell").value_name("SHELL").required(true).value_parser(clap::value_parser!(Shell));
    [
        Command::new("completions")
            .about("Print completions for a shell: bash, zsh, fish, elvish or powershell")
            .arg(shell),
        Command::new("man").about("Print the man page"),
    ]
}

fn with_negative_numbers(command: Command) -> Command {
    let takes_value = |arg: &Arg| arg.get_action().takes_values() && !arg.is_positional();
    command
        .mut_args(|arg| if takes_value(&arg) { arg.allow_negative_numbers(true) } else { arg })
        .mut_subcommands(with_negative_numbers)
}

fn completions(mut command: Command, name: &str, shell: Shell) -> String {
    let mut out = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut out);
    String::from_utf8_lossy(&out).into_owned()
}

/// One page in roff: the program's, then one for each of its commands.
fn man_page(mut command: Command) -> std::io::Result<String> {
    command.build();
    let mut out = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut out)?;
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        clap_mangen::Man::new(sub.clone()).render(&mut out)?;
    }
    Ok(String::from_utf8_lossy(&out).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Parser)]
    #[command(name = "tool")]
    enum Tool {
        /// Does something.
        Act {
            /// Number of times.
            #[arg(long)]
            times: u32,
        },
    }

    #[test]
    fn completions_and_man_pages_name_every_option() {
        let bash = completions(command::<Tool>(), "tool", Shell::Bash);
        assert!(bash.contains("--times") && bash.contains("completions"), "{bash}");
        let page = man_page(command::<Tool>()).expect("rendered");
        assert!(page.contains("Number of times") && page.contains("act"), "{page}");
    }
}
