//! Statistics of a model's weights, and the error of each scheme.

use crate::{Error, Result, place};
use conversion::{Source, Values, Weight};
use observe::Calibration;
use observe::weights::{Crowded, Form, Spread, losses, spread};
use progress::{Progress, Unit};
use rayon::prelude::*;
use schemars::JsonSchema;
use schemes::measure::WeightError;
use schemes::{Bits, FloatType, GgmlType, Grouping, Scheme, outlier};
use serde::Serialize;
use std::cmp::Reverse;
use std::path::Path;
use store::Bytes;

/// The block lengths at which uniform levels are compared with those of NF4.
pub const BLOCKS: [usize; 4] = [16, 32, 64, 128];

/// Settings of a measurement.
#[derive(Debug, Clone)]
pub struct Request {
    /// Weights further than so many standard deviations from the mean are counted.
    pub sigma: f64,
    /// The schemes whose loss is measured.
    pub schemes: Vec<Scheme>,
    /// Activation statistics, for the outlier columns of `int8-outlier`.
    pub calibration: Option<Calibration>,
}

/// The loss of a scheme in one matrix.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Loss {
    /// The scheme, or `nf4-bN` for NF4's levels in blocks of N.
    pub scheme: String,
    /// The relative error; none where the scheme doesn't suit the matrix.
    pub error: Option<f64>,
}

/// One matrix.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Matrix {
    /// Module of the matrix.
    pub module: String,
    /// The block that it lies in.
    pub block: Option<usize>,
    /// The last part of its name.
    pub kind: String,
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
    /// Largest |w| over the standard deviation.
    pub max_over_std: f64,
    /// Weights further than `sigma` standard deviations from the mean.
    pub beyond: u64,
    /// Excess kurtosis.
    pub kurtosis: f64,
    /// Row of the largest |w|.
    pub max_row: usize,
    /// Column of the largest |w|.
    pub max_col: usize,
    /// The row with most weights beyond `sigma`.
    pub top_row: Option<usize>,
    /// Number of weights beyond the threshold in that row.
    pub top_row_beyond: u64,
    /// The column with most weights beyond `sigma`.
    pub top_col: Option<usize>,
    /// Number of weights beyond the threshold in that column.
    pub top_col_beyond: u64,
    /// The losses of what is quantized by default; empty for the others.
    pub losses: Vec<Loss>,
}

/// The loss of a scheme over all matrices that are quantized by default.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SchemeLoss {
    /// The scheme, or `nf4-bN`.
    pub scheme: String,
    /// Bits of a weight, codes and scales.
    pub bpw: f64,
    /// Mean of the matrices' relative errors.
    pub mean: f64,
    /// The largest of them.
    pub worst: f64,
    /// The module that has it.
    pub worst_in: String,
    /// Relative error of all weights together.
    pub pooled: f64,
    /// Matrices that the scheme suits.
    pub matrices: usize,
}

/// Uniform levels and those of NF4 with blocks of one length.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Levels {
    /// Weights in a block.
    pub block: usize,
    /// Bits of a weight, codes and scales.
    pub bpw: f64,
    /// Mean relative error of int4.
    pub int4: f64,
    /// Mean relative error with NF4's levels.
    pub nf4: f64,
}

/// Results of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Weights {
    /// The model.
    pub model: String,
    /// The threshold in standard deviations.
    pub sigma: f64,
    /// The matrices in the model's order.
    pub matrices: Vec<Matrix>,
    /// The schemes, the smallest mean loss first.
    pub schemes: Vec<SchemeLoss>,
    /// Effects of block length and of the placement of levels, each by itself.
    pub levels: Vec<Levels>,
    /// The weights of all matrices by distance from their matrix's mean, between `histogram_edges`.
    pub histogram: Vec<u64>,
    /// The edges of the histogram's bins, in standard deviations of each matrix.
    pub histogram_edges: Vec<f64>,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// The schemes that are measured when none are named: one of each kind of code.
pub fn default_schemes(calibrated: bool) -> Vec<Scheme> {
    let mut schemes: Vec<Scheme> = Scheme::all()
        .into_iter()
        .filter(|s| !matches!(s, Scheme::W8A8Token | Scheme::W8A8Tensor | Scheme::W8A8Static))
        .filter(|s| calibrated || *s != Scheme::Int8Outlier)
        .collect();
    schemes.push(Scheme::Ggml(GgmlType::Q8_0));
    schemes.push(Scheme::Ggml(GgmlType::Q4_0));
    schemes
}

