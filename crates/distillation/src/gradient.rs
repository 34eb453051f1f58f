//! The loss of some windows, and its gradient.

use crate::error::{Error, Result};
use crate::model::{Dropout, EMBEDDING, Parameter, Student};
use crate::ops::{self, Form, HeadGradient, Losses, Objective, SoftRow, Target, sums};
use crate::soft::Soft;
use candle_core::Tensor;
use candle_core::backprop::GradStore;

/// One example: a window of text, and the teacher's labels for each of its tokens but the last.
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
            Some(Soft::Resident(logits)) => Some(SoftRow::Resident { logits, row: prediction }),
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

/// The gradients of all trained parameters, in their order, on the student's device. They are made once and used for
/// all steps.
#[derive(Debug)]
pub struct Gradients {
    form: Form,
    parameters: Vec<Parameter>,
    values: Vec<Tensor>,
}

impl Gradients {
    /// Zeros.
    ///
    /// # Errors
    /// A device without room for them.
    pub fn new(student: &Student) -> Result<Self> {
        let parameters: Vec<Parameter> = student.parameters().into_iter().filter(|p| p.trained).collect();
        let values = parameters.iter().map(|p| p.var.zeros_like()).collect::<candle_core::Result<_>>()?;
        Ok(Self { form: student.form(), parameters, values })
    }

    /// Zeros again, before a step.
    ///
    /// # Errors
    /// A device that fails.
    pub fn clear(&mut self) -> Result<()> {
        Ok(self.values.iter().try_for_each(Tensor::zero_set)?)
    }

    /// The values of each trained parameter.
    pub fn values(&self) -> &[Tensor] {
        &self.values
    }

    /// The trained parameters.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// Form in which gradients are computed.
    pub fn form(&self) -> Form {
        self.form
    }

    #[cfg(test)]
    pub(crate) fn set(&mut self, values: impl Fn(&candle_core::Shape) -> Tensor) {
        self.values.iter_mut().for_each(|v| *v = values(v.shape()));
    }

    fn gradient_of(&mut self, name: &str) -> Option<&mut Tensor> {
        let at = self.parameters.iter().position(|p| p.name == name)?;
        Some(&mut self.values[at])
    }

    /// Adds what candle computed; every parameter but those in `outside` must be there.
    fn add(&mut self, store: &GradStore, outside: [&str; 2]) -> Result<()> {
        for (parameter, values) in self.parameters.iter().zip(&mut self.values) {
            match store.get(parameter.var.as_tensor()) {
                Some(gradient) => sums::add(self.form, values, gradient)?,
                None if outside.contains(&parameter.name.as_str()) => {}
                None => return Err(Error::NoGradient(parameter.name.clone())),
            }
        }
        Ok(())
    }

    /// The euclidean norm over everything.
    ///
    /// # Errors
    /// A device that fails.
    pub fn norm(&self) -> Result<f64> {
        Ok(sums::squares(self.form, &self.values)?.sqrt())
    }

    /// Makes sums over so many predictions their mean, no longer than `clip`; returns its norm before that.
    ///
    /// # Errors
    /// A device that fails.
    pub fn average(&mut self, predictions: usize, clip: f64) -> Result<f64> {
        let share = 1.0 / predictions as f64;
        let norm = self.norm()? * share;
        self.scale(share * (clip / norm).min(1.0))?;
        Ok(norm)
    }

    /// Multiplies everything.
    ///
    /// # Errors
    /// A device that fails.
    pub fn scale(&mut self, by: f64) -> Result<()> {
        Ok(self.values.iter_mut().try_for_each(|values| sums::scale(self.form, values, by))?)
    }
}

