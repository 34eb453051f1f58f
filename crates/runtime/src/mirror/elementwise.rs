//! Casts, gathering, biases, SwiGLU (`elementwise.cu`), RMSNorm (`norm.cu`), rotary positions (`rope.cu`).

use super::case::{Arg, Case, Kind, Output};
use super::product::converted;
use super::samples::Samples;
use super::{WARP, warp_sum};
use crate::gpu::launch::{Launch, Module};
use half::{bf16, f16};
use rowmath::exp;

/// Threads of a block that norms a row.
const NORM: usize = 256;

/// Factor of a row's norm: the sum of squares goes by thread, by warp, by block.
fn norm_factor(row: &[f32], eps: f32) -> f32 {
    let mut threads = [0f32; NORM];
    for (c, v) in row.iter().enumerate() {
        threads[c % NORM] = v.mul_add(*v, threads[c % NORM]);
    }
    let mut warps = [0f32; WARP];
    for (warp, lanes) in warps.iter_mut().zip(threads.as_chunks::<WARP>().0) {
        *warp = warp_sum(*lanes);
    }
    1.0 / (warp_sum(warps) / row.len() as f32 + eps).sqrt()
}

/// Factor of a head's norm; a warp has the whole head.
fn head_factor(head: &[f32], eps: f32) -> f32 {
    let mut lanes = [0f32; WARP];
    for (c, v) in head.iter().enumerate() {
        lanes[c % WARP] = v.mul_add(*v, lanes[c % WARP]);
    }
    1.0 / (warp_sum(lanes) / head.len() as f32 + eps).sqrt()
}

fn scaled(row: &[f32], factor: f32, weight: &[f32]) -> Vec<f32> {
    row.iter().zip(weight).map(|(x, w)| x * factor * w).collect()
}

fn exact_norm(row: &[f64], weight: &[f32], eps: f32) -> Vec<f64> {
    let mean = row.iter().map(|v| v * v).sum::<f64>() / row.len() as f64;
    row.iter().zip(weight).map(|(x, w)| x / (mean + f64::from(eps)).sqrt() * f64::from(*w)).collect()
}

/// Turns the first half of a head against the second.
fn turn<T: Copy>(head: &[T], of: impl Fn(usize, T, T) -> [T; 2]) -> Vec<T> {
    let (a, b) = head.split_at(head.len() / 2);
    let pairs: Vec<[T; 2]> = a.iter().zip(b).enumerate().map(|(i, (a, b))| of(i, *a, *b)).collect();
    pairs.iter().map(|p| p[0]).chain(pairs.iter().map(|p| p[1])).collect()
}

fn silu(gate: f32, up: f32) -> f32 {
    gate / (1.0 + exp(-gate)) * up
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|v| f64::from(*v)).collect()
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = Vec::new();
    for (tokens, cols) in [(1, 5), (3, 576), (2, 1027), (2, 4096)] {
        all.extend(casts(samples, tokens, cols));
        all.push(gather(samples, tokens, cols));
        all.push(add_bias(samples, tokens, cols));
        all.push(swiglu(samples, tokens, cols));
        all.push(norm(samples, tokens, cols));
    }
    for (heads, kv_heads, head_dim, normed) in
        [(9, 3, 64, false), (2, 1, 128, true), (3, 3, 6, true), (1, 1, 80, false)]
    {
        all.push(rope(samples, heads, kv_heads, head_dim, normed));
    }
    all
}

fn casts(samples: &mut Samples, tokens: usize, cols: usize) -> Vec<Case> {
    let stride = cols.next_multiple_of(8);
    let mut x = samples.floats(tokens * cols);
    (x[0], x[1], x[2]) = (1e6, -70000.0, 1e-6);
    let mut padded = vec![0f32; tokens * stride];
    padded.chunks_mut(stride).zip(x.chunks(cols)).for_each(|(p, x)| p[..cols].copy_from_slice(x));
    let f16 = converted(&padded, |v| f16::from_f32(v.clamp(-65504.0, 65504.0)));
    let bf16 = converted(&padded, bf16::from_f32);
    [("cast_f16", Kind::F16, f16), ("cast_bf16", Kind::BF16, bf16)]
        .map(|(kernel, kind, mirror)| {
            let out = Arg::Buffer(samples.bytes(mirror.len()));
            let args = vec![Arg::buffer(&x), out, Arg::int(cols), Arg::int(stride)];
            let launch = Launch::over(Module::Elementwise, kernel, tokens, stride);
            Case::new(format_args!("{tokens} x {cols}"), launch, args, vec![Output::bits(1, kind, mirror)])
        })
        .into()
}

fn gather(samples: &mut Samples, tokens: usize, cols: usize) -> Case {
    let x = samples.floats(tokens * cols);
    let columns = [&[cols as u32 - 1][..], &samples.columns(cols)].concat();
    let n = columns.len();
    let out: Vec<f32> = x.chunks(cols).flat_map(|row| columns.iter().map(|&c| row[c as usize])).collect();
    let args =
        vec![Arg::buffer(&x), Arg::buffer(&columns), Arg::buffer(&vec![0f32; out.len()]), Arg::int(cols), Arg::int(n)];
    let launch = Launch::over(Module::Elementwise, "gather", tokens, n);
    let output = Output::floats(2, &out, wide(&out), 0.0);
    Case::new(format_args!("{tokens} x {n} of {cols}"), launch, args, vec![output])
}

