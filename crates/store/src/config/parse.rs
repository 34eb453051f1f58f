//! config.json to [`Config`]: everything that changes the arithmetic is honoured or refused.

use super::{Config, Family, RopeScaling};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// No size of a model is larger, its vocabulary among them.
pub const MAX_SIZE: usize = 10_000_000;

/// No context is longer.
const MAX_CONTEXT: usize = 1 << 30;

/// Reads the hyperparameters of a config.json; `path` is the file, for errors.
pub(crate) fn parse(path: &Path, json: &Value) -> Result<Config> {
    let Value::Object(map) = json else {
        return Err(Error::malformed(path, "the configuration is not a JSON object"));
    };
    let keys = Keys { path, map };
    let family = family(&keys)?;
    refuse_variants(&keys)?;

    let (hidden_size, heads) = (keys.size("hidden_size")?, keys.size("num_attention_heads")?);
    let max_position = keys.optional_size("max_position_embeddings", MAX_CONTEXT)?.unwrap_or(match family {
        Family::Llama => 2048,
        Family::Qwen2 | Family::Qwen3 => 32768,
    });
    refuse_window(&keys, max_position)?;
    let head_dim = match keys.optional_size("head_dim", MAX_SIZE)? {
        Some(n) => n,
        None if hidden_size.is_multiple_of(heads) => hidden_size / heads,
        None => {
            return Err(keys.bad("hidden_size", format!("{hidden_size} is not a multiple of the {heads} heads")));
        }
    };
    let (rope_theta, rope_scaling) = rope(&keys, max_position)?;
    let config = Config {
        family,
        vocab_size: keys.size("vocab_size")?,
        hidden_size,
        intermediate_size: keys.size("intermediate_size")?,
        layers: keys.size("num_hidden_layers")?,
        heads,
        kv_heads: keys.optional_size("num_key_value_heads", MAX_SIZE)?.unwrap_or(heads),
        head_dim,
        rms_norm_eps: keys.number("rms_norm_eps")?.unwrap_or(1e-6),
        rope_theta,
        rope_scaling,
        max_position,
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

/// Switches of these families whose arithmetic this project does not have.
fn refuse_variants(keys: &Keys<'_>) -> Result<()> {
    let act = keys.text("hidden_act")?.unwrap_or("silu");
    if !matches!(act, "silu" | "swish") {
        return Err(keys.unsupported(format!("hidden_act '{act}' is not supported; only silu is")));
    }
    if keys.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor other than 1 is not supported"));
    }
    Ok(())
}

/// Refuses a sliding window that would change anything.
fn refuse_window(keys: &Keys<'_>, max_position: usize) -> Result<()> {
    let window = keys.optional_size("sliding_window", usize::MAX)?;
    let layers = match keys.get("layer_types") {
        Some(Value::Array(a)) => a.iter().any(|t| t.as_str() != Some("full_attention")),
        _ => false,
    };
    // Mistral has a window whenever it names one; Qwen only with its switch on.
    let mistral = keys.text("model_type")? == Some("mistral");
    let on = layers || keys.flag("use_sliding_window")?.unwrap_or(mistral);
    match window {
        Some(w) if on && w < max_position => Err(keys.unsupported(format!(
            "sliding_window {w} (below the context of {max_position}) is not supported; full attention is"
        ))),
        None if layers => Err(keys.unsupported("layer_types other than full_attention are not supported")),
        _ => Ok(()),
    }
}

/// Base and scaling, from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling`.
fn rope(keys: &Keys<'_>, max_position: usize) -> Result<(f64, RopeScaling)> {
    let block = match (keys.object("rope_parameters")?, keys.object("rope_scaling")?) {
        (Some(new), _) => Some(new),
        (None, old) => old,
    };
    let inner = block.and_then(|map| map.get("rope_theta")).filter(|v| !v.is_null());
    let theta = match (inner, block) {
        (Some(_), Some(map)) => Keys { path: keys.path, map }.number("rope_theta")?,
        _ => keys.number("rope_theta")?,
    };
    let theta = theta.unwrap_or(10000.0);
    if !(theta > 0.0 && theta.is_finite()) {
        return Err(keys.bad("rope_theta", "must be positive"));
    }
    let scaling = match block {
        Some(map) => scaling(&Keys { path: keys.path, map }, max_position)?,
        None => RopeScaling::None,
    };
    Ok((theta, scaling))
}

fn scaling(keys: &Keys<'_>, max_position: usize) -> Result<RopeScaling> {
    if let Some((name, _)) = keys.map.iter().find(|(_, v)| v.is_object()) {
        return Err(keys.unsupported(format!("rope parameters by layer type ('{name}') are not supported")));
    }
    if keys.number("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor other than 1 is not supported"));
    }
    let kind = match keys.text("rope_type")? {
        Some(kind) => Some(kind),
        None => keys.text("type")?,
    };
    match kind {
        Some("default") => Ok(RopeScaling::None),
        None if keys.number("factor")?.is_none() => Ok(RopeScaling::None),
        None => Err(keys.bad("rope_scaling", "has a factor and no rope_type")),
        Some("linear") => Ok(RopeScaling::Linear { factor: keys.positive("factor")? }),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: keys.positive("factor")?,
            low_freq_factor: keys.positive("low_freq_factor")?,
            high_freq_factor: keys.positive("high_freq_factor")?,
            original_max_position: keys
                .optional_size("original_max_position_embeddings", MAX_CONTEXT)?
                .ok_or_else(|| keys.bad("original_max_position_embeddings", "is missing"))?,
        })
        .and_then(|s| ordered(keys, s)),
        Some("yarn") => yarn(keys, max_position),
        Some(other) => Err(keys
            .unsupported(format!("rope scaling '{other}' is not supported; known are default, linear, llama3, yarn"))),
    }
}

