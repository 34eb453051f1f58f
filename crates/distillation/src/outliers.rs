//! Giving a small model the outlier channels that large models have, without changing what it computes.
//!
//! A freshly trained small model has nearly normal weights: one scale for a whole matrix serves it almost as well as
//! one for each row. Large models are different; a few of their channels are far wider than the rest, and that is what
//! tells quantization schemes apart. [`plant`] widens a few channels of a Llama and narrows their counterparts:
//!
//! * an entry of a norm's weight is divided by `s`, the matching input columns of the projections that read it are
//!   multiplied by `s` (or the other way round, which widens the activations instead);
//! * a row of `up_proj` is multiplied, the matching column of `down_proj` divided;
//! * a row of `v_proj` is multiplied, the matching columns of `o_proj` divided;
//! * a rotary pair of rows of `k_proj` is multiplied, the matching rows of `q_proj` divided.
//!
//! Every factor is a power of two, so that F16 holds the products exactly (unless a value leaves its range), and the
//! function stays the same to the last bits of the arithmetic.

use crate::checkpoint::{self, Weight};
use crate::error::{Error, Result};
use crate::random::{self, ChaCha8Rng};
use rand::Rng;
use serde::Deserialize;
use std::collections::HashMap;
use std::path::Path;
use store::output::{Existing, OutputDir, check_folder};

/// Number of channels that are widened in each block, and the factor.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Input columns of q, k and v, and of gate and up; the norms before them are narrowed. They lie in the last third
    /// of the width, so that a scale for each group confines them where a scale for each row does not.
    pub columns: Vec<Widening>,
    /// Entries of the norms in the first two thirds of the width, with q, k, v, gate and up narrowed: outliers of the
    /// activations.
    pub activations: Vec<Widening>,
    /// Input columns of `down_proj`, in the last quarter of the width; rows of `up_proj` are narrowed.
    pub down_columns: Vec<Widening>,
    /// Rows of `up_proj`; columns of `down_proj` are narrowed.
    pub up_rows: Vec<Widening>,
    /// Input columns of `o_proj`, one for each query head of the last key head; rows of `v_proj` are narrowed.
    pub o_columns: Vec<Widening>,
    /// Rows of `v_proj`; columns of `o_proj` are narrowed.
    pub v_rows: Vec<Widening>,
    /// Rotary pairs of rows of `k_proj`; rows of `q_proj` are narrowed.
    pub k_rows: Vec<Widening>,
    /// Rotary pairs of rows of `q_proj`; rows of `k_proj` are narrowed.
    pub q_rows: Vec<Widening>,
}

/// A number of channels that are widened by the same factor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Widening {
    /// Number of channels.
    pub channels: usize,
    /// By `2^exponent`.
    pub exponent: i32,
}

const fn widen(channels: usize, exponent: i32) -> Widening {
    Widening { channels, exponent }
}

impl Default for Plan {
    /// Settings of fixtures/tiny.
    fn default() -> Self {
        Self {
            columns: vec![widen(1, 4)],
            activations: vec![widen(8, 3)],
            down_columns: vec![widen(2, 4)],
            up_rows: vec![widen(2, 1)],
            o_columns: vec![widen(1, 3)],
            v_rows: vec![widen(1, 1)],
            k_rows: vec![widen(1, 1)],
            q_rows: vec![widen(1, 1)],
        }
    }
}

#[derive(Debug, Deserialize)]
struct Config {
    model_type: String,
    hidden_size: usize,
    intermediate_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: usize,
    head_dim: usize,
}

/// Copies the model in `model` to `output` with outliers planted by `plan`.
///
/// # Errors
/// [`Error::Store`] for an output that must stay as it is, [`Error::Malformed`] for another model than [`pretrain`]'s.
///
/// [`pretrain`]: crate::pretrain()
pub fn plant(model: &Path, output: &Path, existing: Existing, plan: &Plan, seed: u64) -> Result<()> {
    check_folder(output, existing, &[checkpoint::WEIGHTS, "config.json"], &[model])?;
    let path = model.join("config.json");
    let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
    let config: Config = serde_json::from_str(&text).map_err(|e| Error::malformed(&path, e))?;
    if config.model_type != "llama" || config.num_key_value_heads == 0 {
        return Err(Error::malformed(&path, "only Llama models with key heads are known here"));
    }
    let source = model.join("model.safetensors");
    let weights = checkpoint::load_weights(&source)?;
    let mut rewrite = Rewrite::new(weights, &config, random::stream(seed, random::OUTLIERS));
    for layer in 0..config.num_hidden_layers {
        rewrite.layer(layer, plan).map_err(|message| Error::malformed(&source, message))?;
    }
    let folder = OutputDir::create(output, existing)?;
    let mut beside = Vec::new();
    for name in ["config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json"] {
        let from = model.join(name);
        let bytes = std::fs::read(&from).map_err(Error::io(&from))?;
        folder.write(name, &bytes)?;
        beside.push((name, bytes));
    }
    checkpoint::save_weights(&folder.path().join(checkpoint::WEIGHTS), &rewrite.weights, &beside)?;
    Ok(folder.persist()?)
}

