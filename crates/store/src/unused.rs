//! Tensors of a file that running its model doesn't use.
//!
//! llama.cpp refuses a file with a tensor that no part of the model reads: the model would compute something else than
//! its file says. Tensors that are known to change nothing get a note instead.

use crate::{Config, Error, Family, Model, Result, Tensor, json::shown};
use std::collections::HashSet;

/// The rotary factors that llama.cpp's converter writes for Llama 3.1.
pub(crate) const ROPE_FREQS: &str = "rope_freqs.weight";

/// The linear layers of a block.
const LINEAR: [&str; 7] = [
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
];

/// Names that a note shows.
const SHOWN: usize = 3;

impl Model {
    /// Stored names of the tensors that neither running a model of this configuration uses nor are known to change
    /// nothing, in file order.
    pub fn unused(&self, config: &Config) -> Vec<&str> {
        let mut used: HashSet<String> = norms(config).collect();
        if config.family == Family::Llama {
            used.insert(ROPE_FREQS.into());
        }
        let layers = self.layers();
        for module in modules(config) {
            match layers.get(&module) {
                Some(Ok(description)) => {
                    used.extend(description.tensors.iter().chain(&description.unneeded).cloned());
                }
                // Opening the module gives the error.
                Some(Err(_)) => used.extend(self.tensors.keys().filter(|name| is_under(name, &module)).cloned()),
                None => {}
            }
        }
        let unused = self.tensors.iter().filter(|(name, tensor)| !used.contains(*name) && !is_needless(name, tensor));
        unused.map(|(_, tensor)| tensor.stored_name.as_str()).collect()
    }

    /// Refuses a model of which running it would leave tensors unused.
    ///
    /// # Errors
    /// Names the first of [`Model::unused`].
    pub fn check_unused(&self, config: &Config) -> Result<()> {
        let unused = self.unused(config);
        let Some(first) = unused.first() else { return Ok(()) };
        let others = match unused.len() {
            1 => String::new(),
            n => format!(" nor {} more of its tensors", n - 1),
        };
        let what = format!(
            "no part of a {} model with {} blocks uses it{others}: the results would not be this model's. llama.cpp \
             refuses such files, too",
            family(config),
            config.layers
        );
        let file = self.tensors.values().find(|t| t.stored_name == *first).map_or(&self.path, |t| &t.file);
        Err(Error::tensor(file, shown(first), what))
    }

    /// Returns whether a stored tensor is a buffer that every loader computes for itself: rotary frequencies, and
    /// causal masks, which have no feature dimension and so can't be biases.
    pub fn is_buffer(name: &str, tensor: &Tensor) -> bool {
        let attention = [".attn", ".self_attn", ".attention", ".self_attention"];
        let of_attention =
            |last: &str| name.strip_suffix(last).is_some_and(|module| attention.iter().any(|a| module.ends_with(a)));
        name.ends_with("rotary_emb.inv_freq")
            || of_attention(".masked_bias")
            || (of_attention(".bias") && tensor.shape.len() == 4)
    }

    /// Notes on tensors that are left unused because they change nothing.
    pub(crate) fn needless_notes(&self) -> Vec<String> {
        let named = |test: &dyn Fn(&str, &Tensor) -> bool| -> Vec<&str> {
            self.tensors.iter().filter(|(name, t)| test(name, t)).map(|(_, t)| t.stored_name.as_str()).collect()
        };
        let kinds = [
            (named(&Model::is_buffer), "that loaders compute for themselves"),
            (
                named(&|name, _| is_cache_scale(name)),
                "for an engine's rounding of keys and values, which stay as they are,",
            ),
            (named(&|name, _| is_prediction(name)), "of multi-token prediction, which only drafts tokens,"),
        ];
        let notes = kinds.into_iter().filter(|(names, _)| !names.is_empty());
        notes.map(|(names, why)| note(&names, why)).collect()
    }
}

fn note(names: &[&str], why: &str) -> String {
    let some: Vec<String> = names.iter().take(SHOWN).map(|n| shown(n)).collect();
    let rest = if names.len() > SHOWN { ", ..." } else { "" };
    let (tensors, are) = if names.len() == 1 { ("tensor", "is") } else { ("tensors", "are") };
    format!("{} stored {tensors} {why} {are} left out ({}{rest})", names.len(), some.join(", "))
}

fn is_needless(name: &str, tensor: &Tensor) -> bool {
    Model::is_buffer(name, tensor) || is_cache_scale(name) || is_prediction(name) || name == "scaled_fp8"
}

/// Returns whether a tensor is a scale of keys, values or attention that engines with an 8-bit cache have.
pub(crate) fn is_cache_scale(name: &str) -> bool {
    let scale = |part: &str| matches!(part, "k_scale" | "v_scale" | "q_scale" | "prob_scale");
    name.rsplit_once('.').is_some_and(|(module, last)| module.ends_with("attn") && scale(last))
}

/// Returns whether a tensor is of the layers that predict further tokens: transformers ignores those names.
fn is_prediction(name: &str) -> bool {
    name.starts_with("mtp.") || name.starts_with("model.mtp.")
}

/// Returns whether a tensor has a name under that of a module.
fn is_under(name: &str, module: &str) -> bool {
    name.strip_prefix(module).is_some_and(|rest| rest.starts_with('.'))
}

/// The linear layers of a model, the embedding among them.
fn modules(config: &Config) -> impl Iterator<Item = String> {
    let layers = config.layers;
    let blocks = (0..layers).flat_map(|layer| LINEAR.map(|part| format!("model.layers.{layer}.{part}")));
    ["model.embed_tokens", "lm_head"].map(String::from).into_iter().chain(blocks)
}

/// The weights of a model's norms.
fn norms(config: &Config) -> impl Iterator<Item = String> {
    let parts: &[&str] = match config.family {
        Family::Qwen3 => &["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"],
        Family::Llama | Family::Qwen2 => &["input_layernorm", "post_attention_layernorm"],
    };
    let blocks = (0..config.layers)
        .flat_map(move |layer| parts.iter().map(move |part| format!("model.layers.{layer}.{part}.weight")));
    std::iter::once("model.norm.weight".to_string()).chain(blocks)
}

fn family(config: &Config) -> &'static str {
    match config.family {
        Family::Llama => "llama",
        Family::Qwen2 => "qwen2",
        Family::Qwen3 => "qwen3",
    }
}

#[cfg(test)]
#[path = "unused_tests.rs"]
mod tests;
