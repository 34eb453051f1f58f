//! Synthetic Llama-shaped models for the tests.
//! Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code)]

use conversion::Source;
use observe::Calibration;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemes::{FloatType, Overflow};
use serde_json::json;
use std::path::Path;

/// Shape of a synthetic model.
pub struct SyntheticModel {
    pub float: FloatType,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    /// True if q, k, v and o have biases.
    pub attention_bias: bool,
}

impl Default for SyntheticModel {
    fn default() -> Self {
        SyntheticModel { float: FloatType::F16, hidden: 192, intermediate: 320, layers: 2, attention_bias: false }
    }
}

const VOCAB: usize = 288;

/// Writes a model with seeded random weights.
pub fn write_model(dir: &Path, shape: &SyntheticModel) {
    let mut rng = ChaCha8Rng::seed_from_u64(7);
    write_model_with(dir, shape, move |_, _| (0..4).map(|_| rng.random_range(-0.1f32..0.1)).sum());
}

/// Writes a model whose weight `i` of tensor `name` is `value(name, i)`.
pub fn write_model_with(dir: &Path, shape: &SyntheticModel, mut value: impl FnMut(&str, usize) -> f32) {
    std::fs::create_dir_all(dir).expect("creates");
    let (h, m, kv) = (shape.hidden, shape.intermediate, shape.hidden / 3);
    let mut tensors: Vec<(String, Vec<usize>)> = vec![("model.embed_tokens.weight".into(), vec![VOCAB, h])];
    for l in 0..shape.layers {
        let p = format!("model.layers.{l}");
        for (name, dims) in [
            ("input_layernorm", vec![h]),
            ("self_attn.q_proj", vec![h, h]),
            ("self_attn.k_proj", vec![kv, h]),
            ("self_attn.v_proj", vec![kv, h]),
            ("self_attn.o_proj", vec![h, h]),
            ("post_attention_layernorm", vec![h]),
            ("mlp.gate_proj", vec![m, h]),
            ("mlp.up_proj", vec![m, h]),
            ("mlp.down_proj", vec![h, m]),
        ] {
            if shape.attention_bias && name.starts_with("self_attn") {
                tensors.push((format!("{p}.{name}.bias"), vec![dims[0]]));
            }
            tensors.push((format!("{p}.{name}.weight"), dims));
        }
    }
    tensors.push(("model.norm.weight".into(), vec![h]));
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, dims) in &tensors {
        let start = data.len();
        let values: Vec<f32> = (0..dims.iter().product()).map(|i| value(name, i)).collect();
        schemes::encode_floats(shape.float, &values, Overflow::Error, &mut data).expect("fits");
        let dtype = shape.float.to_string().to_uppercase();
        header.insert(name.clone(), json!({"dtype": dtype, "shape": dims, "data_offsets": [start, data.len()]}));
    }
    let mut text = serde_json::Value::Object(header).to_string();
    text.push_str(&" ".repeat((8 - text.len() % 8) % 8));
    let mut file = (text.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(text.as_bytes());
    file.extend_from_slice(&data);
    std::fs::write(dir.join("model.safetensors"), file).expect("writes");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": VOCAB, "hidden_size": h,
        "intermediate_size": m, "num_hidden_layers": shape.layers, "num_attention_heads": 6, "num_key_value_heads": 2,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": true, "attention_bias": shape.attention_bias, "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float16"
    });
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writes");
    std::fs::write(dir.join("tokenizer.json"), tokenizer().to_string()).expect("writes");
}

/// A byte-level tokenizer with no merges but a few.
fn tokenizer() -> serde_json::Value {
    let mut vocab = serde_json::Map::new();
    vocab.insert("<|endoftext|>".into(), json!(0));
    for c in byte_alphabet() {
        let id = vocab.len();
        vocab.insert(c.to_string(), json!(id));
    }
    let merges = [["t", "h"], ["th", "e"], ["i", "n"]];
    for [a, b] in merges {
        let id = vocab.len();
        vocab.insert(format!("{a}{b}"), json!(id));
    }
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false, "special": true}],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false, "vocab": vocab, "merges": merges}
    })
}

/// GPT-2's 256 characters for bytes.
fn byte_alphabet() -> Vec<char> {
    let printable = |b: u32| (33..=126).contains(&b) || (161..=172).contains(&b) || (174..=255).contains(&b);
    let mut next = 256;
    (0..256u32)
        .filter_map(|b| {
            let c = if printable(b) {
                b
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(c)
        })
        .collect()
}

/// Statistics in which every tenth column is an outlier.
pub fn fake_calibration(source: &Source<'_>) -> Calibration {
    let modules = source.weights.iter().filter(|w| w.shape.len() == 2);
    Calibration::new(
        modules
            .map(|w| (w.module().to_string(), (0..w.shape[1]).map(|c| if c % 10 == 3 { 8.0 } else { 1.5 }).collect())),
        16,
    )
}
