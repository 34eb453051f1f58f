//! The output projection and the loss in one, with their gradients.
//!
//! Logits are made for a few rows at a time and turned into their own gradient, in place where operations are fused, so
//! that no tensor of predictions by vocabulary ever exists. candle's graph ends at the hidden states: their gradient goes back into it
//! by the backward pass of `sum(hidden * gradient)`.

use super::{Form, Real, composed_loss, sums};
use crate::soft::Resident;
use candle_core::{Result, Tensor, bail};
use rayon::prelude::*;
use rowmath::softened::{
    FLOOR, combine, exponentials, forward, jensen_shannon, largest, log_ratios, multiply, reverse, subtract, total,
};

/// Divergence of a student's distribution from its teacher's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Divergence {
    /// KL(teacher || student): the student covers what the teacher does.
    #[default]
    Forward,
    /// KL(student || teacher): the student keeps to what the teacher does.
    Reverse,
    /// Jensen-Shannon: the mean of both against their mixture; at most ln 2.
    JensenShannon,
}

/// The minimized function, `alpha * temperature^2 * divergence + (1 - alpha) * cross-entropy`, where the divergence is
/// between both distributions at the temperature (Hinton et al. 2015). Its gradient is about 1/temperature^2 as
/// long as the cross-entropy's, which the factor makes up for.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Objective {
    /// The weight of the soft labels, 0 to 1.
    pub alpha: f64,
    /// Logits are divided by it.
    pub temperature: f64,
    /// Kind of divergence.
    pub divergence: Divergence,
}

impl Default for Objective {
    fn default() -> Self {
        Self { alpha: 0.5, temperature: 2.0, divergence: Divergence::Forward }
    }
}

impl Objective {
    /// Cross-entropy against the text alone.
    pub const HARD: Self = Self { alpha: 0.0, temperature: 1.0, divergence: Divergence::Forward };
}

impl std::fmt::Display for Objective {
    /// The terms that count: `cross-entropy`, `soft loss (forward divergence at T = 2)`, or both.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Objective { alpha, temperature, divergence } = self;
        let divergence = match divergence {
            Divergence::Forward => "forward",
            Divergence::Reverse => "reverse",
            Divergence::JensenShannon => "Jensen-Shannon",
        };
        let soft = format!("soft loss ({divergence} divergence at T = {temperature})");
        match *alpha {
            0.0 => f.write_str("cross-entropy"),
            1.0 => f.write_str(&soft),
            _ => write!(f, "{alpha} x {soft} + {} x cross-entropy", (1e6 * (1.0 - alpha)).round() / 1e6),
        }
    }
}

/// The teacher's distribution for one prediction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SoftRow<'a> {
    /// Logits of the whole vocabulary, at temperature 1.
    Full(&'a [f32]),
    /// Logits in a row of a tensor, on the device of the hidden states. The fused form doesn't take them.
    Resident {
        /// All rows.
        logits: &'a Resident,
        /// Index of the row.
        row: usize,
    },
    /// Some tokens with their log-probabilities at the temperature, and the log of all other tokens' mass: one more
    /// outcome beside them.
    TopK {
        /// The tokens, each once.
        ids: &'a [u32],
        /// Their log-probabilities.
        log_probs: &'a [f32],
        /// The log of the mass outside; negative infinity where there is none.
        log_rest: f32,
    },
    /// Draws at the temperature. They give an unbiased estimate of the cross-entropy to the teacher, which is the
    /// forward divergence but for a constant.
    Sampled(&'a [u32]),
}

/// Label of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Target<'a> {
    /// The token of the text.
    pub token: u32,
    /// The teacher's distribution; needed where alpha is above 0.
    pub soft: Option<SoftRow<'a>>,
}

/// Losses, summed over predictions, in nats.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Losses {
    /// The divergence at the temperature, without factors. For draws: the cross-entropy to them.
    pub soft: f64,
    /// The cross-entropy against the text, at temperature 1.
    pub hard: f64,
    /// Predictions that count.
    pub predictions: usize,
}

impl Losses {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.soft += other.soft;
        self.hard += other.hard;
        self.predictions += other.predictions;
    }

    /// The objective's mean over the predictions.
    pub fn mean(&self, objective: &Objective) -> f64 {
        let Objective { alpha, temperature: t, .. } = *objective;
        // 0 * NaN would hide a divergence that isn't asked for, and 0 * infinity make one.
        let soft = if alpha > 0.0 { alpha * t * t * self.soft } else { 0.0 };
        let hard = if alpha < 1.0 { (1.0 - alpha) * self.hard } else { 0.0 };
        (soft + hard) / self.predictions as f64
    }
}

