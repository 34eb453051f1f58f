//! Bytes and bits per weight of an artifact, and the error of its weights against the reference's.

use crate::{Error, Result};
use indexmap::IndexMap;
use rayon::prelude::*;
use schemars::JsonSchema;
use schemes::measure::WeightError;
use schemes::{FloatType, Matrix, Scheme};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use store::{Bytes, Description, Model};

/// The metadata key of the scheme that qconvert was asked for.
const SCHEME_KEY: &str = "qconvert.scheme";

/// Prefix of the names of all modules in blocks.
const BLOCKS: &str = "model.layers.";

/// Sizes of one model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Size {
    /// Scheme of the model; for a mixed artifact all its schemes, joined by `+`.
    pub scheme: String,
    /// Bytes of the files that hold weights.
    pub bytes: u64,
    /// Weights in all, biases and norms among them.
    pub parameters: u64,
    /// The scheme's bits for each quantized weight, codes and scales; of a model without
    /// quantized weights those of the blocks' projections.
    pub bpw: f64,
    /// Eight times the bytes on disk for each weight of the whole model.
    pub file_bpw: f64,
}

/// Relative error of the quantized weights against the reference's.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Errors {
    /// Mean over matrices.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
    /// The module that has it.
    pub worst_module: String,
    /// Relative error of all weights together.
    pub pooled: f64,
    /// Matrices that were compared.
    pub matrices: usize,
}

/// Bits of codes and scales of a layer, as its scheme counts them whatever the layout.
fn bits(layer: &Description) -> f64 {
    let scale = layer.scale_type.unwrap_or(FloatType::F16);
    let bits = scheme_bits(&layer.scheme, (layer.rows, layer.cols), layer.outlier_columns(), scale);
    bits.unwrap_or(8.0 * layer.packed_bytes as f64)
}

/// Bits of codes and scales under a scheme's name; none for names that are no scheme's.
fn scheme_bits(name: &str, (rows, cols): (usize, usize), outlier_columns: usize, scale: FloatType) -> Option<f64> {
    let scheme = name.parse().or_else(|_| format!("ggml-{name}").parse::<Scheme>()).ok()?;
    Some(scheme.total_bits(rows, cols, outlier_columns, scale))
}

/// The linear layers of a model, described.
fn layers(model: &Model) -> Result<Vec<Description>> {
    Ok(model.layers().into_values().collect::<Result<_, _>>()?)
}

/// The quantized layers; without any, the projections of the blocks.
fn of_interest(layers: &[Description]) -> Vec<&Description> {
    let quantized: Vec<&Description> = layers.iter().filter(|l| l.is_quantized()).collect();
    if !quantized.is_empty() {
        return quantized;
    }
    layers.iter().filter(|l| l.module.starts_with(BLOCKS)).collect()
}

/// Sizes of a model.
///
/// # Errors
/// When a layer's layout is not understood or a file has gone.
pub fn size(model: &Model) -> Result<Size> {
    let layers = layers(model)?;
    let interest = of_interest(&layers);
    let weights: usize = interest.iter().map(|l| l.weights()).sum();
    let bits: f64 = interest.iter().map(|l| bits(l)).sum();
    let bytes = bytes_on_disk(model)?;
    let vectors = model
        .tensors
        .iter()
        .filter(|(name, t)| t.shape.len() == 1 && (name.ends_with(".weight") || name.ends_with(".bias")));
    let vectors: usize = vectors.map(|(_, t)| t.shape.iter().product::<usize>()).sum();
    let parameters = (layers.iter().map(Description::weights).sum::<usize>() + vectors) as u64;
    Ok(Size {
        scheme: label(model, &interest),
        bytes,
        parameters,
        bpw: bits / weights as f64,
        file_bpw: 8.0 * bytes as f64 / parameters as f64,
    })
}

fn label(model: &Model, interest: &[&Description]) -> String {
    if let Some(scheme) = model.metadata.get(SCHEME_KEY) {
        return scheme.clone();
    }
    let schemes: BTreeSet<&str> = interest.iter().map(|l| l.scheme.as_str()).collect();
    if schemes.is_empty() { "unknown".into() } else { schemes.into_iter().collect::<Vec<_>>().join("+") }
}

fn bytes_on_disk(model: &Model) -> Result<u64> {
    let files: BTreeSet<&Path> = model.tensors.values().map(|t| t.file.as_path()).collect();
    let mut bytes = 0;
    for file in files {
        bytes += std::fs::metadata(file).map_err(|e| Error::io(file, "look at", e))?.len();
    }
    Ok(bytes)
}

/// Rows that one task decodes.
const ROWS: usize = 32;

