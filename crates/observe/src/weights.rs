//! Weights of one matrix: moments, outliers, and what each scheme loses. A few rows are decoded at
//! a time.

use rowmath::round::nearest_u8;
use schemes::measure::WeightError;
use schemes::{Error, FloatType, Grouping, Matrix, Scheme, ggml, int, nf4};
use std::ops::Range;

/// Weights decoded at a time.
const CHUNK: usize = 1 << 12;

/// Bins of [`Spread::histogram`] to each side of zero.
const SIDE: usize = 48;

/// Bins for each standard deviation.
const PER_SIGMA: f64 = 4.0;

/// A row or a column and how many of its weights are beyond the threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowded {
    /// Index of the row or column.
    pub index: usize,
    /// Number of its weights beyond the threshold.
    pub beyond: u64,
}

/// Distribution of the weights of a matrix.
#[derive(Debug, Clone, PartialEq)]
pub struct Spread {
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// Mean of |w|.
    pub mean_abs: f64,
    /// Standard deviation.
    pub std: f64,
    /// Largest |w|.
    pub max: f64,
    /// Row and column of the largest |w|, the first of several.
    pub max_at: (usize, usize),
    /// Excess kurtosis: 0 for a normal distribution.
    pub kurtosis: f64,
    /// Weights further than so many standard deviations from the mean.
    pub beyond: u64,
    /// The row with most of them; none when there are none.
    pub top_row: Option<Crowded>,
    /// The column with most of them.
    pub top_col: Option<Crowded>,
    /// Weights by distance from the mean, in quarters of a standard deviation from -12 to 12;
    /// what is further lies in the outermost bins.
    pub histogram: Vec<u64>,
}

impl Spread {
    /// Largest |w| over the standard deviation; 0 for a matrix of equal weights.
    pub fn max_over_std(&self) -> f64 {
        if self.std > 0.0 { self.max / self.std } else { 0.0 }
    }

    /// The edges of the histogram's bins, in standard deviations.
    pub fn edges() -> Vec<f64> {
        (0..=2 * SIDE).map(|i| (i as f64 - SIDE as f64) / PER_SIGMA).collect()
    }
}

/// Sums over all weights.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    abs: f64,
    /// Sums of the first to the fourth power.
    powers: [f64; 4],
    max: f32,
    max_at: (usize, usize),
}

/// Measures how the weights of a matrix are spread; `sigma` is the threshold in standard deviations.
///
/// # Errors
/// [`Error::NotFinite`].
pub fn spread<B: AsRef<[u8]>>(matrix: &Matrix<B>, sigma: f64) -> Result<Spread, Error> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut sums = Sums { max: -1.0, ..Sums::default() };
    each_row(matrix, |row, values| sums.add(row, values))?;
    let n = (rows * cols) as f64;
    let [m1, m2, m3, m4] = sums.powers.map(|sum| if n > 0.0 { sum / n } else { 0.0 });
    let variance = (m2 - m1 * m1).max(0.0);
    let fourth = m4 - 4.0 * m1 * m3 + 6.0 * m1 * m1 * m2 - 3.0 * m1.powi(4);
    let std = variance.sqrt();
    let mut out = Spread {
        rows,
        cols,
        mean_abs: if n > 0.0 { sums.abs / n } else { 0.0 },
        std,
        max: f64::from(sums.max.max(0.0)),
        max_at: sums.max_at,
        kurtosis: if variance > 0.0 { fourth / (variance * variance) - 3.0 } else { 0.0 },
        beyond: 0,
        top_row: None,
        top_col: None,
        histogram: vec![0; 2 * SIDE],
    };
    if std > 0.0 {
        count_beyond(matrix, m1, sigma, &mut out)?;
    }
    Ok(out)
}

impl Sums {
    fn add(&mut self, row: usize, values: &[f32]) -> Result<(), Error> {
        let max = rowmath::absmax(values);
        if !max.is_finite() {
            return Err(int::not_finite(values, row, 0));
        }
        if max > self.max {
            let col = values.iter().position(|v| v.abs() == max).unwrap_or(0);
            (self.max, self.max_at) = (max, (row, col));
        }
        let found = powers(values);
        self.abs += found.0;
        for (sum, found) in self.powers.iter_mut().zip(found.1) {
            *sum += found;
        }
        Ok(())
    }
}

