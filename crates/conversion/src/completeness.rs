//! Checks that a checkpoint is a complete model, and warnings for a user before the conversion.

use crate::error::{Error, Result};
use crate::source::Weight;
use crate::wording::counted;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use store::{Config, Container, Family, Model};

/// Names the first weight that the configuration asks for and that is absent or has another
/// shape: the weights that the runtime loads. None of them is opened.
///
/// # Errors
/// [`store::Error::Tensor`] with what was expected and found.
pub fn check(model: &Model, config: &Config) -> Result<()> {
    for (name, shape) in expected(model, config) {
        let Some(found) = shape_of(model, &name)? else {
            let why = match layer(&name) {
                Some(l) if !model.tensors.keys().any(|name| layer(name) == Some(l)) => {
                    format!(", with all of layer {l}: the configuration has {} layers", config.layers)
                }
                None if name == "lm_head.weight" => ": the configuration does not tie it to the embedding".into(),
                _ => String::new(),
            };
            let what = format!("is missing{why}; expected shape {shape:?}");
            return Err(store::Error::tensor(&model.path, name, what).into());
        };
        if found != shape {
            let file = model.tensors.get(&name).map_or(&model.path, |t| &t.file);
            let what = format!("has shape {found:?}, the configuration says {shape:?}");
            return Err(store::Error::tensor(file, name, what).into());
        }
    }
    Ok(())
}

/// The shape of a weight, whatever layout it is stored in; none where it isn't.
fn shape_of(model: &Model, name: &str) -> Result<Option<Vec<usize>>> {
    match (model.tensors.get(name), name.strip_suffix(".weight")) {
        (Some(tensor), _) if tensor.dtype.float().is_some() => Ok(Some(tensor.shape.clone())),
        (_, Some(module)) => Ok(model.shape(module)?.map(|(rows, cols)| vec![rows, cols])),
        (tensor, None) => Ok(tensor.map(|t| t.shape.clone())),
    }
}

/// Every tensor that a model of this configuration can't do without, with its shape.
fn expected(model: &Model, c: &Config) -> Vec<(String, Vec<usize>)> {
    let (h, inner) = (c.hidden_size, c.intermediate_size);
    let (q, kv) = (c.heads * c.head_dim, c.kv_heads * c.head_dim);
    let projections = [
        ("self_attn.q_proj", [q, h]),
        ("self_attn.k_proj", [kv, h]),
        ("self_attn.v_proj", [kv, h]),
        ("self_attn.o_proj", [h, q]),
        ("mlp.gate_proj", [inner, h]),
        ("mlp.up_proj", [inner, h]),
        ("mlp.down_proj", [h, inner]),
    ];
    let mut parts = vec![("input_layernorm.weight".into(), vec![h])];
    for (module, shape) in projections {
        parts.push((format!("{module}.weight"), shape.to_vec()));
        if has_bias(model, c, module) {
            parts.push((format!("{module}.bias"), vec![shape[0]]));
        }
    }
    parts.push(("post_attention_layernorm.weight".into(), vec![h]));
    if c.family == Family::Qwen3 {
        parts.extend(["q", "k"].map(|part| (format!("self_attn.{part}_norm.weight"), vec![c.head_dim])));
    }
    let mut all = vec![
        ("model.embed_tokens.weight".to_string(), vec![c.vocab_size, h]),
        ("model.norm.weight".to_string(), vec![h]),
    ];
    for layer in 0..c.layers {
        all.extend(parts.iter().map(|(part, shape)| (format!("model.layers.{layer}.{part}"), shape.clone())));
    }
    if !c.tie_word_embeddings && has_lm_head(model) {
        all.push(("lm_head.weight".to_string(), vec![c.vocab_size, h]));
    }
    all
}

/// Returns whether the model that the configuration names has an output projection over the vocabulary. Classifiers,
/// reward models and models of embeddings have none.
fn has_lm_head(model: &Model) -> bool {
    let named = model.config_json.as_ref().and_then(|json| json.get("architectures")?.as_array());
    let names: Vec<&str> = named.into_iter().flatten().filter_map(|name| name.as_str()).collect();
    let other_head = || {
        let stored = |name: &str| model.tensors.contains_key(name);
        stored("score.weight") || stored("classifier.weight") || stored("qa_outputs.weight")
    };
    match names[..] {
        [] => !other_head(),
        _ => names.iter().any(|n| ["CausalLM", "LMHead", "ConditionalGeneration"].iter().any(|part| n.contains(part))),
    }
}

