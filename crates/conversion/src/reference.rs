//! Reference decoder: the values that an artifact must hold, worked out one at a time from the definitions of the
//! schemes.
//!
//! Verification compares an artifact with this. Nothing here calls what the encoder calls: numbers are
//! read and rounded bit by bit, and each scheme is spelled out in plain loops.

use crate::encode::Encoding;
use crate::error::{Error, Result};
use crate::source::{Values, Weight};
use rayon::prelude::*;
use schemes::{Bits, FloatType, GgmlType, Grouping, Overflow, RowOrder, Storage, ggml, nf4};
use std::ops::Range;
use store::{DType, Tensor};

/// The rows of a weight, read without the encoder's helpers.
pub struct Rows<'a> {
    weight: &'a Weight,
    /// Order of the artifact's rows.
    order: RowOrder,
    /// Rows; of a tensor of any rank those along its last dimension.
    pub rows: usize,
    /// Values of a row.
    pub cols: usize,
}

impl<'a> Rows<'a> {
    /// Rows of a weight in an artifact's order.
    pub fn new(weight: &'a Weight, order: RowOrder) -> Self {
        let cols = if weight.shape.len() < 2 { 1 } else { weight.shape[weight.shape.len() - 1] };
        let rows = if weight.shape.len() < 2 {
            weight.count()
        } else {
            weight.shape[..weight.shape.len() - 1].iter().product()
        };
        Rows { weight, order, rows, cols }
    }

    /// The values of rows `rows` of the artifact, one row after the other.
    pub fn read(&self, rows: Range<usize>) -> Vec<f32> {
        let mut out = vec![0f32; rows.len() * self.cols];
        if out.is_empty() {
            return out;
        }
        for (row, out) in rows.zip(out.chunks_mut(self.cols)) {
            let natural = self.order.natural(row);
            match &self.weight.values {
                Values::Tensor(t) => plain_row(t.dtype, &t.data, t.order.stored(natural), out),
                Values::Matrix(m) => match m.storage() {
                    Storage::Float(ty, bytes) => plain_row(DType::from(*ty), bytes, m.order().stored(natural), out),
                    _ => m.decode_row(natural, out),
                },
            }
        }
        out
    }
}

/// Row number `row` of a plain tensor whose rows have the length of `out`.
fn plain_row(dtype: DType, bytes: &[u8], row: usize, out: &mut [f32]) {
    let first = row * out.len();
    for (i, o) in out.iter_mut().enumerate() {
        *o = value(dtype, bytes, first + i);
    }
}

/// Value number `i` of a plain tensor; NaN for types that hold no floats.
pub fn value(dtype: DType, bytes: &[u8], i: usize) -> f32 {
    let byte = |size: usize, k: usize| u64::from(bytes[i * size + k]);
    match dtype {
        DType::F32 => f32::from_bits((0..4).map(|k| byte(4, k) << (8 * k)).sum::<u64>() as u32),
        DType::F64 => f64::from_bits((0..8).map(|k| byte(8, k) << (8 * k)).sum::<u64>()) as f32,
        DType::BF16 => f32::from_bits((byte(2, 0) << 16 | byte(2, 1) << 24) as u32),
        DType::F16 => half_value(byte(2, 0) | byte(2, 1) << 8),
        _ => f32::NAN,
    }
}

/// The value of an IEEE half by its definition.
fn half_value(bits: u64) -> f32 {
    let (exponent, mantissa) = (bits >> 10 & 31, (bits & 1023) as f32);
    let magnitude = match exponent {
        0 => mantissa * 2f32.powi(-24),
        31 if mantissa == 0.0 => f32::INFINITY,
        31 => f32::NAN,
        e => (1024.0 + mantissa) * 2f32.powi(e as i32 - 25),
    };
    if bits >> 15 == 1 { -magnitude } else { magnitude }
}

