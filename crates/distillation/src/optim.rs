//! AdamW and the learning-rate schedule.

use crate::error::Result;
use crate::gradient::Gradients;
use crate::model::Parameter;
use crate::ops::{Form, values, values_mut};
use crate::recipe::TrainRecipe;
use candle_core::{CpuStorage, InplaceOp2, InplaceOp3, Layout, Tensor};
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

/// AdamW with decoupled weight decay (Loshchilov and Hutter 2019); the state is ours, so that it can be saved. Fused,
/// weights and moments are changed where they lie.
#[derive(Debug)]
pub struct AdamW {
    beta1: f64,
    beta2: f64,
    weight_decay: f64,
    steps: i32,
    moments: Vec<Moments>,
}

/// The running means of a parameter's gradient and of its square, of its shape and on its device.
#[derive(Debug)]
pub struct Moments {
    /// Running mean of the gradient.
    pub mean: Tensor,
    /// Running mean of the gradient's square.
    pub square: Tensor,
}

const EPSILON: f32 = 1e-8;

/// Weights that a thread takes at a time.
const CHUNK: usize = 1 << 14;

impl AdamW {
    /// An optimizer of `parameters`, which must be f32, after no step.
    ///
    /// # Errors
    /// A device without room for the moments.
    pub fn new(parameters: &[Parameter], recipe: &TrainRecipe) -> Result<Self> {
        let zeros = |p: &Parameter| Ok(Moments { mean: p.var.zeros_like()?, square: p.var.zeros_like()? });
        Ok(Self::resumed(parameters.iter().map(zeros).collect::<Result<_>>()?, 0, recipe))
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
    ///
    /// # Errors
    /// Shapes that differ, or a device that fails.
    pub fn step(&mut self, gradients: &Gradients, rate: f64) -> Result<()> {
        self.steps += 1;
        let correct1 = 1.0 - self.beta1.powi(self.steps);
        let correct2 = (1.0 - self.beta2.powi(self.steps)).sqrt();
        let size = (rate * correct2 / correct1) as f32;
        let epsilon = EPSILON * correct2 as f32;
        let shrink = (1.0 - rate * self.weight_decay) as f32;
        let mean = Running { beta: self.beta1 as f32, of_square: false };
        let square = Running { beta: self.beta2 as f32, of_square: true };
        for ((parameter, gradient), moments) in
            gradients.parameters().iter().zip(gradients.values()).zip(&mut self.moments)
        {
            let weight = Weight { size, epsilon, shrink: if parameter.decays { shrink } else { 1.0 } };
            match gradients.form() {
                Form::Fused => {
                    moments.mean.inplace_op2(gradient, &mean)?;
                    moments.square.inplace_op2(gradient, &square)?;
                    parameter.var.inplace_op3(&moments.mean, &moments.square, &weight)?;
                }
                Form::Composed => {
                    moments.mean = mean.updated(&moments.mean, gradient)?.detach();
                    moments.square = square.updated(&moments.square, gradient)?.detach();
                    parameter.var.set(&weight.updated(&parameter.var.as_detached_tensor(), moments)?)?;
                }
            }
        }
        Ok(())
    }
}

/// A running mean: of the gradient, or of its square.
#[derive(Debug, Clone, Copy)]
struct Running {
    beta: f32,
    of_square: bool,
}

/// Update of a weight by its moments.
#[derive(Debug, Clone, Copy)]
struct Weight {
    size: f32,
    epsilon: f32,
    shrink: f32,
}

impl Running {
    fn updated(self, mean: &Tensor, gradient: &Tensor) -> candle_core::Result<Tensor> {
        let new = (gradient * f64::from(1.0 - self.beta))?;
        (mean * f64::from(self.beta))? + if self.of_square { (new * gradient)? } else { new }
    }

