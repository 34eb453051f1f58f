//! The loss of some windows, and its gradient.

use crate::error::{Error, Result};
use crate::model::{Dropout, EMBEDDING, Parameter, Student};
use crate::ops::{self, HeadGradient, Losses, Objective, Real, SoftRow, Target};
use crate::soft::Soft;
use candle_core::backprop::GradStore;
use rayon::prelude::*;

/// What is learned from: a window of text, and what the teacher says to each of its tokens but the last.
#[derive(Debug, Clone, PartialEq)]
pub struct Window {
    /// At least two tokens; each but the first is predicted.
    pub tokens: Vec<u32>,
    /// A row for each prediction.
    pub soft: Option<Soft>,
}

impl Window {
    /// Tokens that are predicted.
    pub fn predictions(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    fn target(&self, prediction: usize, vocabulary: usize) -> Option<Target<'_>> {
        let token = *self.tokens.get(prediction + 1)?;
        let row = |k: usize| prediction * k..(prediction + 1) * k;
        let soft = match &self.soft {
            None => None,
            Some(Soft::Full { logits }) => Some(SoftRow::Full(&logits[row(vocabulary)])),
            Some(Soft::TopK { k, ids, log_probs, log_rest }) => Some(SoftRow::TopK {
                ids: &ids[row(*k)],
                log_probs: &log_probs[row(*k)],
                log_rest: log_rest[prediction],
            }),
            Some(Soft::Sampled { n, ids }) => Some(SoftRow::Sampled(&ids[row(*n)])),
        };
        Some(Target { token, soft })
    }
}

/// The gradients of all trained parameters, in their order. They are made once and used for all steps.
#[derive(Debug)]
pub struct Gradients<T = f32> {
    parameters: Vec<Parameter>,
    values: Vec<Vec<T>>,
}

impl<T: Real> Gradients<T> {
    /// Zeros.
    pub fn new(student: &Student) -> Self {
        let parameters: Vec<Parameter> = student.parameters().into_iter().filter(|p| p.trained).collect();
        let values = parameters.iter().map(|p| vec![T::zero(); p.var.elem_count()]).collect();
        Self { parameters, values }
    }

    /// The same value everywhere; zero before a step.
    pub fn fill(&mut self, value: T) {
        self.values.par_iter_mut().for_each(|values| values.fill(value));
    }

    /// The values of each trained parameter.
    pub fn values(&self) -> &[Vec<T>] {
        &self.values
    }

    /// The trained parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn of(&mut self, name: &str) -> Option<&mut [T]> {
        let at = self.parameters.iter().position(|p| p.name == name)?;
        Some(&mut self.values[at])
    }

    /// Adds what candle computed; every parameter but those in `outside` must be there.
    fn add(&mut self, store: &GradStore, outside: [&str; 2]) -> Result<()> {
        for (parameter, values) in self.parameters.iter().zip(&mut self.values) {
            match store.get(parameter.var.as_tensor()) {
                Some(gradient) => ops::with_values(&gradient.contiguous()?, |gradient| add(values, gradient))?,
                None if outside.contains(&parameter.name.as_str()) => {}
                None => return Err(Error::NoGradient(parameter.name.clone())),
            }
        }
        Ok(())
    }

    /// The euclidean norm over everything, summed in an order that doesn't depend on the threads.
    pub fn norm(&self) -> f64 {
        let parts: Vec<f64> = self.values.par_iter().flat_map(|v| v.par_chunks(1 << 14)).map(squares).collect();
        parts.iter().sum::<f64>().sqrt()
    }

    /// Multiplies everything.
    pub fn scale(&mut self, by: f64) {
        let by = T::from_f64(by);
        let chunks = self.values.par_iter_mut().flat_map(|v| v.par_chunks_mut(1 << 14));
        chunks.for_each(|chunk| chunk.iter_mut().for_each(|g| *g *= by));
    }
}

fn add<T: Real>(sum: &mut [T], values: &[T]) {
    sum.iter_mut().zip(values).for_each(|(sum, &v)| *sum += v);
}

