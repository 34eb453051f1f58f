//! Loops over one row of the vocabulary, for the instruction sets there are.
//!
//! Sums run in several lanes over blocks, and blocks are added up in f64.

use super::Real;

/// Probabilities below e^FLOOR count as e^FLOOR where their logarithm is needed.
pub(super) const FLOOR: f64 = -87.0;

const LANES: usize = 16;
const BLOCK: usize = 64 * LANES;

/// Writes a loop that compilers turn into vector code: `$term` of each pair of elements, the first of which it may
/// change, summed up.
macro_rules! sum_over {
    ($x:expr, $y:expr, |$a:ident, $b:ident| $term:expr) => {{
        let mut total = 0f64;
        for (x, y) in $x.chunks_mut(BLOCK).zip($y.chunks(BLOCK)) {
            let mut lanes = [T::zero(); LANES];
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
                block += lane.to_f64();
            }
            total += block;
        }
        total
    }};
}

/// The largest value. A NaN may be passed over here; every sum of exponentials has it.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(crate) fn largest<T: Real>(x: &[T]) -> T {
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
pub(crate) fn exponentials<T: Real>(x: &[T], top: T, temperature: f64, out: &mut Vec<T>) -> f64 {
    out.resize(x.len(), T::zero());
    exponentials_of(x, top, temperature, out)
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn exponentials_of<T: Real>(x: &[T], top: T, temperature: f64, out: &mut [T]) -> f64 {
    let inverse = T::from_f64(1.0 / temperature);
    sum_over!(out, x, |out, x| {
        *out = ((x - top) * inverse).exp();
        *out
    })
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(crate) fn total<T: Real>(x: &[T]) -> f64 {
    let mut total = 0f64;
    for block in x.chunks(BLOCK) {
        let mut lanes = [T::zero(); LANES];
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
            total += lane.to_f64();
        }
    }
    total
}

/// Sums over a teacher's exponentials.
pub(super) struct Forward {
    /// Sum of the exponentials.
    pub(super) sum: f64,
    /// Sum of each exponential times its distance to the student's.
    pub(super) weighted: f64,
}

/// Turns the teacher's logits into exponentials.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn forward<T: Real>(z: &[T], x: &mut [T], top: T, shift: T, temperature: f64) -> Forward {
    let inverse = T::from_f64(1.0 / temperature);
    let weighted = sum_over!(x, z, |x, z| {
        let distance = *x - z - shift;
        *x = ((*x - top) * inverse).exp();
        *x * distance
    });
    Forward { sum: total(x), weighted }
}

/// Turns the teacher's logits into `ln(student / teacher)`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn log_ratios<T: Real>(z: &[T], x: &mut [T], shift: T, temperature: f64, constant: f64) {
    let (inverse, constant) = (T::from_f64(1.0 / temperature), T::from_f64(constant));
    for (x, &z) in x.iter_mut().zip(z) {
        *x = (z + shift - *x) * inverse + constant;
    }
}

/// KL(student || teacher); the student's probabilities become the gradient.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn reverse<T: Real>(student: &mut [T], ratios: &[T]) -> f64 {
    let value = sum_over!(student, ratios, |s, r| *s * r);
    let mean = T::from_f64(value);
    for (s, &r) in student.iter_mut().zip(ratios) {
        *s *= r - mean;
    }
    value
}

/// The Jensen-Shannon divergence; the student's probabilities become the gradient, the logarithms of the ratio the
/// student's to the mixture. The teacher's probabilities are their exponentials times a factor: the student's times the
/// ratio would be too much where they are at the least that an exponential is.
pub(super) fn jensen_shannon<T: Real>(student: &mut [T], ratios: &mut [T], (teacher, factor): (&[T], f64)) -> f64 {
    let (mut value, mut mean) = (0f64, 0f64);
    for ((s, r), t) in student.iter().zip(ratios.iter_mut()).zip(teacher) {
        let (mass, ratio) = (s.to_f64(), r.to_f64().clamp(FLOOR, -FLOOR));
        // teacher / student = exp(-ratio); student / mixture = 2 / (1 + teacher / student).
        let of_mixture = std::f64::consts::LN_2 - (-ratio).exp().ln_1p();
        value += 0.5 * (mass * of_mixture + t.to_f64() * factor * (of_mixture - ratio));
        mean += 0.5 * mass * of_mixture;
        *r = T::from_f64(0.5 * of_mixture);
    }
    let mean = T::from_f64(mean);
    student.iter_mut().zip(ratios).for_each(|(s, r)| *s *= *r - mean);
    value
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn subtract<T: Real>(x: &mut [T], x_by: f64, y: &[T], y_by: f64) {
    let (x_by, y_by) = (T::from_f64(x_by), T::from_f64(y_by));
    for (x, &y) in x.iter_mut().zip(y) {
        // Two products, each rounded: equal factors give exactly zero.
        let (a, b) = (*x * x_by, y * y_by);
        *x = a - b;
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn multiply<T: Real>(x: &mut [T], by: f64) {
    let by = T::from_f64(by);
    for x in x {
        *x *= by;
    }
}

/// `z = soft * soft_by + hard * hard_by`.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
pub(super) fn combine<T: Real>(z: &mut [T], soft: Option<&[T]>, soft_by: f64, hard: &[T], hard_by: f64) {
    let (soft_by, hard_by) = (T::from_f64(soft_by), T::from_f64(hard_by));
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
