//! Labels of one prediction from its logits.

use super::format::{Kind, Settings};
use crate::ops::{exponentials, largest, total};
use crate::random;
use half::f16;
use half::slice::HalfFloatSliceExt;
use rand::Rng;

/// Logits whose largest is looked for at once.
const BLOCK: usize = 64;

/// Makes labels of the settings' kind.
#[derive(Debug)]
pub(super) struct RowMaker<'a> {
    pub settings: &'a Settings,
    /// True if tokens take four bytes.
    pub wide_ids: bool,
}

/// Working memory of a thread.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    /// Logits, those of the top k at negative infinity.
    others: Vec<f32>,
    exponentials: Vec<f32>,
    maxima: Vec<f32>,
    candidates: Vec<u32>,
}

impl RowMaker<'_> {
    /// The bytes of prediction `index` for each of [`super::format::columns`]; none where a logit is NaN or infinite.
    pub fn make(&self, logits: &[f32], index: usize, scratch: &mut Scratch) -> Option<Vec<Vec<u8>>> {
        let top = largest(logits);
        match self.settings.kind {
            Kind::TopK(k) => self.top_k(logits, top, k, scratch),
            Kind::Sampled(n) => self.sampled(logits, top, n, index, scratch),
            Kind::Full => {
                let log_sum = f64::from(top) + exponentials(logits, top, 1.0, &mut scratch.exponentials).ln();
                let log_probs: Vec<f32> = logits.iter().map(|x| x - log_sum as f32).collect();
                log_sum.is_finite().then(|| vec![halves(&log_probs)])
            }
        }
    }

    fn top_k(&self, logits: &[f32], top: f32, k: usize, scratch: &mut Scratch) -> Option<Vec<Vec<u8>>> {
        let ids = top_k(logits, k, scratch);
        let Scratch { others, exponentials: room, .. } = scratch;
        others.clear();
        others.extend_from_slice(logits);
        ids.iter().for_each(|&id| others[id as usize] = f32::NEG_INFINITY);
        // The mass outside is added up on its own: the total less the top k would lose a small one.
        let mut outside = |t: f64| if k == logits.len() { 0.0 } else { exponentials(others, top, t, room) };
        let above = |id: &u32| f64::from(logits[*id as usize]) - f64::from(top);
        let outside_at_1 = outside(1.0);
        let log_sum = (outside_at_1 + ids.iter().map(|id| above(id).exp()).sum::<f64>()).ln();
        if !log_sum.is_finite() {
            return None;
        }
        let log_probs: Vec<f32> = ids.iter().map(|id| (above(id) - log_sum) as f32).collect();
        let stored: Vec<f64> = log_probs.iter().map(|&x| f16::from_f32(x).to_f64()).collect();
        let (mut normalisers, mut rests) = (Vec::new(), Vec::new());
        for &t in &self.settings.temperatures {
            let inside: f64 = stored.iter().map(|x| (x / t).exp()).sum();
            let outside = if t == 1.0 { outside_at_1 } else { outside(t) } * (-log_sum / t).exp();
            let normaliser = (inside + outside).ln();
            normalisers.extend((normaliser as f32).to_le_bytes());
            rests.extend(((outside.ln() - normaliser) as f32).to_le_bytes());
        }
        Some(vec![self.tokens(&ids), halves(&log_probs), normalisers, rests])
    }

    fn sampled(&self, logits: &[f32], top: f32, n: usize, index: usize, scratch: &mut Scratch) -> Option<Vec<Vec<u8>>> {
        // A stream of each prediction's own: nothing depends on the order in which they are made.
        let mut rng = random::stream(self.settings.seed, random::DRAWS + index as u64);
        let mut ids = Vec::with_capacity(n * self.settings.temperatures.len());
        for &t in &self.settings.temperatures {
            let sum = exponentials(logits, top, t, &mut scratch.exponentials);
            if !sum.is_finite() {
                return None;
            }
            let mut at: Vec<f64> = (0..n).map(|_| rng.random::<f64>() * sum).collect();
            at.sort_unstable_by(f64::total_cmp);
            draw(&scratch.exponentials, &at, &mut ids);
        }
        Some(vec![self.tokens(&ids)])
    }

    fn tokens(&self, ids: &[u32]) -> Vec<u8> {
        if self.wide_ids {
            ids.iter().flat_map(|id| id.to_le_bytes()).collect()
        } else {
            ids.iter().flat_map(|&id| (id as u16).to_le_bytes()).collect()
        }
    }
}

