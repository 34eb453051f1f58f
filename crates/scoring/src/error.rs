//! Errors that say what is wrong and the way out.

use crate::score::Problem;
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of scoring.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model's files.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Running a model.
    #[error("{}", of_model(model, source))]
    Runtime {
        /// The model.
        model: String,
        /// Error of the runtime.
        source: runtime::Error,
    },
    /// A GPU that can't be used.
    #[error(transparent)]
    Device(runtime::Error),
    /// A file of this run.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Attempted operation, such as `read`.
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line of a battery or of choices.
    #[error("{path}:{line}: {what}")]
    Line {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// Description of the mistake.
        what: String,
    },
    /// A text with nothing to score.
    #[error("{0}")]
    Text(String),
    /// A protocol that makes no sense, or doesn't suit the model.
    #[error("{0}")]
    Protocol(String),
    /// The tokenizer refuses a text.
    #[error("{model}: the tokenizer refuses the text: {what}")]
    Tokenizer {
        /// The model.
        model: String,
        /// Message of the tokenizer.
        what: String,
    },
    /// A model's scores break off.
    #[error("{model}: {problem}; there is no score")]
    Scores {
        /// The model.
        model: String,
        /// Position and kind of the problem.
        problem: Problem,
    },
    /// The reference can't be scored: nothing can be compared with it.
    #[error("the reference {model}: {problem}; nothing can be compared with it")]
    Reference {
        /// The model.
        model: String,
        /// Position and kind of the problem.
        problem: String,
    },
    /// A model that can't be run on these tokens.
    #[error("{0}")]
    Model(String),
}

/// Formats a runtime error with the model's name, unless the error (of a file) names the model already.
fn of_model(model: &str, source: &runtime::Error) -> String {
    let what = source.to_string();
    let named = what.strip_prefix(model).is_some_and(|rest| rest.starts_with([':', '/']));
    if named { what } else { format!("{model}: {what}") }
}

impl Error {
    /// An [`Error::Io`].
    pub fn io(path: impl AsRef<Path>, what: &'static str, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().into(), what, source }
    }

    /// Adds the text's name to a problem with its scores.
    pub(crate) fn in_corpus(self, name: &str) -> Self {
        match self {
            Error::Scores { model, problem } => {
                Error::Scores { model, problem: Problem { corpus: Some(name.into()), ..problem } }
            }
            other => other,
        }
    }

    /// Marks a problem as one of the reference, without which nothing can be compared.
    pub(crate) fn of_reference(self, name: &str) -> Self {
        let problem = match self {
            Error::Scores { problem, .. } => problem.to_string(),
            Error::Model(what) => what,
            other => return other,
        };
        Error::Reference { model: name.into(), problem }
    }
}

/// A model that couldn't be opened or run, where the others stand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Failed {
    /// Path of the model.
    pub model: String,
    /// Reason, on one line.
    pub error: String,
}

impl Failed {
    /// This model, because of `error`.
    pub fn new(path: &Path, error: &(dyn std::error::Error + 'static)) -> Self {
        Failed { model: path.display().to_string(), error: report::error_line(error) }
    }
}

impl fmt::Display for Failed {
    /// One line that names the model once: an error in a file does itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.error.starts_with(&self.model) {
            f.write_str(&self.error)
        } else {
            write!(f, "{}: {}", self.model, self.error)
        }
    }
}
