//! 8-bit weights times 8-bit activations (`integer.cu`).

use super::case::{Arg, Case, Output};
use super::product::{SIZES, Target, converted};
use super::quantize::{codes, scale};
use super::samples::Samples;
use crate::gpu::launch::{Launch, Module};
use half::f16;

/// Weights and activations, in codes that rows of `row_bytes` hold.
struct Problem {
    cols: usize,
    row_bytes: usize,
    rows: usize,
    weights: Vec<i8>,
    /// Scales, as they are used.
    scales: Vec<f32>,
    half_scales: bool,
    x: Vec<i8>,
    x_scales: Vec<f32>,
}

impl Problem {
    fn new(samples: &mut Samples, tokens: usize, rows: usize, cols: usize, half_scales: bool) -> Problem {
        let row_bytes = cols.next_multiple_of(16);
        let activations = samples.floats(tokens * cols);
        let x_scales: Vec<f32> = activations.chunks(cols).map(scale).collect();
        let x = activations.chunks(cols).zip(&x_scales).flat_map(|(row, s)| codes(row, *s, row_bytes)).collect();
        let mut weights: Vec<i8> = samples.bytes(rows * row_bytes).iter().map(|b| *b as i8).collect();
        weights.chunks_mut(row_bytes).for_each(|row| row[cols..].fill(0));
        let rounded = |s: &f32| if half_scales { f16::from_f32(*s).to_f32() } else { *s };
        let scales = samples.floats(rows).iter().map(rounded).collect();
        Problem { cols, row_bytes, rows, weights, scales, half_scales, x, x_scales }
    }

    /// For each token and row, the sum of products.
    fn sums(&self) -> Vec<Vec<i32>> {
        let dot = |a: &[i8], b: &[i8]| a.iter().zip(b).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum();
        let token = |x: &[i8]| self.weights.chunks(self.row_bytes).map(|w| dot(w, x)).collect();
        self.x.chunks(self.row_bytes).map(token).collect()
    }

    fn case(&self, samples: &mut Samples, launch: Launch, accumulate: bool) -> Case {
        let (tokens, stride) = (self.x_scales.len(), self.rows + 3);
        let bias = if accumulate { Vec::new() } else { samples.floats(self.rows) };
        let before = samples.floats(tokens * stride);
        let target = Target { bias: &bias, stride, accumulate };
        let (mut out, mut reference) = (before.clone(), before.iter().map(|v| f64::from(*v)).collect::<Vec<_>>());
        for (t, sums) in self.sums().iter().enumerate() {
            for (row, &sum) in sums.iter().enumerate() {
                let (scale, x_scale) = (self.scales[row], self.x_scales[t]);
                target.write(&mut out[t * stride + row], row, sum as f32 * scale * x_scale);
                let exact = &mut reference[t * stride + row];
                let kept = if accumulate { *exact } else { 0.0 };
                let added = bias.get(row).map_or(0.0, |b| f64::from(*b));
                *exact = f64::from(sum) * f64::from(scale) * f64::from(x_scale) + kept + added;
            }
        }
        let scales = if self.half_scales {
            Arg::Buffer(converted(&self.scales, f16::from_f32))
        } else {
            Arg::buffer(&self.scales)
        };
        let mut args = vec![Arg::buffer(&self.x), Arg::buffer(&self.x_scales), Arg::buffer(&self.weights), scales];
        args.extend([Arg::int(usize::from(self.half_scales)), Arg::or_null(&bias), Arg::buffer(&before)]);
        args.extend([tokens, self.rows, self.row_bytes, stride, usize::from(accumulate)].map(Arg::int));
        let output = Output::floats(6, &out, reference, 1e-6);
        Case::new(format_args!("{tokens} x {} x {}", self.rows, self.cols), launch, args, vec![output])
    }
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = Vec::new();
    for (rows, cols) in [(5, 16), (37, 577), (11, 2500)] {
        for (t, r) in SIZES {
            let (tokens, warps) = (if t > 2 { t - 1 } else { t }, 2);
            let problem = Problem::new(samples, tokens, rows, cols, r == 2);
            let grid = [rows.div_ceil(r * warps), 1, 1];
            let launch = Launch::new(Module::Integer, format!("gemv_i8i8_{t}x{r}"), grid, 32 * warps as u32);
            all.push(problem.case(samples, launch, t == 4));
        }
    }
    for (tokens, rows, cols) in [(9, 64, 64), (70, 130, 577), (64, 5, 1000)] {
        let problem = Problem::new(samples, tokens, rows, cols, tokens == 70);
        let launch = Launch::new(Module::Integer, "gemm_i8i8", [tokens.div_ceil(64), rows.div_ceil(128), 1], 256);
        all.push(problem.case(samples, launch, tokens == 64));
    }
    all
}
