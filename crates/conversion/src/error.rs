//! Errors of planning and conversion.

use crate::wording::first_names;
use std::fmt::Write as _;

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A weight that the requested scheme or layout cannot hold, and what can.
#[derive(Debug, Clone, PartialEq)]
pub struct Misfit {
    /// The weight.
    pub weight: String,
    /// Shape of the weight, `[out, in]`.
    pub shape: Vec<usize>,
    /// The reason.
    pub why: String,
    /// Schemes and layouts that do fit.
    pub instead: String,
}

/// Errors of a conversion.
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
        /// The reason.
        source: schemes::Error,
    },
    /// The plan does not fit; found before any work.
    #[error("{}", describe(.0))]
    Misfits(Vec<Misfit>),
    /// One directory would need two quantization methods: each with its weights.
    #[error("{}", describe_methods(.0))]
    Methods(Vec<(String, Vec<String>)>),
    /// A weight holds a NaN or an infinity, whether it would be quantized or not.
    #[error("{file}: tensor {weight}: {value} at {}: only finite weights are converted", describe_index(.index))]
    NotFinite {
        /// The file.
        file: std::path::PathBuf,
        /// The weight.
        weight: String,
        /// Index in each dimension.
        index: Vec<usize>,
        /// The value.
        value: f32,
    },
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
    /// A finished artifact is not what it should be; nothing was put in place.
    #[error("{path}: failed verification, and what was there is left as it was: {source}")]
    Unverified {
        /// Destination of the artifact.
        path: std::path::PathBuf,
        /// Difference that was found.
        source: Box<Error>,
    },
    /// Something of a written file but its weights is not as it was to be: metadata, a file that
    /// travels along, or what an independent reader sees.
    #[error("{path}: {what}")]
    CrossCheck {
        /// The file.
        path: std::path::PathBuf,
        /// The disagreement.
        what: String,
    },
}

fn describe_index(index: &[usize]) -> String {
    match index {
        [row, col] => format!("row {row}, column {col}"),
        [i] => format!("index {i}"),
        other => format!("index {other:?}"),
    }
}

fn describe_methods(methods: &[(String, Vec<String>)]) -> String {
    let each: Vec<String> =
        methods.iter().map(|(m, weights)| format!("{m} for {} ({})", weights.len(), first_names(weights))).collect();
    format!(
        "the weights need {} quantization methods, and config.json names one: {}; use --layout packed, which holds all of them",
        methods.len(),
        each.join(", ")
    )
}

/// Misfits with the same reason in one sentence, which names the first two weights.
fn describe(misfits: &[Misfit]) -> String {
    let mut reasons: Vec<(&str, &str, Vec<String>)> = Vec::new();
    for m in misfits {
        let name = format!("{} {:?}", m.weight, m.shape);
        match reasons.iter_mut().find(|(why, instead, _)| (*why, *instead) == (m.why.as_str(), m.instead.as_str())) {
            Some((_, _, names)) => names.push(name),
            None => reasons.push((&m.why, &m.instead, vec![name])),
        }
    }
    let mut text = String::new();
    for (why, instead, names) in reasons.iter().take(3) {
        let count = if names.len() > 1 { format!(" ({} weights)", names.len()) } else { String::new() };
        let _ = write!(text, "{}{count}: {why}; {instead}. ", first_names(names));
    }
    let named: usize = reasons.iter().take(3).map(|(_, _, names)| names.len()).sum();
    if misfits.len() > named {
        let _ = write!(text, "({} more weights do not fit; --dry-run lists them)", misfits.len() - named);
    }
    text.trim_end().to_string()
}
