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
        for (w, d) in source.chunks(4096).zip(decoded.chunks(4096)) {
            let (difference, norm) = sums(w, d);
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

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn sums(source: &[f32], decoded: &[f32]) -> (f64, f64) {
    let (mut difference, mut norm) = ([0f64; 16], [0f64; 16]);
    for (w, d) in source.chunks(16).zip(decoded.chunks(16)) {
        for (i, (w, d)) in w.iter().zip(d).enumerate() {
            let (w, d) = (f64::from(*w), f64::from(*d));
            difference[i] += (w - d) * (w - d);
            norm[i] += w * w;
        }
    }
    (difference.iter().sum(), norm.iter().sum())
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
}
