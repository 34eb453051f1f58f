//! AdamW and the learning-rate schedule.

use crate::error::Result;
use crate::gradient::Gradients;
use crate::model::Parameter;
use crate::ops;
use crate::recipe::TrainRecipe;
use candle_core::{CpuStorage, InplaceOp1, Layout};
use rayon::prelude::*;
use std::sync::{Mutex, PoisonError};

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

/// AdamW with decoupled weight decay; the state is ours, so that it can be saved. Weights are changed where they are.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    steps: i32,
    moments: Vec<Moments>,
}

/// The running means of a parameter's gradient and of its square.
#[derive(Debug, Clone, PartialEq)]
pub struct Moments {
    /// Of the gradient.
    pub mean: Vec<f32>,
    /// Of its square.
    pub square: Vec<f32>,
}

const EPSILON: f32 = 1e-8;

/// Weights that a thread takes at a time.
const CHUNK: usize = 1 << 14;

impl AdamW {
    /// An optimizer of `parameters`, which must be f32, after no step.
    pub fn new(parameters: &[Parameter], recipe: &TrainRecipe) -> Self {
        let moments = parameters.iter().map(|p| vec![0f32; p.var.elem_count()]);
        let moments = moments.map(|zeros| Moments { mean: zeros.clone(), square: zeros }).collect();
        Self::resumed(moments, 0, recipe)
    }

    /// An optimizer that has done `steps` steps and is left with these moments.
    pub fn resumed(moments: Vec<Moments>, steps: i32, recipe: &TrainRecipe) -> Self {
        let TrainRecipe { beta1, beta2, weight_decay, .. } = *recipe;
        Self { beta1, beta2, weight_decay, steps, moments }
    }

    /// The state of each parameter.
    pub fn moments(&self) -> &[Moments] {
        &self.moments
    }

    /// One step of the parameters along `gradients` at learning rate `rate`.
    pub fn step(&mut self, gradients: &Gradients, rate: f64) -> Result<()> {
        self.steps += 1;
        let correct1 = 1.0 - self.beta1.powi(self.steps);
        let correct2 = (1.0 - self.beta2.powi(self.steps)).sqrt();
        let rule = Rule {
            betas: (self.beta1 as f32, self.beta2 as f32),
            size: (rate * correct2 / correct1) as f32,
            epsilon: EPSILON * correct2 as f32,
            shrink: 1.0,
        };
        let shrink = (1.0 - rate * self.weight_decay) as f32;
        for ((parameter, gradient), moments) in
            gradients.parameters().iter().zip(gradients.values()).zip(&mut self.moments)
        {
            let rule = if parameter.decays { Rule { shrink, ..rule } } else { rule };
            parameter.var.inplace_op1(&Update { rule, gradient, moments: Mutex::new(moments) })?;
        }
        Ok(())
    }
}

/// How one step changes a weight.
#[derive(Debug, Clone, Copy)]
struct Rule {
    betas: (f32, f32),
    size: f32,
    epsilon: f32,
    shrink: f32,
}

/// One step of one parameter.
struct Update<'a> {
    rule: Rule,
    gradient: &'a [f32],
    /// Changed as well: candle hands out the weights behind a shared reference to this.
    moments: Mutex<&'a mut Moments>,
}

impl InplaceOp1 for Update<'_> {
    fn name(&self) -> &'static str {
        "adamw"
    }

    fn cpu_fwd(&self, storage: &mut CpuStorage, layout: &Layout) -> candle_core::Result<()> {
        let weights = ops::values_mut::<f32>(storage, layout)?;
        let mut moments = self.moments.lock().unwrap_or_else(PoisonError::into_inner);
        let Moments { mean, square } = &mut **moments;
        let state = weights.par_chunks_mut(CHUNK).zip(mean.par_chunks_mut(CHUNK)).zip(square.par_chunks_mut(CHUNK));
        state.zip(self.gradient.par_chunks(CHUNK)).for_each(|(((w, m), s), g)| update(self.rule, w, m, s, g));
        Ok(())
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn update(rule: Rule, weights: &mut [f32], means: &mut [f32], squares: &mut [f32], gradient: &[f32]) {
    let Rule { betas: (b1, b2), size, epsilon, shrink } = rule;
    for (((w, m), s), &g) in weights.iter_mut().zip(means).zip(squares).zip(gradient) {
        *m = b1 * *m + (1.0 - b1) * g;
        *s = b2 * *s + (1.0 - b2) * g * g;
        *w = *w * shrink - size * *m / (s.sqrt() + epsilon);
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
    fn first_step_moves_by_the_rate_and_decay_is_decoupled() {
        let student = testing::student(0);
        let parameters = student.parameters();
        let before: Vec<Vec<f32>> = parameters.iter().map(|p| testing::flat(&p.var)).collect();
        let mut gradients = Gradients::new(&student);
        gradients.fill(0.5);
        let recipe = TrainRecipe { weight_decay: 0.1, ..testing::train() };
        let mut optimizer = AdamW::new(&parameters, &recipe);
        optimizer.step(&gradients, 0.01).expect("same shapes");
        for (p, before) in parameters.iter().zip(before) {
            let shrink = if p.decays { 0.999 } else { 1.0 };
            for (now, was) in testing::flat(&p.var).iter().zip(before) {
                assert!((now - (was * shrink - 0.01)).abs() < 1e-5, "{}: {was} -> {now}", p.name);
            }
        }
    }
}
