//! The metadata of a new file, from what a Hugging Face directory says.

use super::config::yarn_amplitude;
use super::names::ARCHITECTURES;
use super::value::Value;
use super::vocab;
use crate::hf::{FILE_KEY, is_plain_name};
use crate::{Config, Error, Result, RopeScaling, SideFile, config, parse_json};
use serde_json::Value as Json;
use std::path::Path;

/// Sources of the metadata of a GGUF file.
#[derive(Debug, Clone, Copy)]
pub struct HfSource<'a> {
    /// The model, for errors.
    pub path: &'a Path,
    /// config.json.
    pub config: &'a Json,
    /// Text of config.json.
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
    /// GGUF name of the tensor.
    pub name: String,
    /// Values of the tensor, F32, one dimension.
    pub values: Vec<f32>,
}

/// Metadata and small tensors that a file of this model carries besides its weights.
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
    let config = config::parse(source.path, source.config)?;
    let mut out = HfMetadata::default();
    let mut put = |key: &str, value: Value| out.metadata.push((key.to_string(), value));
    put("general.architecture", arch.into());
    put("general.type", "model".into());
    put("general.name", source.name.into());
    put("general.file_type", Value::U32(source.file_type));
    put("general.quantization_version", Value::U32(2));
    let mut keys = Hyper { source, config: &config, arch, out: &mut out };
    keys.sizes()?;
    keys.rope()?;
    tokenizer(source, &mut out).map_err(unsupported)?;
    verbatim(source, &mut out)?;
    Ok(out)
}

struct Hyper<'a, 'b> {
    source: &'a HfSource<'a>,
    config: &'a Config,
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

    fn size(&mut self, key: &str, size: usize) -> Result<()> {
        let size = u32::try_from(size).map_err(|_| self.fail(format!("{key} {size} does not fit 32 bits")))?;
        self.put(key, Value::U32(size));
        Ok(())
    }

    fn sizes(&mut self) -> Result<()> {
        let c = self.config;
        if self.arch == "qwen3" && self.source.config["attention_bias"] == true {
            return Err(self.fail(
                "attention_bias of qwen3 asks for a bias of o_proj, which llama.cpp does not read: it cannot be written \
                 to GGUF",
            ));
        }
        self.size("context_length", c.max_position)?;
        self.size("embedding_length", c.hidden_size)?;
        self.size("block_count", c.layers)?;
        self.size("feed_forward_length", c.intermediate_size)?;
        self.size("attention.head_count", c.heads)?;
        self.size("attention.head_count_kv", c.kv_heads)?;
        self.put("attention.layer_norm_rms_epsilon", Value::F32(c.rms_norm_eps as f32));
        if c.head_dim * c.heads != c.hidden_size {
            self.size("attention.key_length", c.head_dim)?;
            self.size("attention.value_length", c.head_dim)?;
        }
        self.size("vocab_size", self.source.vocab_rows)?;
        self.size("rope.dimension_count", c.head_dim)
    }

    fn rope(&mut self) -> Result<()> {
        self.put("rope.freq_base", Value::F32(self.config.rope_theta as f32));
        match self.config.rope_scaling {
            RopeScaling::None => Ok(()),
            RopeScaling::Linear { factor } => {
                self.put("rope.scaling.type", "linear".into());
                self.put("rope.scaling.factor", Value::F32(factor as f32));
                Ok(())
            }
            RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, original_max_position, truncate } => {
                if (beta_fast, beta_slow, truncate) != (32.0, 1.0, true) {
                    return Err(self.fail(
                        "yarn rope scaling with beta_fast other than 32, beta_slow other than 1 or truncate = false \
                         cannot be written to GGUF: llama.cpp reads no such keys for this architecture",
                    ));
                }
                self.put("rope.scaling.type", "yarn".into());
                self.put("rope.scaling.factor", Value::F32(factor as f32));
                self.size("rope.scaling.original_context_length", original_max_position)?;
                // Here it multiplies YaRN's own factor; in config.json it replaces it.
                let beside = attention_factor / yarn_amplitude(factor);
                if beside != 1.0 {
                    self.put("rope.scaling.attn_factor", Value::F32(beside as f32));
                }
                Ok(())
            }
            RopeScaling::Llama3 { factor, low_freq_factor: low, high_freq_factor: high, original_max_position } => {
                self.llama3(Llama3 { factor, low, high, original: original_max_position as f64 })
            }
            RopeScaling::Factors(_) => Err(self.fail("explicit rotary factors cannot be written to GGUF")),
        }
    }

    fn llama3(&mut self, scaling: Llama3) -> Result<()> {
        if self.arch != "llama" {
            return Err(self.fail(format!("rope scaling llama3 cannot be written to GGUF for {}", self.arch)));
        }
        let values = scaling.factors(self.config.rope_theta, self.config.head_dim);
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
        Some(bytes) => parse_json(bytes).map_err(|e| format!("{name} is not JSON: {e}")),
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
        sentencepiece: side_file(source, "tokenizer.model"),
    };
    out.metadata.extend(vocab::keys(&files, source.vocab_rows, &mut out.warnings)?);
    Ok(())
}

/// config.json and the side files, word for word; what is not text stays behind with a note.
fn verbatim(source: &HfSource<'_>, out: &mut HfMetadata) -> Result<()> {
    out.metadata.push((format!("{FILE_KEY}config.json"), source.config_text.into()));
    for file in source.side_files.iter().filter(|f| f.name != "config.json") {
        match std::str::from_utf8(&file.data) {
            Ok(text) if is_plain_name(&file.name) => {
                out.metadata.push((format!("{FILE_KEY}{}", file.name), text.into()));
            }
            Ok(_) => out.warnings.push(format!("{} has a name that GGUF keys cannot hold and stays behind", file.name)),
            Err(_) => out.warnings.push(format!("{} is not text and stays behind", file.name)),
        }
    }
    Ok(())
}
