//! Activations as the kernels take them: rows padded with zeros, quantized where asked.

use super::weights::Columns;
use rayon::prelude::*;
use schemes::Activation;
use std::borrow::Cow;

/// Rows are padded to a multiple of this, the widest vector.
pub const PAD: usize = 16;

/// Rows of activations `[tokens, stride]`.
#[derive(Debug)]
pub struct Panel<'a> {
    /// The rows.
    pub data: Cow<'a, [f32]>,
    /// From one row to the next; a multiple of [`PAD`].
    pub stride: usize,
    /// Columns in use.
    pub cols: usize,
    /// One factor a token for the sums, where the rows are integer codes.
    pub scales: Option<Vec<f32>>,
}

/// How rows are quantized, over which of their columns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Recipe<'a> {
    /// The columns.
    pub columns: Columns<'a>,
    /// The quantization.
    pub activation: Activation,
}

/// Prepares `rows` of `cols` values. `per_sequence` consecutive tokens share one scale under
/// [`Activation::Int8Tensor`].
pub fn prepare<'a>(rows: &'a [f32], cols: usize, per_sequence: usize, recipe: Recipe<'_>) -> Panel<'a> {
    let quantized = recipe.activation != Activation::Float && !matches!(recipe.columns, Columns::Only(_));
    if recipe.columns == Columns::All && !quantized && cols.is_multiple_of(PAD) {
        return Panel { data: Cow::Borrowed(rows), stride: cols, cols, scales: None };
    }
    let used = match recipe.columns {
        Columns::All => cols,
        Columns::Without(c) => cols - c.len(),
        Columns::Only(c) => c.len(),
    };
    let stride = used.next_multiple_of(PAD);
    let tokens = rows.len() / cols;
    let mut data = vec![0f32; tokens * stride];
    data.par_chunks_mut(stride)
        .zip(rows.par_chunks(cols))
        .with_min_len(16)
        .for_each(|(out, row)| gather(row, recipe.columns, &mut out[..used]));
    let scales = quantized.then(|| {
        let scales = scales(&data, stride, per_sequence, recipe.activation);
        data.par_chunks_mut(stride).zip(&scales).with_min_len(16).for_each(|(row, &scale)| quantize(row, scale));
        scales
    });
    Panel { data: Cow::Owned(data), stride, cols: used, scales }
}

fn gather(row: &[f32], columns: Columns<'_>, out: &mut [f32]) {
    match columns {
        Columns::All => out.copy_from_slice(row),
        Columns::Only(columns) => out.iter_mut().zip(columns).for_each(|(o, &c)| *o = row[c as usize]),
        Columns::Without(columns) => {
            let (mut from, mut rest) = (0, out);
            for end in columns.iter().map(|&c| c as usize).chain([row.len()]) {
                let (now, later) = rest.split_at_mut(end - from);
                now.copy_from_slice(&row[from..end]);
                (from, rest) = (end + 1, later);
            }
        }
    }
}

/// One scale a token. A row of zeros has scale 0.
fn scales(data: &[f32], stride: usize, per_sequence: usize, activation: Activation) -> Vec<f32> {
    let of = |values: &[f32]| absmax(values) / 127.0;
    let tokens = data.len() / stride;
    match activation {
        Activation::Int8Static(scale) => vec![scale; tokens],
        Activation::Int8Tensor => data
            .par_chunks(per_sequence * stride)
            .flat_map_iter(|sequence| std::iter::repeat_n(of(sequence), sequence.len() / stride))
            .collect(),
        _ => data.par_chunks(stride).with_min_len(16).map(of).collect(),
    }
}

/// The largest magnitude; NaN where there is one, so that it is not lost.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn absmax(values: &[f32]) -> f32 {
    // Magnitudes order as their bits do, and NaN comes last.
    let bits = values.iter().fold(0u32, |m, v| m.max(v.to_bits() & 0x7FFF_FFFF));
    f32::from_bits(bits)
}

/// `round(x / scale)`, ties to even, clamped to [-127, 127], in place.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn quantize(row: &mut [f32], scale: f32) {
    if scale == 0.0 {
        row.fill(0.0);
        return;
    }
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, ties to even, for
    // |x| < 2^22, and unlike `round_ties_even` it vectorizes on every target.
    const ROUND: f32 = 12_582_912.0;
    for x in row {
        *x = ((*x / scale).clamp(-127.0, 127.0) + ROUND) - ROUND;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn codes(x: &[f32], scale: f32) -> Vec<f32> {
        x.iter().map(|x| if scale == 0.0 { 0.0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) }).collect()
    }

    #[test]
    fn columns_are_split_and_rows_padded() {
        let rows: Vec<f32> = (0..10).map(|i| i as f32).collect();
        let of = |columns| prepare(&rows, 5, 1, Recipe { columns, activation: Activation::Float });
        let without = of(Columns::Without(&[1, 4]));
        assert_eq!((without.stride, without.cols), (16, 3));
        assert_eq!(without.data[..4], [0.0, 2.0, 3.0, 0.0]);
        assert_eq!(without.data[16..20], [5.0, 7.0, 8.0, 0.0]);
        let only = of(Columns::Only(&[1, 4]));
        assert_eq!(only.data[16..19], [6.0, 9.0, 0.0]);
        assert!(only.scales.is_none());
    }

    proptest! {
        #[test]
        fn quantized_as_said(x in prop::collection::vec(-5f32..5.0, 42..=42), which in 0usize..3) {
            let activation = [Activation::Int8Token, Activation::Int8Tensor, Activation::Int8Static(0.02)][which];
            // Six tokens of seven columns, in sequences of three tokens.
            let panel = prepare(&x, 7, 3, Recipe { columns: Columns::All, activation });
            let scales = panel.scales.as_ref().expect("quantized");
            for (t, row) in x.chunks(7).enumerate() {
                let over = match activation {
                    Activation::Int8Token => row,
                    _ => &x[t / 3 * 21..][..21],
                };
                let want = match activation {
                    Activation::Int8Static(s) => s,
                    _ => over.iter().fold(0f32, |m, v| m.max(v.abs())) / 127.0,
                };
                prop_assert_eq!(scales[t], want);
                let found = &panel.data[t * panel.stride..][..7];
                prop_assert_eq!(found, &codes(row, want)[..]);
            }
        }
    }
}
