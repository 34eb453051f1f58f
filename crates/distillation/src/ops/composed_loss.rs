//! The losses of [`head_loss`](super::head_loss), composed of candle's operations.
//!
//! All rows are worked on at once; gradients are written out, as in the fused form, and not left to autograd.

use super::{Divergence, Losses, Objective, SoftRow, Target};
use crate::soft::Resident;
use candle_core::{D, DType, Device, Result, Tensor, bail};
use rowmath::softened::FLOOR;

/// The losses of logits `[rows, vocabulary]`, and their gradients times the scale; where there is none, the logits.
pub(super) fn losses(
    logits: &Tensor,
    targets: &[Option<Target<'_>>],
    objective: &Objective,
    scale: Option<f64>,
) -> Result<(Losses, Tensor)> {
    let labels = Labels::new(targets, logits)?;
    let logs = log_softmax(logits)?;
    let hard = (logs.gather(&labels.tokens, 1)?.neg()? * &labels.counted)?;
    let soft = labels.soft.as_ref().map(|soft| soft.compare(logits, objective)).transpose()?;
    let mut sums = Losses { predictions: targets.iter().flatten().count(), ..Losses::default() };
    sums.hard = total(&hard)?;
    if let Some(soft) = &soft {
        sums.soft = total(&soft.value)?;
    }
    let Some(scale) = scale else { return Ok((sums, logits.clone())) };
    let Objective { alpha, temperature, .. } = *objective;
    // d(T^2 D)/dz = T dD/d(z/T).
    let slopes = logs.exp()?;
    slopes.scatter_add_set(&labels.tokens, &constant(-1.0, &labels.tokens, logits)?, 1)?;
    let slopes = slopes.broadcast_mul(&(&labels.counted * (scale * (1.0 - alpha)))?)?;
    match soft.filter(|_| alpha > 0.0) {
        Some(soft) => Ok((sums, (slopes + (soft.slopes * (scale * alpha * temperature))?)?)),
        None => Ok((sums, slopes)),
    }
}

/// Natural logarithms of the probabilities of each row.
fn log_softmax(logits: &Tensor) -> Result<Tensor> {
    let above = logits.broadcast_sub(&logits.max_keepdim(D::Minus1)?)?;
    above.broadcast_sub(&above.exp()?.sum_keepdim(D::Minus1)?.log()?)
}

/// The sum of a column, in f64.
fn total(column: &Tensor) -> Result<f64> {
    let column = column.to_device(&Device::Cpu)?.to_dtype(DType::F64)?;
    Ok(column.flatten_all()?.to_vec1::<f64>()?.into_iter().sum())
}

/// Labels of rows, as tensors beside the logits.
struct Labels {
    /// `[rows, 1]`; 0 where there is none.
    tokens: Tensor,
    /// 1 for rows with a target and 0 for others, `[rows, 1]`.
    counted: Tensor,
    soft: Option<Soft>,
}

/// The teacher's distributions.
struct Soft {
    kind: Kind,
    /// 1 for rows that have them and 0 for others, `[rows, 1]`.
    counted: Tensor,
}

enum Kind {
    /// Logits, `[rows, vocabulary]`.
    Full(Tensor),
    /// Tokens and their log-probabilities, `[rows, k]`, and those of all others, `[rows, 1]`.
    TopK { ids: Tensor, log_probs: Tensor, log_rest: Tensor },
    /// Draws, `[rows, n]`.
    Sampled(Tensor),
}

/// A divergence of each row, `[rows, 1]`, and its gradient with respect to the logits over the temperature,
/// `[rows, vocabulary]`.
struct Compared {
    value: Tensor,
    slopes: Tensor,
}

impl Compared {
    /// Zero in the rows that don't count.
    fn only(self, counted: &Tensor) -> Result<Self> {
        Ok(Self { value: (self.value * counted)?, slopes: self.slopes.broadcast_mul(counted)? })
    }
}

impl Labels {
    fn new(targets: &[Option<Target<'_>>], logits: &Tensor) -> Result<Self> {
        let (rows, device) = (targets.len(), logits.device());
        let tokens: Vec<u32> = targets.iter().map(|t| t.map_or(0, |t| t.token)).collect();
        Ok(Self {
            tokens: Tensor::from_vec(tokens, (rows, 1), device)?,
            counted: marks(targets.iter().map(Option::is_some), logits)?,
            soft: Soft::new(targets, logits)?,
        })
    }
}

/// Returns a tensor of the same value for each of some tokens, of the type of `like`.
fn constant(value: f64, tokens: &Tensor, like: &Tensor) -> Result<Tensor> {
    Tensor::ones(tokens.shape(), like.dtype(), like.device())? * value
}

/// A column of ones and zeros.
fn marks(of: impl Iterator<Item = bool>, like: &Tensor) -> Result<Tensor> {
    matrix(of.map(|yes| f32::from(u8::from(yes))).collect(), 1, like)
}

/// Rows of so many values, where `like` lies and of its type.
fn matrix(values: Vec<f32>, columns: usize, like: &Tensor) -> Result<Tensor> {
    let shape = (values.len() / columns, columns);
    Tensor::from_vec(values, shape, like.device())?.to_dtype(like.dtype())
}

/// One after the other what `of` takes from each row, which must be `columns` long; `padding` where there is no row.
fn joined<'a, T: Copy + 'a>(
    rows: &[Option<SoftRow<'a>>],
    columns: usize,
    padding: impl Fn(usize) -> T,
    of: impl Fn(SoftRow<'a>) -> Option<&'a [T]>,
) -> Result<Vec<T>> {
    let mut all = Vec::with_capacity(rows.len() * columns);
    for row in rows {
        match row.map(&of) {
            Some(Some(values)) if values.len() == columns => all.extend_from_slice(values),
            Some(_) => bail!("head loss: labels of more than one kind or size"),
            None => all.extend((0..columns).map(&padding)),
        }
    }
    Ok(all)
}

/// Rows that lie on the device, without a way through the machine's memory; zeros where there is none.
fn resident(rows: &[Option<SoftRow<'_>>], like: &Tensor) -> Result<Tensor> {
    let place = |row: &Option<SoftRow<'_>>| match *row {
        Some(SoftRow::Resident { logits, row }) => Some((logits.0.id(), row)),
        _ => None,
    };
    let follows = |a: &Option<SoftRow<'_>>, b: &Option<SoftRow<'_>>| match (place(a), place(b)) {
        (Some((a, i)), Some((b, j))) => a == b && j == i + 1,
        (a, b) => a.is_none() && b.is_none(),
    };
    let stretches = rows.chunk_by(follows).map(|stretch| match stretch[0] {
        Some(SoftRow::Resident { logits: Resident(logits), row }) => logits.narrow(0, row, stretch.len()),
        Some(_) => bail!("head loss: labels of more than one kind or size"),
        None => Tensor::zeros((stretch.len(), like.dim(1)?), DType::F32, like.device()),
    });
    Tensor::cat(&stretches.collect::<Result<Vec<_>>>()?, 0)
}

impl Soft {
    /// The labels of all rows, which must be of one kind and size; none where no row has any.
    fn new(targets: &[Option<Target<'_>>], logits: &Tensor) -> Result<Option<Self>> {
        let rows: Vec<Option<SoftRow<'_>>> = targets.iter().map(|t| t.and_then(|t| t.soft)).collect();
        let Some(first) = rows.iter().flatten().next() else { return Ok(None) };
        let device = logits.device();
        let kind = match *first {
            SoftRow::Resident { .. } => Kind::Full(resident(&rows, logits)?.to_dtype(logits.dtype())?),
            SoftRow::Full(row) => {
                let columns = row.len();
                let all =
                    joined(&rows, columns, |_| 0.0, |row| if let SoftRow::Full(row) = row { Some(row) } else { None })?;
                Kind::Full(matrix(all, columns, logits)?)
            }
            SoftRow::TopK { ids, .. } => {
                let k = ids.len();
                let part = |row| match row {
                    SoftRow::TopK { ids, log_probs, log_rest } => Some((ids, log_probs, log_rest)),
                    _ => None,
                };
                let floor = |log: f32| log.max(FLOOR as f32);
                // Tokens are there once: so are those of rows that don't count.
                let ids = joined(&rows, k, |i| i as u32, |row| part(row).map(|p| p.0))?;
                let logs = joined(&rows, k, |_| 0.0, |row| part(row).map(|p| p.1))?.into_iter().map(floor).collect();
                let rest = rows.iter().map(|r| r.and_then(part).map_or(0.0, |p| floor(p.2))).collect();
                let (log_probs, log_rest) = (matrix(logs, k, logits)?, matrix(rest, 1, logits)?);
                Kind::TopK { ids: Tensor::from_vec(ids, (targets.len(), k), device)?, log_probs, log_rest }
            }
            SoftRow::Sampled(row) => {
                let n = row.len();
                let ids =
                    joined(&rows, n, |_| 0, |row| if let SoftRow::Sampled(ids) = row { Some(ids) } else { None })?;
                Kind::Sampled(Tensor::from_vec(ids, (targets.len(), n), device)?)
            }
        };
        Ok(Some(Self { kind, counted: marks(rows.iter().map(Option::is_some), logits)? }))
    }

    fn compare(&self, logits: &Tensor, objective: &Objective) -> Result<Compared> {
        let Objective { temperature, divergence, .. } = *objective;
        let student = log_softmax(&(logits * (1.0 / temperature))?)?;
        let found = match &self.kind {
            Kind::Full(teacher) => full(&student, &log_softmax(&(teacher * (1.0 / temperature))?)?, divergence),
            Kind::TopK { ids, log_probs, log_rest } => top_k(&student, ids, (log_probs, log_rest), divergence),
            Kind::Sampled(ids) => {
                let each = 1.0 / ids.dim(1)? as f64;
                let value = (student.gather(ids, 1)?.sum_keepdim(1)? * -each)?;
                let slopes = student.exp()?;
                slopes.scatter_add_set(ids, &constant(-each, ids, &slopes)?, 1)?;
                Ok(Compared { value, slopes })
            }
        }?;
        found.only(&self.counted)
    }
}

/// Divergence from the logarithms of both whole distributions.
fn full(student: &Tensor, teacher: &Tensor, divergence: Divergence) -> Result<Compared> {
    let mass = student.exp()?;
    let ratios = (student - teacher)?;
    match divergence {
        Divergence::Forward => {
            let wanted = teacher.exp()?;
            let value = (&wanted * &ratios)?.sum_keepdim(1)?.neg()?;
            Ok(Compared { value, slopes: (mass - wanted)? })
        }
        Divergence::Reverse => {
            let value = (&mass * &ratios)?.sum_keepdim(1)?;
            let slopes = (mass * ratios.broadcast_sub(&value)?)?;
            Ok(Compared { value, slopes })
        }
        Divergence::JensenShannon => {
            let ratios = ratios.clamp(FLOOR, -FLOOR)?;
            // teacher / student = exp(-ratio); student / mixture = 2 / (1 + teacher / student).
            let of_mixture = ((ratios.neg()?.exp()? + 1.0)?.log()?.neg()? + std::f64::consts::LN_2)?;
            let mean = ((&mass * &of_mixture)?.sum_keepdim(1)? * 0.5)?;
            let of_teacher = (teacher.exp()? * (&of_mixture - ratios)?)?.sum_keepdim(1)?;
            let value = (&mean + (of_teacher * 0.5)?)?;
            let slopes = (mass * (of_mixture * 0.5)?.broadcast_sub(&mean)?)?;
            Ok(Compared { value, slopes })
        }
    }
}

/// Divergence from the logarithms of the student's distribution and the teacher's, of some tokens and of all others as
/// one more outcome.
fn top_k(
    student: &Tensor,
    ids: &Tensor,
    (log_probs, log_rest): (&Tensor, &Tensor),
    divergence: Divergence,
) -> Result<Compared> {
    // What is left is added up anew: the total less the rest would lose a small remainder. It counts as something, as
    // long as there are others.
    let all_listed = ids.dim(1)? == student.dim(1)?;
    let left = if all_listed { student.exp()? } else { student.maximum(FLOOR)?.exp()? };
    left.scatter_add_set(ids, &left.gather(ids, 1)?.neg()?, 1)?;
    let rest = left.sum_keepdim(1)?;
    let listed = outcome(&student.gather(ids, 1)?, log_probs, divergence)?;
    let others = outcome(&rest.log()?, log_rest, divergence)?;
    // Where nothing is left, nothing is compared.
    let (none, some) = (rest.zeros_like()?, rest.gt(0.0)?);
    let value = (listed.value.sum_keepdim(1)? + some.where_cond(&others.value, &none)?)?;
    let pull = (listed.slope.sum_keepdim(1)? + some.where_cond(&others.slope, &none)?)?;
    let each = some.where_cond(&((&others.slope / &rest)? - &pull)?, &none)?;
    let slopes = left.broadcast_mul(&each)?;
    slopes.scatter_add_set(ids, &(listed.slope - listed.mass.broadcast_mul(&pull)?)?, 1)?;
    Ok(Compared { value, slopes })
}

/// Contributions of outcomes to a divergence; the composed form of the fused form's `Outcome`.
struct Outcomes {
    value: Tensor,
    mass: Tensor,
    slope: Tensor,
}

fn outcome(student: &Tensor, teacher: &Tensor, divergence: Divergence) -> Result<Outcomes> {
    let (mass, wanted) = (student.exp()?, teacher.exp()?);
    let (value, slope) = match divergence {
        Divergence::Forward => ((&wanted * (teacher - student)?)?, wanted.neg()?),
        Divergence::Reverse => {
            let ratio = (student - teacher)?;
            ((&mass * &ratio)?, (&mass * (&ratio + 1.0)?)?)
        }
        Divergence::JensenShannon => {
            let middle = ((&mass + &wanted)? * 0.5)?.log()?;
            let of_student = ((&mass * 0.5)? * (student - &middle)?)?;
            ((((&wanted * 0.5)? * (teacher - middle)?)? + &of_student)?, of_student)
        }
    };
    Ok(Outcomes { value, mass, slope })
}