/// The sum of |w|, and the sums of the first to the fourth power. Eight sums of each, so that they
/// are independent.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn powers(values: &[f32]) -> (f64, [f64; 4]) {
    let (mut abs, mut powers) = ([0f64; 8], [[0f64; 8]; 4]);
    let mut add = |part: &[f32; 8]| {
        for (lane, value) in part.iter().enumerate() {
            let v = f64::from(*value);
            let square = v * v;
            abs[lane] += v.abs();
            powers[0][lane] += v;
            powers[1][lane] += square;
            powers[2][lane] += square * v;
            powers[3][lane] += square * square;
        }
    };
    let (whole, rest) = values.as_chunks::<8>();
    whole.iter().for_each(&mut add);
    // Zeros add nothing.
    let mut filled = [0f32; 8];
    filled[..rest.len()].copy_from_slice(rest);
    add(&filled);
    (abs.iter().sum(), powers.map(|lanes| lanes.iter().sum()))
}

/// The second pass: what is beyond the threshold, and the histogram.
fn count_beyond<B: AsRef<[u8]>>(matrix: &Matrix<B>, mean: f64, sigma: f64, out: &mut Spread) -> Result<(), Error> {
    let mut by_row = vec![0u64; out.rows];
    let mut by_col = vec![0u64; out.cols];
    let (mean, per_bin, limit) = (mean as f32, (PER_SIGMA / out.std) as f32, (sigma * out.std) as f32);
    let mut bins = vec![0u8; out.cols];
    // Four, since neighbours often fall into one bin, and additions to it would wait for each other.
    let mut histograms = [[0u64; 2 * SIDE]; 4];
    each_row(matrix, |row, values| {
        let furthest = find_bins(values, mean, per_bin, &mut bins);
        for four in bins.chunks(4) {
            four.iter().zip(&mut histograms).for_each(|(&bin, histogram)| histogram[usize::from(bin)] += 1);
        }
        if furthest > limit {
            for (value, by_col) in values.iter().zip(&mut by_col) {
                if (value - mean).abs() > limit {
                    by_row[row] += 1;
                    *by_col += 1;
                }
            }
        }
        Ok(())
    })?;
    for (bin, sum) in out.histogram.iter_mut().enumerate() {
        *sum = histograms.iter().map(|histogram| histogram[bin]).sum();
    }
    out.beyond = by_row.iter().sum();
    (out.top_row, out.top_col) = (most(&by_row), most(&by_col));
    Ok(())
}

/// The bin of each value, for one on an edge either neighbour; gives the largest distance from the mean.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn find_bins(values: &[f32], mean: f32, per_bin: f32, bins: &mut [u8]) -> f32 {
    let mut furthest = [0f32; 16];
    for (values, bins) in values.chunks(16).zip(bins.chunks_mut(16)) {
        for ((value, bin), furthest) in values.iter().zip(bins).zip(&mut furthest) {
            let distance = value - mean;
            *furthest = furthest.max(distance.abs());
            let at = (distance * per_bin + SIDE as f32).clamp(0.0, 2.0 * SIDE as f32 - 0.5);
            *bin = nearest_u8(at - 0.5);
        }
    }
    furthest.into_iter().fold(0.0, f32::max)
}

/// The first of those with most.
fn most(counts: &[u64]) -> Option<Crowded> {
    let beyond = *counts.iter().max()?;
    let index = counts.iter().position(|&n| n == beyond)?;
    (beyond > 0).then_some(Crowded { index, beyond })
}

fn each_row<B: AsRef<[u8]>>(
    matrix: &Matrix<B>,
    mut see: impl FnMut(usize, &[f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let mut values = vec![0f32; matrix.cols()];
    for row in 0..matrix.rows() {
        matrix.decode_row(row, &mut values);
        see(row, &values)?;
    }
    Ok(())
}

/// A way to write weights whose loss is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Form {
    /// A scheme.
    Scheme(Scheme),
    /// The levels of NF4 with a block of another length, which tells levels and blocks apart.
    Nf4Block(usize),
}

impl std::fmt::Display for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Form::Scheme(scheme) => scheme.fmt(f),
            Form::Nf4Block(n) => write!(f, "nf4-b{n}"),
        }
    }
}