/// `x` rounded to a float type, to nearest even: the multiple of the type's step that is nearest.
fn rounded(ty: FloatType, x: f32) -> f32 {
    // Bits of the mantissa, exponent of the least normal number, and the number that is too large.
    let (mantissa, least, limit) = match ty {
        FloatType::F32 => return x,
        FloatType::F16 => (10, -14, 65520.0),
        FloatType::BF16 => (7, -126, f64::from_bits(0x47EF_F000_0000_0000)),
    };
    let wide = f64::from(x);
    if x.is_nan() || x.is_infinite() || x == 0.0 {
        return x;
    }
    if wide.abs() >= limit {
        return f32::INFINITY.copysign(x);
    }
    let exponent = ((wide.abs().to_bits() >> 52) as i32 - 1023).max(least);
    let step = 2f64.powi(exponent - mantissa);
    (((wide / step).round_ties_even()) * step) as f32
}

fn largest(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |most, v| if v.abs() > most { v.abs() } else { most })
}

fn qmax(bits: Bits) -> f32 {
    match bits {
        Bits::Four => 7.0,
        Bits::Eight => 127.0,
    }
}

/// The code nearest to `x`, ties to even.
fn code(x: f32, qmax: f32) -> f32 {
    f32::from(x.max(-qmax).min(qmax).round_ties_even() as i8)
}

/// Statistics of a whole matrix that the definitions need.
#[derive(Debug, Default)]
pub struct Whole {
    scale: f32,
    /// Scales of NF4 blocks as readers compute them from the second level.
    nested: Vec<f32>,
}

/// Computes the statistics of all rows that the encoding needs.
pub fn whole(rows: &Rows<'_>, encoding: &Encoding) -> Whole {
    let blocks = |block: usize| -> Vec<f32> {
        let chunks: Vec<Range<usize>> = chunks(rows, encoding);
        let parts: Vec<Vec<f32>> =
            chunks.into_par_iter().map(|c| rows.read(c).chunks(block.max(1)).map(largest).collect()).collect();
        parts.concat()
    };
    match encoding.codes() {
        Encoding::Int { bits, grouping: Grouping::Tensor, scale, .. } => {
            Whole { scale: rounded(*scale, largest(&blocks(rows.cols)) / qmax(*bits)), nested: Vec::new() }
        }
        Encoding::Nf4Nested(_) => Whole { scale: 0.0, nested: nested(&blocks(nf4::BLOCK)) },
        _ => Whole::default(),
    }
}

/// Block scales after their second quantization: less their mean, to the nearest of 256 levels times
/// the largest of 256 blocks.
fn nested(scales: &[f32]) -> Vec<f32> {
    let mut sum = 0f64;
    scales.iter().for_each(|s| sum += f64::from(*s));
    let mean = if scales.is_empty() { 0.0 } else { (sum / scales.len() as f64) as f32 };
    let levels = nf4::dynamic_map();
    let mut out = Vec::with_capacity(scales.len());
    for group in scales.chunks(nf4::NESTED_BLOCK) {
        let most = largest(&group.iter().map(|s| s - mean).collect::<Vec<_>>());
        for s in group {
            let x = if most == 0.0 { 0.0 } else { (s - mean) / most };
            let mut best = 0;
            while best < 255 && x > (levels[best] + levels[best + 1]) / 2.0 {
                best += 1;
            }
            out.push(levels[best] * most + mean);
        }
    }
    out
}

/// Runs of the artifact's rows that are verified at a time: whole blocks of NF4.
pub fn chunks(rows: &Rows<'_>, encoding: &Encoding) -> Vec<Range<usize>> {
    const VALUES: usize = 1 << 16;
    let nf4 = matches!(encoding.codes(), Encoding::Nf4(_) | Encoding::Nf4Nested(_));
    let multiple = if nf4 { nf4::BLOCK } else { 1 };
    let step = (VALUES / rows.cols.max(1)).max(1).next_multiple_of(multiple);
    (0..rows.rows).step_by(step).map(|r| r..(r + step).min(rows.rows)).collect()
}

