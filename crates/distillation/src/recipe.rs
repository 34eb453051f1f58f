//! Recipes of training: the file that `--recipe` names.

use crate::data::read_text;
use crate::error::{Error, Result};
use crate::ops::Objective;
use crate::soft::check_temperature;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Tokens of a batch at most.
const MAX_BATCH: usize = 1 << 26;

/// A whole recipe: model, tokenizer and training.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recipe {
    /// The model's shape.
    pub model: Shape,
    /// The tokenizer, trained on the same text.
    pub tokenizer: TokenizerRecipe,
    /// Optimizer, schedule and batches.
    pub train: TrainRecipe,
}

/// The shape of a Llama or Qwen2 model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Width of the residual stream.
    pub hidden: usize,
    /// Number of blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Dimensions of one head; even.
    pub head_dim: usize,
    /// Width of the feed-forward block.
    pub intermediate: usize,
    /// The longest context that the model claims.
    pub max_positions: usize,
    /// Base of the rotary angles.
    #[serde(default = "default_theta")]
    pub rope_theta: f64,
    /// Added under the root of every normalisation.
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f64,
    /// True if q, k and v have biases, as Qwen2's have.
    #[serde(default)]
    pub biases: bool,
    /// True if the output projection is the embedding.
    #[serde(default = "yes")]
    pub tied: bool,
}

/// Settings for training a tokenizer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecipe {
    /// Entries, the 256 bytes and the special token among them.
    pub vocabulary: usize,
}

/// Optimizer, schedule and batches.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TrainRecipe {
    /// Optimizer steps.
    pub steps: usize,
    /// Seed of the weights, the batches and the dropout.
    pub seed: u64,
    /// Windows in a batch, at `context` tokens each.
    pub batch: usize,
    /// Parts of a batch whose gradients are computed one after the other and averaged: more need less memory.
    /// By default 2, or 1 where windows can't be shared out evenly.
    pub parts: Option<usize>,
    /// Tokens in a window.
    pub context: usize,
    /// Tokens in a window towards the end (default: as many); batches keep their number of tokens.
    pub long_context: Option<usize>,
    /// The share of the steps, at the end, that use `long_context`.
    pub long_share: f64,
    /// The learning rate after the warm-up.
    pub learning_rate: f64,
    /// The learning rate at the last step, as a share of `learning_rate`.
    pub final_share: f64,
    /// Steps of linear warm-up.
    pub warmup: usize,
    /// Decoupled weight decay of the projections (norms, biases and embeddings have none).
    pub weight_decay: f64,
    /// AdamW's decay of the mean gradient.
    pub beta1: f64,
    /// AdamW's decay of the mean squared gradient.
    pub beta2: f64,
    /// The largest norm of the whole gradient.
    pub clip: f64,
    /// The share of each block's output that is dropped while training.
    pub dropout: f64,
    /// The share of the windows that are made of shuffled sentences (`pretrain --sentences`).
    pub sentence_share: f64,
    /// The share of the text that is kept for validation.
    pub validation_share: f64,
    /// Steps between two validations; the model with the lowest objective so far is saved.
    pub validate_every: usize,
    /// Ends the training after so many validations without a better one.
    pub patience: Option<usize>,
}

impl Default for TrainRecipe {
    fn default() -> Self {
        Self {
            steps: 1000,
            seed: 0,
            batch: 8,
            parts: None,
            context: 256,
            long_context: None,
            long_share: 0.0,
            learning_rate: 1e-3,
            final_share: 0.05,
            warmup: 50,
            weight_decay: 0.01,
            beta1: 0.9,
            beta2: 0.95,
            clip: 1.0,
            dropout: 0.0,
            sentence_share: 0.0,
            validation_share: 0.03,
            validate_every: 100,
            patience: None,
        }
    }
}

/// Settings for distillation.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DistillRecipe {
    /// Loss that is minimized.
    pub loss: Objective,
    /// Optimizer, schedule and batches.
    pub train: TrainRecipe,
}

impl DistillRecipe {
    /// Reads settings; what isn't there has its default.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Toml`].
    pub fn read(path: &Path) -> Result<Self> {
        read(path)
    }

    /// Checks the loss; [`TrainRecipe::check`] needs the model as well.
    ///
    /// # Errors
    /// [`Error::Recipe`].
    pub fn check(&self) -> Result<()> {
        let Objective { alpha, temperature, .. } = self.loss;
        if !(0.0..=1.0).contains(&alpha) {
            return Err(Error::Recipe(format!("alpha must lie between 0 and 1, not be {alpha}")));
        }
        check_temperature(temperature).map(drop).map_err(Error::Recipe)
    }
}

/// Reads a file of settings.
pub(crate) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_text(path)?;
    toml::from_str(&text).map_err(|e| {
        let before = e.span().and_then(|at| text.get(..at.start)).unwrap_or_default();
        let (line, message) = (before.matches('\n').count() + 1, e.message().replace('\n', " "));
        Error::Toml { path: path.into(), line, message }
    })
}

