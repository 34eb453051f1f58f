//! The metadata of a new file, from what a Hugging Face directory says.

use super::model::{VERBATIM, is_plain_name};
use super::names::ARCHITECTURES;
use super::value::Value;
use super::vocab;
use crate::{Error, Result, SideFile};
use serde_json::Value as Json;
use std::path::Path;

/// What the metadata are made from.
#[derive(Debug, Clone, Copy)]
pub struct HfSource<'a> {
    /// The model, for errors.
    pub path: &'a Path,
    /// config.json.
    pub config: &'a Json,
    /// Its text.
    pub config_text: &'a str,
    /// tokenizer.json, tokenizer_config.json, generation_config.json, ...
    pub side_files: &'a [SideFile],
    /// `general.name`.
    pub name: &'a str,
    /// Rows of the embedding.
    pub vocab_rows: usize,
    /// `general.file_type`, by llama.cpp's numbers.
    pub file_type: u32,
}

/// A tensor that the format has and Hugging Face's checkpoint has not.
#[derive(Debug, Clone, PartialEq)]
pub struct ExtraTensor {
    /// Its GGUF name.
    pub name: String,
    /// Its values, F32, one dimension.
    pub values: Vec<f32>,
}

/// What a file of this model carries besides its tensors.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HfMetadata {
    /// Keys and values in the order to write.
    pub metadata: Vec<(String, Value)>,
    /// Tensors to add (`rope_freqs.weight` for Llama 3.1's scaling).
    pub extra: Vec<ExtraTensor>,
    /// Notes for the user.
    pub warnings: Vec<String>,
}

/// Metadata that llama.cpp and this crate's reader need, with the directory's small files
/// word for word under `qconvert.hf.*`.
///
/// # Errors
/// Names what GGUF cannot carry: another family, a rope scaling, a tokenizer.
pub fn metadata_from_hf(source: &HfSource<'_>) -> Result<HfMetadata> {
    let unsupported = |what: String| Error::unsupported(source.path, what);
    let arch = source.config["model_type"].as_str().unwrap_or("(none)");
    let arch = if arch == "mistral" { "llama" } else { arch };
    if !ARCHITECTURES.contains(&arch) {
        let known = ARCHITECTURES.join(", ");
        return Err(unsupported(format!("model_type {arch} cannot be written to GGUF; {known} and mistral can")));
    }
    let mut out = HfMetadata::default();
    let mut put = |key: &str, value: Value| out.metadata.push((key.to_string(), value));
    put("general.architecture", arch.into());
    put("general.type", "model".into());
    put("general.name", source.name.into());
    put("general.file_type", Value::U32(source.file_type));
    put("general.quantization_version", Value::U32(2));
    let mut keys = Hyper { source, arch, out: &mut out };
    keys.sizes()?;
    keys.rope()?;
    tokenizer(source, &mut out).map_err(unsupported)?;
    verbatim(source, &mut out)?;
    Ok(out)
}

struct Hyper<'a, 'b> {
    source: &'a HfSource<'a>,
    arch: &'a str,
    out: &'b mut HfMetadata,
}

impl Hyper<'_, '_> {
    fn put(&mut self, key: &str, value: Value) {
        self.out.metadata.push((format!("{}.{key}", self.arch), value));
    }

    fn fail(&self, what: impl Into<String>) -> Error {
        Error::unsupported(self.source.path, what)
    }

    /// A count of config.json, as u32.
    fn count(&self, name: &str) -> Result<u32> {
        let value = &self.source.config[name];
        value
            .as_u64()
            .and_then(|n| u32::try_from(n).ok())
            .ok_or_else(|| Error::malformed(self.source.path, format!("config.json: {name} is {value}, not a count")))
    }