fn halves(values: &[f32]) -> Vec<u8> {
    let mut out = vec![f16::ZERO; values.len()];
    out.convert_from_f32_slice(values);
    out.iter().flat_map(|h| h.to_le_bytes()).collect()
}

/// Finds the weights at which a running sum passes each of the ascending values `at`.
fn draw(weights: &[f32], at: &[f64], ids: &mut Vec<u32>) {
    let sums: Vec<f64> = weights.chunks(BLOCK).map(total).collect();
    let (mut block, mut before) = (0, 0.0);
    for &at in at {
        while block + 1 < sums.len() && before + sums[block] <= at {
            before += sums[block];
            block += 1;
        }
        let start = block * BLOCK;
        let here = &weights[start..weights.len().min(start + BLOCK)];
        let mut sum = before;
        let passed = here.iter().position(|&w| {
            sum += f64::from(w);
            sum > at
        });
        // The sums of a block in f32 lanes and one by one differ by their rounding.
        let last = || here.iter().rposition(|&w| w > 0.0).unwrap_or(0);
        ids.push((start + passed.unwrap_or_else(last)) as u32);
    }
}

/// The indices of the `k` largest values, the largest first; of equal ones the first.
fn top_k(values: &[f32], k: usize, scratch: &mut Scratch) -> Vec<u32> {
    let Scratch { maxima, candidates, .. } = scratch;
    block_maxima(values, maxima);
    // At least k values are as large as the k-th largest of the blocks' maxima.
    let bound = if maxima.len() > k {
        let mut sorted = maxima.clone();
        *sorted.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a)).1
    } else {
        f32::NEG_INFINITY
    };
    candidates.clear();
    for (i, block) in values.chunks(BLOCK).enumerate().filter(|(i, _)| maxima[*i] >= bound) {
        let here = (0u32..).map(|j| (i * BLOCK) as u32 + j).zip(block);
        candidates.extend(here.filter(|(_, v)| **v >= bound).map(|(id, _)| id));
    }
    let order = |a: &u32, b: &u32| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b));
    if candidates.len() > k {
        candidates.select_nth_unstable_by(k - 1, order);
        candidates.truncate(k);
    }
    candidates.sort_unstable_by(order);
    candidates.clone()
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn block_maxima(values: &[f32], maxima: &mut Vec<f32>) {
    const LANES: usize = 16;
    maxima.clear();
    for block in values.chunks(BLOCK) {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for chunk in block.chunks(LANES) {
            for (lane, &v) in lanes.iter_mut().zip(chunk) {
                *lane = if v > *lane { v } else { *lane };
            }
        }
        maxima.push(lanes.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_top_is_what_sorting_gives(
            values in prop::collection::vec((-40i32..40).prop_map(|v| v as f32 * 0.25), 1..900),
            share in 0.0f64..=1.0,
        ) {
            let k = ((values.len() as f64 * share) as usize).max(1);
            let mut sorted: Vec<u32> = (0..values.len() as u32).collect();
            sorted.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]).then(a.cmp(b)));
            prop_assert_eq!(top_k(&values, k, &mut Scratch::default()), &sorted[..k]);
        }

        #[test]
        fn draws_are_where_the_sum_is_reached(
            weights in prop::collection::vec(prop::sample::select(vec![0.0f32, 0.25, 1.0, 3.0]), 1..300),
            mut at in prop::collection::vec(0.0f64..1.0, 1..40),
        ) {
            let sum: f64 = weights.iter().map(|&w| f64::from(w)).sum();
            prop_assume!(sum > 0.0);
            at.iter_mut().for_each(|a| *a *= sum);
            at.sort_unstable_by(f64::total_cmp);
            let mut ids = Vec::new();
            draw(&weights, &at, &mut ids);
            // These sums are exact in f32 and f64.
            let expected: Vec<u32> = at.iter().map(|at| {
                let mut sum = 0.0;
                weights.iter().position(|&w| { sum += f64::from(w); sum > *at }).expect("below the sum") as u32
            }).collect();
            prop_assert_eq!(ids, expected);
        }
    }

    #[test]
    fn what_rounding_leaves_over_goes_to_the_last() {
        let mut ids = Vec::new();
        let mut weights = vec![1.0f32; 70];
        weights[69] = 0.0;
        draw(&weights, &[69.0, 69.5, 70.0], &mut ids);
        assert_eq!(ids, [68, 68, 68]);
    }
}