fn yes() -> bool {
    true
}
fn default_theta() -> f64 {
    10_000.0
}
fn default_eps() -> f64 {
    1e-5
}

impl Recipe {
    /// Reads and checks a recipe.
    pub fn read(path: &Path) -> Result<Self> {
        let recipe: Self = read(path)?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Checks that the numbers fit together.
    pub fn check(&self) -> Result<()> {
        self.model.check()?;
        if self.tokenizer.vocabulary < 257 {
            return Err(Error::Recipe("the vocabulary holds 256 bytes and a special token: at least 257".into()));
        }
        self.train.check(self.model.max_positions)
    }
}

impl TrainRecipe {
    /// Tokens of the longest window.
    pub fn longest(&self) -> usize {
        self.long_context.unwrap_or(self.context)
    }

    /// Windows in a batch towards the end.
    fn long_batch(&self) -> usize {
        self.batch * self.context / self.longest().max(1)
    }

    /// Parts that a batch is computed in.
    pub fn parts(&self) -> usize {
        let even = self.batch.is_multiple_of(2) && self.long_batch().is_multiple_of(2);
        self.parts.unwrap_or(if even { 2 } else { 1 })
    }

    /// Checks that the numbers fit together, for a model of so many positions.
    pub fn check(&self, max_positions: usize) -> Result<()> {
        positive(&[
            ("steps", self.steps),
            ("batch", self.batch),
            ("parts", self.parts.unwrap_or(1)),
            ("context", self.context),
            ("long_context", self.longest()),
            ("validate_every", self.validate_every),
            ("patience", self.patience.unwrap_or(1)),
        ])?;
        let (context, longest) = (self.context, self.longest());
        if longest > max_positions || context > longest {
            let what = "context <= long_context <= max_positions doesn't hold";
            return Err(Error::Recipe(format!("{what}: {context}, {longest}, {max_positions}")));
        }
        if self.batch.checked_mul(longest).is_none_or(|tokens| tokens > MAX_BATCH) {
            let what = format!("a batch of {} windows of {longest} tokens is more than", self.batch);
            return Err(Error::Recipe(format!("{what} {MAX_BATCH} tokens; make it smaller")));
        }
        let (long, parts) = (self.long_batch(), self.parts());
        if !self.batch.is_multiple_of(parts) || long == 0 || !long.is_multiple_of(parts) {
            let what = format!("a batch of {} can't be split into {parts} equal parts", self.batch);
            return Err(Error::Recipe(format!("{what}; make batch a multiple of parts")));
        }
        for (name, share) in [
            ("long_share", self.long_share),
            ("final_share", self.final_share),
            ("sentence_share", self.sentence_share),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::Recipe(format!("{name} must lie between 0 and 1, not be {share}")));
            }
        }
        for (name, share) in [("dropout", self.dropout), ("beta1", self.beta1), ("beta2", self.beta2)] {
            if !(0.0..1.0).contains(&share) {
                return Err(Error::Recipe(format!("{name} must be at least 0 and below 1, not {share}")));
            }
        }
        let (rate, share, decay) = (self.learning_rate, self.validation_share, self.weight_decay);
        for (name, value, fits, what) in [
            ("validation_share", share, share > 0.0 && share < 1.0, "above 0 and below 1"),
            ("learning_rate", rate, rate > 0.0 && rate.is_finite(), "positive"),
            ("clip", self.clip, self.clip > 0.0, "positive"),
            ("weight_decay", decay, decay >= 0.0 && decay.is_finite(), "at least 0"),
        ] {
            if !fits {
                return Err(Error::Recipe(format!("{name} must be {what}, not {value}")));
            }
        }
        Ok(())
    }
}

impl Shape {
    /// Checks that the numbers fit together.
    pub fn check(&self) -> Result<()> {
        positive(&[
            ("hidden", self.hidden),
            ("layers", self.layers),
            ("heads", self.heads),
            ("kv_heads", self.kv_heads),
            ("head_dim", self.head_dim),
            ("intermediate", self.intermediate),
            ("max_positions", self.max_positions),
        ])?;
        if !self.heads.is_multiple_of(self.kv_heads) {
            return Err(Error::Recipe(format!("{} heads can't share {} kv_heads", self.heads, self.kv_heads)));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(Error::Recipe(format!("head_dim must be even, not {}", self.head_dim)));
        }
        Ok(())
    }

