//! Self-test of training on a device: its operations, losses and gradients against the fused ones in f64 on the CPU,
//! and a few optimizer steps against the same steps there.

use crate::error::{Error, Result};
use crate::gradient::{Gradients, Window, losses};
use crate::model::{Dropout, Student};
use crate::ops::{Divergence, Form, Objective, Operations};
use crate::optim::AdamW;
use crate::random;
use crate::recipe::{Shape, TrainRecipe};
use crate::soft::{Resident, Soft};
use candle_core::{DType, Device, Tensor, Var};
use runtime::selftest::{Checked, add};
use std::ops::ControlFlow;

/// Tolerance for values and gradients against f64, as a share of the largest of them.
const TOLERANCE: f64 = 2e-5;

/// Tolerance for the losses of steps, as a share: AdamW divides by the gradient's size, which makes small differences
/// large.
const OF_STEPS: f64 = 1e-4;

/// Optimizer steps that are compared.
const STEPS: usize = 20;

/// Entries of the vocabulary.
const VOCABULARY: usize = 1100;

/// Everything, of numbers that depend on the seed. A device that fails is not asked again.
pub fn run(device: &Device, seed: u64) -> Vec<Checked> {
    let mut all = Vec::new();
    // Where it breaks off is the last of them.
    let _ = each(device, seed, &mut all);
    all
}

fn each(device: &Device, seed: u64, all: &mut Vec<Checked>) -> ControlFlow<()> {
    let mut check = |what: &str, case: String, found: Result<Difference>| {
        let found = found.map(|(numbers, error)| {
            let (what, case) = (what.into(), case.clone());
            vec![Checked { what, case, numbers, differing: None, error: Some(error), failure: None }]
        });
        add(all, device, what, &case, found)
    };
    for operation in [Operation::RmsNorm, Operation::Rotary, Operation::CausalSoftmax, Operation::SwiGlu] {
        for tokens in [1, 37] {
            check("operations", format!("{operation:?}, {tokens} tokens"), operation.compare(device, tokens, seed))?;
        }
    }
    for (kind, objective) in objectives() {
        let Objective { divergence, temperature, alpha } = objective;
        let case = format!("{}, {divergence:?}, T = {temperature}, alpha {alpha}", kind.name());
        check("losses and gradients", case, gradients(device, kind, &objective, seed))?;
    }
    for (kind, objective) in objectives().into_iter().filter(|(_, o)| o.divergence == Divergence::Forward) {
        let case = format!("{}, T = {}, {STEPS} steps", kind.name(), objective.temperature);
        check("training", case, training(device, kind, &objective, seed))?;
    }
    ControlFlow::Continue(())
}

/// Compared objectives: every kind of labels with every divergence that it has.
fn objectives() -> Vec<(Kind, Objective)> {
    let all = [Divergence::Forward, Divergence::Reverse, Divergence::JensenShannon];
    let of = |kind, divergence, temperature| (kind, Objective { alpha: 0.5, temperature, divergence });
    let soft = [Kind::Full, Kind::TopK].into_iter();
    let mut list: Vec<_> =
        soft.flat_map(|kind| all.map(|d| of(kind, d, if kind == Kind::Full { 2.0 } else { 1.0 }))).collect();
    list.push(of(Kind::Sampled, Divergence::Forward, 2.0));
    list.push(of(Kind::Resident, Divergence::Forward, 2.0));
    list.push((Kind::None, Objective::HARD));
    list
}

/// Number of compared values, and the largest difference as a share of its tolerance.
type Difference = (usize, f64);

fn difference(found: &[f64], wanted: &[f64], tolerance: f64) -> Result<Difference> {
    if found.len() != wanted.len() {
        return Err(Error::Text(format!("{} numbers, not {}", found.len(), wanted.len())));
    }
    let largest = wanted.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
    let worst = found.iter().zip(wanted).map(|(f, w)| (f - w).abs());
    // A maximum passes over what is no number; a sum doesn't.
    let sound: f64 = found.iter().sum::<f64>() * 0.0;
    Ok((found.len(), worst.fold(0.0, f64::max) / (largest * tolerance) + sound))
}

/// Largest of several differences; one that is no number stays none.
fn all_of(parts: impl IntoIterator<Item = Result<Difference>>) -> Result<Difference> {
    parts.into_iter().try_fold((0, 0.0), |(numbers, error), part| {
        let (more, other) = part?;
        Ok((numbers + more, if other <= error { error } else { other }))
    })
}

fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.to_device(&Device::Cpu)?.to_dtype(DType::F64)?.flatten_all()?.to_vec1()?)
}

