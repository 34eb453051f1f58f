//! Errors of inspecting a model.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors, each one line that names file, tensor or option.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A model's files.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Listing or converting weights.
    #[error(transparent)]
    Convert(#[from] conversion::Error),
    /// Scoring.
    #[error(transparent)]
    Score(#[from] scoring::Error),
    /// Statistics.
    #[error(transparent)]
    Observe(#[from] observe::Error),
    /// A weight that has no statistics.
    #[error("{weight}: {source}")]
    Weight {
        /// Name of the weight.
        weight: String,
        /// Error of the codec.
        source: schemes::Error,
    },
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
    /// Options that make no sense, or not for this model.
    #[error("{0}")]
    Request(String),
    /// A model or a text that has not what is needed.
    #[error("{0}")]
    Model(String),
}

impl Error {
    /// An [`Error::Io`].
    pub fn io(path: impl AsRef<Path>, what: &'static str, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().into(), what, source }
    }
}