/// Measures a model's matrices.
///
/// # Errors
/// When the model can't be opened. A matrix with a weight that is not finite is left out, with a note.
pub fn measure(path: &Path, request: &Request, progress: &dyn Progress) -> Result<Weights> {
    check(request)?;
    let model = store::open(path)?;
    let source = Source::new(&model)?;
    let forms = forms(&request.schemes);
    let mut order: Vec<(usize, &Weight)> = source.weights.iter().enumerate().collect();
    order.retain(|(_, weight)| matches!(weight.values, Values::Matrix(_)));
    // The largest first, so that no thread ends up alone with it.
    order.sort_by_key(|(_, weight)| Reverse(weight.count()));
    let bytes = order.iter().map(|(_, weight)| weight.stored_bytes() as u64).sum();
    progress.start("weights", Some(bytes), Unit::Bytes);
    let measured: Result<Vec<(usize, Result<Measured, String>)>> = order
        .par_iter()
        .with_max_len(1)
        .map(|(at, weight)| {
            let found = match one(weight, &forms, request) {
                Err(e @ Error::Weight { source: schemes::Error::NotFinite { .. }, .. }) => {
                    Err(format!("{e}; the matrix is left out"))
                }
                other => Ok(other?),
            };
            weight.release();
            progress.advance(weight.stored_bytes() as u64);
            Ok((*at, found))
        })
        .collect();
    progress.finish();
    let mut measured = measured?;
    measured.sort_by_key(|(at, _)| *at);
    let (mut whole, mut notes) = (Vec::new(), source.warnings);
    for (_, found) in measured {
        match found {
            Ok(found) => whole.push(found),
            Err(note) => notes.push(note),
        }
    }
    Ok(summary(path, request, &forms, whole, notes))
}

fn check(request: &Request) -> Result<()> {
    if !(request.sigma.is_finite() && request.sigma > 0.0) {
        return Err(Error::Request("--sigma takes a number above 0".into()));
    }
    if request.calibration.is_none() && request.schemes.contains(&Scheme::Int8Outlier) {
        let what = "int8-outlier needs activation statistics: give --calibration FILE (qinspect activations --save)";
        return Err(Error::Request(what.into()));
    }
    Ok(())
}

/// The schemes, and what tells block length from level placement, each once.
fn forms(schemes: &[Scheme]) -> Vec<Form> {
    let mut forms: Vec<Form> = Vec::new();
    let all = schemes.iter().map(|&scheme| Form::Scheme(scheme)).chain(BLOCKS.into_iter().flat_map(level_forms));
    for form in all {
        if !forms.contains(&form) {
            forms.push(form);
        }
    }
    forms
}

/// int4 and NF4 with blocks of one length.
fn level_forms(block: usize) -> [Form; 2] {
    let nf4 = match block {
        schemes::nf4::BLOCK => Form::Scheme(Scheme::Nf4 { double_quant: false }),
        other => Form::Nf4Block(other),
    };
    [Form::Scheme(Scheme::Int(Bits::Four, Grouping::Group(block))), nf4]
}

/// A matrix with its losses as sums.
struct Measured {
    matrix: Matrix,
    histogram: Vec<u64>,
    losses: Vec<Option<WeightError>>,
    bits: Vec<f64>,
}

fn one(weight: &Weight, forms: &[Form], request: &Request) -> Result<Measured> {
    let Values::Matrix(matrix) = &weight.values else {
        return Err(Error::Model(format!("{}: no matrix", weight.name)));
    };
    let named = |source| Error::Weight { weight: weight.name.clone(), source };
    let found = spread(matrix, request.sigma).map_err(named)?;
    let columns = outlier_columns(weight, matrix, request)?;
    let (mut sums, mut bits) = (Vec::new(), Vec::new());
    if weight.is_block_projection() {
        sums = losses(matrix, forms, columns.as_deref()).map_err(named)?;
        let outliers = columns.map_or(0, |c| c.len());
        bits = forms.iter().map(|form| total_bits(*form, found.rows, found.cols, outliers)).collect();
    }
    let each = forms.iter().zip(&sums);
    let losses = each.map(|(form, sum)| Loss { scheme: form.to_string(), error: sum.map(|s| s.relative()) }).collect();
    let described = describe(weight.module(), &found, losses);
    Ok(Measured { matrix: described, histogram: found.histogram, losses: sums, bits })
}