/// Destination of gradients.
#[derive(Debug)]
pub struct HeadGradient<'a> {
    /// Multiplies every gradient: one by the number of predictions of the batch gives those of the mean.
    pub scale: f64,
    /// The head's gradient, `[vocabulary, hidden]`, is added here; none for a head that isn't trained.
    pub head: Option<&'a mut Tensor>,
}

/// Floats of logits that exist at a time.
const CHUNK: usize = 1 << 24;

/// Rows of the head whose gradient is computed at a time: few enough for the cache.
const SLAB: usize = 4096;

/// Rows that [`head_loss`] works on at a time, for a vocabulary of so many entries.
pub fn chunk_rows(vocabulary: usize) -> usize {
    (CHUNK / vocabulary.max(1)).max(16)
}

/// The losses of hidden states `[rows, hidden]` under the output projection `[vocabulary, hidden]`; a row without a
/// target counts for nothing. With `gradient` the gradient of the objective's sum, times its scale, is added to the
/// head's and returned for the hidden states.
///
/// Fused, sums run over rows in their order, whatever the number of threads.
///
/// # Errors
/// Shapes, tokens or labels that don't fit, or labels that are missing or unfit for the objective.
pub fn head_loss(
    form: Form,
    hidden: &Tensor,
    head: &Tensor,
    targets: &[Option<Target<'_>>],
    objective: &Objective,
    gradient: Option<HeadGradient<'_>>,
) -> Result<(Losses, Option<Tensor>)> {
    chunked(form, (hidden, head), targets, objective, gradient, chunk_rows(head.dim(0)?))
}

/// [`head_loss`] with the logits of so many rows at a time.
fn chunked(
    form: Form,
    (hidden, head): (&Tensor, &Tensor),
    targets: &[Option<Target<'_>>],
    objective: &Objective,
    mut gradient: Option<HeadGradient<'_>>,
    at_a_time: usize,
) -> Result<(Losses, Option<Tensor>)> {
    let (rows, width) = hidden.dims2()?;
    let (vocabulary, head_width) = head.dims2()?;
    if rows != targets.len() || width != head_width {
        bail!("head loss: {rows}x{width} hidden states, {} targets, a head {head_width} wide", targets.len());
    }
    for target in targets.iter().flatten() {
        check(form, target, objective, vocabulary)?;
    }
    let mut losses = Losses::default();
    let mut into_hidden = Vec::new();
    for first in (0..rows).step_by(at_a_time) {
        let count = at_a_time.min(rows - first);
        let part = hidden.narrow(0, first, count)?.detach();
        let logits = part.matmul(&head.t()?)?;
        let scale = gradient.as_ref().map(|g| g.scale);
        let targets = &targets[first..first + count];
        let (sums, slopes) = match form {
            Form::Fused => fused(logits, targets, objective, scale)?,
            Form::Composed => composed_loss::losses(&logits, targets, objective, scale)?,
        };
        losses.add(&sums);
        if let Some(gradient) = &mut gradient {
            into_hidden.push(slopes.matmul(head)?);
            if let Some(into) = &mut gradient.head {
                add_product(form, &slopes, &part, into)?;
            }
        }
    }
    let into_hidden = gradient.map(|_| Tensor::cat(&into_hidden, 0)).transpose()?;
    Ok((losses, into_hidden))
}

/// The losses of logits, which become their gradients if there is a scale.
fn fused(
    logits: Tensor,
    targets: &[Option<Target<'_>>],
    objective: &Objective,
    scale: Option<f64>,
) -> Result<(Losses, Tensor)> {
    let sums = std::sync::Mutex::new(Losses::default());
    logits.inplace_op1(&Rows { targets, objective, scale, sums: &sums })?;
    Ok((sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner), logits))
}

/// Adds `left^T right` to `out`.
fn add_product(form: Form, left: &Tensor, right: &Tensor, out: &mut Tensor) -> Result<()> {
    if out.dims2()? != (left.dim(1)?, right.dim(1)?) {
        bail!("head loss: {:?} isn't room for the gradient of the head", out.dims());
    }
    if form == Form::Composed {
        return sums::add(form, out, &left.t()?.matmul(right)?);
    }
    let rows = out.dim(0)?;
    for first in (0..rows).step_by(SLAB) {
        let count = SLAB.min(rows - first);
        let slab = left.narrow(1, first, count)?.t()?.matmul(right)?;
        sums::add(form, &mut out.narrow(0, first, count)?, &slab)?;
    }
    Ok(())
}

fn check(form: Form, target: &Target<'_>, objective: &Objective, vocabulary: usize) -> Result<()> {
    let ids = match target.soft {
        None if objective.alpha > 0.0 => bail!("head loss: alpha is {} and there are no soft labels", objective.alpha),
        None => &[][..],
        Some(SoftRow::Full(logits)) if logits.len() == vocabulary => &[],
        Some(SoftRow::Full(logits)) => bail!("head loss: {} teacher's logits for {vocabulary}", logits.len()),
        Some(SoftRow::Resident { .. }) if form == Form::Fused => bail!("head loss: the labels are on another device"),
        Some(SoftRow::Resident { logits: Resident(logits), row }) => match logits.dims() {
            &[rows, columns] if row < rows && columns == vocabulary => &[],
            other => bail!("head loss: row {row} of the teacher's logits {other:?} for {vocabulary}"),
        },
        Some(SoftRow::TopK { ids, log_probs, .. }) if ids.len() == log_probs.len() => ids,
        Some(SoftRow::TopK { .. }) => bail!("head loss: as many log-probabilities as tokens are needed"),
        Some(SoftRow::Sampled([])) => bail!("head loss: a row without draws"),
        Some(SoftRow::Sampled(_)) if objective.divergence != Divergence::Forward => {
            bail!("head loss: sampled labels give the forward divergence only")
        }
        Some(SoftRow::Sampled(ids)) => ids,
    };
    match ids.iter().chain([&target.token]).find(|&&id| id as usize >= vocabulary) {
        Some(id) => bail!("head loss: token {id} lies outside the vocabulary of {vocabulary}"),
        None => Ok(()),
    }
}

/// Rows of logits, which become their gradients.
struct Rows<'a> {
    targets: &'a [Option<Target<'a>>],
    objective: &'a Objective,
    scale: Option<f64>,
    sums: &'a std::sync::Mutex<Losses>,
}