fn variable(device: &Device, dtype: DType, dims: &[usize], seed: u64, stream: u64) -> Result<Var> {
    let values = random::normal(&mut random::stream(seed, stream), dims.iter().product(), 1.0);
    Ok(Var::from_tensor(&Tensor::from_vec(values, dims, &Device::Cpu)?.to_dtype(dtype)?.to_device(device)?)?)
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    RmsNorm,
    Rotary,
    CausalSoftmax,
    SwiGlu,
}

impl Operation {
    /// Values and gradients, of this many tokens a row.
    fn compare(self, device: &Device, tokens: usize, seed: u64) -> Result<Difference> {
        let wanted = self.trace(&Device::Cpu, DType::F64, Form::Fused, tokens, seed)?;
        let found = self.trace(device, DType::F32, Form::Composed, tokens, seed)?;
        all_of(found.iter().zip(&wanted).map(|(f, w)| difference(f, w, TOLERANCE)))
    }

    /// The result, and the gradients of its inputs under a random weighting.
    fn trace(self, device: &Device, dtype: DType, form: Form, tokens: usize, seed: u64) -> Result<Vec<Vec<f64>>> {
        let var = |dims: &[usize], stream| variable(device, dtype, dims, seed, stream);
        let (heads, head_dim) = (3, 10);
        let x = match self {
            Operation::CausalSoftmax => var(&[2, heads * tokens, tokens], 100)?,
            _ => var(&[2 * tokens, heads * head_dim], 100)?,
        };
        let other = match self {
            Operation::RmsNorm => var(&[heads * head_dim], 101)?,
            _ => var(x.dims(), 101)?,
        };
        let ops = Operations::new(form, tokens, head_dim, 10_000.0, &x)?;
        let result = match self {
            Operation::RmsNorm => ops.rms_norm(&x, &other, 1e-5)?,
            Operation::Rotary => ops.rotary(&x)?,
            Operation::CausalSoftmax => ops.causal_softmax(&x, 0.3)?,
            Operation::SwiGlu => ops.swiglu(&x, &other)?,
        };
        let weighting = var(result.dims(), 102)?;
        let slopes = (&result * weighting.as_detached_tensor())?.sum_all()?.backward()?;
        let mut all = vec![numbers(&result)?];
        for var in [&x, &other] {
            all.extend(slopes.get(var.as_tensor()).map(numbers).transpose()?);
        }
        Ok(all)
    }
}

/// Kind of a teacher's labels.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Kind {
    Full,
    /// All of it, left where the teacher ran.
    Resident,
    TopK,
    Sampled,
    None,
}

impl Kind {
    /// Kind that the fused form takes in its place.
    fn in_memory(self) -> Self {
        if self == Kind::Resident { Kind::Full } else { self }
    }

    fn name(self) -> &'static str {
        match self {
            Kind::Full => "full labels",
            Kind::Resident => "labels on the device",
            Kind::TopK => "top-k labels",
            Kind::Sampled => "sampled labels",
            Kind::None => "text alone",
        }
    }

    /// Labels of so many predictions.
    fn labels(self, predictions: usize, temperature: f64, seed: u64, stream: u64) -> Option<Soft> {
        let mut rng = random::stream(seed, stream);
        let logits = random::normal(&mut rng, predictions * VOCABULARY, 2.0);
        let k = 9;
        match self {
            Kind::None => None,
            Kind::Full | Kind::Resident => Some(Soft::Full { logits }),
            Kind::Sampled => {
                let ids =
                    logits[..predictions * k].iter().map(|x| (x.abs() * 1e4) as u32 % VOCABULARY as u32).collect();
                Some(Soft::Sampled { n: k, ids })
            }
            Kind::TopK => {
                let (mut ids, mut log_probs, mut log_rest) = (vec![], vec![], vec![]);
                for row in logits.chunks(VOCABULARY) {
                    let mut order: Vec<u32> = (0..VOCABULARY as u32).collect();
                    order.sort_by(|&a, &b| row[b as usize].total_cmp(&row[a as usize]));
                    let mass = |id: &u32| (f64::from(row[*id as usize]) / temperature).exp();
                    let all: f64 = order.iter().map(mass).sum();
                    log_probs.extend(order[..k].iter().map(|id| (mass(id) / all).ln() as f32));
                    log_rest.push((order[k..].iter().map(mass).sum::<f64>() / all).ln() as f32);
                    ids.extend_from_slice(&order[..k]);
                }
                Some(Soft::TopK { k, ids, log_probs, log_rest })
            }
        }
    }

    /// Windows of unlike lengths; labels lie on the device where it is one that keeps them.
    fn windows(self, device: &Device, temperature: f64, seed: u64) -> Result<Vec<Window>> {
        let window = |(stream, length): (u64, usize)| {
            let tokens = random::normal(&mut random::stream(seed, 200 + stream), length, 1.0);
            let tokens = tokens.into_iter().map(|x| (x.abs() * 1e4) as u32 % VOCABULARY as u32).collect();
            let soft = self.labels(length - 1, temperature, seed, 300 + stream);
            let soft = match soft {
                Some(Soft::Full { logits }) if self == Kind::Resident => {
                    let logits = Tensor::from_vec(logits, (length - 1, VOCABULARY), device)?;
                    Some(Soft::Resident(Resident(logits)))
                }
                other => other,
            };
            Ok(Window { tokens, soft })
        };
        [23, 38, 11].into_iter().enumerate().map(|(i, length)| window((i as u64, length))).collect()
    }
}