fn outlier_columns(weight: &Weight, matrix: &schemes::Matrix<Bytes>, request: &Request) -> Result<Option<Vec<u32>>> {
    let Some(stats) = request.calibration.as_ref().and_then(|c| c.module(weight.module())) else { return Ok(None) };
    if stats.len() != matrix.cols() {
        return Err(Error::Request(format!("{}: the calibration is of another model", weight.module())));
    }
    Ok(Some(outlier::outlier_columns(stats, outlier::THRESHOLD)))
}

fn total_bits(form: Form, rows: usize, cols: usize, outlier_columns: usize) -> f64 {
    match form {
        Form::Scheme(scheme) => scheme.total_bits(rows, cols, outlier_columns, FloatType::F16),
        Form::Nf4Block(n) => 4.0 * (rows * cols) as f64 + 16.0 * (rows * cols).div_ceil(n) as f64,
    }
}

fn describe(module: &str, found: &Spread, losses: Vec<Loss>) -> Matrix {
    let index = |crowded: Option<Crowded>| crowded.map(|c| c.index);
    let beyond = |crowded: Option<Crowded>| crowded.map_or(0, |c| c.beyond);
    Matrix {
        module: module.into(),
        block: place::block(module),
        kind: place::kind(module).into(),
        rows: found.rows,
        cols: found.cols,
        mean_abs: found.mean_abs,
        std: found.std,
        max: found.max,
        max_over_std: found.max_over_std(),
        beyond: found.beyond,
        kurtosis: found.kurtosis,
        max_row: found.max_at.0,
        max_col: found.max_at.1,
        top_row: index(found.top_row),
        top_row_beyond: beyond(found.top_row),
        top_col: index(found.top_col),
        top_col_beyond: beyond(found.top_col),
        losses,
    }
}

fn summary(path: &Path, request: &Request, forms: &[Form], measured: Vec<Measured>, notes: Vec<String>) -> Weights {
    let by_form: Vec<Option<SchemeLoss>> = (0..forms.len()).map(|at| scheme_loss(forms[at], at, &measured)).collect();
    let mean = |form: Form| {
        let at = forms.iter().position(|f| *f == form)?;
        by_form[at].as_ref().map(|loss| (loss.bpw, loss.mean))
    };
    let levels = BLOCKS.into_iter().filter_map(|block| {
        let [int4, nf4] = level_forms(block).map(mean);
        let ((bpw, int4), (_, nf4)) = (int4?, nf4?);
        Some(Levels { block, bpw, int4, nf4 })
    });
    let levels = levels.collect();
    let asked = |form: &Form| matches!(form, Form::Scheme(scheme) if request.schemes.contains(scheme));
    let mut schemes: Vec<SchemeLoss> =
        forms.iter().zip(&by_form).filter(|(form, _)| asked(form)).filter_map(|(_, loss)| loss.clone()).collect();
    schemes.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    let histogram_edges = Spread::edges();
    let mut histogram = vec![0; histogram_edges.len() - 1];
    for found in &measured {
        histogram.iter_mut().zip(&found.histogram).for_each(|(sum, n)| *sum += n);
    }
    Weights {
        model: path.display().to_string(),
        sigma: request.sigma,
        matrices: measured.into_iter().map(|found| found.matrix).collect(),
        schemes,
        levels,
        histogram,
        histogram_edges,
        notes,
    }
}

/// A scheme's loss over all matrices that it suits; none when there are none.
fn scheme_loss(form: Form, at: usize, measured: &[Measured]) -> Option<SchemeLoss> {
    let (mut pooled, mut bits, mut weights) = (WeightError::default(), 0.0, 0usize);
    let mut errors: Vec<(f64, &str)> = Vec::new();
    for found in measured {
        let Some(loss) = found.losses.get(at).copied().flatten() else { continue };
        pooled.merge(&loss);
        bits += found.bits[at];
        weights += found.matrix.rows * found.matrix.cols;
        errors.push((loss.relative(), &found.matrix.module));
    }
    let worst = errors.iter().copied().max_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(SchemeLoss {
        scheme: form.to_string(),
        bpw: bits / weights.max(1) as f64,
        mean: errors.iter().map(|(error, _)| error).sum::<f64>() / errors.len() as f64,
        worst: worst.0,
        worst_in: worst.1.into(),
        pooled: pooled.relative(),
        matrices: errors.len(),
    })
}
