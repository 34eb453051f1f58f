//! Exit codes: 0 success, 1 failure, 2 wrong usage, 3 a result that fails a gate (`qeval compare --fail-if`).

use std::process::ExitCode;

/// A mistake on the command line that clap can't see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The result of a command that ran to its end.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Text for standard output.
    pub text: String,
    /// Lines for standard error, such as rows that failed. Any line makes the exit code 1.
    pub problems: Vec<String>,
    /// Lines on gates that a result fails. Any line makes the exit code 3, where nothing else went wrong.
    pub failed_gates: Vec<String>,
    /// Error that the command found after it had made its text (a dry run's obstacle). It decides the exit code.
    pub error: Option<anyhow::Error>,
}

impl From<String> for Outcome {
    fn from(text: String) -> Self {
        Outcome { text, ..Outcome::default() }
    }
}

/// The exit code of an error: 2 where the request was wrong whatever the files hold, else 1.
pub fn code(e: &anyhow::Error) -> ExitCode {
    ExitCode::from(if is_usage(e) { 2 } else { 1 })
}

/// Returns whether an error is a mistake in the request. This is the one list of such errors, for all programs.
pub fn is_usage(e: &anyhow::Error) -> bool {
    e.is::<Usage>()
        || e.downcast_ref().is_some_and(runtime::Error::is_usage)
        || e.downcast_ref().is_some_and(is_conversion_usage)
        || e.downcast_ref().is_some_and(is_scoring_usage)
        || e.downcast_ref().is_some_and(is_inspection_usage)
        || e.downcast_ref().is_some_and(is_distillation_usage)
}

fn is_conversion_usage(e: &conversion::Error) -> bool {
    matches!(e, conversion::Error::Request(_))
}

fn is_scoring_usage(e: &scoring::Error) -> bool {
    match e {
        scoring::Error::Protocol(_) => true,
        scoring::Error::Device(e) => e.is_usage(),
        _ => false,
    }
}

fn is_inspection_usage(e: &inspection::Error) -> bool {
    match e {
        inspection::Error::Request(_) => true,
        inspection::Error::Score(e) => is_scoring_usage(e),
        _ => false,
    }
}

fn is_distillation_usage(e: &distillation::Error) -> bool {
    use distillation::Error::{Labels, Memory, Prompt, Recipe, Runtime, Student, Toml};
    match e {
        Recipe(_) | Student(_) | Labels(_) | Prompt(_) | Toml { .. } | Memory(_) => true,
        Runtime(e) => e.is_usage(),
        _ => false,
    }
}
