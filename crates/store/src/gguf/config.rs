//! config.json and generation_config.json, rebuilt from a file's keys.

use super::names::ARCHITECTURES;
use super::parse::GgufFile;
use super::value::{Array, Value};
use crate::{Config, RopeScaling};
use schemes::GgmlType;
use serde_json::{Map, Number, Value as Json, json};

/// Typed access to the keys of a file, with the architecture's prefix.
pub(super) struct Keys<'a> {
    file: &'a GgufFile,
    arch: &'a str,
}

impl<'a> Keys<'a> {
    /// None when the file names no architecture.
    pub fn new(file: &'a GgufFile) -> Option<Self> {
        let arch = file.metadata.get("general.architecture")?.str()?;
        Some(Keys { file, arch })
    }

    pub fn arch(&self) -> &'a str {
        self.arch
    }

    /// The value of `{arch}.{key}`.
    pub fn own(&self, key: &str) -> Option<&'a Value> {
        self.file.metadata.get(&format!("{}.{key}", self.arch))
    }

    /// `{arch}.{key}` as an integer; an error text when it is missing or something else.
    pub fn integer(&self, key: &str) -> Result<u64, String> {
        let value = self.own(key).ok_or_else(|| format!("the key {}.{key} is missing", self.arch))?;
        let same = |values: &Array| {
            let values = values.integers()?;
            let first = values.first().copied().filter(|first| values.iter().all(|v| v == first))?;
            u64::try_from(first).ok()
        };
        match value {
            Value::Array(values) => same(values).ok_or_else(|| {
                format!("the key {}.{key} is an array: values that differ by layer are not supported", self.arch)
            }),
            value => value.integer().ok_or_else(|| self.of_type(key, "count", value)),
        }
    }

    /// `{arch}.{key}` as a number, if it is there; an error text when it is something else.
    pub fn number(&self, key: &str) -> Result<Option<f64>, String> {
        let read = |value: &Value| value.number().ok_or_else(|| self.of_type(key, "number", value));
        self.own(key).map(read).transpose()
    }

    /// `{arch}.{key}` as a switch, if it is there; an error text when it is something else.
    fn flag(&self, key: &str) -> Result<Option<bool>, String> {
        match self.own(key) {
            None => Ok(None),
            Some(Value::Bool(b)) => Ok(Some(*b)),
            Some(other) => Err(self.of_type(key, "bool", other)),
        }
    }

    fn of_type(&self, key: &str, wanted: &str, found: &Value) -> String {
        format!("the key {}.{key} is a {}, not a {wanted}", self.arch, found.type_name())
    }

    /// Width of a head.
    pub fn head_dim(&self) -> Result<u64, String> {
        if self.own("attention.key_length").is_some() {
            return self.integer("attention.key_length");
        }
        let (width, heads) = (self.integer("embedding_length")?, self.integer("attention.head_count")?);
        match width.checked_div(heads) {
            Some(dim) if dim * heads == width => Ok(dim),
            _ => Err(format!("{width} is no multiple of {heads} heads")),
        }
    }
}

/// A JSON number; null for one that is not finite.
fn plain(x: f64) -> Json {
    Number::from_f64(x).map_or(Json::Null, Json::Number)
}

