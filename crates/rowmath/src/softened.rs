//! Softmax and divergences of one row of logits at a temperature, with gradients, for the instruction sets there are.
//!
//! Sums run in several lanes over blocks, and blocks are added up in f64.

use std::ops::{Add, AddAssign, Mul, MulAssign, Sub};

/// A float type that rows are computed in.
pub trait Real:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + AddAssign + MulAssign
{
    /// Zero.
    const ZERO: Self;
    /// Rounds a number to this type.
    fn from_double(x: f64) -> Self;
    /// Widens the number.
    fn to_double(self) -> f64;
    /// `e^x`; in f32 within 2e-7 relative from e^-87 to e^88, and no smaller or larger than these.
    fn exp(self) -> Self;
}

impl Real for f32 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn from_double(x: f64) -> Self {
        x as f32
    }
    #[inline(always)]
    fn to_double(self) -> f64 {
        f64::from(self)
    }
    #[inline(always)]
    fn exp(self) -> Self {
        crate::exp(self)
    }
}

impl Real for f64 {
    const ZERO: Self = 0.0;
    #[inline(always)]
    fn from_double(x: f64) -> Self {
        x
    }
    #[inline(always)]
    fn to_double(self) -> f64 {
        self
    }
    #[inline(always)]
    fn exp(self) -> Self {
        f64::exp(self)
    }
}

/// Probabilities below e^FLOOR count as e^FLOOR where their logarithm is needed.
pub const FLOOR: f64 = -87.0;

const LANES: usize = 16;
const BLOCK: usize = 64 * LANES;

/// Writes a loop that compilers turn into vector code: `$term` of each pair of elements, the first of which it may
/// change, summed up.
macro_rules! sum_over {
    ($x:expr, $y:expr, |$a:ident, $b:ident| $term:expr) => {{
        let mut total = 0f64;
        for (x, y) in $x.chunks_mut(BLOCK).zip($y.chunks(BLOCK)) {
            let mut lanes = [T::ZERO; LANES];
            let (mut xs, mut ys) = (x.chunks_exact_mut(LANES), y.chunks_exact(LANES));
            for (x, y) in (&mut xs).zip(&mut ys) {
                for i in 0..LANES {
                    let ($a, $b) = (&mut x[i], y[i]);
                    lanes[i] += $term;
                }
            }
            for ((lane, $a), &$b) in lanes.iter_mut().zip(xs.into_remainder()).zip(ys.remainder()) {
                *lane += $term;
            }
            let mut block = 0f64;
            for lane in lanes {
                block += lane.to_double();
            }
            total += block;
        }
        total
    }};
}

/// The largest value. A NaN may be passed over here; every sum of exponentials has it.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn largest<T: Real>(x: &[T]) -> T {
    let mut lanes = [x[0]; LANES];
    let chunks = x.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for i in 0..LANES {
            lanes[i] = if chunk[i] <= lanes[i] { lanes[i] } else { chunk[i] };
        }
    }
    rest.iter().chain(&lanes.clone()).fold(lanes[0], |m, &v| if v <= m { m } else { v })
}

/// Puts `exp((x - top) / temperature)` into `out`; returns the sum.
pub fn exponentials<T: Real>(x: &[T], top: T, temperature: f64, out: &mut Vec<T>) -> f64 {
    out.resize(x.len(), T::ZERO);
    exponentials_of(x, top, temperature, out)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn exponentials_of<T: Real>(x: &[T], top: T, temperature: f64, out: &mut [T]) -> f64 {
    let inverse = T::from_double(1.0 / temperature);
    sum_over!(out, x, |out, x| {
        *out = ((x - top) * inverse).exp();
        *out
    })
}

/// Sum of a row, in lanes over blocks and f64 from there on.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn total<T: Real>(x: &[T]) -> f64 {
    let mut total = 0f64;
    for block in x.chunks(BLOCK) {
        let mut lanes = [T::ZERO; LANES];
        let chunks = block.chunks_exact(LANES);
        let rest = chunks.remainder();
        for chunk in chunks {
            for i in 0..LANES {
                lanes[i] += chunk[i];
            }
        }
        for (lane, &x) in lanes.iter_mut().zip(rest) {
            *lane += x;
        }
        for lane in lanes {
            total += lane.to_double();
        }
    }
    total
}

/// Sums over a teacher's exponentials.
pub struct Forward {
    /// Sum of the exponentials.
    pub sum: f64,
    /// Sum of each exponential times its distance to the student's.
    pub weighted: f64,
}

/// Turns the teacher's logits into exponentials.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn forward<T: Real>(z: &[T], x: &mut [T], top: T, shift: T, temperature: f64) -> Forward {
    let inverse = T::from_double(1.0 / temperature);
    let weighted = sum_over!(x, z, |x, z| {
        let distance = *x - z - shift;
        *x = ((*x - top) * inverse).exp();
        *x * distance
    });
    Forward { sum: total(x), weighted }
}

