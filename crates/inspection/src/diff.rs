//! Differences between two models: weights, one by one, whatever their layouts; configuration and metadata.

use crate::metadata::{self, Entry};
use crate::{Result, place};
use conversion::{Source, Values, Weight};
use indexmap::IndexMap;
use progress::{Progress, Unit};
use rayon::prelude::*;
use schemars::JsonSchema;
use schemes::measure::WeightError;
use serde::Serialize;
use serde_json::Value;
use std::path::Path;
use store::Model;

/// Result of comparing a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// Every value is the same.
    Same,
    /// Some values differ.
    Changed,
    /// The shapes differ: there is nothing to compare.
    Reshaped,
    /// Only the first model has it.
    OnlyInA,
    /// Only the second model has it.
    OnlyInB,
    /// The tensor has no float values and was not compared.
    NotCompared,
}

/// One weight of both models.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Compared {
    /// Hugging Face name of the tensor.
    pub name: String,
    /// The block that it lies in.
    pub block: Option<usize>,
    /// Result of the comparison.
    pub status: Status,
    /// Shape in the first model.
    pub shape_a: Option<Vec<usize>>,
    /// Shape in the second model.
    pub shape_b: Option<Vec<usize>>,
    /// Type or scheme in the first model.
    pub type_a: Option<String>,
    /// Type or scheme in the second model.
    pub type_b: Option<String>,
    /// |A - B| / |A|.
    pub error: Option<f64>,
    /// The largest |a - b|.
    pub max_error: Option<f64>,
    /// Row and column where that is; of a vector, 0 and the index.
    pub max_at: Option<(usize, usize)>,
    /// Sums for the error of many.
    #[serde(skip)]
    sums: WeightError,
}

/// A key whose values differ.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Change {
    /// The key; of config.json the path.
    pub key: String,
    /// The value in the first model.
    pub a: Option<String>,
    /// The value in the second.
    pub b: Option<String>,
}

/// Differences between two models.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Diff {
    /// The first model.
    pub a: String,
    /// The second model.
    pub b: String,
    /// The weights, in the first model's order; those that only the second has come last.
    pub tensors: Vec<Compared>,
    /// Mean relative error over the matrices of the blocks that both have.
    pub mean_error: Option<f64>,
    /// Relative error of all weights that both have.
    pub pooled_error: Option<f64>,
    /// Differences of config.json.
    pub config: Vec<Change>,
    /// Differences of the metadata.
    pub metadata: Vec<Change>,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

impl Diff {
    /// Returns whether the models differ in a tensor, the configuration or the metadata. Tensors that were not compared
    /// don't count.
    pub fn differs(&self) -> bool {
        let is_other = |t: &Compared| !matches!(t.status, Status::Same | Status::NotCompared);
        self.tensors.iter().any(is_other) || !self.config.is_empty() || !self.metadata.is_empty()
    }

    /// Counts the tensors with this result.
    pub fn count(&self, status: Status) -> usize {
        self.tensors.iter().filter(|t| t.status == status).count()
    }
}