    fn update(self, means: &mut [f32], gradient: &[f32]) {
        for (mean, &g) in means.iter_mut().zip(gradient) {
            let new = (1.0 - self.beta) * g;
            *mean = self.beta * *mean + if self.of_square { new * g } else { new };
        }
    }
}

impl Weight {
    fn updated(self, weight: &Tensor, moments: &Moments) -> candle_core::Result<Tensor> {
        let step = ((&moments.mean * f64::from(self.size))? / (moments.square.sqrt()? + f64::from(self.epsilon))?)?;
        (weight * f64::from(self.shrink))? - step
    }
}

impl InplaceOp2 for Running {
    fn name(&self) -> &'static str {
        "adamw-moment"
    }

    fn cpu_fwd(&self, m: &mut CpuStorage, lm: &Layout, g: &CpuStorage, lg: &Layout) -> candle_core::Result<()> {
        let (means, gradient) = (values_mut::<f32>(m, lm)?, values::<f32>(g, lg)?);
        let chunks = means.par_chunks_mut(CHUNK).zip(gradient.par_chunks(CHUNK));
        chunks.for_each(|(means, gradient)| self.update(means, gradient));
        Ok(())
    }
}

impl InplaceOp3 for Weight {
    fn name(&self) -> &'static str {
        "adamw-weight"
    }

    fn cpu_fwd(
        &self,
        w: &mut CpuStorage,
        lw: &Layout,
        m: &CpuStorage,
        lm: &Layout,
        s: &CpuStorage,
        ls: &Layout,
    ) -> candle_core::Result<()> {
        let (weights, means, squares) = (values_mut::<f32>(w, lw)?, values::<f32>(m, lm)?, values::<f32>(s, ls)?);
        let chunks = weights.par_chunks_mut(CHUNK).zip(means.par_chunks(CHUNK)).zip(squares.par_chunks(CHUNK));
        chunks.for_each(|((w, m), s)| update(*self, w, m, s));
        Ok(())
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
fn update(rule: Weight, weights: &mut [f32], means: &[f32], squares: &[f32]) {
    let Weight { size, epsilon, shrink } = rule;
    for ((w, &m), &s) in weights.iter_mut().zip(means).zip(squares) {
        *w = *w * shrink - size * m / (s.sqrt() + epsilon);
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
        for form in [Form::Fused, Form::Composed] {
            let student = testing::student(0).in_form(form);
            let parameters = student.parameters();
            let before: Vec<Vec<f32>> = parameters.iter().map(|p| testing::flat(&p.var)).collect();
            let recipe = TrainRecipe { weight_decay: 0.1, ..testing::train() };
            let mut optimizer = AdamW::new(&parameters, &recipe).expect("moments");
            optimizer.step(&testing::gradients(&student, |_| 0.5), 0.01).expect("same shapes");
            for (p, before) in parameters.iter().zip(before) {
                let shrink = if p.decays { 0.999 } else { 1.0 };
                for (now, was) in testing::flat(&p.var).iter().zip(before) {
                    assert!((now - (was * shrink - 0.01)).abs() < 1e-5, "{}: {was} -> {now}", p.name);
                }
            }
        }
    }

    #[test]
    fn both_forms_take_the_same_steps() {
        let run = |form| {
            let student = testing::student(3).in_form(form);
            let mut optimizer = AdamW::new(&student.parameters(), &testing::train()).expect("moments");
            for step in 0..5 {
                let gradients = testing::gradients(&student, |i| ((i * 7 + step * 3) % 11) as f32 * 0.1 - 0.5);
                optimizer.step(&gradients, 1e-2).expect("same shapes");
            }
            let state = optimizer.moments().iter().flat_map(|m| [&m.mean, &m.square]);
            assert!(state.into_iter().all(|t| !t.track_op()), "a graph would grow from step to step");
            student.parameters().iter().flat_map(|p| testing::flat(&p.var)).collect::<Vec<_>>()
        };
        let (fused, composed) = (run(Form::Fused), run(Form::Composed));
        let worst = fused.iter().zip(&composed).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max);
        assert!(worst < 1e-6, "{worst}");
    }
}