/// Values that the rows from number `first` on must decode to.
///
/// # Errors
/// [`Error::Codec`] when ggml's rule refuses the values.
pub fn expected(
    weight: &Weight,
    encoding: &Encoding,
    (first, cols): (usize, usize),
    values: &[f32],
    whole: &Whole,
    overflow: Overflow,
) -> Result<Vec<f32>> {
    Ok(match encoding {
        Encoding::Copy => values.to_vec(),
        Encoding::Float(ty) => values.iter().map(|v| float(*ty, *v, overflow)).collect(),
        Encoding::Emulated(inner, ty) => {
            let decoded = expected(weight, inner, (first, cols), values, whole, overflow)?;
            decoded.into_iter().map(|v| float(*ty, v, overflow)).collect()
        }
        Encoding::Int { bits, grouping, scale, .. } => {
            let each = |row: &[f32]| integers(row, *bits, *grouping, *scale, whole.scale);
            values.chunks(cols.max(1)).flat_map(each).collect()
        }
        Encoding::Scb => values.chunks(cols.max(1)).flat_map(bitsandbytes_row).collect(),
        Encoding::Nf4(ty) => values
            .chunks(nf4::BLOCK)
            .flat_map(|block| nf4_block(block, |most| (rounded(*ty, most), rounded(*ty, most))))
            .collect(),
        Encoding::Nf4Nested(_) => {
            let at = first * cols / nf4::BLOCK;
            let blocks = values.chunks(nf4::BLOCK).enumerate();
            blocks.flat_map(|(b, block)| nf4_block(block, |most| (most, whole.nested[at + b]))).collect()
        }
        Encoding::Outlier { columns, scale } => {
            values.chunks(cols.max(1)).flat_map(|row| outlier_row(row, columns, *scale, overflow)).collect()
        }
        Encoding::Ggml(ty) => match ggml_row(*ty) {
            Some(block) => values.chunks(32).flat_map(block).collect(),
            None => searched(weight, *ty, cols, values, first)?,
        },
    })
}

fn float(ty: FloatType, v: f32, overflow: Overflow) -> f32 {
    let r = rounded(ty, v);
    match (overflow, ty) {
        (Overflow::Clamp, FloatType::F16) if r.is_infinite() && v.is_finite() => 65504f32.copysign(v),
        (Overflow::Clamp, FloatType::BF16) if r.is_infinite() && v.is_finite() => {
            f32::from_bits(0x7F7F_0000).copysign(v)
        }
        _ => r,
    }
}

/// A row of symmetric integers: `code * scale`, the scale of a group being its largest magnitude over
/// the largest code.
fn integers(row: &[f32], bits: Bits, grouping: Grouping, ty: FloatType, tensor_scale: f32) -> Vec<f32> {
    let group = match grouping {
        Grouping::Group(n) => n,
        _ => row.len(),
    };
    let mut out = Vec::with_capacity(row.len());
    for group in row.chunks(group.max(1)) {
        let scale = match grouping {
            Grouping::Tensor => tensor_scale,
            _ => rounded(ty, largest(group) / qmax(bits)),
        };
        out.extend(group.iter().map(|v| if scale == 0.0 { 0.0 } else { code(v / scale, qmax(bits)) * scale }));
    }
    out
}

/// A row as bitsandbytes quantizes to int8: codes of `v * (127 / absmax)`, decoded as `code * absmax / 127`.
fn bitsandbytes_row(row: &[f32]) -> Vec<f32> {
    let most = largest(row);
    let factor = if most == 0.0 { 0.0 } else { 127.0 / most };
    row.iter().map(|v| code(v * factor, 127.0) * most * (1.0 / 127.0)).collect()
}

/// A block of NF4: the level nearest to each value over one scale, times another. `scales` gives both
/// from the largest magnitude.
fn nf4_block(block: &[f32], scales: impl Fn(f32) -> (f32, f32)) -> Vec<f32> {
    let (by, scale) = scales(largest(block));
    let level = |v: f32| {
        let x = if by == 0.0 { 0.0 } else { v / by };
        let middle = |i: usize| ((f64::from(nf4::LEVELS[i]) + f64::from(nf4::LEVELS[i + 1])) / 2.0) as f32;
        nf4::LEVELS[(0..15).take_while(|i| x > middle(*i)).count()]
    };
    block.iter().map(|v| level(*v) * scale).collect()
}

/// A row of int8 with some columns in f16.
fn outlier_row(row: &[f32], columns: &[u32], scale: FloatType, overflow: Overflow) -> Vec<f32> {
    let is_outlier = |c: usize| columns.contains(&(c as u32));
    let kept: Vec<f32> = row.iter().enumerate().filter(|(c, _)| !is_outlier(*c)).map(|(_, v)| *v).collect();
    let mut kept = integers(&kept, Bits::Eight, Grouping::Row, scale, 0.0).into_iter();
    let pick = |(c, v): (usize, &f32)| {
        if is_outlier(c) { float(FloatType::F16, *v, overflow) } else { kept.next().unwrap_or(f32::NAN) }
    };
    row.iter().enumerate().map(pick).collect()
}

