//! Keys of config.json that look like arithmetic and that transformers does not read for the model's family.

use super::{keys::Keys, rope};
use serde_json::Value;
use std::path::Path;

/// Keys of other families. transformers reads none of them for llama, mistral, qwen2 and qwen3.
const OTHER_FAMILIES: [&str; 46] = [
    "activation_function",
    "alibi",
    "attention_chunk_size",
    "attention_multiplier",
    "attention_scale",
    "attn_logit_softcapping",
    "bias",
    "clip_qkv",
    "dim_model_base",
    "embedding_multiplier",
    "embedding_scale",
    "final_logit_softcapping",
    "hidden_activation",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "logit_scale",
    "logits_scaling",
    "mlp_multipliers",
    "moe_intermediate_size",
    "n_routed_experts",
    "no_rope_layer_interval",
    "no_rope_layers",
    "norm_eps",
    "norm_epsilon",
    "num_experts",
    "num_local_experts",
    "parallel_residual",
    "qk_layernorm",
    "qk_norm",
    "qkv_bias",
    "query_pre_attn_scalar",
    "residual_multiplier",
    "residual_scale",
    "rope_interleaved",
    "rope_local_base_freq",
    "rotary_dim",
    "rotary_emb_base",
    "rotary_pct",
    "scale_depth",
    "scale_emb",
    "sliding_window_pattern",
    "use_bias",
    "use_bidirectional_attention",
    "use_mrope",
    "use_parallel_residual",
    "use_qk_norm",
];

/// Keys of a block of rotary parameters that transformers reads.
const ROPE_BLOCK: [&str; 15] = [
    "attention_factor",
    "beta_fast",
    "beta_slow",
    "factor",
    "high_freq_factor",
    "low_freq_factor",
    "mscale",
    "mscale_all_dim",
    "original_max_position_embeddings",
    "partial_rotary_factor",
    "rope_theta",
    "rope_type",
    "truncate",
    "type",
    "mrope_section",
];

/// Notes on keys without effect, and on which of two keys counts.
pub(crate) fn notes(json: &Value) -> Vec<String> {
    let (Some(map), Some(family)) = (json.as_object(), json["model_type"].as_str()) else { return Vec::new() };
    let own: &[&str] = match family {
        "llama" => &[],
        "mistral" => &["attention_bias", "mlp_bias", "layer_types"],
        "qwen2" => &["attention_bias", "mlp_bias"],
        "qwen3" => &["mlp_bias"],
        _ => return Vec::new(),
    };
    let mut notes = Vec::new();
    let unread = |key: &&&str| map.get(**key).is_some_and(|value| !is_neutral(key, value));
    let unread: Vec<&str> = OTHER_FAMILIES.iter().chain(own).filter(unread).copied().collect();
    if !unread.is_empty() {
        notes.push(format!(
            "config.json: {} of model_type {family} has no effect, in transformers as here",
            unread.join(", ")
        ));
    }
    if map.get("auto_map").and_then(Value::as_object).is_some_and(|m| !m.is_empty()) {
        notes.push(format!(
            "config.json: auto_map names Python code of the model's own, which is not run: the arithmetic is {family}'s"
        ));
    }
    notes.extend(rope_notes(&Keys { path: Path::new("config.json"), map }));
    notes
}

/// Returns whether a value changes nothing even where its key is read.
fn is_neutral(key: &str, value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(n) => n.as_f64() == Some(if key.contains("scal") || key.contains("multipl") { 1.0 } else { 0.0 }),
        Value::Array(a) => a.is_empty(),
        Value::Object(o) => o.is_empty(),
        _ => false,
    }
}

fn rope_notes(keys: &Keys<'_>) -> Vec<String> {
    // What can't be read is refused where the configuration is parsed.
    let Ok(Some(block)) = rope::block(keys) else { return Vec::new() };
    let mut notes = Vec::new();
    let (old, new) = (keys.get("rope_scaling"), keys.get("rope_parameters"));
    let old_counts = old.and_then(Value::as_object).is_some_and(|o| !o.is_empty());
    if old_counts && new.is_some() && old != new {
        notes.push(
            "config.json: rope_scaling counts and rope_parameters beside it does not (its rope_theta included), as in \
             transformers"
                .into(),
        );
    }
    const ORIGINAL: &str = "original_max_position_embeddings";
    if let (Some(outer), Some(inner)) = (keys.get(ORIGINAL), block.get(ORIGINAL))
        && outer != inner
    {
        notes.push(format!(
            "config.json: {ORIGINAL} {outer} outside of the rotary parameters counts, not {inner} inside, as in \
             transformers"
        ));
    }
    let known = |key: &str| ROPE_BLOCK.contains(&key);
    let unread: Vec<&str> = block.iter().filter(|(k, v)| !known(k) && !v.is_null()).map(|(k, _)| k.as_str()).collect();
    if !unread.is_empty() {
        let unread = crate::json::shown(&unread.join(", "));
        notes.push(format!("config.json: {unread} among the rotary parameters has no effect, in transformers as here"));
    }
    notes
}
