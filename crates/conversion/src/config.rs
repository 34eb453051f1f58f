//! The side files of an artifact: config.json with what loaders must know, and provenance.

use crate::layout::{Layout, bitsandbytes, compressed_tensors};
use crate::loaders;
use crate::plan::{Plan, Settings, Source};
use indexmap::IndexMap;
use schemes::{FloatType, Scheme};
use serde_json::{Map, Value, json};
use store::TrainedOn;

/// A placeholder as long as the hash that replaces it once the source has been read.
pub const HASH_PLACEHOLDER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The metadata key of the source's hash.
pub const HASH_KEY: &str = store::output::provenance::SOURCE_KEY;

/// String metadata of the artifact: provenance, and the packed layout's entries.
pub fn provenance(source: &Source<'_>, plan: &Plan, settings: &Settings) -> IndexMap<String, String> {
    let mut out = IndexMap::new();
    let mut set = |key: &str, value: String| out.insert(key.to_string(), value);
    set("qconvert.version", env!("CARGO_PKG_VERSION").into());
    set("qconvert.scheme", plan.label.clone());
    if let Some(recipe) = settings.rules.recipe() {
        set("qconvert.recipe", recipe.name.clone());
    }
    if let Some(ty) = settings.emulate {
        set("qconvert.emulated", ty.to_string());
    }
    let name = source.model.path.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    set("qconvert.source", name);
    set(HASH_KEY, HASH_PLACEHOLDER.into());
    if let Some(texts) = source.model.metadata.get(TrainedOn::KEY) {
        set(TrainedOn::KEY, texts.clone());
    }
    if let Some(bytes) = settings.calibration.as_ref().and_then(|c| c.to_bytes().ok()) {
        set("qconvert.calibration_blake3", blake3::hash(&bytes).to_hex().to_string());
    }
    let entries: Map<String, Value> =
        plan.weights.iter().filter_map(|w| Some((w.name.clone(), w.laid.entry.clone()?))).collect();
    if !entries.is_empty() {
        set("qconvert.tensors", Value::Object(entries).to_string());
    }
    let schemes: Map<String, Value> = plan
        .weights
        .iter()
        .filter(|w| w.laid.entry.is_none())
        .filter_map(|w| Some((w.name.clone(), Value::String(w.scheme?.to_string()))))
        .collect();
    if !schemes.is_empty() {
        set("qconvert.tensor_schemes", Value::Object(schemes).to_string());
    }
    out
}

/// config.json without quantization, its type that of the artifact's floats; none when the
/// source has none. Where it contradicts the stored tensors it is put right, as loaders go by
/// it: the size of the vocabulary, and whether lm_head is the embedding.
pub fn float_config_json(source: &Source<'_>, plan: &Plan) -> Option<Value> {
    let mut config = source.model.config_json.clone()?;
    let object = config.as_object_mut()?;
    object.remove("quantization_config");
    object.remove("compression_config");
    // Of families that aren't known here the embedding may have rows beyond the vocabulary on purpose.
    let known = source.config.is_some();
    if let Some(rows) = source.vocab_rows().filter(|_| known && object.contains_key("vocab_size")) {
        object.insert("vocab_size".into(), rows.into());
    }
    let tied = object.get("tie_word_embeddings").and_then(Value::as_bool);
    if tied == Some(true) && source.config.as_ref().is_some_and(|c| !c.tie_word_embeddings) {
        object.insert("tie_word_embeddings".into(), false.into());
    }
    set_dtype(object, if let Scheme::Float(ty) = plan.scheme { ty } else { source.float });
    Some(config)
}

/// A configuration as text: the source's own where nothing in it has changed.
pub fn text(source: &Source<'_>, config: &Value) -> String {
    match &source.model.config_text {
        Some(text) if source.model.config_json.as_ref() == Some(config) => String::from_utf8_lossy(text).into_owned(),
        _ => format!("{config:#}\n"),
    }
}

/// config.json of a safetensors artifact; none when the source has none.
pub fn config_json(source: &Source<'_>, plan: &Plan) -> Option<Value> {
    let mut config = float_config_json(source, plan)?;
    let object = config.as_object_mut()?;
    let modules: Vec<(String, Scheme, Layout)> = plan
        .weights
        .iter()
        .filter_map(|w| Some((source.weights[w.index].module().to_string(), w.scheme?, w.laid.layout)))
        .collect();
    let kept = loaders::kept(source, plan);
    let has = |layout| modules.iter().any(|m| m.2 == layout);
    let quantization = if has(Layout::CompressedTensors) {
        let list: Vec<(String, Scheme)> = modules.iter().map(|(m, s, _)| (m.clone(), *s)).collect();
        Some(compressed_tensors::quantization_config(&list, &kept.ignore(), |m| loaders::target(m, source)))
    } else if has(Layout::Bitsandbytes) {
        let names: Vec<String> = modules.iter().map(|m| m.0.clone()).collect();
        let skip = kept.skip_modules(&names);
        modules.first().map(|m| bitsandbytes::quantization_config(m.1, source.float, &skip))
    } else if has(Layout::Packed) {
        Some(json!({"quant_method": "qconvert", "layout": "packed", "version": 1}))
    } else {
        None
    };
    if let Some(quantization) = quantization {
        object.insert("quantization_config".into(), quantization);
    }
    Some(config)
}

fn set_dtype(config: &mut Map<String, Value>, ty: FloatType) {
    let name = match ty {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    };
    let key = if config.contains_key("dtype") { "dtype" } else { "torch_dtype" };
    config.insert(key.into(), name.into());
}
