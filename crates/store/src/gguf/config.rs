//! config.json and generation_config.json, rebuilt from a file's keys.

use super::parse::GgufFile;
use super::value::Value;
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
        let name = || format!("{}.{key}", self.arch);
        let value = self.own(key).ok_or_else(|| format!("the key {} is missing", name()))?;
        value.integer().ok_or_else(|| format!("the key {} is a {}, not a count", name(), value.type_name()))
    }

    /// `{arch}.{key}` as a number, if it is there.
    pub fn number(&self, key: &str) -> Option<f64> {
        self.own(key)?.number()
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

/// A number that is written without a fraction when it has none.
fn plain(x: f64) -> Json {
    Number::from_f64(x).map_or(Json::Null, Json::Number)
}

/// config.json as Hugging Face would have it; an error text when keys are missing or odd.
pub(super) fn config_json(file: &GgufFile) -> Result<Json, String> {
    let keys = Keys::new(file).ok_or("the key general.architecture is missing")?;
    let has = |name: &str| file.tensors.iter().any(|t| t.name == name || t.name == format!("{name}.codes"));
    let mut out = Map::new();
    let mut put = |key: &str, value: Json| out.insert(key.to_string(), value);
    let (model_type, class) = family(&keys);
    put("architectures", json!([class]));
    let attention_bias = has("blk.0.attn_q.bias");
    if keys.arch() != "qwen2" {
        put("attention_bias", json!(attention_bias));
    }
    put_id(file, "bos", &mut put);
    put_id(file, "eos", &mut put);
    let head_dim = keys.head_dim()?;
    if keys.own("attention.value_length").is_some() && keys.integer("attention.value_length")? != head_dim {
        return Err(format!("{}.attention.value_length differs from the key length", keys.arch()));
    }
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
    put("rms_norm_eps", plain(keys.number("attention.layer_norm_rms_epsilon").unwrap_or(1e-6)));
    put("rope_scaling", rope_scaling(&keys)?);
    put("rope_theta", plain(keys.number("rope.freq_base").unwrap_or(10000.0)));
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

fn rope_scaling(keys: &Keys<'_>) -> Result<Json, String> {
    let factor = keys.number("rope.scaling.factor").or_else(|| keys.number("rope.scale_linear")).filter(|f| *f != 0.0);
    // llama.cpp takes a factor without a type as linear.
    let kind = keys.own("rope.scaling.type").and_then(Value::str).unwrap_or("linear");
    let original = keys.own("rope.scaling.original_context_length").and_then(Value::integer);
    match (kind, factor) {
        ("none", _) | ("linear", None) => Ok(Json::Null),
        ("linear", Some(1.0)) => Ok(Json::Null),
        ("linear", Some(factor)) => Ok(json!({"factor": plain(factor), "rope_type": "linear"})),
        ("yarn", Some(factor)) => {
            let original = original.map_or_else(|| keys.integer("context_length"), Ok)?;
            let mut out =
                json!({"factor": plain(factor), "original_max_position_embeddings": original, "rope_type": "yarn"});
            if let Some(a) = keys.number("rope.scaling.attn_factor").filter(|a| *a != 1.0) {
                // Here it multiplies YaRN's own factor; in config.json it replaces it.
                out["attention_factor"] = plain(a * (0.1 * factor.ln() + 1.0));
            }
            for beta in ["beta_fast", "beta_slow"] {
                if let Some(b) = keys.number(&format!("rope.scaling.yarn_{beta}")) {
                    out[beta] = plain(b);
                }
            }
            Ok(out)
        }
        ("yarn", None) => Err(format!("{}.rope.scaling.type is yarn without a factor", keys.arch())),
        // Refused by name where the configuration is read.
        (other, factor) => Ok(json!({"factor": factor.map_or(Json::Null, plain), "rope_type": other})),
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

/// What a file's keys say otherwise than the config.json that it carries, by name. The keys hold
/// 32-bit floats, and Llama 3.1's rotary scaling is a tensor, not a key.
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
        RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, original_max_position } => {
            vec![3.0, *factor, *beta_fast, *beta_slow, *attention_factor, *original_max_position as f64]
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