fn add_bias(samples: &mut Samples, tokens: usize, rows: usize) -> Case {
    let (stride, bias) = (rows + 7, samples.floats(rows));
    let before = samples.floats(tokens * stride);
    let mut out = before.clone();
    for row in out.chunks_mut(stride) {
        row.iter_mut().zip(&bias).for_each(|(o, b)| *o += b);
    }
    let mut reference = wide(&before);
    for row in reference.chunks_mut(stride) {
        row.iter_mut().zip(&bias).for_each(|(o, b)| *o += f64::from(*b));
    }
    let args = vec![Arg::buffer(&before), Arg::buffer(&bias), Arg::int(rows), Arg::int(stride)];
    let launch = Launch::over(Module::Elementwise, "add_bias", tokens, rows);
    Case::new(format_args!("{tokens} x {rows}"), launch, args, vec![Output::floats(0, &out, reference, 1e-7)])
}

fn swiglu(samples: &mut Samples, tokens: usize, n: usize) -> Case {
    let both: Vec<f32> = samples.floats(2 * tokens * n).iter().map(|v| v * 30.0).collect();
    let pairs = |both: &[f32]| -> Vec<(f32, f32)> {
        both.chunks(2 * n).flat_map(|row| (0..n).map(|i| (row[i], row[n + i]))).collect()
    };
    let out: Vec<f32> = pairs(&both).into_iter().map(|(g, u)| silu(g, u)).collect();
    let exact = |(g, u): (f32, f32)| f64::from(g) / (1.0 + (-f64::from(g)).exp()) * f64::from(u);
    let reference = pairs(&both).into_iter().map(exact).collect();
    let args = vec![Arg::buffer(&both), Arg::buffer(&vec![0f32; tokens * n]), Arg::int(n)];
    let launch = Launch::over(Module::Elementwise, "swiglu", tokens, n);
    Case::new(format_args!("{tokens} x {n}"), launch, args, vec![Output::floats(1, &out, reference, 1e-6)])
}

fn norm(samples: &mut Samples, tokens: usize, cols: usize) -> Case {
    let (x, weight, eps) = (samples.floats(tokens * cols), samples.floats(cols), 1e-5);
    let out: Vec<f32> = x.chunks(cols).flat_map(|row| scaled(row, norm_factor(row, eps), &weight)).collect();
    let reference = x.chunks(cols).flat_map(|row| exact_norm(&wide(row), &weight, eps)).collect();
    let out_arg = Arg::buffer(&vec![0f32; x.len()]);
    let args = vec![Arg::buffer(&x), Arg::buffer(&weight), out_arg, Arg::int(cols), Arg::Float(eps)];
    let launch = Launch::new(Module::Norm, "rms_norm", [tokens, 1, 1], NORM as u32);
    Case::new(format_args!("{tokens} x {cols}"), launch, args, vec![Output::floats(2, &out, reference, 1e-6)])
}

fn rope(samples: &mut Samples, heads: usize, kv_heads: usize, d: usize, normed: bool) -> Case {
    let (tokens, row, eps) = (3, (heads + 2 * kv_heads) * d, 1e-6);
    let qkv = samples.floats(tokens * row);
    let angles = samples.floats(tokens * d / 2);
    let [cos, sin] = [f32::cos, f32::sin].map(|f| angles.iter().map(|a| f(3.0 * a)).collect::<Vec<f32>>());
    let norms = [(); 2].map(|()| if normed { samples.floats(d) } else { Vec::new() });
    let (mut out, mut reference) = (Vec::new(), Vec::new());
    for (i, head) in qkv.chunks(d).enumerate() {
        let (token, head_index) = (i / (heads + 2 * kv_heads), i % (heads + 2 * kv_heads));
        if head_index >= heads + kv_heads {
            out.extend_from_slice(head);
            reference.extend(wide(head));
            continue;
        }
        let norm = &norms[usize::from(head_index >= heads)];
        let (mut x, mut exact) = (head.to_vec(), wide(head));
        if normed {
            (x, exact) = (scaled(head, head_factor(head, eps), norm), exact_norm(&exact, norm, eps));
        }
        let at = |i: usize| (cos[token * d / 2 + i], sin[token * d / 2 + i]);
        out.extend(turn(&x, |i, a, b| [a * at(i).0 - b * at(i).1, b * at(i).0 + a * at(i).1]));
        reference.extend(turn(&exact, |i, a, b| {
            let (c, s) = (f64::from(at(i).0), f64::from(at(i).1));
            [a * c - b * s, b * c + a * s]
        }));
    }
    let mut args =
        vec![Arg::buffer(&qkv), Arg::buffer(&cos), Arg::buffer(&sin), Arg::or_null(&norms[0]), Arg::or_null(&norms[1])];
    args.extend([heads, kv_heads, d].map(Arg::int));
    args.push(Arg::Float(eps));
    let launch = Launch::new(Module::Rope, "turn_heads", [tokens, (heads + kv_heads).div_ceil(4), 1], 128);
    let shape = format_args!("{tokens} x {heads} + {kv_heads} heads of {d}{}", if normed { ", normed" } else { "" })
        .to_string();
    Case::new(shape, launch, args, vec![Output::floats(0, &out, reference, 1e-6)])
}