/// Compares two models.
///
/// # Errors
/// When one can't be opened.
pub fn compare(a: &Path, b: &Path, progress: &dyn Progress) -> Result<Diff> {
    let (model_a, model_b) = (store::open(a)?, store::open(b)?);
    let (source_a, source_b) = (Source::new(&model_a)?, Source::new(&model_b)?);
    let by_name: IndexMap<&str, &Weight> = source_b.weights.iter().map(|w| (w.name.as_str(), w)).collect();
    let pairs: Vec<(&Weight, Option<&Weight>)> =
        source_a.weights.iter().map(|w| (w, by_name.get(w.name.as_str()).copied())).collect();
    let (sides_a, sides_b) = (Side::new(&model_a), Side::new(&model_b));
    progress.start("comparing", Some(pairs.len() as u64), Unit::Items);
    let mut tensors: Vec<Compared> = pairs
        .par_iter()
        .with_max_len(1)
        .map(|(wa, wb)| {
            let found = match wb {
                Some(wb) => both(&sides_a, wa, &sides_b, wb),
                None => Ok(alone(&sides_a, wa, Status::OnlyInA)),
            };
            progress.advance(1);
            found
        })
        .collect::<Result<_>>()?;
    progress.finish();
    let in_a: IndexMap<&str, ()> = source_a.weights.iter().map(|w| (w.name.as_str(), ())).collect();
    let only_b = source_b.weights.iter().filter(|w| !in_a.contains_key(w.name.as_str()));
    tensors.extend(only_b.map(|w| alone(&sides_b, w, Status::OnlyInB)));
    let mut pooled = WeightError::default();
    tensors.iter().for_each(|t| pooled.merge(&t.sums));
    let projections = source_a.weights.iter().zip(&tensors).filter(|(weight, _)| weight.is_block_projection());
    let errors: Vec<f64> = projections.filter_map(|(_, t)| t.error).collect();
    let compared = tensors.iter().any(|t| t.error.is_some());
    Ok(Diff {
        a: a.display().to_string(),
        b: b.display().to_string(),
        mean_error: (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64),
        pooled_error: compared.then(|| pooled.relative()),
        config: config_changes(&model_a, &model_b),
        metadata: metadata_changes(&metadata::entries(&model_a)?, &metadata::entries(&model_b)?),
        notes: notes(&source_a, &source_b),
        tensors,
    })
}

fn notes(a: &Source<'_>, b: &Source<'_>) -> Vec<String> {
    let named = |source: &Source<'_>| {
        let path = source.model.path.display().to_string();
        source.warnings.iter().map(move |warning| format!("{path}: {warning}")).collect::<Vec<_>>()
    };
    named(a).into_iter().chain(named(b)).collect()
}

/// A model and what its layers are said to be.
struct Side<'a> {
    model: &'a Model,
    schemes: IndexMap<String, String>,
}

impl<'a> Side<'a> {
    fn new(model: &'a Model) -> Self {
        Side { model, schemes: model.declared_schemes() }
    }

    fn type_of(&self, weight: &Weight) -> Option<String> {
        let declared = || self.schemes.get(weight.module()).cloned();
        match &weight.values {
            Values::Tensor(tensor) => Some(tensor.dtype.to_string()),
            Values::Matrix(_) => declared().or_else(|| weight.float.map(|ty| ty.to_string())),
        }
    }
}

fn alone(side: &Side<'_>, weight: &Weight, status: Status) -> Compared {
    let (shape, ty) = (Some(weight.shape.clone()), side.type_of(weight));
    let is_a = status == Status::OnlyInA;
    let (shape_a, shape_b) = if is_a { (shape, None) } else { (None, shape) };
    let (type_a, type_b) = if is_a { (ty, None) } else { (None, ty) };
    Compared {
        name: weight.name.clone(),
        block: place::block(&weight.name),
        status,
        shape_a,
        shape_b,
        type_a,
        type_b,
        error: None,
        max_error: None,
        max_at: None,
        sums: WeightError::default(),
    }
}

fn both(side_a: &Side<'_>, a: &Weight, side_b: &Side<'_>, b: &Weight) -> Result<Compared> {
    let mut found = alone(side_a, a, Status::OnlyInA);
    (found.shape_b, found.type_b) = (Some(b.shape.clone()), side_b.type_of(b));
    if a.shape != b.shape {
        found.status = Status::Reshaped;
        return Ok(found);
    }
    let mut differences = Differences::default();
    match (&a.values, &b.values) {
        (Values::Matrix(x), Values::Matrix(y)) => {
            let (mut p, mut q) = (vec![0f32; x.cols()], vec![0f32; x.cols()]);
            for row in 0..x.rows() {
                x.decode_row(row, &mut p);
                y.decode_row(row, &mut q);
                differences.add(row, &p, &q);
            }
            a.release();
            b.release();
        }
        _ => match (side_a.model.dense(&a.name), side_b.model.dense(&b.name)) {
            (Ok(Some(p)), Ok(Some(q))) => differences.add(0, &p, &q),
            _ => {
                found.status = Status::NotCompared;
                return Ok(found);
            }
        },
    }
    found.status = if differences.changed { Status::Changed } else { Status::Same };
    found.error = Some(differences.sums.relative());
    found.max_error = Some(f64::from(differences.max));
    found.max_at = differences.changed.then_some(differences.at);
    found.sums = differences.sums;
    Ok(found)
}