fn squares<T: Real>(values: &[T]) -> f64 {
    let mut lanes = [0f64; 8];
    for chunk in values.chunks(8) {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            let v = v.to_f64();
            *lane += v * v;
        }
    }
    lanes.iter().sum()
}

/// The losses of some windows; with `gradient` (and its scale) the objective's gradient is added there.
///
/// Windows may differ in length: shorter ones are padded at the end, where nothing sees it and nothing counts.
pub fn losses<T: Real>(
    student: &Student,
    windows: &[Window],
    objective: &Objective,
    dropout: Option<&mut Dropout>,
    gradient: Option<(&mut Gradients<T>, f64)>,
) -> Result<Losses> {
    let tokens = windows.iter().map(Window::predictions).max().unwrap_or(0);
    if tokens == 0 {
        return Err(Error::Text("a window has nothing to predict".into()));
    }
    let padding = |w: &Window| std::iter::repeat_n(0, tokens - w.predictions());
    let ids: Vec<u32> =
        windows.iter().flat_map(|w| w.tokens[..w.predictions()].iter().copied().chain(padding(w))).collect();
    let vocabulary = student.vocabulary();
    let targets: Vec<Option<Target<'_>>> =
        windows.iter().flat_map(|w| (0..tokens).map(|i| w.target(i, vocabulary))).collect();
    let pass = student.hidden(&ids, tokens, dropout)?;
    let hidden = pass.hidden.detach();
    let Some((gradients, scale)) = gradient else {
        return Ok(ops::head_loss::<T>(&hidden, &student.head(), &targets, objective, None)?.0);
    };
    let into = HeadGradient { scale, head: gradients.of(student.head_name()) };
    let (losses, d_hidden) = ops::head_loss(&hidden, &student.head(), &targets, objective, Some(into))?;
    let Some(d_hidden) = d_hidden else { return Err(Error::NoGradient("the hidden states".into())) };
    let store = (&pass.hidden * &d_hidden)?.sum_all()?.backward()?;
    gradients.add(&store, [EMBEDDING, student.head_name()])?;
    if let Some(embedding) = gradients.of(EMBEDDING) {
        let embedded = store.get(&pass.embedded).ok_or_else(|| Error::NoGradient(EMBEDDING.into()))?;
        let width = student.shape().hidden;
        ops::with_values(&embedded.contiguous()?, |rows: &[T]| {
            for (row, &id) in rows.chunks_exact(width).zip(&ids) {
                add(&mut embedding[id as usize * width..][..width], row);
            }
        })?;
    }
    Ok(losses)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::Divergence;
    use crate::recipe::Shape;
    use crate::testing;
    use candle_core::{DType, Device, Tensor};

    const OBJECTIVE: Objective = Objective { alpha: 0.5, temperature: 2.0, divergence: Divergence::Forward };

    fn windows() -> Vec<Window> {
        let window = |tokens: &[u32]| {
            let rows = tokens.len() - 1;
            let ids = (0..rows as u32).flat_map(|i| [i, 299 - i]).collect();
            let log_probs = [0.5f32.ln(), 0.2f32.ln()].repeat(rows);
            let soft = Soft::TopK { k: 2, ids, log_probs, log_rest: vec![0.3f32.ln(); rows] };
            Window { tokens: tokens.into(), soft: Some(soft) }
        };
        vec![window(&[5, 9, 2, 299, 7, 7, 1]), window(&[0, 4, 3, 250])]
    }

    fn shapes() -> [Shape; 2] {
        [testing::shape(), Shape { biases: true, tied: false, ..testing::shape() }]
    }

    #[test]
    fn every_variable_gets_a_gradient() {
        for shape in shapes() {
            let student = Student::new(&shape, 300, DType::F32, 3).expect("a valid shape");
            let mut gradients = Gradients::new(&student);
            losses(&student, &windows(), &OBJECTIVE, None, Some((&mut gradients, 1.0))).expect("a loss");
            assert_eq!(gradients.parameters().len(), student.parameters().len());
            for (parameter, values) in gradients.parameters().iter().zip(gradients.values()) {
                // A constant added to all keys changes no attention: k's bias has no gradient but rounding's.
                assert!(values.iter().any(|g: &f32| *g != 0.0), "{} is never moved", parameter.name);
            }
            let frozen = student.with_frozen_embeddings();
            let mut rest = Gradients::<f32>::new(&frozen);
            losses(&frozen, &windows(), &OBJECTIVE, None, Some((&mut rest, 1.0))).expect("a loss");
            let names: Vec<&str> = rest.parameters().iter().map(|p| p.name.as_str()).collect();
            assert!(!names.contains(&EMBEDDING) && !names.contains(&"lm_head.weight"));
            assert!(names.len() >= gradients.parameters().len() - 2);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        for shape in shapes() {
            let student = Student::new(&shape, 300, DType::F64, 4).expect("a valid shape");
            let value =
                || losses::<f64>(&student, &windows(), &OBJECTIVE, None, None).expect("a loss").mean(&OBJECTIVE);
            let mut gradients = Gradients::<f64>::new(&student);
            losses(&student, &windows(), &OBJECTIVE, None, Some((&mut gradients, 1.0 / 9.0))).expect("a loss");
            for (parameter, grad) in gradients.parameters().iter().zip(gradients.values()) {
                let weights: Vec<f64> = parameter.var.flatten_all().and_then(|t| t.to_vec1()).expect("f64");
                let set = |at: usize, by: f64| {
                    let mut moved = weights.clone();
                    moved[at] += by;
                    let moved = Tensor::from_vec(moved, parameter.var.shape(), &Device::Cpu).expect("same shape");
                    parameter.var.set(&moved).expect("same shape");
                    value()
                };
                // The largest gradient, and a few more.
                let largest = (0..grad.len()).max_by(|&a, &b| grad[a].abs().total_cmp(&grad[b].abs()));
                for at in [largest.expect("not empty"), 0, grad.len() / 2, grad.len() - 1] {
                    let slope = (set(at, 1e-5) - set(at, -1e-5)) / 2e-5;
                    assert!((slope - grad[at]).abs() < 1e-8 + 1e-5 * slope.abs(), "{}[{at}]: {slope}", parameter.name);
                }
                set(0, 0.0);
            }
        }
    }

    #[test]
    fn windows_of_unlike_length_don_t_see_each_other() {
        let student = testing::student(5);
        let all = windows();
        let mean = |windows: &[Window]| losses::<f32>(&student, windows, &OBJECTIVE, None, None).expect("a loss");
        let (both, first, second) = (mean(&all), mean(&all[..1]), mean(&all[1..]));
        assert_eq!(both.predictions, 9);
        assert!(
            (both.soft - first.soft - second.soft).abs() < 1e-5 && (both.hard - first.hard - second.hard).abs() < 1e-5
        );
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let student = testing::student(6);
        let (mut whole, mut parts) = (Gradients::<f32>::new(&student), Gradients::<f32>::new(&student));
        let all = windows();
        losses(&student, &all, &OBJECTIVE, None, Some((&mut whole, 0.25))).expect("a loss");
        for window in all.chunks(1) {
            losses(&student, window, &OBJECTIVE, None, Some((&mut parts, 0.25))).expect("a loss");
        }
        for (a, b) in whole.values().iter().flatten().zip(parts.values().iter().flatten()) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        parts.fill(0.0);
        assert_eq!(parts.norm(), 0.0);
    }

    #[test]
    fn the_norm_is_over_everything() {
        let mut gradients = Gradients::<f32>::new(&testing::student(0));
        gradients.values[0][0] = 3.0;
        gradients.values[1][2] = 4.0;
        assert!((gradients.norm() - 5.0).abs() < 1e-12);
        gradients.scale(0.2);
        assert!((gradients.norm() - 1.0).abs() < 1e-6);
        assert!((gradients.values[0][0] / gradients.values[1][2] - 0.75).abs() < 1e-6);
    }
}