    /// The weights of such a model with a vocabulary of so many entries; none where they overflow.
    pub fn weights(&self, vocabulary: usize) -> Option<u64> {
        let sizes = [self.hidden, self.heads, self.kv_heads, self.head_dim, self.intermediate, self.layers, vocabulary];
        let [hidden, heads, kv_heads, head_dim, inner, layers, vocabulary] = sizes.map(|n| n as u128);
        let times = u128::saturating_mul;
        let sum = |terms: &[u128]| terms.iter().fold(0, |sum: u128, &term| sum.saturating_add(term));
        let (q, kv) = (times(heads, head_dim), times(2, times(kv_heads, head_dim)));
        let rows = sum(&[q, kv, q, times(3, inner), 2]);
        let biases = if self.biases { sum(&[q, kv]) } else { 0 };
        let block = sum(&[times(rows, hidden), biases]);
        let embeddings = times(vocabulary, if self.tied { 1 } else { 2 });
        u64::try_from(sum(&[times(layers, block), times(embeddings, hidden), hidden])).ok()
    }

    /// Bytes that training such a model takes beside its activations: in f32 the weights, and of those that are trained a
    /// gradient, two moments and another gradient while they are added up (embeddings have theirs apart). None where
    /// they overflow.
    pub fn training_bytes(&self, vocabulary: usize, frozen_embeddings: bool) -> Option<u64> {
        let all = self.weights(vocabulary)?;
        let matrices = if self.tied { 1 } else { 2 };
        let embeddings = (vocabulary as u64).checked_mul(self.hidden as u64)?.checked_mul(matrices)?;
        let of_embeddings = embeddings.checked_mul(if frozen_embeddings { 4 } else { 16 })?;
        all.checked_sub(embeddings)?.checked_mul(20)?.checked_add(of_embeddings)
    }

    /// Query heads for each key head.
    pub fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

fn positive(values: &[(&str, usize)]) -> Result<()> {
    match values.iter().find(|(_, value)| *value == 0) {
        Some((name, _)) => Err(Error::Recipe(format!("{name} must be at least 1"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        let says = |change: fn(&mut Recipe), what: &str| {
            let mut recipe = testing::recipe();
            change(&mut recipe);
            let message = recipe.check().expect_err(what).to_string();
            assert!(message.contains(what), "{message}");
        };
        says(|r| r.model.kv_heads = 3, "can't share");
        says(|r| r.model.head_dim = 5, "even");
        says(|r| r.model.layers = 0, "layers must be at least 1");
        says(|r| r.tokenizer.vocabulary = 256, "257");
        says(|r| r.train.long_context = Some(1000), "max_positions");
        says(|r| r.train.parts = Some(3), "split into 3");
        says(|r| r.train.dropout = 1.5, "below 1");
        says(|r| r.train.beta2 = 1.0, "beta2 must be at least 0 and below 1, not 1");
        says(|r| r.train.weight_decay = -1.0, "weight_decay must be at least 0, not -1");
        says(|r| r.train.validation_share = 0.0, "validation_share must be above 0 and below 1, not 0");
        says(|r| r.train.validation_share = 1.0, "validation_share");
        says(|r| r.train.batch = usize::MAX / 2, "make it smaller");
        says(|r| r.train.learning_rate = f64::NAN, "positive");
        testing::recipe().check().expect("the recipe itself is fine");
    }

    #[test]
    fn the_fixture_recipe_is_valid() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny.toml"));
        Recipe::read(path).expect("a valid recipe");
    }

    #[test]
    fn batches_of_any_size_have_parts() {
        let parts = |batch| {
            let recipe = TrainRecipe { batch, ..TrainRecipe::default() };
            recipe.check(256).expect("any batch");
            recipe.parts()
        };
        assert_eq!([1, 2, 3, 8].map(parts), [1, 2, 1, 2]);
        // Of long windows there are half as many.
        let long = TrainRecipe { batch: 2, long_context: Some(512), ..TrainRecipe::default() };
        long.check(512).expect("one long window");
        assert_eq!(long.parts(), 1);
    }

    #[test]
    fn weights_are_counted_before_there_are_any() {
        for (biases, tied) in [(false, true), (true, false)] {
            let shape = Shape { biases, tied, ..testing::shape() };
            let student = crate::model::Student::new(&shape, 300, candle_core::DType::F32, 0).expect("a shape");
            assert_eq!(shape.weights(300), Some(student.weights() as u64));
        }
        let huge = Shape { hidden: usize::MAX, ..testing::shape() };
        assert_eq!((huge.weights(300), huge.training_bytes(300, true)), (None, None));
        let shape = testing::shape();
        let (all, embedding) = (shape.weights(300).expect("few"), 300 * 16);
        assert_eq!(shape.training_bytes(300, false), Some(20 * (all - embedding) + 16 * embedding));
        assert_eq!(shape.training_bytes(300, true), Some(20 * (all - embedding) + 4 * embedding));
    }

    #[test]
    fn unknown_keys_are_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "[model]\nhiden = 3\n").expect("written");
        let message = Recipe::read(file.path()).expect_err("a typo").to_string();
        assert!(message.contains(", line 2: unknown field `hiden`"), "{message}");
    }
}