/// Returns whether a projection has a bias: Qwen2's q, k and v always, others where config.json says so.
fn has_bias(model: &Model, c: &Config, module: &str) -> bool {
    let said = |key: &str| model.config_json.as_ref().is_some_and(|json| json[key] == true);
    let qkv = ["q_proj", "k_proj", "v_proj"].iter().any(|p| module.ends_with(p));
    match module.split_once('.') {
        Some(("self_attn", _)) if c.family == Family::Qwen2 => qkv,
        Some(("self_attn", _)) => said("attention_bias"),
        _ => said("mlp_bias"),
    }
}

/// The configuration, checked against the weights; none where there is none, or none that is
/// known here, which a warning says.
///
/// # Errors
/// As [`check`]; or the configuration is malformed.
pub fn config(model: &Model, weights: &mut Vec<Weight>, warnings: &mut Vec<String>) -> Result<Option<Config>> {
    if model.config_json.is_none() {
        let said = warnings.iter().any(|w| w.contains("no configuration"));
        if said {
            return Ok(None);
        }
        warnings.push("there is no config.json: transformers, vLLM and qeval can't load the result".into());
        return Ok(None);
    }
    match model.config() {
        // The base model alone, or under another name than `model`.
        Ok(_) if !has_lm_head(model) && !model.tensors.keys().any(|name| name.starts_with("model.")) => {
            warnings.push("no tensor is named model.*; that this model is whole was not checked".into());
            Ok(None)
        }
        Ok(config) => {
            check(model, &config)?;
            // A GGUF file has no word on biases: what is stored counts.
            if model.container != Container::Gguf {
                warnings.extend(leave_out_zero_biases(model, &config, weights)?);
            }
            warnings.extend(unasked(model, &config, weights));
            Ok(Some(config))
        }
        Err(e @ store::Error::Unsupported { .. }) => {
            warnings.push(format!("{e}; that this model is whole was not checked"));
            Ok(None)
        }
        Err(e) => Err(Error::Store(e)),
    }
}

/// Warnings on stored tensors that the configuration does not ask for.
fn unasked(model: &Model, config: &Config, weights: &[Weight]) -> Vec<String> {
    let mut warnings = Vec::new();
    let names = || weights.iter().map(|w| w.name.as_str()).filter_map(|name| Some((layer(name)?, name)));
    let beyond: Vec<&str> = names().filter(|(l, _)| *l >= config.layers).map(|n| n.1).collect();
    if let [first, ..] = beyond[..] {
        warnings.push(format!(
            "{} of layers beyond the configuration's {} (the first is {first}): no loader uses any, and llama.cpp refuses a file with such",
            counted(beyond.len(), "weight"),
            config.layers
        ));
    }
    let others: Vec<&str> = model.unused(config).into_iter().filter(|n| !beyond.contains(n)).collect();
    if let [first, ..] = others[..] {
        warnings.push(format!(
            "{} that no part of the model uses (the first is {first}): qeval and llama.cpp refuse a model with such",
            counted(others.len(), "tensor")
        ));
    }
    warnings
}

/// Leaves out stored biases of zeros that the configuration doesn't ask for, as GPTQ's quantizers write them, and says so:
/// they change nothing, and llama.cpp has no place for them. (Others than zeros are refused with the configuration.)
fn leave_out_zero_biases(model: &Model, config: &Config, weights: &mut Vec<Weight>) -> Result<Option<String>> {
    let mut left_out = Vec::new();
    for name in weights.iter().map(|w| &w.name) {
        let module = name.strip_suffix(".bias").and_then(|n| n.strip_prefix("model.layers."));
        let unasked = module.and_then(|m| m.split_once('.')).is_some_and(|(_, m)| !has_bias(model, config, m));
        if unasked && model.dense(name)?.is_some_and(|values| values.iter().all(|v| *v == 0.0)) {
            left_out.push(name.clone());
        }
    }
    weights.retain(|w| !left_out.contains(&w.name));
    Ok(left_out.first().map(|first| {
        let biases = counted(left_out.len(), "stored bias vector");
        format!("{biases} of zeros that the configuration does not ask for left out (the first is {first})")
    }))
}

