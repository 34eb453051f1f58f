//! Rotary positions of config.json, as `transformers.modeling_rope_utils` reads them.

use super::{RopeScaling, keys::Keys, parse::MAX_CONTEXT};
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::f64::consts::PI;

/// The base of all four families where config.json names none.
const DEFAULT_THETA: f64 = 10_000.0;

/// The block of rotary parameters that transformers uses: `rope_scaling` unless it is absent, null or empty, else
/// `rope_parameters`. The two are not merged.
pub(super) fn block<'a>(keys: &Keys<'a>) -> Result<Option<&'a Map<String, Value>>> {
    let filled = |map: &&Map<String, Value>| !map.is_empty();
    Ok(keys.object("rope_scaling")?.filter(filled).or(keys.object("rope_parameters")?))
}

/// Base and scaling of the rotary positions.
pub(super) fn rope(keys: &Keys<'_>, max_position: usize, head_dim: usize) -> Result<(f64, RopeScaling)> {
    let empty = Map::new();
    let block = Keys { path: keys.path, map: block(keys)?.unwrap_or(&empty) };
    let base = if block.map.contains_key("rope_theta") { &block } else { keys };
    let theta = base.stated_number("rope_theta")?.unwrap_or(DEFAULT_THETA);
    if !(theta > 0.0 && theta.is_finite()) {
        return Err(keys.bad("rope_theta", "must be positive"));
    }
    let scaling = scaling(keys, &block, max_position)?;
    if let Some((low, high)) = scaling.yarn_ramp(head_dim, theta)
        && (low > high || low.is_nan() || high.is_nan())
    {
        return Err(keys.unsupported(format!(
            "yarn's ramp runs backwards, from pair {low} to pair {high}; check beta_fast, beta_slow, \
             original_max_position_embeddings and rope_theta"
        )));
    }
    Ok((theta, scaling))
}

fn scaling(keys: &Keys<'_>, block: &Keys<'_>, max_position: usize) -> Result<RopeScaling> {
    let nested = block.map.iter().find(|(name, v)| v.is_object() && name.ends_with("_attention"));
    if let Some((name, _)) = nested {
        return Err(keys.unsupported(format!("rope parameters by layer type ('{name}') are not supported")));
    }
    // The block's own goes first.
    let partial = match block.number("partial_rotary_factor")? {
        Some(f) => Some(f),
        None => keys.number("partial_rotary_factor")?,
    };
    if partial.is_some_and(|f| f != 1.0) {
        return Err(keys.unsupported("partial_rotary_factor other than 1 is not supported"));
    }
    block.refuse_null("rope_type")?;
    let kind = match block.text("rope_type")? {
        Some(kind) => Some(kind),
        None => block.text("type")?,
    };
    match kind {
        Some("default") => Ok(RopeScaling::None),
        None if block.number("factor")?.is_none() => Ok(RopeScaling::None),
        None => Err(keys.bad("rope_scaling", "has a factor and no rope_type")),
        Some("linear") => Ok(RopeScaling::Linear { factor: block.positive("factor")? }),
        Some("llama3") => llama3(keys, block, max_position),
        Some("yarn") => yarn(keys, block, max_position),
        Some(other) => Err(keys.unsupported(format!(
            "rope scaling '{}' is not supported; known are default, linear, llama3, yarn",
            crate::json::shown(other)
        ))),
    }
}

/// The context of pre-training: a key outside the block goes first, then that inside, then the context.
fn original_max_position(keys: &Keys<'_>, block: &Keys<'_>, max_position: usize) -> Result<usize> {
    const KEY: &str = "original_max_position_embeddings";
    let home = if keys.map.contains_key(KEY) { keys } else { block };
    home.refuse_null(KEY)?;
    Ok(home.optional_size(KEY, MAX_CONTEXT)?.unwrap_or(max_position))
}

fn llama3(keys: &Keys<'_>, block: &Keys<'_>, max_position: usize) -> Result<RopeScaling> {
    let (low, high) = (block.positive("low_freq_factor")?, block.positive("high_freq_factor")?);
    if high <= low {
        return Err(keys.bad("high_freq_factor", format!("{high} must exceed low_freq_factor {low}")));
    }
    Ok(RopeScaling::Llama3 {
        factor: block.positive("factor")?,
        low_freq_factor: low,
        high_freq_factor: high,
        original_max_position: original_max_position(keys, block, max_position)?,
    })
}

fn yarn(keys: &Keys<'_>, block: &Keys<'_>, max_position: usize) -> Result<RopeScaling> {
    let original = original_max_position(keys, block, max_position)?;
    // A factor that is there and null is the ratio of the contexts.
    let factor = match block.map.get("factor") {
        Some(Value::Null) => max_position as f64 / original as f64,
        _ => block.positive("factor")?,
    };
    let mscale = |m: f64| if factor <= 1.0 { 1.0 } else { 0.1 * m * factor.ln() + 1.0 };
    let given = |key| Ok::<_, Error>(block.number(key)?.filter(|m| *m != 0.0));
    let attention_factor = match (block.number("attention_factor")?, given("mscale")?, given("mscale_all_dim")?) {
        (Some(f), _, _) => f,
        (None, Some(m), Some(all)) => mscale(m) / mscale(all),
        (None, _, _) => mscale(1.0),
    };
    if !(attention_factor > 0.0 && attention_factor.is_finite()) {
        return Err(block.bad("attention_factor", "must be positive"));
    }
    let turns = |key, default| {
        let turns = given(key)?.unwrap_or(default);
        if turns > 0.0 { Ok(turns) } else { Err(block.bad(key, "must be a positive number")) }
    };
    Ok(RopeScaling::Yarn {
        factor,
        beta_fast: turns("beta_fast", 32.0)?,
        beta_slow: turns("beta_slow", 1.0)?,
        attention_factor,
        original_max_position: original,
        // Absent is true; null is not.
        truncate: !block.map.contains_key("truncate") || block.flag("truncate")? == Some(true),
    })
}

impl RopeScaling {
    /// The pairs of dimensions between which YaRN goes from plain to stretched frequencies; none for other scalings.
    pub fn yarn_ramp(&self, head_dim: usize, theta: f64) -> Option<(f64, f64)> {
        let RopeScaling::Yarn { beta_fast, beta_slow, original_max_position, truncate, .. } = self else { return None };
        let pair_that_makes = |turns: f64| {
            let period = *original_max_position as f64 / (turns * 2.0 * PI);
            head_dim as f64 * period.ln() / (2.0 * theta.ln())
        };
        let (low, high) = (pair_that_makes(*beta_fast), pair_that_makes(*beta_slow));
        let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
        Some((low.max(0.0), high.min(head_dim as f64 - 1.0)))
    }
}