/// Errors of a matrix in each form. A form that doesn't suit the matrix's shape, or that needs `outlier_columns` which
/// are not given, has none. Scales are F16, and F32 where F16 can't carry them.
///
/// # Errors
/// [`Error::NotFinite`].
pub fn losses<B: AsRef<[u8]>>(
    matrix: &Matrix<B>,
    forms: &[Form],
    outlier_columns: Option<&[u32]>,
) -> Result<Vec<Option<WeightError>>, Error> {
    let mut out = vec![Some(WeightError::default()); forms.len()];
    let prepass = Prepass::over_matrix(matrix, forms)?;
    let mut wide = Vec::new();
    let job = |scale| Job { cols: matrix.cols(), scale, prepass: &prepass, outlier_columns };
    each_chunk(matrix, |rows, values| {
        let source = norm(values);
        for (at, (form, sum)) in forms.iter().zip(&mut out).enumerate() {
            match sum.as_mut().map(|sum| job(FloatType::F16).add(*form, rows.start, values, source, sum)) {
                None | Some(Ok(())) => {}
                Some(Err(e @ Error::NotFinite { .. })) => return Err(e),
                Some(Err(e)) => {
                    *sum = None;
                    wide.extend(matches!(e, Error::ScaleRange { .. }).then_some(at));
                }
            }
        }
        Ok(())
    })?;
    for at in wide {
        let mut sum = WeightError::default();
        let mut fits = true;
        each_chunk(matrix, |rows, values| {
            fits = fits && job(FloatType::F32).add(forms[at], rows.start, values, norm(values), &mut sum).is_ok();
            Ok(())
        })?;
        out[at] = fits.then_some(sum);
    }
    Ok(out)
}

/// The sum of squares, which all forms share.
fn norm(values: &[f32]) -> f64 {
    let mut sum = WeightError::default();
    sum.add(values, values);
    sum.source
}

/// Hands out runs of rows whose weights are whole blocks of the longest block.
fn each_chunk<B: AsRef<[u8]>>(
    matrix: &Matrix<B>,
    mut see: impl FnMut(Range<usize>, &[f32]) -> Result<(), Error>,
) -> Result<(), Error> {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    if rows * cols == 0 {
        return Ok(());
    }
    let whole = (1..=LONGEST).find(|n| (n * cols).is_multiple_of(LONGEST)).unwrap_or(LONGEST);
    let step = (CHUNK / cols / whole).max(1) * whole;
    let mut values = vec![0f32; step * cols];
    for first in (0..rows).step_by(step) {
        let last = (first + step).min(rows);
        let values = &mut values[..(last - first) * cols];
        for (row, values) in (first..last).zip(values.chunks_exact_mut(cols)) {
            matrix.decode_row(row, values);
        }
        see(first..last, values)?;
    }
    Ok(())
}

/// The longest block that runs over the flattened matrix.
const LONGEST: usize = 256;

/// Statistics of the whole matrix that some forms need first.
#[derive(Debug, Default)]
struct Prepass {
    absmax: f32,
    /// The scales of NF4's blocks as double quantization decodes them.
    nested: Option<Vec<f32>>,
}

impl Prepass {
    fn over_matrix<B: AsRef<[u8]>>(matrix: &Matrix<B>, forms: &[Form]) -> Result<Self, Error> {
        let is_tensor = |form: &Form| matches!(form, Form::Scheme(Scheme::Int(_, Grouping::Tensor)));
        let is_nested = |form: &Form| matches!(form, Form::Scheme(Scheme::Nf4 { double_quant: true }));
        let nested = forms.iter().any(is_nested);
        if !nested && !forms.iter().any(is_tensor) {
            return Ok(Prepass::default());
        }
        let mut blocks = Vec::new();
        each_chunk(matrix, |_, values| {
            blocks.extend(values.chunks(nf4::BLOCK).map(rowmath::absmax));
            Ok(())
        })?;
        let absmax = rowmath::absmax(&blocks);
        let nested = (nested && absmax.is_finite()).then(|| {
            let (map, nested) = (nf4::dynamic_map(), nf4::nest(&blocks));
            (0..blocks.len()).map(|i| nested.absmax(&map, i)).collect()
        });
        Ok(Prepass { absmax, nested })
    }
}