/// Refuses tensors that llama.cpp has no place for in this architecture: it loads no file with any.
///
/// # Errors
/// [`Error::Request`] with the first such tensor.
pub fn check_llama_cpp(config: &Config, weights: &[Weight]) -> Result<()> {
    let unread: Vec<&str> =
        weights.iter().map(|w| w.name.as_str()).filter(|name| !is_read_by_llama_cpp(config, name)).collect();
    match unread[..] {
        [] => Ok(()),
        [first, ..] => Err(Error::Request(format!(
            "GGUF: llama.cpp refuses a {} file with {} that its architecture has no place for (the first is {first}); use --to safetensors",
            format!("{:?}", config.family).to_lowercase(),
            counted(unread.len(), "tensor")
        ))),
    }
}

/// Returns whether llama.cpp reads a tensor of this name: biases of attention's output and of the MLP are Llama's
/// alone.
fn is_read_by_llama_cpp(config: &Config, name: &str) -> bool {
    let Some(index) = layer(name) else {
        return matches!(name, "model.embed_tokens.weight" | "model.norm.weight" | "lm_head.weight");
    };
    let part = name.splitn(4, '.').last().unwrap_or_default();
    let known = match part.strip_suffix(".bias") {
        Some("self_attn.q_proj" | "self_attn.k_proj" | "self_attn.v_proj") => true,
        Some("self_attn.o_proj" | "mlp.gate_proj" | "mlp.up_proj" | "mlp.down_proj") => config.family == Family::Llama,
        Some(_) => false,
        None => {
            !matches!(part, "self_attn.q_norm.weight" | "self_attn.k_norm.weight") || config.family == Family::Qwen3
        }
    };
    known && index < config.layers
}

fn layer(name: &str) -> Option<usize> {
    name.strip_prefix("model.layers.")?.split('.').next()?.parse().ok()
}

/// Adds warnings on parts of the model's tokenizer that other programs will miss.
pub fn tokenizer_warnings(model: &Model, rows: Option<usize>, warnings: &mut Vec<String>) {
    let Some(text) = model.side_file("tokenizer.json") else {
        let old = ["tokenizer.model", "vocab.json"].into_iter().find(|name| model.side_file(name).is_some());
        let notes_say_why =
            model.container == Container::Gguf && model.warnings.iter().any(|w| w.contains("tokenizer"));
        match old {
            Some(old) => warnings.push(format!(
                "there is {old} and no tokenizer.json: qeval can't score the result, and a GGUF file gets no tokenizer"
            )),
            None if notes_say_why => {}
            None => warnings.push(
                "there is no tokenizer: other programs can load the weights, but not turn text into tokens".into(),
            ),
        }
        return;
    };
    let (Some(rows), Ok(tokenizer)) = (rows, serde_json::from_slice::<Tokenizer>(text)) else { return };
    let model_ids = tokenizer.model.and_then(|m| m.vocab).map_or_else(Vec::new, |v| v.0);
    let added = tokenizer.added_tokens.into_iter().flatten().filter_map(|t| t.id);
    let mut beyond: Vec<u64> = model_ids.into_iter().chain(added).filter(|id| *id >= rows as u64).collect();
    beyond.sort_unstable();
    beyond.dedup();
    if let [first, ..] = beyond[..] {
        warnings.push(format!(
            "{} of the tokenizer without a row in the embedding, which has {rows} (the first is {first}): a text that needs one can't be run",
            counted(beyond.len(), "id")
        ));
    }
}

/// The numbers in a tokenizer.json; everything else is skipped unread.
#[derive(Deserialize)]
struct Tokenizer {
    model: Option<TokenModel>,
    added_tokens: Option<Vec<Added>>,
}

#[derive(Deserialize)]
struct TokenModel {
    vocab: Option<Ids>,
}

#[derive(Deserialize)]
struct Added {
    id: Option<u64>,
}

/// The ids of a vocabulary: a map from token to id, or a list whose places are the ids.
struct Ids(Vec<u64>);

impl<'de> Deserialize<'de> for Ids {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Vocabulary;
        impl<'de> Visitor<'de> for Vocabulary {
            type Value = Ids;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a vocabulary")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ids, A::Error> {
                let mut ids = Vec::new();
                while let Some((_, id)) = map.next_entry::<IgnoredAny, u64>()? {
                    ids.push(id);
                }
                Ok(Ids(ids))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Ids, A::Error> {
                let mut count = 0;
                while seq.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Ids((0..count).collect()))
            }
        }
        deserializer.deserialize_any(Vocabulary)
    }
}