    fn sizes(&mut self) -> Result<()> {
        let (hidden, heads) = (self.count("hidden_size")?, self.count("num_attention_heads")?);
        let kv_heads = if self.given("num_key_value_heads") { self.count("num_key_value_heads")? } else { heads };
        let head_dim = self.head_dim(hidden, heads)?;
        let context = self.count("max_position_embeddings")?;
        self.put("context_length", Value::U32(context));
        self.put("embedding_length", Value::U32(hidden));
        let layers = self.count("num_hidden_layers")?;
        self.put("block_count", Value::U32(layers));
        let ffn = self.count("intermediate_size")?;
        self.put("feed_forward_length", Value::U32(ffn));
        self.put("attention.head_count", Value::U32(heads));
        self.put("attention.head_count_kv", Value::U32(kv_heads));
        let eps = self.source.config["rms_norm_eps"].as_f64().unwrap_or(1e-6);
        self.put("attention.layer_norm_rms_epsilon", Value::F32(eps as f32));
        if u64::from(head_dim) * u64::from(heads) != u64::from(hidden) {
            self.put("attention.key_length", Value::U32(head_dim));
            self.put("attention.value_length", Value::U32(head_dim));
        }
        self.put("vocab_size", Value::U32(self.source.vocab_rows as u32));
        self.put("rope.dimension_count", Value::U32(head_dim));
        // Mistral's configurations have a window or null; Qwen's have a switch beside it.
        let config = self.source.config;
        let windowed = match config["model_type"].as_str() {
            Some("mistral") => config["sliding_window"].is_u64(),
            _ => config["use_sliding_window"] == true,
        };
        if windowed { Err(self.fail("attention with a sliding window cannot be written to GGUF")) } else { Ok(()) }
    }

    fn given(&self, name: &str) -> bool {
        !self.source.config[name].is_null()
    }

    fn head_dim(&self, hidden: u32, heads: u32) -> Result<u32> {
        if self.given("head_dim") {
            return self.count("head_dim");
        }
        hidden
            .checked_div(heads)
            .filter(|d| d * heads == hidden)
            .ok_or_else(|| self.fail(format!("hidden_size {hidden} is no multiple of {heads} heads")))
    }

    /// The rotary base and scaling: `rope_parameters` (transformers 5) or `rope_scaling`.
    fn rope(&mut self) -> Result<()> {
        let config = self.source.config;
        let params =
            if config["rope_parameters"].is_object() { &config["rope_parameters"] } else { &config["rope_scaling"] };
        let theta = params["rope_theta"].as_f64().or_else(|| config["rope_theta"].as_f64()).unwrap_or(10000.0);
        self.put("rope.freq_base", Value::F32(theta as f32));
        let kind = params["rope_type"].as_str().or_else(|| params["type"].as_str()).unwrap_or("default");
        let factor = params["factor"].as_f64();
        match (kind, factor) {
            ("default", _) => Ok(()),
            ("linear", Some(factor)) => {
                self.put("rope.scaling.type", "linear".into());
                self.put("rope.scaling.factor", Value::F32(factor as f32));
                Ok(())
            }
            ("yarn", Some(factor)) => self.yarn(params, factor),
            ("llama3", Some(factor)) => self.llama3(params, factor, theta),
            ("linear" | "yarn" | "llama3", None) => Err(self.fail(format!("rope scaling {kind} without a factor"))),
            (other, _) => Err(self.fail(format!("rope scaling {other} cannot be written to GGUF"))),
        }
    }

    fn yarn(&mut self, params: &Json, factor: f64) -> Result<()> {
        if ["mscale", "mscale_all_dim", "truncate"].iter().any(|k| !params[*k].is_null()) {
            return Err(self.fail("yarn rope scaling with mscale or truncate cannot be written to GGUF"));
        }
        self.put("rope.scaling.type", "yarn".into());
        self.put("rope.scaling.factor", Value::F32(factor as f32));
        let original = match params["original_max_position_embeddings"].as_u64() {
            Some(n) => u32::try_from(n).map_err(|_| self.fail("the original context does not fit 32 bits"))?,
            None => self.count("max_position_embeddings")?,
        };
        self.put("rope.scaling.original_context_length", Value::U32(original));
        if let Some(attention) = params["attention_factor"].as_f64() {
            // Here it multiplies YaRN's own factor; in config.json it replaces it.
            let own = 0.1 * factor.ln() + 1.0;
            self.put("rope.scaling.attn_factor", Value::F32((attention / own) as f32));
        }
        for beta in ["beta_fast", "beta_slow"] {
            if let Some(b) = params[beta].as_f64() {
                self.put(&format!("rope.scaling.yarn_{beta}"), Value::F32(b as f32));
            }
        }
        Ok(())
    }