fn ordered(keys: &Keys<'_>, scaling: RopeScaling) -> Result<RopeScaling> {
    match scaling {
        RopeScaling::Llama3 { low_freq_factor: low, high_freq_factor: high, .. } if high <= low => {
            Err(keys.bad("high_freq_factor", format!("{high} must exceed low_freq_factor {low}")))
        }
        other => Ok(other),
    }
}

fn yarn(keys: &Keys<'_>, max_position: usize) -> Result<RopeScaling> {
    if keys.flag("truncate")? == Some(false) {
        return Err(keys.unsupported("yarn with truncate = false is not supported"));
    }
    let factor = keys.positive("factor")?;
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let given = |key| Ok::<_, Error>(keys.number(key)?.filter(|m| *m != 0.0));
    let attention_factor = match (keys.number("attention_factor")?, given("mscale")?, given("mscale_all_dim")?) {
        (Some(f), _, _) => f,
        (None, Some(m), Some(all)) => mscale(m) / mscale(all),
        (None, _, _) => mscale(1.0),
    };
    if !(attention_factor > 0.0 && attention_factor.is_finite()) {
        return Err(keys.bad("attention_factor", "must be positive"));
    }
    let or = |key, default| Ok::<_, Error>(given(key)?.unwrap_or(default));
    let original = keys.optional_size("original_max_position_embeddings", MAX_CONTEXT)?;
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: or("beta_fast", 32.0)?,
        beta_slow: or("beta_slow", 1.0)?,
        attention_factor,
        original_max_position: original.unwrap_or(max_position),
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

/// Typed access to a JSON object; null counts as absent.
struct Keys<'a> {
    path: &'a Path,
    map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn bad(&self, key: &str, what: impl std::fmt::Display) -> Error {
        Error::malformed(self.path, format!("{key}: {what}"))
    }

    fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::unsupported(self.path, what)
    }

    fn typed<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => read(v).map(Some).ok_or_else(|| self.bad(key, format!("must be {what}"))),
        }
    }

    fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |v| v.as_f64().filter(|f| f.is_finite()))
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }

    fn positive(&self, key: &str) -> Result<f64> {
        self.number(key)?.filter(|f| *f > 0.0).ok_or_else(|| self.bad(key, "must be a positive number"))
    }

    fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let read = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=max).contains(n));
        self.typed(key, &format!("an integer from 1 to {max}"), read)
    }

    fn size(&self, key: &str) -> Result<usize> {
        self.optional_size(key, MAX_SIZE)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let read = |v: &Value| match v {
            Value::Array(ids) if ids.len() <= 1000 => ids.iter().map(one).collect(),
            other => one(other).map(|id| vec![id]),
        };
        Ok(self.typed(key, "a token id or a list of them", read)?.unwrap_or_default())
    }
}