/// Differences of two runs of values.
#[derive(Debug, Default)]
struct Differences {
    sums: WeightError,
    changed: bool,
    max: f32,
    at: (usize, usize),
}

impl Differences {
    fn add(&mut self, row: usize, a: &[f32], b: &[f32]) {
        self.sums.add(a, b);
        let same = |(x, y): (&f32, &f32)| x == y || (x.is_nan() && y.is_nan());
        if a.iter().zip(b).all(same) {
            return;
        }
        self.changed = true;
        for (col, (x, y)) in a.iter().zip(b).enumerate() {
            let difference = (x - y).abs();
            if difference > self.max || (difference.is_nan() && !self.max.is_nan()) {
                (self.max, self.at) = (difference, (row, col));
            }
        }
    }
}

/// Lists the differences of two configurations, by path.
fn config_changes(a: &Model, b: &Model) -> Vec<Change> {
    let flat = |model: &Model| {
        let mut out = IndexMap::new();
        if let Some(json) = &model.config_json {
            flatten("", json, &mut out);
        }
        out
    };
    changes(flat(a), flat(b))
}

fn flatten(path: &str, value: &Value, out: &mut IndexMap<String, String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                flatten(&path, value, out);
            }
        }
        other => drop(out.insert(path.to_string(), other.to_string())),
    }
}

fn metadata_changes(a: &[Entry], b: &[Entry]) -> Vec<Change> {
    // Long arrays are shown by their beginning, and compared as a whole.
    let differ = |entry: &&Entry, others: &[Entry]| {
        !others.iter().any(|o| o.key == entry.key && o.kind == entry.kind && o.hash == entry.hash)
    };
    let shown = |entries: &[Entry], others: &[Entry]| {
        entries
            .iter()
            .filter(|e| differ(e, others))
            .map(|e| (e.key.clone(), format!("{} ({})", e.shown(), e.kind)))
            .collect()
    };
    let (a, b): (IndexMap<String, String>, IndexMap<String, String>) = (shown(a, b), shown(b, a));
    let mut keys: Vec<&String> = a.keys().collect();
    keys.extend(b.keys().filter(|key| !a.contains_key(*key)));
    keys.into_iter().map(|key| Change { key: key.clone(), a: a.get(key).cloned(), b: b.get(key).cloned() }).collect()
}

fn changes(a: IndexMap<String, String>, b: IndexMap<String, String>) -> Vec<Change> {
    let mut out: Vec<Change> = Vec::new();
    for (key, value) in &a {
        if b.get(key) != Some(value) {
            out.push(Change { key: key.clone(), a: Some(value.clone()), b: b.get(key).cloned() });
        }
    }
    let added = b.into_iter().filter(|(key, _)| !a.contains_key(key));
    out.extend(added.map(|(key, value)| Change { key, a: None, b: Some(value) }));
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn differences_and_where_the_largest_is() {
        let mut found = Differences::default();
        found.add(0, &[3.0, 4.0], &[3.0, 4.0]);
        assert!(!found.changed);
        found.add(1, &[0.0, 0.0], &[0.0, -0.5]);
        assert_eq!((found.max, found.at, found.sums.relative()), (0.5, (1, 1), 0.1));
        let mut nan = Differences::default();
        nan.add(0, &[f32::NAN], &[f32::NAN]);
        assert!(!nan.changed);
        nan.add(0, &[f32::NAN, 1.0], &[0.0, 9.0]);
        assert!(nan.changed && nan.max.is_nan());
    }

    #[test]
    fn changes_of_configurations() {
        let flat = |value: Value| {
            let mut out = IndexMap::new();
            flatten("", &value, &mut out);
            out
        };
        let found =
            changes(flat(json!({"a": 1, "b": {"c": true, "d": 2}})), flat(json!({"b": {"c": false, "d": 2}, "e": 3})));
        let said: Vec<String> = found.iter().map(|c| format!("{} {:?} {:?}", c.key, c.a, c.b)).collect();
        assert_eq!(said, ["a Some(\"1\") None", "b.c Some(\"true\") Some(\"false\")", "e None Some(\"3\")"]);
    }
}