/// config.json as Hugging Face would have it; an error text when keys are missing or odd.
pub(super) fn config_json(file: &GgufFile) -> Result<Json, String> {
    let keys = Keys::new(file).ok_or("the key general.architecture is missing")?;
    if ARCHITECTURES.contains(&keys.arch()) {
        check(&keys)?;
    }
    let has = |name: &str| file.tensors.iter().any(|t| t.name == name || t.name == format!("{name}.codes"));
    let mut out = Map::new();
    let mut put = |key: &str, value: Json| out.insert(key.to_string(), value);
    let (model_type, class) = family(&keys);
    put("architectures", json!([class]));
    let any = |names: &[&str]| names.iter().any(|name| has(&format!("blk.0.{name}.bias")));
    if keys.arch() != "qwen2" {
        put("attention_bias", json!(any(&["attn_q", "attn_k", "attn_v", "attn_output"])));
    }
    if any(&["ffn_gate", "ffn_up", "ffn_down"]) {
        put("mlp_bias", json!(true));
    }
    if keys.flag("attention.causal")? == Some(false) {
        put("is_causal", json!(false));
    }
    put_id(file, "bos", &mut put);
    put_id(file, "eos", &mut put);
    let head_dim = keys.head_dim()?;
    put("head_dim", json!(head_dim));
    put("hidden_act", json!("silu"));
    put("hidden_size", json!(keys.integer("embedding_length")?));
    put("intermediate_size", json!(keys.integer("feed_forward_length")?));
    put("max_position_embeddings", json!(keys.integer("context_length")?));
    put("model_type", json!(model_type));
    let heads = keys.integer("attention.head_count")?;
    put("num_attention_heads", json!(heads));
    put("num_hidden_layers", json!(keys.integer("block_count")?));
    let kv_heads =
        if keys.own("attention.head_count_kv").is_some() { keys.integer("attention.head_count_kv")? } else { heads };
    put("num_key_value_heads", json!(kv_heads));
    put_id(file, "pad", &mut put);
    put("rms_norm_eps", plain(keys.number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-6)));
    put("rope_scaling", rope_scaling(&keys)?);
    put("rope_theta", plain(keys.number("rope.freq_base")?.unwrap_or(10000.0)));
    if let Some(window) = keys.own("attention.sliding_window").and_then(Value::integer).filter(|w| *w > 0) {
        put("sliding_window", json!(window));
        put("use_sliding_window", json!(true));
    }
    put("tie_word_embeddings", json!(!has("output.weight")));
    put("torch_dtype", json!(torch_dtype(file)));
    put("vocab_size", json!(vocab_size(file, &keys)?));
    Ok(Json::Object(out))
}

fn family<'a>(keys: &Keys<'a>) -> (&'a str, &'static str) {
    match keys.arch() {
        "llama" if keys.own("expert_count").and_then(Value::integer).is_some_and(|n| n > 0) => {
            ("mixtral", "MixtralForCausalLM")
        }
        // No such model runs here; the name is refused where the configuration is read.
        "qwen2" if keys.own("expert_count").and_then(Value::integer).is_some_and(|n| n > 0) => {
            ("qwen2_moe", "Qwen2MoeForCausalLM")
        }
        "qwen3" if keys.own("expert_count").and_then(Value::integer).is_some_and(|n| n > 0) => {
            ("qwen3_moe", "Qwen3MoeForCausalLM")
        }
        "llama" => ("llama", "LlamaForCausalLM"),
        "qwen2" => ("qwen2", "Qwen2ForCausalLM"),
        "qwen3" => ("qwen3", "Qwen3ForCausalLM"),
        other => (other, "unknown"),
    }
}

/// The id that `tokenizer.ggml.{kind}_token_id` names (`pad` and `unk` have longer keys).
pub(super) fn token_id(file: &GgufFile, kind: &str) -> Option<u64> {
    let long = match kind {
        "pad" => "padding",
        "unk" => "unknown",
        other => other,
    };
    file.metadata.get(&format!("tokenizer.ggml.{long}_token_id"))?.integer().filter(|id| *id < u64::from(u32::MAX))
}

fn put_id(file: &GgufFile, kind: &str, put: &mut impl FnMut(&str, Json) -> Option<Json>) {
    if let Some(id) = token_id(file, kind) {
        put(&format!("{kind}_token_id"), json!(id));
    }
}

