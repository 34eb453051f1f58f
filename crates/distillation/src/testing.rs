//! Shared parts of several tests.

use crate::data::Corpus;
use crate::gradient::Gradients;
use crate::model::Student;
use crate::recipe::{Recipe, Shape, TokenizerRecipe, TrainRecipe};
use crate::tokenizer;
use crate::train::{Progress, Step};
use candle_core::{DType, Tensor};
use std::path::Path;
use store::output::{Begin, WorkFolder};
use tokenizers::Tokenizer;

pub const TEXT: &str = "The old whale swam slowly under the ship, and the sailors watched it go. Nobody spoke. \
    The wind fell, the sea lay flat as glass, and far away a gull cried twice above the silent water. \
    Then the captain laughed, and the whole crew laughed with him, and the ship sailed on towards the south.\n";

pub const SENTENCES: &str = "The sky is blue.\nThe grass is green.\nA whale is a mammal.\n";

pub fn shape() -> Shape {
    Shape {
        hidden: 16,
        layers: 2,
        heads: 4,
        kv_heads: 2,
        head_dim: 4,
        intermediate: 24,
        max_positions: 64,
        rope_theta: 10_000.0,
        rms_norm_eps: 1e-5,
        biases: false,
        tied: true,
    }
}

pub fn train() -> TrainRecipe {
    TrainRecipe {
        steps: 100,
        seed: 1,
        batch: 4,
        parts: Some(2),
        context: 16,
        long_context: Some(32),
        long_share: 0.25,
        learning_rate: 2e-2,
        final_share: 0.1,
        warmup: 5,
        weight_decay: 0.01,
        beta1: 0.9,
        beta2: 0.95,
        clip: 1.0,
        dropout: 0.0,
        sentence_share: 0.2,
        validation_share: 0.1,
        validate_every: 20,
        patience: None,
    }
}

pub fn recipe() -> Recipe {
    Recipe { model: shape(), tokenizer: TokenizerRecipe { vocabulary: 300 }, train: train() }
}

pub fn student(seed: u64) -> Student {
    Student::new(&shape(), 300, DType::F32, seed).expect("a valid shape")
}

/// Gradients of these values, by their place in each parameter.
pub fn gradients(student: &Student, value: impl Fn(usize) -> f32) -> Gradients {
    let mut gradients = Gradients::new(student).expect("gradients");
    gradients.set(|shape| {
        let values = (0..shape.elem_count()).map(&value).collect();
        Tensor::from_vec(values, shape, student.device()).expect("a tensor")
    });
    gradients
}

pub fn flat(tensor: &Tensor) -> Vec<f32> {
    tensor.flatten_all().and_then(|t| t.to_vec1()).expect("an f32 tensor")
}

pub fn corpus() -> (Tokenizer, Corpus) {
    let text = [TEXT.repeat(20)];
    let tokenizer = tokenizer::train(&text, 300).expect("enough text");
    let corpus = Corpus::new(&tokenizer, &text, &[SENTENCES.into()], 32, 0.1).expect("enough text");
    (tokenizer, corpus)
}

/// Stops everything after a step, as a kill would.
pub struct Stop(pub usize);

impl Progress for Stop {
    fn stepped(&mut self, step: &Step) {
        assert!(step.step < self.0, "stopped as the test wants");
    }
}

/// A folder that is free, for a training.
pub fn work(folder: &Path) -> WorkFolder {
    WorkFolder::begin::<&Path>(folder, Begin::New, &[], &[]).expect("a free folder")
}
