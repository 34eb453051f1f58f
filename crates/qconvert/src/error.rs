//! Errors of planning and conversion.

use std::fmt::Write as _;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A weight that the requested scheme or layout cannot hold, and what can.
#[derive(Debug, Clone, PartialEq)]
pub struct Misfit {
    /// The weight.
    pub weight: String,
    /// Its shape, `[out, in]`.
    pub shape: Vec<usize>,
    /// Why not.
    pub why: String,
    /// Schemes and layouts that do fit.
    pub instead: String,
}

/// What can go wrong in a conversion.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing files.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// Calibration.
    #[error(transparent)]
    Calibration(#[from] observe::Error),
    /// Running the model for calibration.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// A codec refused a weight.
    #[error("{weight}: {source}")]
    Codec {
        /// The weight.
        weight: String,
        /// Why.
        source: schemes::Error,
    },
    /// The plan does not fit; found before any work.
    #[error("{}", describe(.0))]
    Misfits(Vec<Misfit>),
    /// The request itself makes no sense.
    #[error("{0}")]
    Request(String),
    /// The artifact does not decode to what was encoded.
    #[error("{weight}: the artifact decodes to {found} at row {row}, column {col}, where {expected} was encoded")]
    Verify {
        /// The weight.
        weight: String,
        /// Row.
        row: usize,
        /// Column.
        col: usize,
        /// The artifact's value.
        found: f32,
        /// The encoder's value.
        expected: f32,
    },
    /// An independent reader disagrees with ours about a written file.
    #[error("{path}: {what}")]
    CrossCheck {
        /// The file.
        path: std::path::PathBuf,
        /// The disagreement.
        what: String,
    },
}

fn describe(misfits: &[Misfit]) -> String {
    let mut text = String::new();
    for m in misfits.iter().take(3) {
        let _ = write!(text, "{} {:?}: {}; {}. ", m.weight, m.shape, m.why, m.instead);
    }
    if misfits.len() > 3 {
        let _ = write!(text, "({} more weights do not fit; --dry-run lists them)", misfits.len() - 3);
    }
    text.trim_end().to_string()
}
