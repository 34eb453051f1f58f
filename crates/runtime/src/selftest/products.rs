//! Products of layers in every packed form, as a device runs them.

use super::matrices::{storages, values};
use super::{Checked, add};
use crate::linear::{self, PackedLinear, Project};
use crate::{ComputeType, Math, Result};
use candle_core::{DType, Device, Tensor};
use schemes::{Activation, Matrix, RowOrder, Storage};
use std::sync::Arc;
use store::{Bytes, Linear};

/// Output of the layer for one token by its definition, in f64; `columns` in f32 beside int8 codes.
pub fn reference(
    matrix: &Matrix<Bytes>,
    x: &[f32],
    bias: &[f32],
    activation: Activation,
    scale_of: &[f32],
) -> Vec<f64> {
    product(&matrix.decode_all(), &seen(matrix, x, activation, scale_of), bias)
}

/// Decoded weights times a token's input, in f64.
fn product(weights: &[f32], x: &[f64], bias: &[f32]) -> Vec<f64> {
    let row = |w: &[f32]| w.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    weights.chunks(x.len()).zip(bias).map(|(w, b)| row(w) + f64::from(*b)).collect()
}

/// A token's input as it is multiplied.
fn seen(matrix: &Matrix<Bytes>, x: &[f32], activation: Activation, scale_of: &[f32]) -> Vec<f64> {
    let outliers: &[u32] = match matrix.storage() {
        Storage::Outlier(o) => &o.columns,
        _ => &[],
    };
    let kept = |c: usize| !outliers.contains(&(c as u32));
    let absmax = scale_of.iter().enumerate().filter(|(c, _)| kept(c % x.len())).fold(0f32, |m, (_, v)| m.max(v.abs()));
    let scale = match activation {
        Activation::Int8Static(s) => s,
        _ => absmax / 127.0,
    };
    let round = |v: f32| if scale == 0.0 { 0.0 } else { (v / scale).round_ties_even().clamp(-127.0, 127.0) * scale };
    let seen =
        |(c, v): (usize, &f32)| f64::from(if activation == Activation::Float || !kept(c) { *v } else { round(*v) });
    x.iter().enumerate().map(seen).collect()
}

/// Tolerance of a product against its definition, as a share of the sum of its magnitudes.
fn tolerance(compute: ComputeType, device: &Device, tokens: usize) -> f64 {
    if device.is_cpu() {
        // 16-bit codes of activations: half a step of a block's largest, where all may be small.
        return 1e-4;
    }
    match compute {
        ComputeType::F32 => 1e-5,
        // Few tokens are multiplied in f32; what has no kernel was decoded to f16.
        _ if tokens <= crate::gpu::product::FEW => 1e-3,
        ComputeType::F16 => 2e-3,
        ComputeType::BF16 => 1.6e-2,
    }
}

/// Two layers side by side in every form, few tokens and many, with and without 8-bit activations. A device that
/// fails is not asked again.
pub fn products(device: &Device, compute: ComputeType, seed: u64) -> Vec<Checked> {
    let mut all = Vec::new();
    for (rows, cols) in [(13, 192), (30, 577), (40, 512)] {
        let order = if rows % 10 == 0 { RowOrder::Interleaved { head_dim: 10 } } else { RowOrder::Natural };
        for storage in storages(rows, cols) {
            let form = form(&storage);
            let Ok(matrix) = Matrix::new(rows, cols, storage, order) else { continue };
            for activation in
                [Activation::Float, Activation::Int8Token, Activation::Int8Tensor, Activation::Int8Static(0.01)]
            {
                for sequences in [&[1usize][..], &[2, 1], &[5, 3], &[70, 30]] {
                    let tokens = sequences.iter().sum::<usize>();
                    let case = format!("{form} {activation:?}, {rows} x {cols}, {tokens} tokens");
                    let found = one(device, compute, &matrix, activation, sequences, seed);
                    let found = found.map(|found| vec![Checked { what: form.clone(), case: case.clone(), ..found }]);
                    if add(&mut all, device, &form, &case, found).is_break() {
                        return all;
                    }
                }
            }
        }
    }
    all
}

/// Name of a form.
fn form(storage: &Storage<Bytes>) -> String {
    match storage {
        Storage::Float(ty, _) => ty.to_string(),
        Storage::Ggml(ty, _) => ty.to_string(),
        Storage::Int(int) => format!("{:?} {:?}", int.packing, int.grouping),
        Storage::Affine(a) => format!("{:?} {:?} with zero points", a.int.packing, a.int.grouping),
        Storage::Float8(_) => "8-bit floats".into(),
        Storage::Nf4(_) => "nf4".into(),
        Storage::Outlier(o) => format!("int8 with {} outlier columns", o.columns.len()),
        Storage::Scaled(_) => "scaled".into(),
    }
}

fn one(
    device: &Device,
    compute: ComputeType,
    matrix: &Matrix<Bytes>,
    activation: Activation,
    sequences: &[usize],
    seed: u64,
) -> Result<Checked> {
    let (rows, cols, tokens) = (matrix.rows(), matrix.cols(), sequences.iter().sum::<usize>());
    let (x, bias) = (values(tokens * cols, seed), values(rows, seed + 1));
    let layer = |bias: Option<&[f32]>| {
        let linear = Linear { matrix: matrix.clone(), bias: bias.map(<[f32]>::to_vec), activation };
        PackedLinear::new("test", Arc::new(linear), Math::Exact)
    };
    let mut layers = [layer(Some(&bias)), layer(None)];
    linear::upload_layers(&mut layers, device, compute)?;
    let before = values(tokens * 2 * rows, seed + 2);
    let out = Tensor::from_slice(&before, (tokens, 2 * rows), device)?;
    let input = Tensor::from_slice(&x, (tokens, cols), device)?;
    out.inplace_op2(&input, &Project { layers: &layers, sequences, accumulate: true })?;
    let out: Vec<f32> = out.to_dtype(DType::F32)?.flatten_all()?.to_vec1()?;
    let (mut worst, mut token) = (0f64, 0);
    let weights = matrix.decode_all();
    let zeros = vec![0f32; rows];
    for n in sequences {
        let of_sequence = &x[token * cols..(token + n) * cols];
        for row in of_sequence.chunks(cols) {
            let over = if activation == Activation::Int8Tensor { of_sequence } else { row };
            let seen = seen(matrix, row, activation, over);
            let wanted = [&bias, &zeros].map(|bias| product(&weights, &seen, bias)).concat();
            let size = |w: &[f32]| w.iter().zip(&seen).map(|(w, x)| (f64::from(*w) * x).abs()).sum::<f64>() + 1.0;
            let sizes: Vec<f64> = weights.chunks(cols).map(size).collect();
            let at = token * 2 * rows;
            for (i, want) in wanted.iter().enumerate() {
                let off = (f64::from(out[at + i]) - f64::from(before[at + i]) - want).abs();
                let share = off / (sizes[i % rows] * tolerance(compute, device, tokens));
                worst = if share.is_nan() { f64::INFINITY } else { worst.max(share) };
            }
            token += 1;
        }
    }
    Ok(Checked {
        what: String::new(),
        case: String::new(),
        numbers: out.len(),
        differing: None,
        error: Some(worst),
        failure: None,
    })
}