/// One form applied to some rows.
struct Job<'a> {
    cols: usize,
    scale: FloatType,
    prepass: &'a Prepass,
    outlier_columns: Option<&'a [u32]>,
}

impl Job<'_> {
    /// Adds what a run of rows loses; `source` is its sum of squares.
    fn add(
        &self,
        form: Form,
        first_row: usize,
        values: &[f32],
        source: f64,
        sum: &mut WeightError,
    ) -> Result<(), Error> {
        let difference = match form {
            Form::Nf4Block(block) => self.nf4(block, first_row, values, None)?,
            Form::Scheme(Scheme::Nf4 { double_quant }) => {
                let nested = self.prepass.nested.as_deref().filter(|_| double_quant);
                self.nf4(nf4::BLOCK, first_row, values, nested)?
            }
            Form::Scheme(Scheme::Float(ty)) => {
                difference(values, &values.iter().map(|v| ty.round(*v)).collect::<Vec<_>>())
            }
            Form::Scheme(Scheme::Ggml(ty)) => {
                if !ty.is_encodable() {
                    return Err(Error::UnsupportedGgml(ty.to_string()));
                }
                let (mut bytes, mut decoded) = (Vec::new(), vec![0f32; values.len()]);
                ggml::encode_rows(ty, values, self.cols, first_row, &mut bytes)?;
                ggml::decode(ty, &bytes, &mut decoded);
                difference(values, &decoded)
            }
            Form::Scheme(Scheme::Int8Outlier) => self.outlier(first_row, values)?,
            Form::Scheme(scheme) => self.int(scheme, first_row, values)?,
        };
        sum.merge(&WeightError { difference, source });
        Ok(())
    }

    fn int(&self, scheme: Scheme, first_row: usize, values: &[f32]) -> Result<f64, Error> {
        let (bits, grouping) = scheme.int().ok_or_else(|| Error::UnknownScheme(scheme.to_string()))?;
        let unrounded = self.prepass.absmax / f32::from(bits.qmax());
        if grouping == Grouping::Tensor && unrounded.is_finite() && !int::scale_fits(unrounded, self.scale) {
            return Err(Error::ScaleRange { row: 0, value: unrounded, ty: self.scale });
        }
        let tensor_scale = self.scale.round(unrounded);
        int::IntScheme { bits, grouping, scale: self.scale, tensor_scale }.loss(values, self.cols, first_row)
    }

    fn nf4(&self, block: usize, first_row: usize, values: &[f32], nested: Option<&[f32]>) -> Result<f64, Error> {
        let ty = if nested.is_some() { FloatType::F32 } else { self.scale };
        let nested = nested.map(|scales| &scales[first_row * self.cols / block..]);
        nf4::loss(values, block, ty, nested).map_err(|e| match e {
            Error::NotFinite { col, value, .. } => {
                Error::NotFinite { row: first_row + col / self.cols, col: col % self.cols, value }
            }
            other => other,
        })
    }

    /// Outlier columns in F16, the others as if these were zero: they don't reach a row's scale.
    fn outlier(&self, first_row: usize, values: &[f32]) -> Result<f64, Error> {
        let columns = self.outlier_columns.ok_or_else(|| Error::UnknownScheme("int8-outlier".into()))?;
        let mut kept = values.to_vec();
        let (mut source, mut rounded) = (Vec::new(), Vec::new());
        for row in kept.chunks_exact_mut(self.cols) {
            for &column in columns {
                let value = std::mem::take(&mut row[column as usize]);
                source.push(value);
                rounded.push(FloatType::F16.round(value));
            }
        }
        Ok(self.int(Scheme::W8A8Token, first_row, &kept)? + difference(&source, &rounded))
    }
}

/// The sum of squared differences.
fn difference(source: &[f32], decoded: &[f32]) -> f64 {
    let mut sum = WeightError::default();
    sum.add(source, decoded);
    sum.difference
}

#[cfg(test)]
#[path = "weights_tests.rs"]
mod tests;
