//! Arithmetic on rows of logits: maximum, sum of exponentials, divergence.
//!
//! The exponential is a polynomial that compilers turn into vector code (relative error below
//! 2e-7); sums run in f32 over at most 64 terms a lane and from there on in f64, so that a mean
//! over tokens is good to better than 1e-6.

use crate::exp;

/// Maximum and sum of exponentials of a row of finite logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    /// The largest logit.
    pub max: f32,
    /// The first index that has it.
    pub argmax: usize,
    /// Sum of `exp(logit - max)`.
    pub sum: f64,
}

impl Row {
    /// `ln(sum of exp(logit))`.
    pub fn log_sum_exp(&self) -> f64 {
        f64::from(self.max) + self.sum.ln()
    }
}

/// Sums up a row; none when it is empty or a logit is NaN or infinite.
pub fn row(logits: &[f32]) -> Option<Row> {
    let (max, finite) = largest(logits);
    if !finite || logits.is_empty() {
        return None;
    }
    let argmax = logits.iter().position(|&x| x == max)?;
    Some(Row { max, argmax, sum: sum_exp(logits, max) })
}

/// KL(reference || artifact) in nats of two rows over the same entries. Zero for equal rows, never
/// negative, and accurate near zero.
///
/// The sum of `p (ln p - ln q)` cancels to nothing where the rows are nearly equal, and clamping what
/// rounding leaves of it at 0 would bias a mean. The sum of `p (ln p - ln q) - p + q` is the same
/// number, since both distributions sum to 1, and each of its terms is `p (e^u - 1 - u)` with
/// `u = ln q - ln p`: nonnegative, and quadratic in `u`.
pub fn divergence(reference: &[f32], r: &Row, artifact: &[f32], a: &Row) -> f64 {
    let pair =
        Pair { x_max: r.max, y_max: a.max, ratio: (r.sum / a.sum) as f32, offset: r.log_sum_exp() - a.log_sum_exp() };
    sum_of_terms(reference, artifact, pair) / r.sum
}

/// Values that all terms of a divergence share.
#[derive(Clone, Copy)]
struct Pair {
    /// The reference's largest logit.
    x_max: f32,
    /// The artifact's.
    y_max: f32,
    /// The reference's sum of exponentials over the artifact's.
    ratio: f32,
    /// `ln(sum of exp x) - ln(sum of exp y)`.
    offset: f64,
}

/// Returns whether no logit is NaN or infinite.
pub fn are_finite(logits: &[f32]) -> bool {
    largest(logits).1
}

const LANES: usize = 16;
/// Terms that are summed in f32 before f64 takes over: 64 a lane.
const BLOCK: usize = 64 * LANES;

/// The largest value (NaN aside) and whether all are finite.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn largest(logits: &[f32]) -> (f32, bool) {
    const EXPONENT: u32 = 0x7f80_0000;
    let mut max = [f32::NEG_INFINITY; LANES];
    let mut exponent = [0u32; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            max[i] = if chunk[i] > max[i] { chunk[i] } else { max[i] };
            exponent[i] = exponent[i].max(chunk[i].to_bits() & EXPONENT);
        }
    }
    for &x in rest {
        max[0] = if x > max[0] { x } else { max[0] };
        exponent[0] = exponent[0].max(x.to_bits() & EXPONENT);
    }
    (max.iter().copied().fold(f32::NEG_INFINITY, f32::max), exponent.iter().all(|&e| e < EXPONENT))
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn sum_exp(logits: &[f32], max: f32) -> f64 {
    let mut total = 0.0f64;
    for block in logits.chunks(BLOCK) {
        let mut lanes = [0f32; LANES];
        let chunks = block.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += exp(chunk[i] - max);
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += exp(x - max);
        }
        total += lanes.iter().map(|&s| f64::from(s)).sum::<f64>();
    }
    total
}

/// Sum of `p (e^u - 1 - u)` over the entries, times the reference's sum of exponentials.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn sum_of_terms(x: &[f32], y: &[f32], pair: Pair) -> f64 {
    let mut total = 0.0f64;
    for (x, y) in x.chunks(BLOCK).zip(y.chunks(BLOCK)) {
        let mut lanes = [0f32; LANES];
        let (xs, ys) = (x.chunks_exact(LANES), y.chunks_exact(LANES));
        let rest = xs.remainder().iter().zip(ys.remainder());
        for (x, y) in xs.zip(ys) {
            for i in 0..LANES {
                lanes[i] += term(x[i], y[i], pair);
            }
        }
        for (lane, (&x, &y)) in lanes.iter_mut().zip(rest) {
            *lane += term(x, y, pair);
        }
        total += lanes.iter().map(|&s| f64::from(s)).sum::<f64>();
    }
    total
}

