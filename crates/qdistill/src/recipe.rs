//! What to train, and how: the file that `--config` names.

use crate::error::{Error, Result};
use crate::ops::Objective;
use serde::{Deserialize, Serialize};
use std::path::Path;

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
    /// Whether q, k and v have biases, as Qwen2's have.
    #[serde(default)]
    pub biases: bool,
    /// Whether the output projection is the embedding.
    #[serde(default = "yes")]
    pub tied: bool,
}

/// How to train the tokenizer.
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
    pub parts: usize,
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
    /// Steps between two validations; the best model so far is saved.
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
            parts: 2,
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

/// How to distill.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DistillRecipe {
    /// What is minimized.
    pub loss: Objective,
    /// Optimizer, schedule and batches.
    pub train: TrainRecipe,
}

impl DistillRecipe {
    /// Reads settings; what isn't there has its default.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Malformed`].
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
        if !(temperature > 0.0 && temperature.is_finite()) {
            return Err(Error::Recipe(format!("the temperature must be positive, not {temperature}")));
        }
        Ok(())
    }
}

fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<T> {
    let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
    toml::from_str(&text).map_err(|e| Error::malformed(path, e.to_string().trim_end()))
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

    /// Checks that the numbers fit together, for a model of so many positions.
    pub fn check(&self, max_positions: usize) -> Result<()> {
        positive(&[
            ("steps", self.steps),
            ("batch", self.batch),
            ("parts", self.parts),
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
        let long = self.batch * context / longest;
        if !self.batch.is_multiple_of(self.parts) || long == 0 || !long.is_multiple_of(self.parts) {
            let what = format!(
                "a batch of {} can't be split into {} equal parts; make batch a multiple of parts",
                self.batch, self.parts
            );
            return Err(Error::Recipe(what));
        }
        for (name, share) in [
            ("long_share", self.long_share),
            ("final_share", self.final_share),
            ("sentence_share", self.sentence_share),
            ("validation_share", self.validation_share),
            ("dropout", self.dropout),
            ("beta1", self.beta1),
            ("beta2", self.beta2),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::Recipe(format!("{name} must lie between 0 and 1, not be {share}")));
            }
        }
        if !(self.learning_rate > 0.0 && self.clip > 0.0 && self.weight_decay >= 0.0 && self.dropout < 1.0) {
            return Err(Error::Recipe("learning_rate and clip must be positive, and dropout below 1".into()));
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
        says(|r| r.train.parts = 3, "split into 3");
        says(|r| r.train.dropout = 1.5, "between 0 and 1");
        says(|r| r.train.learning_rate = f64::NAN, "positive");
        testing::recipe().check().expect("the recipe itself is fine");
    }

    #[test]
    fn the_fixture_recipe_is_valid() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny.toml"));
        Recipe::read(path).expect("a valid recipe");
    }

    #[test]
    fn unknown_keys_are_named() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "[model]\nhiden = 3\n").expect("written");
        let message = Recipe::read(file.path()).expect_err("a typo").to_string();
        assert!(message.contains("hiden"), "{message}");
    }
}
