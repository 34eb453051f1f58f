//! Errors that name file, tensor or key, and the way out.

use std::path::{Path, PathBuf};

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Errors of reading and writing model files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused.
    #[error("{path}: cannot {what}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Attempted operation: "read", "write", "create", "rename".
        what: &'static str,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a well-formed one of its kind.
    #[error("{path}: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Description of the mistake and its place (key, tensor, offset).
        what: String,
    },
    /// Well-formed, but not supported, by name.
    #[error("{path}: {what}")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Unsupported feature, and the supported ones.
        what: String,
    },
    /// A tensor is missing or has the wrong type or shape.
    #[error("{path}: tensor {tensor}: {what}")]
    Tensor {
        /// The file or directory.
        path: PathBuf,
        /// The tensor's name.
        tensor: String,
        /// Description of the mistake.
        what: String,
    },
    /// Output would overwrite input.
    #[error("{path}: output is the input {input}; choose another output")]
    SameFile {
        /// The output.
        path: PathBuf,
        /// The input that it is.
        input: PathBuf,
    },
    /// The destination exists.
    #[error("{path}: {what}: choose another output, or give --overwrite to replace what one of these programs wrote")]
    Exists {
        /// The output.
        path: PathBuf,
        /// Kind of file or folder at the destination.
        what: &'static str,
    },
    /// The destination holds what none of the programs wrote.
    #[error("{path}: {what}: not replaced; move it away or choose another output")]
    Foreign {
        /// The output, or the file in it.
        path: PathBuf,
        /// Kind of file or folder at the destination.
        what: String,
    },
    /// A folder that is never replaced.
    #[error("{path}: {what}: never replaced; name a folder inside it, or another one")]
    Protected {
        /// The output.
        path: PathBuf,
        /// Kind of the protected path.
        what: &'static str,
    },
    /// The disk is full.
    #[error(
        "{path}: the disk lacks room: {needed} bytes are needed, {free} are free; free some or choose another output"
    )]
    NoRoom {
        /// The output.
        path: PathBuf,
        /// Bytes to write.
        needed: u64,
        /// Bytes that are free.
        free: u64,
    },
}

impl Error {
    /// An [`Error::Io`].
    pub fn io(path: impl AsRef<Path>, what: &'static str, source: std::io::Error) -> Self {
        Error::Io { path: path.as_ref().into(), what, source }
    }

    /// An [`Error::Malformed`].
    pub fn malformed(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Malformed { path: path.as_ref().into(), what: what.into() }
    }

    /// An [`Error::Unsupported`].
    pub fn unsupported(path: impl AsRef<Path>, what: impl Into<String>) -> Self {
        Error::Unsupported { path: path.as_ref().into(), what: what.into() }
    }

    /// An [`Error::Tensor`].
    pub fn tensor(path: impl AsRef<Path>, tensor: impl Into<String>, what: impl Into<String>) -> Self {
        Error::Tensor { path: path.as_ref().into(), tensor: tensor.into(), what: what.into() }
    }
}
