//! The training loop.

use crate::checkpoint;
use crate::data::{Corpus, Sampler};
use crate::error::{Error, Result};
use crate::model::{Dropout, Student};
use crate::optim::{AdamW, Gradients, learning_rate};
use crate::random;
use crate::recipe::{Recipe, TrainRecipe};
use crate::tokenizer;
use candle_core::DType;
use std::path::Path;

/// Told about the training as it goes.
pub trait Progress {
    /// Training is about to begin.
    fn started(&mut self, _start: &Start) {}
    /// A step is done.
    fn stepped(&mut self, _step: &Step) {}
    /// A validation is done.
    fn validated(&mut self, _validation: &Validation) {}
}

/// Wants to know nothing.
impl Progress for () {}

/// What is about to be trained.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// Optimizer steps.
    pub steps: usize,
    /// Weights of the model.
    pub weights: usize,
    /// Tokens of running text to train on.
    pub training_tokens: usize,
    /// Tokens of running text kept for validation.
    pub validation_tokens: usize,
    /// Sentences to be shuffled in.
    pub sentences: usize,
}

/// One optimizer step.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// Counted from 1.
    pub step: usize,
    /// Mean loss of the batch, in nats a token.
    pub loss: f64,
    /// Norm of the gradient before clipping.
    pub gradient: f64,
    /// Learning rate.
    pub rate: f64,
    /// Tokens in the batch.
    pub tokens: usize,
}

/// One validation.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// After this step.
    pub step: usize,
    /// Mean loss, in nats a token.
    pub loss: f64,
    /// Whether it is the best so far, and so was saved.
    pub best: bool,
}

/// Text to train on.
#[derive(Debug, Clone, Default)]
pub struct Texts {
    /// Running text, one document each.
    pub running: Vec<String>,
    /// Sentences, one a line.
    pub sentences: Vec<String>,
}

/// Trains a tokenizer and a model, and leaves the model with the best validation loss in `folder`, which must not
/// hold anything yet. Returns the best validation.
pub fn pretrain(recipe: &Recipe, texts: &Texts, folder: &Path, progress: &mut dyn Progress) -> Result<Validation> {
    recipe.check()?;
    checkpoint::check_vacant(folder)?;
    let train = &recipe.train;
    let everything: Vec<String> = texts.running.iter().chain(&texts.sentences).cloned().collect();
    let tokenizer = tokenizer::train(&everything, recipe.tokenizer.vocabulary)?;
    let share = train.validation_share;
    let corpus = Corpus::new(&tokenizer, &texts.running, &texts.sentences, train.long_context, share)?;
    if corpus.validation.is_empty() {
        return Err(Error::Text("no part of it is left for validation; raise validation_share".into()));
    }
    let student = Student::new(&recipe.model, recipe.tokenizer.vocabulary, DType::F32, train.seed)?;
    progress.started(&Start {
        steps: train.steps,
        weights: student.weights(),
        training_tokens: corpus.training_tokens(),
        validation_tokens: corpus.validation.iter().map(Vec::len).sum(),
        sentences: corpus.sentences.len(),
    });
    let mut trainer = Trainer::new(&student, &corpus, train)?;
    let mut best: Option<Validation> = None;
    for step in 1..=train.steps {
        progress.stepped(&trainer.step(step)?);
        if step % train.validate_every != 0 && step != train.steps {
            continue;
        }
        let loss = validation_loss(&student, &corpus, train.parts)?;
        check_finite(step, "the validation loss", loss)?;
        let improved = best.as_ref().is_none_or(|b| loss < b.loss);
        let validation = Validation { step, loss, best: improved };
        if improved {
            checkpoint::save(folder, &student, &tokenizer)?;
            best = Some(validation.clone());
        }
        progress.validated(&validation);
    }
    best.ok_or_else(|| Error::Recipe("steps must be at least 1".into()))
}

struct Trainer<'a> {
    student: &'a Student,
    recipe: &'a TrainRecipe,
    sampler: Sampler<'a>,
    optimizer: AdamW,
}

impl<'a> Trainer<'a> {
    fn new(student: &'a Student, corpus: &'a Corpus, recipe: &'a TrainRecipe) -> Result<Self> {
        let sampler = Sampler::new(corpus, recipe.sentence_share, recipe.seed);
        let optimizer = AdamW::new(student.parameters(), recipe)?;
        Ok(Self { student, recipe, sampler, optimizer })
    }

    fn step(&mut self, step: usize) -> Result<Step> {
        let recipe = self.recipe;
        let long = step as f64 > recipe.steps as f64 * (1.0 - recipe.long_share);
        let context = if long { recipe.long_context } else { recipe.context };
        let rows = recipe.batch * recipe.context / context;
        let batch = self.sampler.batch(rows, context)?;
        let parts: Vec<&[u32]> = batch.chunks(batch.len() / recipe.parts).collect();
        let results = side_by_side(&parts, |index, rows| {
            let stream = random::DROPOUT + (step * recipe.parts + index) as u64;
            let mut dropout = Dropout::new(recipe.dropout, recipe.seed, stream);
            gradients(self.student, rows, context, &mut dropout)
        })?;
        let loss = results.iter().map(|(loss, _)| loss).sum::<f64>() / recipe.parts as f64;
        check_finite(step, "the loss", loss)?;
        let mut gradients = Gradients::mean(results.into_iter().map(|(_, g)| g).collect());
        let gradient = gradients.clip(recipe.clip);
        check_finite(step, "the gradient's norm", gradient)?;
        let rate = learning_rate(recipe, step);
        self.optimizer.step(&gradients, rate)?;
        Ok(Step { step, loss, gradient, rate, tokens: rows * context })
    }
}

