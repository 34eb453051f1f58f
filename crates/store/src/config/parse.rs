//! config.json to [`Config`]: every key that transformers 5 reads for a family is honoured or refused by name.

use super::{Config, Family, keys::Keys, rope, window};
use crate::{Error, Result};
use serde_json::Value;
use std::path::Path;

/// No size of a model is larger, its vocabulary among them.
pub const MAX_SIZE: usize = 10_000_000;

/// No context is longer.
pub(super) const MAX_CONTEXT: usize = 1 << 30;

/// Reads the hyperparameters of a config.json; `path` is the file, for errors.
pub(crate) fn parse(path: &Path, json: &Value) -> Result<Config> {
    let Value::Object(map) = json else {
        return Err(Error::malformed(path, "the configuration is not a JSON object"));
    };
    let keys = Keys { path, map };
    let family = family(&keys)?;
    refuse_variants(&keys)?;

    let (hidden_size, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    let layers = keys.size("num_hidden_layers")?;
    let max_position = max_position(&keys)?;
    let window = window::window(&keys, layers, max_position)?;
    let head_dim = head_dim(&keys, family, hidden_size, heads)?;
    let (rope_theta, rope_scaling) = rope::rope(&keys, max_position, head_dim)?;
    let config = Config {
        family,
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        layers,
        heads,
        kv_heads: kv_heads(&keys, heads)?,
        head_dim,
        rms_norm_eps: keys.stated_number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        max_position,
        window,
        tie_word_embeddings: keys.flag("tie_word_embeddings")?.unwrap_or(false),
        bos_token_id: keys.tokens("bos_token_id")?.first().copied(),
        eos_token_ids: keys.tokens("eos_token_id")?,
    };
    check(&keys, &config)?;
    Ok(config)
}

/// The ids that `key` of a JSON object names: none, one or a list.
pub(crate) fn token_ids(path: &Path, json: &Value, key: &str) -> Result<Vec<u32>> {
    match json {
        Value::Object(map) => Keys { path, map }.tokens(key),
        _ => Ok(Vec::new()),
    }
}

fn family(keys: &Keys<'_>) -> Result<Family> {
    match keys.text("model_type")? {
        Some("llama" | "mistral") => Ok(Family::Llama),
        Some("qwen2") => Ok(Family::Qwen2),
        Some("qwen3") => Ok(Family::Qwen3),
        Some(other) => {
            Err(keys
                .unsupported(format!("model_type '{other}' is not supported; known are llama, mistral, qwen2, qwen3")))
        }
        None => Err(Error::malformed(keys.path, "model_type is missing")),
    }
}

/// The context length; the default differs by family.
fn max_position(keys: &Keys<'_>) -> Result<usize> {
    keys.refuse_null("max_position_embeddings")?;
    let default = match keys.text("model_type")? {
        Some("mistral") => 131_072,
        Some("qwen2" | "qwen3") => 32_768,
        _ => 2048,
    };
    Ok(keys.optional_size("max_position_embeddings", MAX_CONTEXT)?.unwrap_or(default))
}

/// Refuses switches of these families whose arithmetic this project does not have.
fn refuse_variants(keys: &Keys<'_>) -> Result<()> {
    keys.refuse_null("hidden_act")?;
    let act = keys.text("hidden_act")?.unwrap_or("silu");
    if !matches!(act, "silu" | "swish") {
        return Err(keys.unsupported(format!("hidden_act '{act}' is not supported; only silu is")));
    }
    // transformers attends to later tokens where the key is there and not true.
    if let Some(causal) = keys.map.get("is_causal").filter(|v| **v != Value::Bool(true)) {
        return Err(keys.unsupported(format!(
            "is_causal {causal} (attention to later tokens, as embedding models have it) is not supported; only causal \
             attention is"
        )));
    }
    match keys.map.get("per_layer_config") {
        None | Some(Value::Null) => Ok(()),
        Some(Value::Object(layers)) if layers.is_empty() => Ok(()),
        Some(_) => Err(keys.unsupported("per_layer_config (layers that differ from each other) is not supported")),
    }
}

/// Width of a head; the default differs by family.
fn head_dim(keys: &Keys<'_>, family: Family, hidden_size: usize, heads: usize) -> Result<usize> {
    if let Some(n) = keys.optional_size("head_dim", MAX_SIZE)? {
        return Ok(n);
    }
    if family == Family::Qwen3 {
        keys.refuse_null("head_dim")?;
        return Ok(128);
    }
    if hidden_size.is_multiple_of(heads) {
        return Ok(hidden_size / heads);
    }
    Err(keys.bad("hidden_size", format!("{hidden_size} is not a multiple of the {heads} heads")))
}

/// Key and value heads; the default differs by family.
fn kv_heads(keys: &Keys<'_>, heads: usize) -> Result<usize> {
    if let Some(n) = keys.optional_size("num_key_value_heads", MAX_SIZE)? {
        return Ok(n);
    }
    Ok(match keys.text("model_type")? {
        _ if keys.map.contains_key("num_key_value_heads") => heads,
        Some("mistral") => 8,
        Some("qwen2" | "qwen3") => 32,
        _ => heads,
    })
}

fn check(keys: &Keys<'_>, c: &Config) -> Result<()> {
    if !c.heads.is_multiple_of(c.kv_heads) {
        let what = format!("{} does not divide the {} attention heads", c.kv_heads, c.heads);
        return Err(keys.bad("num_key_value_heads", what));
    }
    if !c.head_dim.is_multiple_of(2) {
        return Err(keys.bad("head_dim", format!("{} is odd: rotary positions turn pairs", c.head_dim)));
    }
    if c.heads.checked_mul(c.head_dim).is_none_or(|n| n > MAX_SIZE) {
        return Err(keys.bad("head_dim", format!("{} x {} heads is over {MAX_SIZE}", c.head_dim, c.heads)));
    }
    if !(c.rms_norm_eps > 0.0 && c.rms_norm_eps < 1.0) {
        return Err(keys.bad("rms_norm_eps", format!("{} is not between 0 and 1", c.rms_norm_eps)));
    }
    Ok(())
}