/// Refuses what llama.cpp refuses for these architectures, and what this project has no arithmetic for.
fn check(keys: &Keys<'_>) -> Result<(), String> {
    let arch = keys.arch();
    let head_dim = keys.head_dim()?;
    let value_length = match keys.own("attention.value_length") {
        Some(_) => keys.integer("attention.value_length")?,
        None => keys.integer("embedding_length")?.checked_div(keys.integer("attention.head_count")?).unwrap_or(0),
    };
    if value_length != head_dim {
        return Err(format!("{arch}.attention.value_length {value_length} differs from the key length {head_dim}"));
    }
    if keys.own("rope.dimension_count").is_some() {
        let rotary = keys.integer("rope.dimension_count")?;
        if rotary != head_dim {
            return Err(format!(
                "{arch}.rope.dimension_count {rotary} is not the head width {head_dim}: partial rotary positions are \
                 not supported"
            ));
        }
    }
    if keys.own("attention.layer_norm_rms_epsilon").is_none() {
        return Err(format!("the key {arch}.attention.layer_norm_rms_epsilon is missing"));
    }
    for (key, default) in [("yarn_beta_fast", 32.0), ("yarn_beta_slow", 1.0), ("alpha", 0.0)] {
        let key = format!("rope.scaling.{key}");
        if let Some(value) = keys.number(&key)?.filter(|v| *v != default) {
            return Err(format!(
                "{arch}.{key} is {value}, and llama.cpp reads no such key for {arch}: remove it or set it to {default}"
            ));
        }
    }
    if keys.own("nextn_predict_layers").and_then(Value::integer).is_some_and(|n| n > 0) {
        return Err(format!(
            "{arch}.nextn_predict_layers: blocks that predict further tokens are not supported; llama.cpp refuses them \
             for {arch}, too"
        ));
    }
    if keys.own("rope.scaling.type").is_some_and(|v| v.str().is_none()) {
        return Err(format!("the key {arch}.rope.scaling.type is not a string"));
    }
    Ok(())
}

/// Keys of the architectures in [`ARCHITECTURES`] that are read here, or change no arithmetic.
const READ: [&str; 30] = [
    "attention.causal",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "attention.value_length",
    "block_count",
    "classifier.output_labels",
    "context_length",
    "embedding_length",
    "expert_count",
    "expert_group_count",
    "expert_group_used_count",
    "expert_used_count",
    "feed_forward_length",
    "pooling_type",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.alpha",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "rope.scaling.type",
    "rope.scaling.yarn_beta_fast",
    "rope.scaling.yarn_beta_slow",
    "tensor_data_layout",
    "vocab_size",
];

/// A note on keys of the architecture that llama.cpp doesn't read for it, and neither does this project.
pub(super) fn unread(file: &GgufFile) -> Option<String> {
    let keys = Keys::new(file).filter(|keys| ARCHITECTURES.contains(&keys.arch()))?;
    let own = |name: &str| name.strip_prefix(keys.arch())?.strip_prefix('.').map(str::to_string);
    let unread: Vec<String> =
        file.metadata.keys().filter(|name| own(name).is_some_and(|key| !READ.contains(&&*key))).cloned().collect();
    (!unread.is_empty()).then(|| {
        let names = crate::json::shown(&unread.join(", "));
        format!("{names}: no effect on {}, in llama.cpp as here", keys.arch())
    })
}

/// YaRN's own factor of cos and sin.
pub(super) fn yarn_amplitude(factor: f64) -> f64 {
    if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 }
}

fn rope_scaling(keys: &Keys<'_>) -> Result<Json, String> {
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => Some(factor),
        None => keys.number("rope.scale_linear")?,
    };
    let factor = factor.filter(|f| *f != 0.0).unwrap_or(1.0);
    // llama.cpp takes a factor without a type as linear.
    let kind = keys.own("rope.scaling.type").and_then(Value::str).unwrap_or("linear");
    let attention = keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
    match kind {
        "none" | "linear" if attention != 1.0 => Err(format!(
            "{}.rope.scaling.attn_factor {attention} beside rope scaling {kind} is not supported; with yarn it is",
            keys.arch()
        )),
        "none" => Ok(Json::Null),
        "linear" if factor == 1.0 => Ok(Json::Null),
        "linear" => Ok(json!({"factor": plain(factor), "rope_type": "linear"})),
        "yarn" => {
            let original = match keys.own("rope.scaling.original_context_length") {
                Some(_) => keys.integer("rope.scaling.original_context_length")?,
                None => keys.integer("context_length")?,
            };
            let mut out =
                json!({"factor": plain(factor), "original_max_position_embeddings": original, "rope_type": "yarn"});
            if attention != 1.0 {
                // Here it multiplies YaRN's own factor; in config.json it replaces it.
                out["attention_factor"] = plain(attention * yarn_amplitude(factor));
            }
            Ok(out)
        }
        // Refused by name where the configuration is read.
        other => Ok(json!({"factor": plain(factor), "rope_type": other})),
    }
}