/// A small student with all that a student may have.
fn student(device: &Device, dtype: DType, form: Form, seed: u64) -> Result<Student> {
    let shape = Shape {
        hidden: 48,
        layers: 2,
        heads: 6,
        kv_heads: 2,
        head_dim: 10,
        intermediate: 72,
        max_positions: 64,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-5,
        biases: true,
        tied: seed.is_multiple_of(2),
    };
    Ok(Student::new(&shape, VOCABULARY, dtype, seed)?.on(device)?.in_form(form))
}

/// The losses of windows and the gradients of all weights.
fn gradients(device: &Device, kind: Kind, objective: &Objective, seed: u64) -> Result<Difference> {
    let trace = |device: &Device, dtype, form, kind: Kind| -> Result<(Vec<f64>, Vec<Vec<f64>>)> {
        let windows = kind.windows(device, objective.temperature, seed)?;
        let student = student(device, dtype, form, seed)?;
        let mut gradients = Gradients::new(&student)?;
        let mut dropout = Dropout::new(0.1, seed, random::DROPOUT);
        let found = losses(&student, &windows, objective, Some(&mut dropout), Some((&mut gradients, 0.1)))?;
        Ok((vec![found.hard, found.soft], gradients.values().iter().map(numbers).collect::<Result<_>>()?))
    };
    let (wanted, slopes) = trace(&Device::Cpu, DType::F64, Form::Fused, kind.in_memory())?;
    let (found, ours) = trace(device, DType::F32, Form::Composed, kind)?;
    // Every gradient is measured by the largest of all of them.
    all_of([(found, wanted), (ours.concat(), slopes.concat())].map(|(f, w)| difference(&f, &w, TOLERANCE)))
}

/// The losses of optimizer steps over the same windows.
fn training(device: &Device, kind: Kind, objective: &Objective, seed: u64) -> Result<Difference> {
    let recipe = TrainRecipe { learning_rate: 1e-3, ..TrainRecipe::default() };
    let trace = |device: &Device, form, kind: Kind| -> Result<Vec<f64>> {
        let windows = kind.windows(device, objective.temperature, seed)?;
        let student = student(device, DType::F32, form, seed)?;
        let (mut gradients, mut all) = (Gradients::new(&student)?, Vec::with_capacity(STEPS));
        let mut optimizer = AdamW::new(gradients.parameters(), &recipe)?;
        for _ in 0..STEPS {
            gradients.clear()?;
            let found = losses(&student, &windows, objective, None, Some((&mut gradients, 1.0)))?;
            gradients.average(found.predictions, recipe.clip)?;
            optimizer.step(&gradients, recipe.learning_rate)?;
            all.push(found.mean(objective));
        }
        Ok(all)
    };
    let wanted = trace(&Device::Cpu, Form::Fused, kind.in_memory())?;
    difference(&trace(device, Form::Composed, kind)?, &wanted, OF_STEPS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_composed_form_passes_on_the_cpu() {
        // With a head of its own, and with the embedding as head.
        for seed in [1, 2] {
            let found = run(&Device::Cpu, seed);
            let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
            assert!(failed.is_empty() && found.len() == 8 + 9 + 5, "{failed:#?}");
            assert!(found.iter().all(|c| c.numbers >= 12), "{found:#?}");
            assert!(found.iter().any(|c| c.error > Some(1e-3)), "two forms can't agree in every bit");
        }
    }

    #[test]
    fn what_is_off_fails() {
        assert!(difference(&[1.0, 2.0], &[1.0, 2.0], 1e-3).is_ok_and(|d| d == (2, 0.0)));
        assert!(difference(&[1.0, 2.01], &[1.0, 2.0], 1e-3).is_ok_and(|(_, e)| (e - 5.0).abs() < 1e-9));
        for broken in [f64::NAN, f64::INFINITY] {
            let error = difference(&[1.0, broken], &[1.0, 2.0], 1e-3).ok().map(|(_, e)| e);
            let checked =
                Checked { what: "a".into(), case: "a".into(), numbers: 2, differing: None, error, failure: None };
            assert!(!checked.passed(), "{checked:?}");
        }
        assert!(difference(&[1.0], &[1.0, 2.0], 1e-3).is_err());
    }
}
