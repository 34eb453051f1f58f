//! What an artifact weighs, and how far its weights are from the reference's.

use crate::{Error, Result};
use rayon::prelude::*;
use schemes::measure::WeightError;
use schemes::{FloatType, Matrix, Nf4Absmax, Scheme, Storage};
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use store::{Bytes, Model};

/// The metadata key of the scheme that qconvert was asked for.
const SCHEME_KEY: &str = "qconvert.scheme";

/// What the names of all modules in blocks begin with.
const BLOCKS: &str = "model.layers.";

/// Sizes of one model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Size {
    /// Its scheme; of a mixed artifact all of them, joined by `+`.
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
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Errors {
    /// Mean over matrices.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
    /// The module that has it.
    pub worst_module: String,
    /// Of all weights together.
    pub pooled: f64,
    /// Matrices that were compared.
    pub matrices: usize,
}

/// A model's linear layers with their schemes.
struct Layers {
    layers: Vec<Layer>,
}

struct Layer {
    module: String,
    scheme: String,
    matrix: Matrix<Bytes>,
}

impl Layer {
    fn weights(&self) -> usize {
        self.matrix.rows() * self.matrix.cols()
    }

    fn is_quantized(&self) -> bool {
        !matches!(self.matrix.storage(), Storage::Float(..))
    }

    /// Bits of codes and scales, as the scheme counts them whatever the layout.
    fn bits(&self) -> f64 {
        let scheme = self.scheme.parse().or_else(|_| format!("ggml-{}", self.scheme).parse::<Scheme>());
        let (scale, columns) = match self.matrix.storage() {
            Storage::Int(int) => (int.scales.ty, 0),
            Storage::Affine(affine) => (affine.int.scales.ty, 0),
            Storage::Float8(float) => (float.scales.ty, 0),
            Storage::Nf4(n) => match &n.absmax {
                Nf4Absmax::Plain(scales) => (scales.ty, 0),
                Nf4Absmax::Nested { .. } => (FloatType::F32, 0),
            },
            Storage::Outlier(o) => (o.inner.scales.ty, o.columns.len()),
            Storage::Float(..) | Storage::Ggml(..) => (FloatType::F16, 0),
        };
        match scheme {
            Ok(scheme) => scheme.total_bits(self.matrix.rows(), self.matrix.cols(), columns, scale),
            Err(_) => 8.0 * self.matrix.packed_bytes() as f64,
        }
    }
}

impl Layers {
    fn of(model: &Model) -> Result<Self> {
        let mut layers = Vec::new();
        for (module, scheme) in model.declared_schemes() {
            let matrix = model.linear(&module)?.matrix;
            layers.push(Layer { module, scheme, matrix });
        }
        Ok(Layers { layers })
    }

    /// The quantized layers; without any, the projections of the blocks.
    fn of_interest(&self) -> Vec<&Layer> {
        let quantized: Vec<&Layer> = self.layers.iter().filter(|l| l.is_quantized()).collect();
        if !quantized.is_empty() {
            return quantized;
        }
        self.layers.iter().filter(|l| l.module.starts_with(BLOCKS)).collect()
    }
}

/// Sizes of a model.
///
/// # Errors
/// When a layer's layout is not understood or a file has gone.
pub fn size(model: &Model) -> Result<Size> {
    let layers = Layers::of(model)?;
    let interest = layers.of_interest();
    let weights: usize = interest.iter().map(|l| l.weights()).sum();
    let bits: f64 = interest.iter().map(|l| l.bits()).sum();
    let bytes = bytes_on_disk(model)?;
    let vectors = model
        .tensors
        .iter()
        .filter(|(name, t)| t.shape.len() == 1 && (name.ends_with(".weight") || name.ends_with(".bias")));
    let vectors: usize = vectors.map(|(_, t)| t.shape.iter().product::<usize>()).sum();
    let parameters = (layers.layers.iter().map(Layer::weights).sum::<usize>() + vectors) as u64;
    Ok(Size {
        scheme: label(model, &interest),
        bytes,
        parameters,
        bpw: bits / weights as f64,
        file_bpw: 8.0 * bytes as f64 / parameters as f64,
    })
}

fn label(model: &Model, interest: &[&Layer]) -> String {
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
    let layers = Layers::of(artifact)?;
    let interest = layers.of_interest();
    // All shapes are looked at before any weight is decoded.
    let sources = match sources(reference, artifact, &interest)? {
        Ok(sources) => sources,
        Err(reason) => return Ok(Err(reason)),
    };
    let (mut pooled, mut sum, mut worst) = (WeightError::default(), 0.0, None::<(f64, String)>);
    for (layer, source) in interest.iter().zip(&sources) {
        let error = matrix_error(source, &layer.matrix);
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

/// The reference's matrices for these layers; or why the two models are not of the same shape.
fn sources(reference: &Model, artifact: &Model, layers: &[&Layer]) -> Result<Result<Vec<Matrix<Bytes>>, String>> {
    let (own, theirs) = (blocks(artifact), blocks(reference));
    if own.len() != theirs.len() {
        return Ok(Err(format!("it has {} linear layers in its blocks, the reference {}", own.len(), theirs.len())));
    }
    if let Some(module) = own.symmetric_difference(&theirs).next() {
        let (lacks, has) = if own.contains(module) { ("the reference", "it") } else { ("it", "the reference") };
        return Ok(Err(format!("{lacks} has no {module}, {has} has one")));
    }
    let mut out = Vec::with_capacity(layers.len());
    for layer in layers {
        let module = &layer.module;
        let source = reference.linear(module)?.matrix;
        let (rows, cols) = (source.rows(), source.cols());
        if (rows, cols) != (layer.matrix.rows(), layer.matrix.cols()) {
            let found = format!("{module} is [{}, {}]", layer.matrix.rows(), layer.matrix.cols());
            return Ok(Err(format!("{found}, the reference's [{rows}, {cols}]")));
        }
        out.push(source);
    }
    Ok(Ok(out))
}

/// Names of the linear layers of a model's blocks.
fn blocks(model: &Model) -> BTreeSet<String> {
    model.declared_schemes().into_keys().filter(|module| module.starts_with(BLOCKS)).collect()
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
    use schemes::RowOrder;

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
        let layer =
            |scheme: &str| Layer { module: "m".into(), scheme: scheme.into(), matrix: matrix(&[0.0; 512], 256) };
        assert_eq!(layer("int8-row").bits(), 8.0 * 512.0 + 2.0 * 16.0);
        assert_eq!(layer("f32").bits(), 32.0 * 512.0);
        // q8_0 blocks of 32 with an f16 scale.
        assert_eq!(layer("q8_0").bits(), 8.5 * 512.0);
        assert_eq!(layer("something else").bits(), 32.0 * 512.0);
    }
}