fn torch_dtype(file: &GgufFile) -> &'static str {
    let has = |ty| file.tensors.iter().any(|t| t.ggml_type == ty);
    if has(GgmlType::BF16) {
        "bfloat16"
    } else if file.tensors.iter().all(|t| matches!(t.ggml_type, GgmlType::F32 | GgmlType::I32)) {
        "float32"
    } else {
        "float16"
    }
}

fn vocab_size(file: &GgufFile, keys: &Keys<'_>) -> Result<u64, String> {
    let rows = file.tensors.iter().find(|t| t.name == "token_embd.weight").and_then(|t| t.dims.get(1).copied());
    let tokens = || file.metadata.get("tokenizer.ggml.tokens").and_then(Value::strings).map(|s| s.len() as u64);
    rows.or_else(tokens).map_or_else(|| keys.integer("vocab_size"), Ok)
}

/// Names of the fields in which the keys of a file differ from the config.json that it carries. The keys hold 32-bit
/// floats, and Llama 3.1's rotary scaling is a tensor, not a key.
pub(super) fn differing(keys: &Config, carried: &Config) -> Vec<&'static str> {
    let scaling = match (&keys.rope_scaling, &carried.rope_scaling) {
        (RopeScaling::None, RopeScaling::Llama3 { .. }) => false,
        (a, b) => !near(&scaling_numbers(a), &scaling_numbers(b)),
    };
    let all = [
        ("family", keys.family != carried.family),
        ("hidden_size", keys.hidden_size != carried.hidden_size),
        ("intermediate_size", keys.intermediate_size != carried.intermediate_size),
        ("num_hidden_layers", keys.layers != carried.layers),
        ("num_attention_heads", keys.heads != carried.heads),
        ("num_key_value_heads", keys.kv_heads != carried.kv_heads),
        ("head_dim", keys.head_dim != carried.head_dim),
        ("rms_norm_eps", !near(&[keys.rms_norm_eps], &[carried.rms_norm_eps])),
        ("rope_theta", !near(&[keys.rope_theta], &[carried.rope_theta])),
        ("rope_scaling", scaling),
        ("max_position_embeddings", keys.max_position != carried.max_position),
    ];
    all.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
}

/// A scaling as numbers, its kind first.
fn scaling_numbers(scaling: &RopeScaling) -> Vec<f64> {
    match scaling {
        RopeScaling::None => vec![0.0],
        RopeScaling::Linear { factor } => vec![1.0, *factor],
        RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_max_position } => {
            vec![2.0, *factor, *low_freq_factor, *high_freq_factor, *original_max_position as f64]
        }
        RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, original_max_position, truncate } => {
            let original = *original_max_position as f64;
            vec![3.0, *factor, *beta_fast, *beta_slow, *attention_factor, original, f64::from(u8::from(*truncate))]
        }
        RopeScaling::Factors(f) => f.iter().map(|f| f64::from(*f)).collect(),
    }
}

/// Equal but for the rounding to 32 bits.
fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= 1e-6 * a.abs().max(b.abs()))
}

/// generation_config.json; none when the file names no special tokens.
pub(super) fn generation_config(file: &GgufFile) -> Option<Json> {
    let mut out = Map::new();
    if let Some(bos) = token_id(file, "bos") {
        out.insert("bos_token_id".into(), json!(bos));
    }
    if let Some(eos) = token_id(file, "eos") {
        let ids = match token_id(file, "eot") {
            Some(eot) if eot != eos => json!([eos, eot]),
            _ => json!(eos),
        };
        out.insert("eos_token_id".into(), ids);
    }
    if let Some(pad) = token_id(file, "pad") {
        out.insert("pad_token_id".into(), json!(pad));
    }
    (!out.is_empty()).then_some(Json::Object(out))
}