/// The reason that a checkpoint can't be rewritten.
type Missing = String;

struct Rewrite<'a> {
    weights: Vec<Weight>,
    index: HashMap<String, usize>,
    config: &'a Config,
    rng: ChaCha8Rng,
}

/// Channels that haven't been chosen yet, in two ranges.
struct Pools {
    first: Vec<usize>,
    last: Vec<usize>,
}

impl Pools {
    fn new(middle: usize, end: usize) -> Self {
        Self { first: (0..middle).collect(), last: (middle..end).collect() }
    }

    fn draw(&mut self, last: bool, rng: &mut ChaCha8Rng) -> std::result::Result<usize, Missing> {
        let pool = if last { &mut self.last } else { &mut self.first };
        if pool.is_empty() {
            return Err("it has fewer channels than outliers are to be planted".into());
        }
        Ok(pool.swap_remove(rng.random_range(0..pool.len())))
    }
}

impl<'a> Rewrite<'a> {
    fn new(weights: Vec<Weight>, config: &'a Config, rng: ChaCha8Rng) -> Self {
        let index = weights.iter().enumerate().map(|(i, w)| (w.name.clone(), i)).collect();
        Self { weights, index, config, rng }
    }

    fn layer(&mut self, layer: usize, plan: &Plan) -> std::result::Result<(), Missing> {
        let prefix = format!("model.layers.{layer}.");
        for (norm, readers) in [
            ("input_layernorm", &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"][..]),
            ("post_attention_layernorm", &["mlp.gate_proj", "mlp.up_proj"][..]),
        ] {
            let width = self.config.hidden_size;
            let mut pools = Pools::new(width * 2 / 3, width);
            for (widening, sign) in signed(&plan.columns, &plan.activations) {
                for _ in 0..widening.channels {
                    let channel = pools.draw(sign > 0, &mut self.rng)?;
                    let factor = 2f32.powi(sign * widening.exponent);
                    self.scale(&format!("{prefix}{norm}"), Axis::Column(channel), factor.recip())?;
                    for reader in readers {
                        self.scale(&format!("{prefix}{reader}"), Axis::Column(channel), factor)?;
                    }
                }
            }
        }
        self.feed_forward(&prefix, plan)?;
        self.values(&prefix, plan)?;
        self.keys(&prefix, plan)
    }

    fn feed_forward(&mut self, prefix: &str, plan: &Plan) -> std::result::Result<(), Missing> {
        let width = self.config.intermediate_size;
        let mut pools = Pools::new(width * 3 / 4, width);
        for (widening, sign) in signed(&plan.up_rows, &plan.down_columns) {
            for _ in 0..widening.channels {
                let unit = pools.draw(sign < 0, &mut self.rng)?;
                let factor = 2f32.powi(sign * widening.exponent);
                self.scale(&format!("{prefix}mlp.up_proj"), Axis::Row(unit), factor)?;
                self.scale(&format!("{prefix}mlp.down_proj"), Axis::Column(unit), factor.recip())?;
            }
        }
        Ok(())
    }

    fn values(&mut self, prefix: &str, plan: &Plan) -> std::result::Result<(), Missing> {
        let (heads, width) = (self.config.num_key_value_heads, self.config.head_dim);
        let mut pools = Pools::new((heads - 1) * width, heads * width);
        for (widening, sign) in signed(&plan.v_rows, &plan.o_columns) {
            for _ in 0..widening.channels {
                let row = pools.draw(sign < 0 || heads == 1, &mut self.rng)?;
                let factor = 2f32.powi(sign * widening.exponent);
                self.scale(&format!("{prefix}self_attn.v_proj"), Axis::Row(row), factor)?;
                for column in self.query_rows(row) {
                    self.scale(&format!("{prefix}self_attn.o_proj"), Axis::Column(column), factor.recip())?;
                }
            }
        }
        Ok(())
    }

    fn keys(&mut self, prefix: &str, plan: &Plan) -> std::result::Result<(), Missing> {
        let (width, half) = (self.config.head_dim, self.config.head_dim / 2);
        let mut pools = Pools::new(0, self.config.num_key_value_heads * half);
        for (widening, sign) in signed(&plan.k_rows, &plan.q_rows) {
            for _ in 0..widening.channels {
                let pair = pools.draw(true, &mut self.rng)?;
                let factor = 2f32.powi(sign * widening.exponent);
                let first = pair / half * width + pair % half;
                for row in [first, first + half] {
                    self.scale(&format!("{prefix}self_attn.k_proj"), Axis::Row(row), factor)?;
                    for query in self.query_rows(row) {
                        self.scale(&format!("{prefix}self_attn.q_proj"), Axis::Row(query), factor.recip())?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The dimensions of the query heads that share a dimension of a key (or value) head.
    fn query_rows(&self, row: usize) -> Vec<usize> {
        let width = self.config.head_dim;
        let group = self.config.num_attention_heads / self.config.num_key_value_heads;
        let (head, dimension) = (row / width, row % width);
        (0..group).map(|g| (head * group + g) * width + dimension).collect()
    }

    fn scale(&mut self, name: &str, axis: Axis, factor: f32) -> std::result::Result<(), Missing> {
        let name = format!("{name}.weight");
        let missing = || format!("'{name}' is missing, or smaller than config.json says");
        let index = *self.index.get(&name).ok_or_else(missing)?;
        let weight = &mut self.weights[index];
        let columns = *weight.shape.last().ok_or_else(missing)?;
        let values = match axis {
            Axis::Row(row) if columns > 0 && row < weight.values.len() / columns => {
                weight.values[row * columns..(row + 1) * columns].iter_mut().step_by(1)
            }
            Axis::Column(column) if column < columns => weight.values[column..].iter_mut().step_by(columns),
            _ => return Err(missing()),
        };
        values.for_each(|value| *value *= factor);
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Axis {
    Row(usize),
    Column(usize),
}

/// First what widens one side, then, with the sign turned, what widens the other.
fn signed(wider: &[Widening], narrower: &[Widening]) -> Vec<(Widening, i32)> {
    wider.iter().map(|&w| (w, 1)).chain(narrower.iter().map(|&w| (w, -1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Student;
    use crate::{testing, tokenizer};
    use candle_core::{DType, Tensor};

    fn original() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a folder");
        let tokenizer = tokenizer::train(&[testing::TEXT.repeat(4)], 300).expect("enough text");
        let output = checkpoint::Output::of_pretrained(testing::work(folder.path()), &testing::shape(), &tokenizer)
            .expect("an output");
        output.save(&testing::student(6)).expect("saved");
        folder
    }

    fn plan() -> Plan {
        Plan { activations: vec![widen(2, 2)], ..Plan::default() }
    }

    fn read(folder: &Path) -> Vec<Weight> {
        checkpoint::load_weights(&folder.join("model.safetensors")).expect("weights")
    }

    fn logits(folder: &Path) -> Vec<f32> {
        let student = Student::new(&testing::shape(), 300, DType::F32, 0).expect("a valid shape");
        let weights = read(folder);
        for parameter in student.parameters() {
            let weight = weights.iter().find(|w| w.name == parameter.name).expect("it is there");
            let tensor = Tensor::from_slice(&weight.values, weight.shape.as_slice(), parameter.var.device());
            parameter.var.set(&tensor.expect("its shape")).expect("the same shape");
        }
        testing::flat(&student.logits(&[1, 5, 9, 200, 3, 3, 7, 299], 8).expect("logits"))
    }

    #[test]
    fn the_function_stays_and_the_weights_widen() {
        let (before, after) = (original(), tempfile::tempdir().expect("a folder"));
        plant(before.path(), after.path(), Existing::Refuse, &plan(), 1).expect("planted");
        let (old, new) = (logits(before.path()), logits(after.path()));
        let difference = old.iter().zip(&new).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(difference < 1e-4, "logits moved by {difference}");
        let largest = |w: &Weight| w.values.iter().fold(0f32, |m, v| m.max(v.abs()));
        for (old, new) in read(before.path()).iter().zip(read(after.path())) {
            let grew = largest(&new) / largest(old);
            assert_eq!(old.name, new.name);
            assert!(grew > 1.0 || !new.name.contains("_proj"), "{} grew by {grew}", new.name);
        }
        let count = std::fs::read_dir(after.path()).expect("the folder").count();
        assert_eq!(count, 5);
    }

    #[test]
    fn same_seed_same_channels() {
        let before = original();
        let plant = |seed| {
            let after = tempfile::tempdir().expect("a folder");
            super::plant(before.path(), after.path(), Existing::Refuse, &plan(), seed).expect("planted");
            read(after.path())
        };
        assert_eq!(plant(1), plant(1));
        assert_ne!(plant(1), plant(2));
    }

    #[test]
    fn too_many_outliers_are_an_error() {
        let (before, after) = (original(), tempfile::tempdir().expect("a folder"));
        let plan = Plan { columns: vec![widen(100, 1)], ..plan() };
        let error = plant(before.path(), after.path(), Existing::Refuse, &plan, 1).expect_err("a narrow model");
        assert!(error.to_string().contains("fewer channels"), "{error}");
        assert_eq!(std::fs::read_dir(after.path()).expect("the folder").count(), 0);
    }

    #[test]
    fn a_missing_tensor_is_named() {
        let (before, after) = (original(), tempfile::tempdir().expect("a folder"));
        let weights: Vec<Weight> =
            read(before.path()).into_iter().filter(|w| w.name != "model.layers.1.mlp.up_proj.weight").collect();
        checkpoint::save_weights(&before.path().join("model.safetensors"), &weights, &[]).expect("saved");
        let error = plant(before.path(), after.path(), Existing::Refuse, &plan(), 1).expect_err("a tensor is missing");
        assert!(error.to_string().contains("model.layers.1.mlp.up_proj.weight"), "{error}");
    }
}