/// Turns the teacher's logits into `ln(student / teacher)`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn log_ratios<T: Real>(z: &[T], x: &mut [T], shift: T, temperature: f64, constant: f64) {
    let (inverse, constant) = (T::from_double(1.0 / temperature), T::from_double(constant));
    for (x, &z) in x.iter_mut().zip(z) {
        *x = (z + shift - *x) * inverse + constant;
    }
}

/// KL(student || teacher); the student's probabilities become the gradient.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn reverse<T: Real>(student: &mut [T], ratios: &[T]) -> f64 {
    let value = sum_over!(student, ratios, |s, r| *s * r);
    let mean = T::from_double(value);
    for (s, &r) in student.iter_mut().zip(ratios) {
        *s *= r - mean;
    }
    value
}

/// The Jensen-Shannon divergence; the student's probabilities become the gradient, the logarithms of the ratio the
/// student's to the mixture. The teacher's probabilities are their exponentials times a factor: the student's times the
/// ratio would be too much where they are at the least that an exponential is.
pub fn jensen_shannon<T: Real>(student: &mut [T], ratios: &mut [T], (teacher, factor): (&[T], f64)) -> f64 {
    let (mut value, mut mean) = (0f64, 0f64);
    for ((s, r), t) in student.iter().zip(ratios.iter_mut()).zip(teacher) {
        let (mass, ratio) = (s.to_double(), r.to_double().clamp(FLOOR, -FLOOR));
        // teacher / student = exp(-ratio); student / mixture = 2 / (1 + teacher / student).
        let of_mixture = std::f64::consts::LN_2 - (-ratio).exp().ln_1p();
        value += 0.5 * (mass * of_mixture + t.to_double() * factor * (of_mixture - ratio));
        mean += 0.5 * mass * of_mixture;
        *r = T::from_double(0.5 * of_mixture);
    }
    let mean = T::from_double(mean);
    student.iter_mut().zip(ratios).for_each(|(s, r)| *s *= *r - mean);
    value
}

/// Sets `x` to `x * x_by - y * y_by`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn subtract<T: Real>(x: &mut [T], x_by: f64, y: &[T], y_by: f64) {
    let (x_by, y_by) = (T::from_double(x_by), T::from_double(y_by));
    for (x, &y) in x.iter_mut().zip(y) {
        // Two products, each rounded: equal factors give exactly zero.
        let (a, b) = (*x * x_by, y * y_by);
        *x = a - b;
    }
}

/// Multiplies a row by a number.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn multiply<T: Real>(x: &mut [T], by: f64) {
    let by = T::from_double(by);
    for x in x {
        *x *= by;
    }
}

/// `z = soft * soft_by + hard * hard_by`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub fn combine<T: Real>(z: &mut [T], soft: Option<&[T]>, soft_by: f64, hard: &[T], hard_by: f64) {
    let (soft_by, hard_by) = (T::from_double(soft_by), T::from_double(hard_by));
    match soft {
        Some(soft) => {
            for ((z, &s), &h) in z.iter_mut().zip(soft).zip(hard) {
                *z = s * soft_by + h * hard_by;
            }
        }
        None => {
            for (z, &h) in z.iter_mut().zip(hard) {
                *z = h * hard_by;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logits;
    use proptest::prelude::*;

    proptest! {
        /// Training's sums are evaluation's, at temperature 1.
        #[test]
        fn training_and_evaluation_share_their_sums(
            x in prop::collection::vec(-30f32..30.0, 1..2500),
            seed in 0u32..1000,
        ) {
            let y: Vec<f32> = x.iter().enumerate().map(|(i, v)| v + ((i as u32 * 31 + seed) % 17) as f32 * 0.1).collect();
            let (of_x, of_y) = (logits::row(&x).expect("finite"), logits::row(&y).expect("finite"));
            prop_assert_eq!(largest(&x), of_x.max);
            let mut exponentials_of_x = Vec::new();
            let sum = exponentials(&x, of_x.max, 1.0, &mut exponentials_of_x);
            prop_assert!((sum - of_x.sum).abs() <= 1e-9 * sum, "{} {}", sum, of_x.sum);
            // KL(x || y) by the sums that training makes of the teacher's row.
            let mut teacher = x.clone();
            let sums = forward(&y, &mut teacher, of_x.max, of_x.max - of_y.max, 1.0);
            let kl = sums.weighted / sums.sum + (of_y.sum / sums.sum).ln();
            let evaluated = logits::divergence(&x, &of_x, &y, &of_y);
            prop_assert!((kl - evaluated).abs() < 1e-5 + 1e-4 * evaluated, "{} {}", kl, evaluated);
        }
    }
}
