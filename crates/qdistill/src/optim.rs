//! AdamW, the learning-rate schedule and gradient clipping.

use crate::error::{Error, Result};
use crate::model::Parameter;
use crate::recipe::TrainRecipe;
use candle_core::{Tensor, backprop::GradStore};
use rayon::prelude::*;

/// The learning rate of `step` (counted from 1): linear warm-up, then a cosine down to the final share.
pub fn learning_rate(recipe: &TrainRecipe, step: usize) -> f64 {
    let peak = recipe.learning_rate;
    if step <= recipe.warmup {
        return peak * step as f64 / recipe.warmup as f64;
    }
    let length = recipe.steps.saturating_sub(recipe.warmup).max(1);
    let done = ((step - recipe.warmup) as f64 / length as f64).min(1.0);
    let floor = peak * recipe.final_share;
    floor + (peak - floor) * 0.5 * (1.0 + (std::f64::consts::PI * done).cos())
}

/// The gradients of all parameters, in the parameters' order.
#[derive(Debug, Clone)]
pub struct Gradients(Vec<Vec<f32>>);

impl Gradients {
    /// Takes the gradients out of candle's store; every parameter must have one.
    pub fn collect(parameters: &[Parameter], store: &GradStore) -> Result<Self> {
        parameters
            .iter()
            .map(|p| {
                let grad = store.get(p.var.as_tensor()).ok_or_else(|| Error::NoGradient(p.name.clone()))?;
                Ok(grad.flatten_all()?.to_vec1::<f32>()?)
            })
            .collect::<Result<_>>()
            .map(Self)
    }

    /// The mean over the parts of a batch, summed in the order given.
    pub fn mean(parts: Vec<Self>) -> Self {
        let share = 1.0 / parts.len() as f32;
        let mut parts = parts.into_iter();
        let mut sum = parts.next().map_or_else(Vec::new, |p| p.0);
        for part in parts {
            for (sum, part) in sum.iter_mut().zip(&part.0) {
                sum.iter_mut().zip(part).for_each(|(s, g)| *s += g);
            }
        }
        sum.iter_mut().flatten().for_each(|g| *g *= share);
        Self(sum)
    }

    /// The euclidean norm over everything.
    pub fn norm(&self) -> f64 {
        self.0.iter().flatten().map(|&g| f64::from(g) * f64::from(g)).sum::<f64>().sqrt()
    }

    /// Shrinks the gradients to norm `limit` where they are longer; returns the norm before.
    pub fn clip(&mut self, limit: f64) -> f64 {
        let norm = self.norm();
        if norm > limit {
            let factor = (limit / norm) as f32;
            self.0.iter_mut().flatten().for_each(|g| *g *= factor);
        }
        norm
    }
}

/// AdamW with decoupled weight decay; the state is ours, so that it can be saved.
#[derive(Debug)]
pub struct AdamW {
    parameters: Vec<Parameter>,
    moments: Vec<Moments>,
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    step: i32,
}

#[derive(Debug)]
struct Moments {
    weight: Vec<f32>,
    mean: Vec<f32>,
    square: Vec<f32>,
}

const EPSILON: f32 = 1e-8;

impl AdamW {
    /// An optimizer of `parameters`, which must be f32.
    pub fn new(parameters: Vec<Parameter>, recipe: &TrainRecipe) -> Result<Self> {
        let moments = parameters
            .iter()
            .map(|p| {
                let weight = p.var.flatten_all()?.to_vec1::<f32>()?;
                let zeros = vec![0f32; weight.len()];
                Ok(Moments { weight, mean: zeros.clone(), square: zeros })
            })
            .collect::<Result<_>>()?;
        let TrainRecipe { beta1, beta2, weight_decay, .. } = *recipe;
        Ok(Self { parameters, moments, beta1, beta2, weight_decay, step: 0 })
    }

    /// One step along `gradients` at learning rate `rate`.
    pub fn step(&mut self, gradients: &Gradients, rate: f64) -> Result<()> {
        self.step += 1;
        let (b1, b2) = (self.beta1 as f32, self.beta2 as f32);
        let correct1 = 1.0 - self.beta1.powi(self.step);
        let correct2 = (1.0 - self.beta2.powi(self.step)).sqrt();
        let size = (rate * correct2 / correct1) as f32;
        let epsilon = EPSILON * correct2 as f32;
        let decay = (rate * self.weight_decay) as f32;
        let state = self.parameters.par_iter().zip(self.moments.par_iter_mut()).zip(gradients.0.par_iter());
        state.try_for_each(|((parameter, moments), gradient)| {
            let shrink = if parameter.decays { 1.0 - decay } else { 1.0 };
            let Moments { weight, mean, square } = moments;
            for (((w, m), s), &g) in weight.iter_mut().zip(mean).zip(square).zip(gradient) {
                *m = b1 * *m + (1.0 - b1) * g;
                *s = b2 * *s + (1.0 - b2) * g * g;
                *w = *w * shrink - size * *m / (s.sqrt() + epsilon);
            }
            let var = &parameter.var;
            var.set(&Tensor::from_slice(weight, var.shape(), var.device())?)?;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn rate_warms_up_then_falls() {
        let recipe = TrainRecipe { steps: 100, warmup: 10, learning_rate: 2.0, final_share: 0.1, ..testing::train() };
        assert!((learning_rate(&recipe, 1) - 0.2).abs() < 1e-12);
        assert!((learning_rate(&recipe, 10) - 2.0).abs() < 1e-12);
        assert!((learning_rate(&recipe, 55) - 1.1).abs() < 1e-12);
        assert!((learning_rate(&recipe, 100) - 0.2).abs() < 1e-12);
        let rates: Vec<f64> = (10..=100).map(|s| learning_rate(&recipe, s)).collect();
        assert!(rates.windows(2).all(|w| w[1] < w[0]));
        let none = TrainRecipe { warmup: 0, ..recipe };
        assert!(learning_rate(&none, 1) <= 2.0);
    }

    #[test]
    fn clipping_keeps_the_direction() {
        let mut long = Gradients(vec![vec![3.0, 0.0], vec![4.0]]);
        assert!((long.clip(1.0) - 5.0).abs() < 1e-12);
        assert!((long.norm() - 1.0).abs() < 1e-6);
        assert!((long.0[0][0] / long.0[1][0] - 0.75).abs() < 1e-6);
        let mut short = Gradients(vec![vec![0.3, 0.4]]);
        short.clip(1.0);
        assert_eq!(short.0, [[0.3, 0.4]]);
    }

    #[test]
    fn first_step_moves_by_the_rate_and_decay_is_decoupled() {
        let student = testing::student(0);
        let parameters = student.parameters();
        let before: Vec<Vec<f32>> = parameters.iter().map(|p| testing::flat(&p.var)).collect();
        let gradients = Gradients(before.iter().map(|w| vec![0.5; w.len()]).collect());
        let recipe = TrainRecipe { weight_decay: 0.1, ..testing::train() };
        let mut optimizer = AdamW::new(parameters.clone(), &recipe).expect("f32 parameters");
        optimizer.step(&gradients, 0.01).expect("same shapes");
        for (p, before) in parameters.iter().zip(before) {
            let shrink = if p.decays { 0.999 } else { 1.0 };
            for (now, was) in testing::flat(&p.var).iter().zip(before) {
                assert!((now - (was * shrink - 0.01)).abs() < 1e-5, "{}: {was} -> {now}", p.name);
            }
        }
    }
}