fn gradients(student: &Student, rows: &[u32], context: usize, dropout: &mut Dropout) -> Result<(f64, Gradients)> {
    let loss = student.loss(rows, context, Some(dropout))?;
    let store = loss.backward()?;
    let value = f64::from(loss.detach().to_scalar::<f32>()?);
    Ok((value, Gradients::collect(&student.parameters(), &store)?))
}

/// The mean loss over the validation text.
fn validation_loss(student: &Student, corpus: &Corpus, parts: usize) -> Result<f64> {
    let blocks: Vec<&[u32]> = corpus.validation.iter().map(Vec::as_slice).collect();
    let mut total = 0f64;
    for blocks in blocks.chunks(parts) {
        let losses = side_by_side(blocks, |_, block| {
            Ok(f64::from(student.loss(block, block.len() - 1, None)?.detach().to_scalar::<f32>()?))
        })?;
        total += losses.iter().sum::<f64>();
    }
    Ok(total / blocks.len() as f64)
}

/// Runs `work` on each part in a thread of its own; results come in the parts' order.
fn side_by_side<T: Send>(parts: &[&[u32]], work: impl Fn(usize, &[u32]) -> Result<T> + Sync) -> Result<Vec<T>> {
    if let [only] = parts {
        return Ok(vec![work(0, only)?]);
    }
    std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = parts.iter().enumerate().map(|(i, part)| scope.spawn(move || work(i, part))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

fn check_finite(step: usize, what: &'static str, value: f64) -> Result<()> {
    if value.is_finite() { Ok(()) } else { Err(Error::Diverged { step, what, value }) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn texts() -> Texts {
        Texts { running: vec![testing::TEXT.repeat(20)], sentences: vec![testing::SENTENCES.into()] }
    }

    fn train(recipe: &Recipe) -> (tempfile::TempDir, Log) {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Log::default();
        pretrain(recipe, &texts(), folder.path(), &mut log).expect("it trains");
        (folder, log)
    }

    #[derive(Default)]
    struct Log {
        losses: Vec<f64>,
        validations: Vec<Validation>,
    }

    impl Progress for Log {
        fn stepped(&mut self, step: &Step) {
            self.losses.push(step.loss);
        }
        fn validated(&mut self, validation: &Validation) {
            self.validations.push(validation.clone());
        }
    }

    fn weights(folder: &tempfile::TempDir) -> Vec<u8> {
        std::fs::read(folder.path().join("model.safetensors")).expect("the weights")
    }

    #[test]
    fn loss_falls_on_a_repeated_text() {
        let (folder, log) = train(&testing::recipe());
        assert_eq!(log.losses.len(), 100);
        assert!((log.losses[0] - 300f64.ln()).abs() < 0.5, "begins at {}", log.losses[0]);
        let last = log.losses[90..].iter().sum::<f64>() / 10.0;
        assert!(last < 0.6 * log.losses[0], "ends at {last}");
        assert_eq!(log.validations.len(), 5);
        let files = ["config.json", "generation_config.json", "model.safetensors", "tokenizer.json"];
        assert!(files.iter().all(|f| folder.path().join(f).is_file()));
        let count = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(count, 5, "temporary files are left");
    }

    #[test]
    fn same_seed_same_bytes() {
        let mut recipe = testing::recipe();
        recipe.train.steps = 8;
        recipe.train.dropout = 0.1;
        let (first, again) = (train(&recipe), train(&recipe));
        assert_eq!(weights(&first.0), weights(&again.0));
        recipe.train.seed += 1;
        assert_ne!(weights(&first.0), weights(&train(&recipe).0));
    }

    #[test]
    fn divergence_is_an_error() {
        let mut recipe = testing::recipe();
        recipe.train.learning_rate = 1e30;
        recipe.train.warmup = 0;
        let folder = tempfile::tempdir().expect("a folder");
        let error = pretrain(&recipe, &texts(), folder.path(), &mut ()).expect_err("it can't converge");
        assert!(matches!(error, Error::Diverged { .. }), "{error}");
    }

    #[test]
    fn an_occupied_folder_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("precious"), "x").expect("a file");
        let error = pretrain(&testing::recipe(), &texts(), folder.path(), &mut ()).expect_err("occupied");
        assert!(matches!(error, Error::Occupied(_)), "{error}");
    }

    #[test]
    fn too_little_text_is_an_error() {
        let short = Texts { running: vec!["The whale.".into()], sentences: vec![] };
        let folder = tempfile::tempdir().expect("a folder");
        let error = pretrain(&testing::recipe(), &short, folder.path(), &mut ()).expect_err("too short");
        assert!(matches!(error, Error::Text(_)), "{error}");
        let none = std::fs::read_dir(folder.path()).expect("the folder").count();
        assert_eq!(none, 0);
    }
}
