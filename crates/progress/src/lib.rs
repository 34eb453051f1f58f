//! Progress of long jobs: libraries report it, programs draw it.

/// Unit of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Bytes.
    Bytes,
    /// Things: tensors, questions.
    Items,
    /// Tokens.
    Tokens,
}

/// Receives the progress of a long job. One step runs at a time.
pub trait Progress: Send + Sync {
    /// A step begins; `total` is in `unit`, if known.
    fn start(&self, what: &str, total: Option<u64>, unit: Unit);
    /// So much more is done.
    fn advance(&self, n: u64);
    /// Names the thing that is being worked on.
    fn message(&self, text: &str);
    /// The step is over.
    fn finish(&self);
}

/// Draws nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {
    fn start(&self, _: &str, _: Option<u64>, _: Unit) {}
    fn advance(&self, _: u64) {}
    fn message(&self, _: &str) {}
    fn finish(&self) {}
}
