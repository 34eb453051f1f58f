//! Plans and artifacts as `--json` prints them.

use crate::render::{Dry, Summary, summary};
use conversion::{Made, Plan, Source};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Result of qconvert: the artifacts that were made, or with `--dry-run` the plans.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Converted {
    /// The converted model.
    source: PathBuf,
    /// The artifacts.
    #[serde(skip_serializing_if = "Option::is_none")]
    artifacts: Option<Vec<Artifact>>,
    /// The plans of a dry run.
    #[serde(skip_serializing_if = "Option::is_none")]
    plans: Option<Vec<Planned>>,
    /// Warnings about the source.
    warnings: Vec<String>,
}

/// An artifact.
#[derive(Debug, Serialize, JsonSchema)]
struct Artifact {
    /// Scheme or mixture; of a mixed artifact all its schemes, joined by `+`.
    scheme: String,
    /// Number of weights in each scheme.
    schemes: BTreeMap<String, usize>,
    /// The file or folder.
    path: PathBuf,
    /// Bytes of the weight files.
    bytes: u64,
    /// Bits for each quantized weight in the scheme's own count: codes and scales.
    bpw: Option<f64>,
    /// Bits for each quantized weight as stored in this layout.
    stored_bpw: Option<f64>,
    /// Number of quantized weights.
    quantized_weights: usize,
    /// Error of the quantized weights.
    relative_error: Option<Summary>,
    /// Error of weights that were rounded to another float type.
    rounding_error: Option<Summary>,
    /// Number of clamped values by weight.
    clamped: BTreeMap<String, u64>,
    /// Number of quantized weights in each layout.
    layouts: BTreeMap<String, usize>,
    /// Things that a user should know.
    notes: Vec<String>,
    /// True if the artifact was read again and compared with its source.
    verified: bool,
}

/// An artifact that would be written.
#[derive(Debug, Serialize, JsonSchema)]
struct Planned {
    /// Scheme or mixture; of a mixed artifact all its schemes, joined by `+`.
    scheme: String,
    /// Number of weights in each scheme.
    schemes: BTreeMap<String, usize>,
    /// Bytes of all tensors.
    tensor_bytes: u64,
    /// Bits for each quantized weight in the scheme's own count: codes and scales.
    bpw: Option<f64>,
    /// Bits for each quantized weight as stored in this layout.
    stored_bpw: Option<f64>,
    /// True if sizes are lower bounds, since the outlier columns are not known without activation statistics.
    sizes_are_least: bool,
    /// True if activation statistics are needed, and none are given.
    needs_calibration: bool,
    /// The weights, in order.
    weights: Vec<PlannedWeight>,
    /// Weights that don't fit: with any, nothing would be written.
    misfits: Vec<Misfit>,
    /// Things that a user should know.
    notes: Vec<String>,
}

/// Plan for a weight.
#[derive(Debug, Serialize, JsonSchema)]
struct PlannedWeight {
    /// Name in the source.
    weight: String,
    /// Its sides.
    shape: Vec<usize>,
    /// Scheme; none if it stays as it is.
    scheme: Option<String>,
    /// Layout of its tensors.
    layout: String,
    /// Bytes of its tensors.
    bytes: u64,
}

/// A weight that doesn't fit.
#[derive(Debug, Serialize, JsonSchema)]
struct Misfit {
    /// Name in the source.
    weight: String,
    /// Its sides.
    shape: Vec<usize>,
    /// The reason.
    why: String,
    /// The way out.
    instead: String,
}

/// The artifacts made.
pub fn made(source: &Source<'_>, made: &[Made]) -> Converted {
    let artifact = |m: &Made| {
        let bits = m.plan.bits_per_weight(source);
        Artifact {
            scheme: m.plan.label.clone(),
            schemes: schemes(&m.plan),
            path: m.path.clone(),
            bytes: m.bytes,
            bpw: bits.map(|b| b.0),
            stored_bpw: bits.map(|b| b.1),
            quantized_weights: m.losses.quantized.len(),
            relative_error: summary(&m.losses.quantized),
            rounding_error: summary(&m.losses.rounded),
            clamped: m.losses.clamped.iter().map(|(name, n)| (name.clone(), *n)).collect(),
            layouts: m.plan.layouts().into_iter().map(|(layout, n)| (layout.to_string(), n)).collect(),
            notes: m.plan.notes.clone(),
            verified: m.verified,
        }
    };
    Converted { artifacts: Some(made.iter().map(artifact).collect()), ..nothing(source) }
}

/// The plans of a dry run.
pub fn planned(source: &Source<'_>, rows: &[Dry<'_>]) -> Converted {
    Converted { plans: Some(rows.iter().map(|row| plan(source, row)).collect()), ..nothing(source) }
}

fn nothing(source: &Source<'_>) -> Converted {
    Converted { source: source.model.path.clone(), artifacts: None, plans: None, warnings: source.warnings.clone() }
}

fn plan(source: &Source<'_>, row: &Dry<'_>) -> Planned {
    let p = row.plan;
    let weights = p.weights.iter().map(|w| PlannedWeight {
        weight: source.weights[w.index].name.clone(),
        shape: source.weights[w.index].shape.clone(),
        scheme: w.scheme.map(|s| s.to_string()),
        layout: w.laid.layout.to_string(),
        bytes: w.laid.tensors.iter().map(|t| t.bytes).sum(),
    });
    let misfits = p.misfits.iter().map(|m| Misfit {
        weight: m.weight.clone(),
        shape: m.shape.clone(),
        why: m.why.clone(),
        instead: m.instead.clone(),
    });
    let bits = p.bits_per_weight(source);
    Planned {
        scheme: p.label.clone(),
        schemes: schemes(p),
        tensor_bytes: p.data_bytes(),
        bpw: bits.map(|b| b.0),
        stored_bpw: bits.map(|b| b.1),
        sizes_are_least: row.is_least(),
        needs_calibration: row.needs_calibration,
        weights: weights.collect(),
        misfits: misfits.collect(),
        notes: p.notes.clone(),
    }
}

/// Number of weights in each scheme.
fn schemes(plan: &Plan) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for scheme in plan.weights.iter().filter_map(|w| w.scheme) {
        *counts.entry(scheme.to_string()).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_schema_is_that_of_the_result() {
        assert_eq!(cli::schema::check_published::<Converted>("qconvert"), Ok(()));
    }
}