    fn llama3(&mut self, params: &Json, factor: f64, theta: f64) -> Result<()> {
        if self.arch != "llama" {
            return Err(self.fail(format!("rope scaling llama3 cannot be written to GGUF for {}", self.arch)));
        }
        let head_dim = self.head_dim(self.count("hidden_size")?, self.count("num_attention_heads")?)?;
        let number = |name: &str, default: f64| params[name].as_f64().unwrap_or(default);
        let scaling = Llama3 {
            factor,
            low: number("low_freq_factor", 1.0),
            high: number("high_freq_factor", 4.0),
            original: number("original_max_position_embeddings", 8192.0),
        };
        let values = scaling.factors(theta, head_dim as usize);
        self.out.extra.push(ExtraTensor { name: "rope_freqs.weight".into(), values });
        Ok(())
    }
}

struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    original: f64,
}

impl Llama3 {
    /// One factor for each rotary frequency, as llama.cpp's converter computes them.
    fn factors(&self, theta: f64, head_dim: usize) -> Vec<f32> {
        let [factor, low, high, original] = [self.factor, self.low, self.high, self.original].map(|x| x as f32);
        let (low_wave, high_wave) = (original / low, original / high);
        (0..head_dim)
            .step_by(2)
            .map(|i| {
                let frequency = 1.0 / (theta as f32).powf(i as f32 / head_dim as f32);
                let wave = std::f32::consts::TAU / frequency;
                if wave < high_wave {
                    1.0
                } else if wave > low_wave {
                    factor
                } else {
                    let smooth = (original / wave - low) / (high - low);
                    1.0 / ((1.0 - smooth) / factor + smooth)
                }
            })
            .collect()
    }
}

fn side_file<'a>(source: &HfSource<'a>, name: &str) -> Option<&'a [u8]> {
    source.side_files.iter().find(|f| f.name == name).map(|f| &*f.data)
}

fn tokenizer(source: &HfSource<'_>, out: &mut HfMetadata) -> Result<(), String> {
    let parse = |name: &str| match side_file(source, name) {
        None => Ok(Json::Null),
        Some(bytes) => serde_json::from_slice::<Json>(bytes).map_err(|e| format!("{name} is not JSON: {e}")),
    };
    let tokenizer = parse("tokenizer.json")?;
    if tokenizer.is_null() {
        out.metadata.push(("tokenizer.ggml.model".into(), "no_vocab".into()));
        out.warnings.push("there is no tokenizer.json: the file has no tokenizer".into());
        return Ok(());
    }
    let files = vocab::Files {
        tokenizer: &tokenizer,
        tokenizer_config: &parse("tokenizer_config.json")?,
        config: source.config,
        generation_config: &parse("generation_config.json")?,
        template: side_file(source, "chat_template.jinja").and_then(|b| std::str::from_utf8(b).ok()),
    };
    out.metadata.extend(vocab::keys(&files, source.vocab_rows)?);
    Ok(())
}

/// config.json and the side files, word for word; what is not text stays behind with a note.
fn verbatim(source: &HfSource<'_>, out: &mut HfMetadata) -> Result<()> {
    out.metadata.push((format!("{VERBATIM}config.json"), source.config_text.into()));
    for file in source.side_files.iter().filter(|f| f.name != "config.json") {
        match std::str::from_utf8(&file.data) {
            Ok(text) if is_plain_name(&file.name) => {
                out.metadata.push((format!("{VERBATIM}{}", file.name), text.into()));
            }
            Ok(_) => out.warnings.push(format!("{} has a name that GGUF keys cannot hold and stays behind", file.name)),
            Err(_) => out.warnings.push(format!("{} is not text and stays behind", file.name)),
        }
    }
    Ok(())
}