/// The losses of some windows; with `gradient` (and its scale) the objective's gradient is added there.
///
/// Windows may differ in length: shorter ones are padded at the end, where nothing sees it and nothing counts.
pub fn losses(
    student: &Student,
    windows: &[Window],
    objective: &Objective,
    dropout: Option<&mut Dropout>,
    gradient: Option<(&mut Gradients, f64)>,
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
    let (form, head) = (student.form(), student.head());
    let Some((gradients, scale)) = gradient else {
        return Ok(ops::head_loss(form, &hidden, &head, &targets, objective, None)?.0);
    };
    let into = HeadGradient { scale, head: gradients.gradient_of(student.head_name()) };
    let (losses, d_hidden) = ops::head_loss(form, &hidden, &head, &targets, objective, Some(into))?;
    let Some(d_hidden) = d_hidden else { return Err(Error::NoGradient("the hidden states".into())) };
    let store = (&pass.hidden * &d_hidden)?.sum_all()?.backward()?;
    gradients.add(&store, [EMBEDDING, student.head_name()])?;
    if let Some(embedding) = gradients.gradient_of(EMBEDDING) {
        let embedded = store.get(&pass.embedded).ok_or_else(|| Error::NoGradient(EMBEDDING.into()))?;
        sums::add_rows(form, embedding, &ids, embedded)?;
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

    /// Both forms of what a student may be.
    fn shapes() -> impl Iterator<Item = (Shape, Form)> {
        let shapes = [testing::shape(), Shape { biases: true, tied: false, ..testing::shape() }];
        shapes.into_iter().flat_map(|shape| [(shape.clone(), Form::Fused), (shape, Form::Composed)])
    }

    #[test]
    fn every_variable_gets_a_gradient() {
        for (shape, form) in shapes() {
            let student = Student::new(&shape, 300, DType::F32, 3).expect("a valid shape").in_form(form);
            let mut gradients = Gradients::new(&student).expect("gradients");
            losses(&student, &windows(), &OBJECTIVE, None, Some((&mut gradients, 1.0))).expect("a loss");
            assert_eq!(gradients.parameters().len(), student.parameters().len());
            for (parameter, values) in gradients.parameters().iter().zip(gradients.values()) {
                assert!(!values.track_op(), "{} would keep the graph of every step", parameter.name);
                // A constant added to all keys changes no attention: k's bias has no gradient but rounding's.
                assert!(testing::flat(values).iter().any(|g| *g != 0.0), "{} is never moved", parameter.name);
            }
            let frozen = student.with_frozen_embeddings();
            let mut rest = Gradients::new(&frozen).expect("gradients");
            losses(&frozen, &windows(), &OBJECTIVE, None, Some((&mut rest, 1.0))).expect("a loss");
            let names: Vec<&str> = rest.parameters().iter().map(|p| p.name.as_str()).collect();
            assert!(!names.contains(&EMBEDDING) && !names.contains(&"lm_head.weight"));
            assert!(names.len() >= gradients.parameters().len() - 2);
        }
    }

    #[test]
    fn gradients_match_finite_differences() {
        for (shape, form) in shapes() {
            let student = Student::new(&shape, 300, DType::F64, 4).expect("a valid shape").in_form(form);
            let value = || losses(&student, &windows(), &OBJECTIVE, None, None).expect("a loss").mean(&OBJECTIVE);
            let mut gradients = Gradients::new(&student).expect("gradients");
            losses(&student, &windows(), &OBJECTIVE, None, Some((&mut gradients, 1.0 / 9.0))).expect("a loss");
            for (parameter, grad) in gradients.parameters().iter().zip(gradients.values()) {
                let flat = |t: &Tensor| t.flatten_all().and_then(|t| t.to_vec1::<f64>()).expect("f64");
                let (weights, grad) = (flat(&parameter.var), flat(grad));
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
        let mean = |windows: &[Window]| losses(&student, windows, &OBJECTIVE, None, None).expect("a loss");
        let (both, first, second) = (mean(&all), mean(&all[..1]), mean(&all[1..]));
        assert_eq!(both.predictions, 9);
        assert!(
            (both.soft - first.soft - second.soft).abs() < 1e-5 && (both.hard - first.hard - second.hard).abs() < 1e-5
        );
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let student = testing::student(6);
        let new = || Gradients::new(&student).expect("gradients");
        let (mut whole, mut parts) = (new(), new());
        let all = windows();
        losses(&student, &all, &OBJECTIVE, None, Some((&mut whole, 0.25))).expect("a loss");
        for window in all.chunks(1) {
            losses(&student, window, &OBJECTIVE, None, Some((&mut parts, 0.25))).expect("a loss");
        }
        let flat = |of: &Gradients| of.values().iter().flat_map(testing::flat).collect::<Vec<_>>();
        for (a, b) in flat(&whole).iter().zip(flat(&parts)) {
            assert!((a - b).abs() < 1e-6, "{a} {b}");
        }
        parts.clear().expect("cleared");
        assert_eq!(parts.norm().expect("a norm"), 0.0);
    }

    #[test]
    fn the_norm_is_over_everything() {
        for form in [Form::Fused, Form::Composed] {
            let mut gradients = Gradients::new(&testing::student(0).in_form(form)).expect("gradients");
            let mut set = |at: usize, place: usize, value: f32| {
                let mut values = testing::flat(&gradients.values[at]);
                values[place] = value;
                let shape = gradients.values[at].shape().clone();
                gradients.values[at] = Tensor::from_vec(values, shape, &Device::Cpu).expect("same shape");
            };
            set(0, 0, 3.0);
            set(1, 2, 4.0);
            let norm = |of: &Gradients| of.norm().expect("a norm");
            assert!((norm(&gradients) - 5.0).abs() < 1e-12);
            gradients.scale(0.2).expect("scaled");
            assert!((norm(&gradients) - 1.0).abs() < 1e-6);
            let at = |i: usize, j: usize| testing::flat(&gradients.values[i])[j];
            assert!((at(0, 0) / at(1, 2) - 0.75).abs() < 1e-6);
        }
    }
}
