//! Products with packed weights (`gemv.cu`), and their decoding (`decode.cu`).

use super::case::{Arg, Bits, Case, Kind, Output, bytes};
use super::samples::Samples;
use super::weights::chunks;
use super::{WARP, warp_sum};
use crate::ComputeType;
use crate::gpu::launch::{Launch, Module};
use crate::gpu::packed::{self, Packed};
use crate::selftest::matrices;
use half::{bf16, f16};
use schemes::{Grouping, Matrix, Packing, RowOrder, Storage};
use store::Bytes;

/// Tokens and rows of a warp: the products that there are.
pub(super) const SIZES: [(usize, usize); 5] = [(1, 1), (1, 4), (2, 4), (4, 2), (8, 2)];

/// Operands that a product adds to, and its destination.
pub(super) struct Target<'a> {
    /// Bias of each row, or none.
    pub bias: &'a [f32],
    /// Between tokens of the output.
    pub stride: usize,
    /// True if what stands there is added.
    pub accumulate: bool,
}

impl Target<'_> {
    /// Writes a sum.
    pub(super) fn write(&self, out: &mut f32, row: usize, sum: f32) {
        let sum = if self.accumulate { *out + sum } else { sum };
        *out = self.bias.get(row).map_or(sum, |b| sum + b);
    }
}

/// `out [tokens, stride] = x W^T`. Neither the number of tokens nor of rows of a warp changes the order of
/// a sum: each lane has every 32nd chunk of a row.
fn gemv(x: &[f32], w: &Packed, target: &Target<'_>, out: &mut [f32]) {
    for row in 0..w.rows {
        let chunks = chunks(w, row);
        for (x, out) in x.chunks(w.cols).zip(out.chunks_mut(target.stride)) {
            let mut lanes = [0f32; WARP];
            for (i, chunk) in chunks.iter().enumerate() {
                let at = |c: usize| x.get(c).copied().unwrap_or(0.0);
                let part = chunk.weights.iter().fold(0f32, |sum, &(c, w)| w.mul_add(at(c), sum));
                lanes[i % WARP] = part.mul_add(chunk.scale, lanes[i % WARP]);
            }
            target.write(&mut out[row], row, warp_sum(lanes));
        }
    }
}

/// A row, decoded.
fn decode(w: &Packed, row: usize, stride: usize) -> Vec<f32> {
    let mut out = vec![0f32; stride];
    for chunk in chunks(w, row) {
        for (c, v) in chunk.weights {
            if c < w.cols {
                out[c] = v * chunk.scale;
            }
        }
    }
    out
}

/// The arguments called WEIGHTS.
fn weights(w: &Packed) -> Vec<Arg> {
    let sizes = [w.row_bytes, w.group, usize::from(w.half_scales)].map(Arg::int);
    [&w.codes, &w.scales, &w.zeros, &w.levels].map(|b| Arg::or_null(b)).into_iter().chain(sizes).collect()
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = Vec::new();
    for (rows, cols) in [(5, 64), (13, 1280), (37, 777), (9, 8960), (66, 2048)] {
        let fits = |storage| Matrix::new(rows, cols, storage, RowOrder::Natural).ok();
        // Groups that are no power of two.
        let odd = [(Packing::I8, 48), (Packing::Nibble, 96)]
            .map(|(packing, n)| Storage::Int(matrices::int(rows, cols, packing, Grouping::Group(n), 0)));
        for matrix in matrices::storages(rows, cols).into_iter().chain(odd).filter_map(fits) {
            let (parts, decoded) = packed::parts(&matrix, ComputeType::F32);
            let [part] = &parts[..] else { continue };
            if !decoded {
                all.extend(products(samples, &matrix, &part.weights));
                all.extend(decodings(samples, &matrix, &part.weights));
            }
        }
    }
    all
}