impl Rows<'_> {
    fn run<T: Real>(&self, logits: &mut [T], vocabulary: usize) -> Losses {
        let rows = logits.par_chunks_exact_mut(vocabulary).zip(self.targets);
        let each: Vec<Losses> = rows
            .map_init(Scratch::default, |scratch, (z, target)| match target {
                Some(target) => loss_row(z, target, self.objective, self.scale, scratch),
                None => {
                    z.fill(T::zero());
                    Losses::default()
                }
            })
            .collect();
        let mut sum = Losses::default();
        each.iter().for_each(|row| sum.add(row));
        sum
    }
}

impl candle_core::InplaceOp1 for Rows<'_> {
    fn name(&self) -> &'static str {
        "distillation-loss"
    }

    fn cpu_fwd(&self, storage: &mut candle_core::CpuStorage, layout: &candle_core::Layout) -> Result<()> {
        let vocabulary = super::last_dim(layout)?;
        let losses = super::dispatch!(storage, T => self.run::<T>(super::values_mut(storage, layout)?, vocabulary));
        *self.sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = losses;
        Ok(())
    }
}

/// Working memory of one row.
struct Scratch<T> {
    /// `exp(z - top)`, in time the soft loss's gradient.
    soft: Vec<T>,
    hard: Vec<T>,
    teacher: Vec<T>,
    spare: Vec<T>,
}

impl<T> Default for Scratch<T> {
    fn default() -> Self {
        Self { soft: Vec::new(), hard: Vec::new(), teacher: Vec::new(), spare: Vec::new() }
    }
}

/// The losses of one row of logits `z`, which becomes the objective's gradient times `scale`.
fn loss_row<T: Real>(
    z: &mut [T],
    target: &Target<'_>,
    objective: &Objective,
    scale: Option<f64>,
    scratch: &mut Scratch<T>,
) -> Losses {
    let Objective { alpha, temperature, .. } = *objective;
    let top = largest(z);
    let sum = exponentials(z, top, 1.0, &mut scratch.hard);
    let hard = sum.ln() + (top - z[target.token as usize]).to_f64();
    let soft = match target.soft {
        Some(labels) => {
            let student = Exponentials { top, sum: exponentials(z, top, temperature, &mut scratch.soft) };
            soft_row(z, student, labels, objective, scratch)
        }
        None => 0.0,
    };
    if let Some(scale) = scale {
        // d(T^2 D)/dz = T dD/d(z/T).
        let by = (scale * alpha * temperature, scale * (1.0 - alpha));
        let soft = target.soft.filter(|_| alpha > 0.0).map(|_| &scratch.soft[..]);
        combine(z, soft, by.0, &scratch.hard, by.1 / sum);
        z[target.token as usize] -= T::from_f64(by.1);
    }
    Losses { soft, hard, predictions: 1 }
}

/// The largest logit, and the sum of the exponentials of the differences to it.
#[derive(Clone, Copy)]
struct Exponentials<T> {
    top: T,
    sum: f64,
}

