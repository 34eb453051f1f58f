//! Errors that stop a rendering.

/// Errors of rendering.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The template is malformed, or does what Python and jinja2 refuse.
    #[error("line {line}: {what}")]
    Template {
        /// Line of the template, from 1.
        line: usize,
        /// The refusal.
        what: String,
    },
    /// The template called `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// A bound on steps, memory, depth or size.
    #[error("line {line}: {what}")]
    Limit {
        /// Line of the template, from 1.
        line: usize,
        /// The bound.
        what: String,
    },
}

impl Error {
    pub(crate) fn at(line: usize, what: impl Into<String>) -> Self {
        Error::Template { line, what: what.into() }
    }

    /// A refusal whose line is not known yet.
    pub(crate) fn new(what: impl Into<String>) -> Self {
        Error::at(0, what)
    }

    pub(crate) fn limit(what: impl Into<String>) -> Self {
        Error::Limit { line: 0, what: what.into() }
    }

    /// Adds the line `in_line`, if the error has none.
    pub(crate) fn in_line(self, in_line: usize) -> Self {
        match self {
            Error::Template { line: 0, what } => Error::Template { line: in_line, what },
            Error::Limit { line: 0, what } => Error::Limit { line: in_line, what },
            other => other,
        }
    }
}

/// A result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