/// Relative error of an artifact's quantized weights; or why there is none: the models are not of
/// the same shape, or one has a layer that the other lacks.
///
/// # Errors
/// When a layer's layout is not understood.
pub fn errors(reference: &Model, artifact: &Model) -> Result<Result<Errors, String>> {
    let (own, theirs) = (layers(artifact)?, reference.layers());
    let interest = of_interest(&own);
    // All shapes are looked at before any weight is decoded.
    if let Some(reason) = difference(&own, &theirs, &interest) {
        return Ok(Err(reason));
    }
    let (mut pooled, mut sum, mut worst) = (WeightError::default(), 0.0, None::<(f64, String)>);
    for layer in &interest {
        // One layer of each is open at a time: some layouts are repacked for it.
        let source = reference.linear(&layer.module)?.matrix;
        let error = matrix_error(&source, &artifact.open_layer((*layer).clone())?.matrix);
        pooled.merge(&error);
        sum += error.relative();
        if worst.as_ref().is_none_or(|w| error.relative() > w.0) {
            worst = Some((error.relative(), layer.module.clone()));
        }
    }
    let Some((worst, worst_module)) = worst else { return Ok(Err("it has no linear layers".into())) };
    let matrices = interest.len();
    Ok(Ok(Errors { mean: sum / matrices as f64, worst, worst_module, pooled: pooled.relative(), matrices }))
}

/// The first difference in shape between two models; none where there is none.
fn difference(
    own: &[Description],
    theirs: &IndexMap<String, store::Result<Description>>,
    layers: &[&Description],
) -> Option<String> {
    let own = blocks(own.iter().map(|l| l.module.as_str()));
    let reference = blocks(theirs.keys().map(String::as_str));
    if own.len() != reference.len() {
        let (own, reference) = (own.len(), reference.len());
        return Some(format!("it has {own} linear layers in its blocks, the reference {reference}"));
    }
    if let Some(module) = own.symmetric_difference(&reference).next() {
        let (lacks, has) = if own.contains(module) { ("the reference", "it") } else { ("it", "the reference") };
        return Some(format!("{lacks} has no {module}, {has} has one"));
    }
    layers.iter().find_map(|layer| {
        let Some(Ok(source)) = theirs.get(&layer.module) else { return None };
        let differs = (source.rows, source.cols) != (layer.rows, layer.cols);
        let found = || format!("{} is [{}, {}]", layer.module, layer.rows, layer.cols);
        differs.then(|| format!("{}, the reference's [{}, {}]", found(), source.rows, source.cols))
    })
}

/// Names of the linear layers of a model's blocks.
fn blocks<'a>(modules: impl Iterator<Item = &'a str>) -> BTreeSet<&'a str> {
    modules.filter(|module| module.starts_with(BLOCKS)).collect()
}

fn matrix_error(source: &Matrix<Bytes>, artifact: &Matrix<Bytes>) -> WeightError {
    let (rows, cols) = (source.rows(), source.cols());
    // The parts are added up in order, so that the sums are the same in every run.
    let parts: Vec<WeightError> = (0..rows.div_ceil(ROWS))
        .into_par_iter()
        .map_init(
            || (vec![0f32; cols], vec![0f32; cols]),
            |(w, d), part| {
                let mut error = WeightError::default();
                for row in part * ROWS..((part + 1) * ROWS).min(rows) {
                    source.decode_row(row, w);
                    artifact.decode_row(row, d);
                    error.add(w, d);
                }
                error
            },
        )
        .collect();
    let mut error = WeightError::default();
    parts.iter().for_each(|p| error.merge(p));
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use schemes::{RowOrder, Storage};

    fn matrix(values: &[f32], cols: usize) -> Matrix<Bytes> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let storage = Storage::Float(FloatType::F32, Bytes::from(bytes));
        Matrix::new(values.len() / cols, cols, storage, RowOrder::Natural).expect("fits")
    }

    #[test]
    fn the_error_is_that_of_all_rows() {
        let source: Vec<f32> = (0..70 * 3).map(|i| i as f32).collect();
        let off: Vec<f32> = source.iter().map(|v| v * 1.25).collect();
        let error = matrix_error(&matrix(&source, 3), &matrix(&off, 3));
        assert!((error.relative() - 0.25).abs() < 1e-12);
        assert_eq!(matrix_error(&matrix(&source, 3), &matrix(&source, 3)).relative(), 0.0);
    }

    #[test]
    fn bits_are_the_schemes_whatever_the_layout() {
        let bits = |scheme: &str| scheme_bits(scheme, (2, 256), 0, FloatType::F16);
        assert_eq!(bits("int8-row"), Some(8.0 * 512.0 + 2.0 * 16.0));
        assert_eq!(bits("f32"), Some(32.0 * 512.0));
        // q8_0 blocks of 32 with an f16 scale.
        assert_eq!(bits("q8_0"), Some(8.5 * 512.0));
        assert_eq!(bits("something else"), None);
    }
}
