//! Activations as 8-bit codes (`quantize.cu`).

use super::case::{Arg, Case, Kind, Output, bytes};
use super::samples::Samples;
use super::{code_8, magnitude};
use crate::gpu::launch::{Launch, Module};

/// Columns of a token that are taken; all where none are named.
fn taken(row: &[f32], columns: &[u32]) -> Vec<f32> {
    if columns.is_empty() { row.to_vec() } else { columns.iter().map(|&c| row[c as usize]).collect() }
}

/// Codes of a token, padded with zeros.
pub(super) fn codes(row: &[f32], scale: f32, stride: usize) -> Vec<i8> {
    let mut codes: Vec<i8> = row.iter().map(|x| code_8(*x, scale)).collect();
    codes.resize(stride, 0);
    codes
}

/// The scale of a token.
pub(super) fn scale(row: &[f32]) -> f32 {
    magnitude(row.iter().copied()) / 127.0
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = vec![spans(samples)];
    for (tokens, cols) in [(1, 7), (3, 576), (2, 5000)] {
        let mut x = samples.floats(tokens * cols);
        x[..cols.min(4)].fill(0.0);
        if tokens > 1 {
            x[cols..2 * cols].fill(0.0);
        }
        let kept = samples.columns(cols);
        for columns in [Vec::new(), kept] {
            if !columns.is_empty() || tokens == 1 {
                all.push(row_scales(&x, tokens, cols, &columns));
            }
            all.extend((0..3).map(|mode| quantize(samples, &x, tokens, cols, &columns, mode)));
        }
        all.push(widen(samples, tokens, cols));
    }
    all
}

fn quantize(samples: &mut Samples, x: &[f32], tokens: usize, cols: usize, columns: &[u32], mode: usize) -> Case {
    let n = if columns.is_empty() { cols } else { columns.len() };
    let (stride, fixed) = (n.next_multiple_of(16), 0.004);
    let given: Vec<f32> = samples.floats(tokens).iter().map(|v| v.abs() / 100.0).collect();
    let rows: Vec<Vec<f32>> = x.chunks(cols).map(|row| taken(row, columns)).collect();
    let scales: Vec<f32> = match mode {
        0 => rows.iter().map(|row| scale(row)).collect(),
        1 => given.clone(),
        _ => vec![fixed; tokens],
    };
    let all: Vec<i8> = rows.iter().zip(&scales).flat_map(|(row, scale)| codes(row, *scale, stride)).collect();
    let mut args =
        vec![Arg::buffer(x), Arg::or_null(columns), Arg::Buffer(samples.bytes(all.len())), Arg::buffer(&given)];
    args.extend([cols, n, stride, mode].map(Arg::int));
    args.push(Arg::Float(fixed));
    let launch = Launch::new(Module::Quantize, "quantize_8", [tokens, 1, 1], 256);
    let outputs = vec![Output::bits(2, Kind::Bytes, bytes(&all)), Output::bits(3, Kind::F32, bytes(&scales))];
    Case::new(format_args!("{tokens} x {n} of {cols}, mode {mode}"), launch, args, outputs)
}

fn row_scales(x: &[f32], tokens: usize, cols: usize, columns: &[u32]) -> Case {
    let scales: Vec<f32> = x.chunks(cols).map(|row| scale(&taken(row, columns))).collect();
    let n = if columns.is_empty() { cols } else { columns.len() };
    let nothing = Arg::buffer(&vec![f32::NAN; tokens]);
    let args = vec![Arg::buffer(x), Arg::or_null(columns), nothing, Arg::int(cols), Arg::int(n)];
    let launch = Launch::new(Module::Quantize, "row_scales", [tokens, 1, 1], 256);
    let reference = scales.iter().map(|s| f64::from(*s)).collect();
    Case::new(format_args!("{tokens} x {n} of {cols}"), launch, args, vec![Output::floats(2, &scales, reference, 0.0)])
}

fn spans(samples: &mut Samples) -> Case {
    let starts = [0u32, 1, 300, 304];
    let before: Vec<f32> = samples.floats(304).iter().map(|v| v.abs()).collect();
    let mut after = before.clone();
    for span in starts.windows(2) {
        let span = &mut after[span[0] as usize..span[1] as usize];
        let top = magnitude(span.iter().copied());
        span.fill(top);
    }
    let args = vec![Arg::buffer(&before), Arg::buffer(&starts)];
    let launch = Launch::new(Module::Quantize, "span_scales", [starts.len() - 1, 1, 1], 256);
    Case::new("1, 299 and 4 tokens", launch, args, vec![Output::bits(0, Kind::F32, bytes(&after))])
}

fn widen(samples: &mut Samples, tokens: usize, n: usize) -> Case {
    let stride = n.next_multiple_of(16);
    let (codes, scales) = (samples.bytes(tokens * stride), samples.floats(tokens));
    let rows = codes.chunks(stride).zip(&scales);
    let out: Vec<f32> = rows.flat_map(|(row, s)| row[..n].iter().map(move |&c| f32::from(c as i8) * s)).collect();
    let args = vec![
        Arg::Buffer(codes.clone()),
        Arg::buffer(&scales),
        Arg::buffer(&vec![f32::NAN; out.len()]),
        Arg::int(n),
        Arg::int(stride),
    ];
    let launch = Launch::over(Module::Quantize, "widen_8", tokens, n);
    Case::new(format_args!("{tokens} x {n}"), launch, args, vec![Output::bits(2, Kind::F32, bytes(&out))])
}