/// `p (e^u - 1 - u)` of one entry. `u` is computed in f64, so that it is exact to f32 where the rows
/// are nearly equal. Small `u` go through the series, whose terms don't cancel.
#[inline(always)]
fn term(x: f32, y: f32, pair: Pair) -> f32 {
    let below = x - pair.x_max;
    // The exponential stops at e^-87: what lies below has no probability.
    let p = if below < -87.0 { 0.0 } else { exp(below) };
    let u = (f64::from(y) - f64::from(x) + pair.offset) as f32;
    let mut series = 1.0 / 40_320.0;
    for coefficient in [1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5] {
        series = series * u + coefficient;
    }
    let near = p * (u * u * series);
    let far = exp(y - pair.y_max) * pair.ratio - p - p * u;
    if u.abs() < 0.5 { near } else { far }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(logits: &[f32]) -> (f64, Vec<f64>) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| (f64::from(x) - f64::from(max)).exp()).sum();
        let lse = f64::from(max) + sum.ln();
        (lse, logits.iter().map(|&x| f64::from(x) - lse).collect())
    }

    #[test]
    fn the_exponential_is_exact_to_two_ulps() {
        let mut worst = 0f64;
        for i in 0..200_000 {
            let x = -85.0 * (i as f32) / 200_000.0;
            let e = f64::from(x).exp();
            worst = worst.max((f64::from(exp(x)) - e).abs() / e);
        }
        assert!(worst < 2e-7, "{worst}");
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(-1e30) < 1e-36);
    }

    #[test]
    fn divergence_from_itself_is_exactly_zero() {
        let row_values: Vec<f32> = (0..5003).map(|i| ((i * 37 % 101) as f32).sin() * 20.0).collect();
        let r = row(&row_values).expect("finite");
        assert_eq!(divergence(&row_values, &r, &row_values, &r), 0.0);
    }

    /// KL in f64 from the definition.
    fn definition(x: &[f32], y: &[f32]) -> f64 {
        let ((_, p), (_, q)) = (exact(x), exact(y));
        p.iter().zip(&q).map(|(p, q)| p.exp() * ((q - p).exp_m1() - (q - p))).sum()
    }

    #[test]
    fn a_divergence_near_zero_is_neither_clamped_nor_lost() {
        let x: Vec<f32> = (0..49_152).map(|i| ((i * 7919 % 10_007) as f32).sin() * 6.0).collect();
        let r = row(&x).expect("finite");
        for size in [1e-1f32, 1e-2, 1e-3, 1e-4, 1e-5] {
            for shift in [0.0f32, 3.0] {
                let moved = |(i, v): (usize, &f32)| v + shift + size * ((i * 31 % 17) as f32 - 8.0) / 8.0;
                let y: Vec<f32> = x.iter().enumerate().map(moved).collect();
                let kl = definition(&x, &y);
                let ours = divergence(&x, &r, &y, &row(&y).expect("finite"));
                // The rows' sums are good to 1e-7, and their error enters squared.
                assert!(kl > 0.0 && (ours - kl).abs() < 1e-5 * kl + 1e-14, "{size} {shift}: {ours} is not {kl}");
            }
        }
    }

    #[test]
    fn entries_without_probability_add_nothing() {
        let x = [0.0f32, 1.0, -3e38, -200.0];
        let y = [0.0f32, 1.0, -200.0, -3e38];
        let kl = divergence(&x, &row(&x).expect("finite"), &y, &row(&y).expect("finite"));
        assert!((0.0..1e-12).contains(&kl), "{kl}");
    }

    #[test]
    fn a_known_divergence() {
        // p = (3/4, 1/4), q = (1/2, 1/2): KL = 3/4 ln(3/2) + 1/4 ln(1/2).
        let (p, q) = ([3f32.ln(), 0.0], [5.0, 5.0]);
        let kl = divergence(&p, &row(&p).expect("finite"), &q, &row(&q).expect("finite"));
        let expected = 0.75 * 1.5f64.ln() + 0.25 * 0.5f64.ln();
        assert!((kl - expected).abs() < 1e-7, "{kl} {expected}");
    }

    #[test]
    fn values_that_are_not_finite_are_found() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for at in [0, 5, 16, 40] {
                let mut x = vec![1.0f32; 41];
                x[at] = bad;
                assert_eq!(row(&x), None);
            }
        }
        assert_eq!(row(&[]), None);
    }

    proptest! {
        #[test]
        fn rows_agree_with_f64(x in prop::collection::vec(-40f32..40.0, 1..3000), seed in 0u32..1000) {
            let y: Vec<f32> = x.iter().enumerate().map(|(i, v)| v + ((i as u32 * 31 + seed) % 17) as f32 * 0.1).collect();
            let (r, a) = (row(&x).expect("finite"), row(&y).expect("finite"));
            let (lse, _) = exact(&x);
            prop_assert!((r.log_sum_exp() - lse).abs() < 1e-6);
            prop_assert_eq!(x[r.argmax], r.max);
            let kl = definition(&x, &y);
            let ours = divergence(&x, &r, &y, &a);
            prop_assert!(ours >= 0.0 && (ours - kl).abs() < 1e-12 + 1e-5 * kl, "{} {}", ours, kl);
        }
    }
}