fn products(samples: &mut Samples, matrix: &Matrix<Bytes>, w: &Packed) -> Vec<Case> {
    let exact = matrix.decode_all();
    let mut all = Vec::new();
    for (t, r) in SIZES {
        // Wide matrices are for the loop over what is staged.
        if w.cols > 2048 && !matches!((t, r), (1, 4) | (8, 2)) {
            continue;
        }
        let (tokens, warps) = (if t > 2 { t - 1 } else { t }, if r == 1 { 3 } else { 2 });
        let (accumulate, stride) = (t % 4 == 0, w.rows + t);
        let x = samples.floats(tokens * w.cols);
        let bias = if r == 4 { Vec::new() } else { samples.floats(w.rows) };
        let before = samples.floats(tokens * stride);
        let target = Target { bias: &bias, stride, accumulate };
        let mut out = before.clone();
        gemv(&x, w, &target, &mut out);
        let mut reference: Vec<f64> = before.iter().map(|v| f64::from(*v)).collect();
        for (x, out) in x.chunks(w.cols).zip(reference.chunks_mut(stride)) {
            for (row, (w, out)) in exact.chunks(w.cols).zip(out).enumerate() {
                let product: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w) * f64::from(*x)).sum();
                *out = product + if accumulate { *out } else { 0.0 } + bias.get(row).map_or(0.0, |b| f64::from(*b));
            }
        }
        let mut args = vec![Arg::buffer(&x)];
        args.extend(weights(w));
        args.extend([Arg::or_null(&bias), Arg::buffer(&before)]);
        args.extend([tokens, w.rows, w.cols, stride, usize::from(accumulate)].map(Arg::int));
        let kernel = format!("gemv_{}_{t}x{r}", w.format);
        let launch = Launch::new(Module::Gemv, kernel, [w.rows.div_ceil(r * warps), 1, 1], 32 * warps as u32);
        let output = Output::floats(9, &out, reference, 2e-6);
        all.push(Case::new(
            format_args!("{tokens} x {} x {} group {}", w.rows, w.cols, w.group),
            launch,
            args,
            vec![output],
        ));
    }
    all
}

fn decodings(samples: &mut Samples, matrix: &Matrix<Bytes>, w: &Packed) -> Vec<Case> {
    let exact = matrix.decode_all();
    let (first, n) = (w.rows / 3, w.rows - w.rows / 3);
    let ids: Vec<u32> = samples.bytes(7).iter().map(|b| u32::from(*b) % w.rows as u32).collect();
    let mut all = Vec::new();
    for (ty, by_id, stride) in
        [("f32", true, w.cols), ("f16", false, w.cols.next_multiple_of(8)), ("bf16", false, w.cols + 3)]
    {
        let rows: Vec<usize> =
            if by_id { ids.iter().map(|&i| i as usize).collect() } else { (first..first + n).collect() };
        let values: Vec<f32> = rows.iter().flat_map(|&row| decode(w, row, stride)).collect();
        let (kind, tolerance, mirror) = match ty {
            // A factor of absmax / 127 is rounded once more than the definition has it.
            "f32" => (Kind::F32, 3e-7, bytes(&values)),
            "f16" => (Kind::F16, 5e-4, converted(&values, f16::from_f32)),
            _ => (Kind::BF16, 4e-3, converted(&values, bf16::from_f32)),
        };
        let padded = |row: &usize| {
            let values = exact[row * w.cols..(row + 1) * w.cols].iter().map(|v| f64::from(*v));
            values.chain(vec![0.0; stride - w.cols]).collect::<Vec<_>>()
        };
        let reference = rows.iter().flat_map(padded).collect();
        let mut args = weights(w);
        args.push(if by_id { Arg::buffer(&ids) } else { Arg::Null });
        args.push(Arg::Buffer(samples.bytes(mirror.len())));
        args.extend([if by_id { 0 } else { first }, w.cols, stride].map(Arg::int));
        let launch = Launch::over(Module::Decode, format!("decode_{}_{ty}", w.format), rows.len(), stride);
        let output = Output { arg: 8, kind, mirror, reference, tolerance };
        all.push(Case::new(format_args!("{} x {} group {}", w.rows, w.cols, w.group), launch, args, vec![output]));
    }
    all
}

/// Numbers of another type, as they lie in memory.
pub(super) fn converted<T: Bits>(values: &[f32], to: impl Fn(f32) -> T) -> Vec<u8> {
    bytes(&values.iter().map(|v| to(*v)).collect::<Vec<_>>())
}