/// The divergence between the labels and the student, whose exponentials in `scratch.soft` become its gradient
/// with respect to the logits over the temperature.
fn soft_row<T: Real>(
    z: &[T],
    student: Exponentials<T>,
    labels: SoftRow<'_>,
    objective: &Objective,
    scratch: &mut Scratch<T>,
) -> f64 {
    let inverse = 1.0 / objective.temperature;
    let log_prob = |id: u32| (z[id as usize] - student.top).to_f64() * inverse - student.sum.ln();
    match labels {
        SoftRow::Full(logits) => full(z, student, logits, objective, scratch),
        // `check` has refused it.
        SoftRow::Resident { .. } => f64::NAN,
        SoftRow::TopK { ids, log_probs, log_rest } => {
            top_k(log_prob, student.sum, (ids, log_probs, log_rest), objective.divergence, &mut scratch.soft)
        }
        SoftRow::Sampled(ids) => {
            let each = 1.0 / ids.len() as f64;
            multiply(&mut scratch.soft, 1.0 / student.sum);
            ids.iter().for_each(|&id| scratch.soft[id as usize] -= T::from_f64(each));
            -ids.iter().map(|&id| log_prob(id)).sum::<f64>() * each
        }
    }
}

fn full<T: Real>(
    z: &[T],
    student: Exponentials<T>,
    labels: &[f32],
    objective: &Objective,
    scratch: &mut Scratch<T>,
) -> f64 {
    let Scratch { soft, teacher, spare, .. } = scratch;
    let temperature = objective.temperature;
    teacher.clear();
    teacher.extend(labels.iter().map(|&x| T::from_f64(f64::from(x))));
    let top = largest(teacher);
    // The logarithms of both distributions' ratio are (x - z - shift) / temperature + constant: small numbers.
    let shift = top - student.top;
    match objective.divergence {
        Divergence::Forward => {
            let sums = forward(z, teacher, top, shift, temperature);
            let difference = sums.weighted / (sums.sum * temperature) + student.sum.ln() - sums.sum.ln();
            subtract(soft, 1.0 / student.sum, teacher, 1.0 / sums.sum);
            difference
        }
        divergence => {
            let sum = exponentials(teacher, top, temperature, spare);
            log_ratios(z, teacher, shift, temperature, sum.ln() - student.sum.ln());
            multiply(soft, 1.0 / student.sum);
            match divergence {
                Divergence::Reverse => reverse(soft, teacher),
                _ => jensen_shannon(soft, teacher, (spare, 1.0 / sum)),
            }
        }
    }
}

/// The labelled tokens and all others as one more outcome.
fn top_k<T: Real>(
    log_prob: impl Fn(u32) -> f64,
    sum: f64,
    (ids, log_probs, log_rest): (&[u32], &[f32], f32),
    divergence: Divergence,
    exponentials: &mut [T],
) -> f64 {
    ids.iter().for_each(|&id| exponentials[id as usize] = T::zero());
    // What is left is added up anew: the total less the rest would lose a small remainder.
    let rest = total(exponentials) / sum;
    let outcome = |student: f64, teacher: f32| divergence.outcome(student, f64::from(teacher).max(FLOOR));
    let outcomes: Vec<Outcome> = ids.iter().zip(log_probs).map(|(&id, &lp)| outcome(log_prob(id), lp)).collect();
    let others = if rest > 0.0 { outcome(rest.ln(), log_rest) } else { Outcome::default() };
    let all = || outcomes.iter().chain([&others]);
    let pull: f64 = all().map(|o| o.slope).sum();
    if rest > 0.0 {
        multiply(exponentials, (others.slope / rest - pull) / sum);
    }
    for (&id, outcome) in ids.iter().zip(&outcomes) {
        exponentials[id as usize] = T::from_f64(outcome.slope - pull * outcome.mass);
    }
    all().map(|o| o.value).sum()
}

/// Contribution of one outcome to a divergence.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    value: f64,
    /// The student's probability.
    mass: f64,
    /// Probability times the derivative of the divergence with respect to it.
    slope: f64,
}

impl Divergence {
    /// Contribution of an outcome with these log-probabilities.
    fn outcome(self, student: f64, teacher: f64) -> Outcome {
        let (mass, wanted) = (student.exp(), teacher.exp());
        let (value, slope) = match self {
            Divergence::Forward => (wanted * (teacher - student), -wanted),
            Divergence::Reverse => (mass * (student - teacher), mass * (student - teacher + 1.0)),
            Divergence::JensenShannon => {
                let middle = (0.5 * (mass + wanted)).ln();
                let of_student = 0.5 * mass * (student - middle);
                (0.5 * wanted * (teacher - middle) + of_student, of_student)
            }
        };
        Outcome { value, mass, slope }
    }
}

#[cfg(test)]
#[path = "distill_tests.rs"]
mod tests;
