//! What to train, and how: the file that `--config` names.

use crate::error::{Error, Result};
use serde::Deserialize;
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

/// The shape of a Llama model with tied embeddings.
#[derive(Debug, Clone, PartialEq, Deserialize)]
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
}

/// How to train the tokenizer.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenizerRecipe {
    /// Entries, the 256 bytes and the special token among them.
    pub vocabulary: usize,
}

/// Optimizer, schedule and batches.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainRecipe {
    /// Optimizer steps.
    pub steps: usize,
    /// Seed of the weights, the batches and the dropout.
    #[serde(default)]
    pub seed: u64,
    /// Windows in a batch, at `context` tokens each.
    pub batch: usize,
    /// Parts of a batch that run side by side; the result doesn't depend on how many threads there are.
    #[serde(default = "default_parts")]
    pub parts: usize,
    /// Tokens in a window.
    pub context: usize,
    /// Tokens in a window towards the end; batches keep their number of tokens.
    pub long_context: usize,
    /// The share of the steps, at the end, that use `long_context`.
    #[serde(default)]
    pub long_share: f64,
    /// The learning rate after the warm-up.
    pub learning_rate: f64,
    /// The learning rate at the last step, as a share of `learning_rate`.
    #[serde(default = "default_final")]
    pub final_share: f64,
    /// Steps of linear warm-up.
    pub warmup: usize,
    /// Decoupled weight decay of the projections (norms and embeddings have none).
    pub weight_decay: f64,
    /// AdamW's decay of the mean gradient.
    #[serde(default = "default_beta1")]
    pub beta1: f64,
    /// AdamW's decay of the mean squared gradient.
    #[serde(default = "default_beta2")]
    pub beta2: f64,
    /// The largest norm of the whole gradient.
    #[serde(default = "default_clip")]
    pub clip: f64,
    /// The share of each block's output that is dropped while training.
    #[serde(default)]
    pub dropout: f64,
    /// The share of the windows that are made of shuffled sentences (`--sentences`).
    #[serde(default)]
    pub sentence_share: f64,
    /// The share of the running text that is kept for validation.
    pub validation_share: f64,
    /// Steps between two validations; the best model so far is saved.
    pub validate_every: usize,
}

fn default_theta() -> f64 {
    10_000.0
}
fn default_eps() -> f64 {
    1e-5
}
fn default_parts() -> usize {
    2
}
fn default_final() -> f64 {
    0.05
}
fn default_beta1() -> f64 {
    0.9
}
fn default_beta2() -> f64 {
    0.95
}
fn default_clip() -> f64 {
    1.0
}

impl Recipe {
    /// Reads and checks a recipe.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(Error::io(path))?;
        let recipe: Self = toml::from_str(&text).map_err(|e| Error::malformed(path, e.to_string().trim_end()))?;
        recipe.check()?;
        Ok(recipe)
    }

    /// Checks that the numbers fit together.
    pub fn check(&self) -> Result<()> {
        self.model.check()?;
        let t = &self.train;
        if self.tokenizer.vocabulary < 257 {
            return Err(Error::Recipe("the vocabulary holds 256 bytes and a special token: at least 257".into()));
        }
        positive(&[
            ("steps", t.steps),
            ("batch", t.batch),
            ("parts", t.parts),
            ("context", t.context),
            ("long_context", t.long_context),
            ("validate_every", t.validate_every),
        ])?;
        if t.long_context > self.model.max_positions || t.context > t.long_context {
            return Err(Error::Recipe("context <= long_context <= max_positions doesn't hold".into()));
        }
        let long = t.batch * t.context / t.long_context;
        if !t.batch.is_multiple_of(t.parts) || long == 0 || !long.is_multiple_of(t.parts) {
            return Err(Error::Recipe(format!("a batch can't be split into {} equal parts", t.parts)));
        }
        for (name, share) in [
            ("long_share", t.long_share),
            ("final_share", t.final_share),
            ("sentence_share", t.sentence_share),
            ("validation_share", t.validation_share),
            ("dropout", t.dropout),
            ("beta1", t.beta1),
            ("beta2", t.beta2),
        ] {
            if !(0.0..=1.0).contains(&share) {
                return Err(Error::Recipe(format!("{name} must lie between 0 and 1, not be {share}")));
            }
        }
        if !(t.learning_rate > 0.0 && t.clip > 0.0 && t.weight_decay >= 0.0 && t.dropout < 1.0) {
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
        says(|r| r.train.long_context = 1000, "max_positions");
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