/// The values that a block of weights decodes to.
type Block = fn(&[f32]) -> Vec<f32>;

/// Definition of a ggml type whose scale follows from the extremes of a block: the decoded values of a block.
fn ggml_row(ty: GgmlType) -> Option<Block> {
    Some(match ty {
        GgmlType::Q8_0 => |block| {
            let d = largest(block) / 127.0;
            let inverse = reciprocal(d);
            // As an integer: a code has no negative zero.
            block.iter().map(|v| f32::from((v * inverse).round() as i8) * rounded(FloatType::F16, d)).collect()
        },
        GgmlType::Q4_0 => |block| around_extreme(block, 8.0),
        GgmlType::Q5_0 => |block| around_extreme(block, 16.0),
        GgmlType::Q4_1 => |block| above_least(block, 15.0),
        GgmlType::Q5_1 => |block| above_least(block, 31.0),
        _ => return None,
    })
}

fn reciprocal(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The weight of the largest magnitude, the first of equals, gets code 0 of `2 * half` codes.
fn around_extreme(block: &[f32], half: f32) -> Vec<f32> {
    let mut extreme = 0f32;
    for v in block {
        if v.abs() > extreme.abs() {
            extreme = *v;
        }
    }
    let d = extreme / -half;
    let (inverse, stored) = (reciprocal(d), rounded(FloatType::F16, d));
    let code = |v: f32| (v * inverse + (half + 0.5)).floor().min(2.0 * half - 1.0);
    block.iter().map(|v| (code(*v) - half) * stored).collect()
}

/// `levels + 1` steps from the least weight to the greatest.
fn above_least(block: &[f32], levels: f32) -> Vec<f32> {
    let mut least = block.first().copied().unwrap_or_default();
    let mut most = least;
    for v in block {
        least = if *v < least { *v } else { least };
        most = if *v > most { *v } else { most };
    }
    let d = (most - least) / levels;
    let inverse = reciprocal(d);
    let [stored, low] = [d, least].map(|x| rounded(FloatType::F16, x));
    block.iter().map(|v| ((v - least) * inverse + 0.5).floor().min(levels) * stored + low).collect()
}

/// Values that ggml's own search gives, for types whose scales are searched for. [`is_near`] checks apart that they are
/// near the weights.
fn searched(weight: &Weight, ty: GgmlType, cols: usize, values: &[f32], first: usize) -> Result<Vec<f32>> {
    let mut blocks = Vec::new();
    ggml::encode_rows(ty, values, cols, first, &mut blocks)
        .map_err(|source| Error::Codec { weight: weight.name.clone(), source })?;
    let mut out = vec![0f32; values.len()];
    ggml::decode(ty, &blocks, &mut out);
    Ok(out)
}

/// Returns whether rows of a searched ggml type are nearer to their values than zeros would be: their squared error is
/// under half of their squares. Every other encoding is exact here.
pub fn is_near(encoding: &Encoding, values: &[f32], found: &[f32]) -> bool {
    let Encoding::Ggml(ty) = encoding.codes() else { return true };
    if ggml_row(*ty).is_some() {
        return true;
    }
    let (mut error, mut signal) = (0f64, 0f64);
    for (v, f) in values.iter().zip(found) {
        error += (f64::from(*v) - f64::from(*f)).powi(2);
        signal += f64::from(*v).powi(2);
    }
    // f16 scales end near 1e-8: less than that is stored as zeros.
    error <= 0.5 * signal || signal <= 1e-12 * values.len() as f64
}

/// Returns whether a tensor of an artifact holds the source's bytes.
pub fn same_bytes(weight: &Weight, written: &Tensor) -> bool {
    let stored: Option<&[u8]> = match &weight.values {
        Values::Tensor(t) => Some(&t.data),
        Values::Matrix(m) => match m.storage() {
            Storage::Float(_, b) | Storage::Ggml(_, b) => Some(b),
            _ => None,
        },
    };
    stored == Some(&written.data[..])
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
