//! Weight error: `|W - D| / |W|` in the Frobenius norm.

/// Sums for the relative error of one matrix or of many.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct WeightError {
    /// Sum of squared differences.
    pub difference: f64,
    /// Sum of squared source weights.
    pub source: f64,
}

impl WeightError {
    /// Adds a run of weights and what they decode to.
    pub fn add(&mut self, source: &[f32], decoded: &[f32]) {
        for (w, d) in source.chunks(RUN).zip(decoded.chunks(RUN)) {
            let (mut difference, mut norm) = sums(w, d);
            // Squares beyond f32, or below it, are rare enough to be done again.
            if !(SMALLEST..f64::INFINITY).contains(&norm) || !difference.is_finite() {
                (difference, norm) = wide_sums(w, d);
            }
            self.difference += difference;
            self.source += norm;
        }
    }

    /// Adds the sums of another matrix (for the pooled error).
    pub fn merge(&mut self, other: &WeightError) {
        self.difference += other.difference;
        self.source += other.source;
    }

    /// The relative error; 0 for a matrix of zeros that decodes to zeros.
    pub fn relative(&self) -> f64 {
        if self.difference == 0.0 { 0.0 } else { (self.difference / self.source).sqrt() }
    }
}

/// Weights whose squares are summed in f32: sixteen in each of sixteen lanes, so that rounding
/// stays below 1e-6 of the sum.
const RUN: usize = 256;

/// Sums of squares below this may have lost terms to f32's smallest numbers.
const SMALLEST: f64 = 1e-24;

/// Squared differences and squares, in f32.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn sums(source: &[f32], decoded: &[f32]) -> (f64, f64) {
    let (mut difference, mut norm) = ([0f32; 16], [0f32; 16]);
    let (whole, rest) = source.as_chunks::<16>();
    let (whole_decoded, rest_decoded) = decoded.as_chunks::<16>();
    for (w, d) in whole.iter().zip(whole_decoded) {
        for i in 0..16 {
            difference[i] += (w[i] - d[i]) * (w[i] - d[i]);
            norm[i] += w[i] * w[i];
        }
    }
    for (i, (w, d)) in rest.iter().zip(rest_decoded).enumerate() {
        difference[i] += (w - d) * (w - d);
        norm[i] += w * w;
    }
    let sum = |lanes: [f32; 16]| lanes.into_iter().map(f64::from).sum();
    (sum(difference), sum(norm))
}

/// Weights whose terms are summed in f32 at a time where these are of like size.
const LONG_RUN: usize = 4096;

/// The sum of squared differences to what groups of weights decode to: `nearest` finds the level of
/// `w / scale`, `decoded` has the scales by which readers multiply levels. Groups of scale 0 lose
/// nothing. A product with the inverse may round to the other side of a tie, where the square is the
/// same. Inlined, so that it is compiled for its caller's instructions.
#[inline(always)]
pub(crate) fn group_losses(
    src: &[f32],
    group: usize,
    scales: &[f32],
    decoded: &[f32],
    nearest: impl Fn(f32) -> f32,
) -> f64 {
    // In units of the largest scale, so that no square leaves f32's range.
    let unit = scales.iter().fold(0f32, |a, b| a.max(*b));
    let (mut sum, mut lanes, mut pending) = (0.0, [0f32; 16], 0);
    for ((weights, &scale), &decoded) in src.chunks(group).zip(scales).zip(decoded) {
        if scale == 0.0 {
            continue;
        }
        let (inverse, scale, decoded) = (1.0 / scale, scale / unit, decoded / unit);
        for run in weights.chunks(LONG_RUN) {
            each_sixteen(run, |part| {
                for (lane, w) in lanes.iter_mut().zip(part) {
                    let x = w * inverse;
                    let difference = x * scale - nearest(x) * decoded;
                    *lane += difference * difference;
                }
            });
            pending += run.len();
            if pending >= LONG_RUN {
                (sum, lanes, pending) = (sum + total(&lanes), [0f32; 16], 0);
            }
        }
    }
    (sum + total(&lanes)) * f64::from(unit).powi(2)
}

/// Not inlined: the compiler would otherwise fill the lanes one by one, as they are added here.
#[inline(never)]
fn total(lanes: &[f32; 16]) -> f64 {
    lanes.iter().map(|lane| f64::from(*lane)).sum()
}

/// Hands out sixteen values at a time; the last are filled up with zeros, which keeps lanes in registers.
#[inline(always)]
pub(crate) fn each_sixteen(values: &[f32], mut see: impl FnMut(&[f32; 16])) {
    let (whole, rest) = values.as_chunks::<16>();
    whole.iter().for_each(&mut see);
    if !rest.is_empty() {
        let mut filled = [0f32; 16];
        filled[..rest.len()].copy_from_slice(rest);
        see(&filled);
    }
}

/// The sums of [`sums`] in f64.
fn wide_sums(source: &[f32], decoded: &[f32]) -> (f64, f64) {
    source.iter().zip(decoded).fold((0.0, 0.0), |(difference, norm), (w, d)| {
        let (w, d) = (f64::from(*w), f64::from(*d));
        (difference + (w - d) * (w - d), norm + w * w)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_error_of_a_known_case() {
        let mut e = WeightError::default();
        e.add(&[3.0, 4.0], &[3.0, 3.5]);
        assert!((e.relative() - 0.1).abs() < 1e-12);
        assert_eq!(WeightError::default().relative(), 0.0);
    }

    #[test]
    fn as_in_f64_whatever_the_size_of_weights() {
        for magnitude in [1e-30f32, 1e-12, 1e-3, 1.0, 1e25] {
            let w: Vec<f32> = (0..1003).map(|i| magnitude * ((i * 7919 % 2003) as f32 / 1001.0 - 1.0)).collect();
            let d: Vec<f32> = w.iter().map(|w| w + 0.01 * magnitude).collect();
            let mut e = WeightError::default();
            e.add(&w, &d);
            let (difference, norm) = wide_sums(&w, &d);
            assert!((e.relative() / (difference / norm).sqrt() - 1.0).abs() < 1e-5, "{magnitude}");
        }
    }
}
