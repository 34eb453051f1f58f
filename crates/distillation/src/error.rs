//! Errors of training.

use std::path::{Path, PathBuf};

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read or written.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A file was readable, but not what it should be.
    #[error("{path}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the mistake.
        message: String,
    },
    /// The recipe asks for something that can't be.
    #[error("recipe: {0}")]
    Recipe(String),
    /// The text is too short, or the tokenizer can't be trained on it.
    #[error("training text: {0}")]
    Text(String),
    /// The tokenizer failed.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// The loss or a gradient became NaN or infinite.
    #[error("training diverged at step {step}: {what} is {value}; try a lower learning rate or a longer warm-up")]
    Diverged {
        /// The optimizer step, counted from 1.
        step: usize,
        /// Name of the quantity.
        what: &'static str,
        /// Value of the quantity.
        value: f64,
    },
    /// A variable received no gradient.
    #[error("no gradient reaches '{0}'")]
    NoGradient(String),
    /// A weight became NaN or infinite, or doesn't fit into the type that is written.
    #[error("weight '{name}' has a value that {float} can't hold ({value})")]
    Weight {
        /// The tensor's name.
        name: String,
        /// The first offending value.
        value: f32,
        /// The type.
        float: schemes::FloatType,
    },
    /// A prompt that can't be continued.
    #[error("prompt: {0}")]
    Prompt(String),
    /// More memory than there is.
    #[error("{0}")]
    Memory(String),
    /// Settings that can't be read.
    #[error("{path}, line {line}: {message}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// Line of the mistake, counted from 1.
        line: usize,
        /// Description of the mistake.
        message: String,
    },
    /// Labels that can't be asked for.
    #[error("labels: {0}")]
    Labels(String),
    /// A student that can't be asked for, or not of this teacher.
    #[error("student: {0}")]
    Student(String),
    /// A training that can't be resumed.
    #[error("{path}: {message}")]
    Resume {
        /// The saved state.
        path: PathBuf,
        /// The reason, and the way out.
        message: String,
    },
    /// A model or another file couldn't be opened, read or written.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// A model couldn't be run.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// A tensor operation failed.
    #[error("tensor operation: {0}")]
    Tensor(#[from] candle_core::Error),
}

impl Error {
    /// Wraps an I/O error with the path that it is about.
    pub(crate) fn io(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_path_buf();
        move |source| Self::Io { path, source }
    }

    /// A file that isn't what it should be.
    pub(crate) fn malformed(path: &Path, message: impl std::fmt::Display) -> Self {
        Self::Malformed { path: path.to_path_buf(), message: message.to_string() }
    }
}

/// The result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;
