//! Sliding-window attention, as transformers reads it for each family.

use super::keys::Keys;
use crate::Result;
use serde_json::Value;

/// Mistral's and Qwen's window where config.json names none.
const DEFAULT: usize = 4096;

/// Qwen's layers without a window where config.json doesn't say how many.
const DEFAULT_MAX_WINDOW_LAYERS: u64 = 28;

/// The window of the layers that have one; none when all attention is full.
///
/// # Errors
/// When a window is shorter than the context, or a layer has attention of another kind.
pub(super) fn window(keys: &Keys<'_>, layers: usize, max_position: usize) -> Result<Option<usize>> {
    let kinds = layer_types(keys, layers)?;
    let sliding_layers = kinds.as_ref().map(|kinds| kinds.contains(&"sliding_attention"));
    let stated = || keys.optional_size("sliding_window", usize::MAX);
    let window = match keys.text("model_type")? {
        // Mistral's class reads neither use_sliding_window nor layer_types.
        Some("mistral") if keys.map.contains_key("sliding_window") => stated()?,
        Some("mistral") => Some(DEFAULT),
        Some("qwen2" | "qwen3") if keys.flag("use_sliding_window")? == Some(true) => {
            let all_full = || Ok::<_, crate::Error>(qwen_full_layers(keys)? >= layers as u64);
            let full = match sliding_layers {
                Some(sliding) => !sliding,
                None => all_full()?,
            };
            match (full, keys.map.contains_key("sliding_window")) {
                (true, _) => None,
                (false, true) => stated()?,
                (false, false) => Some(DEFAULT),
            }
        }
        Some("qwen2" | "qwen3") => None,
        // Llama's masks have no window, but its KV cache has one where the key is there: two answers for one model.
        _ => stated()?.filter(|_| sliding_layers != Some(false)),
    };
    match window {
        Some(w) if w < max_position => Err(keys.unsupported(format!(
            "sliding_window {w} (below the context of {max_position}) is not supported; full attention is{}",
            mistral_hint(keys)
        ))),
        None if sliding_layers == Some(true) => {
            Err(keys.unsupported("layer_types has sliding_attention, and there is no sliding_window in use"))
        }
        other => Ok(other),
    }
}

/// The reason that a switch which seems to turn the window off doesn't.
fn mistral_hint(keys: &Keys<'_>) -> &'static str {
    match (keys.get("model_type").and_then(Value::as_str), keys.map.get("sliding_window")) {
        (Some("mistral"), None) => " (4096 is mistral's default: \"sliding_window\": null turns it off)",
        (Some("mistral"), Some(_)) if keys.map.contains_key("use_sliding_window") => {
            " (transformers does not read use_sliding_window for mistral)"
        }
        _ => "",
    }
}

/// Qwen's first layers, which have no window.
fn qwen_full_layers(keys: &Keys<'_>) -> Result<u64> {
    Ok(keys.typed("max_window_layers", "a count", Value::as_u64)?.unwrap_or(DEFAULT_MAX_WINDOW_LAYERS))
}

/// The kind of each layer's attention, if config.json says it.
fn layer_types<'a>(keys: &Keys<'a>, layers: usize) -> Result<Option<Vec<&'a str>>> {
    let read = |v: &'a Value| v.as_array()?.iter().map(Value::as_str).collect::<Option<Vec<_>>>();
    let Some(mut kinds) = keys.typed("layer_types", "a list of names", read)? else { return Ok(None) };
    if kinds.len() != layers {
        return Err(keys.bad("layer_types", format!("{} entries for {layers} layers", kinds.len())));
    }
    for kind in &mut kinds {
        match *kind {
            // An older name.
            "attention" => *kind = "full_attention",
            "full_attention" | "sliding_attention" => {}
            other => {
                return Err(keys.unsupported(format!(
                    "layer_types '{}' is not supported; full_attention is",
                    crate::json::shown(other)
                )));
            }
        }
    }
    Ok(Some(kinds))
}
