//! A small Llama with random weights, as a Hugging Face directory.

use half::f16;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

const HIDDEN: usize = 64;
const LAYERS: usize = 2;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const VOCAB: usize = 257;

/// Writes a file.
pub fn text_file(dir: &Path, name: &str, text: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::write(&path, text).expect("written");
    path
}

/// How a model differs from the usual one.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Width of the MLP.
    pub inner: usize,
    /// Rows of the embedding; 257 have a token.
    pub vocab: usize,
    /// True if the tokenizer has a merge (and one more token) that the usual one lacks.
    pub merges: bool,
    /// True if a weight is NaN.
    pub nan: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Shape { inner: 96, vocab: VOCAB, merges: false, nan: false }
    }
}

/// Writes the model into a folder of `dir`.
pub fn model(dir: &Path) -> PathBuf {
    model_of(dir, "model", Shape::default())
}

/// Writes a model of this shape into the folder `name` of `dir`. Equal weights have equal values.
pub fn model_of(dir: &Path, name: &str, shape: Shape) -> PathBuf {
    let folder = dir.join(name);
    std::fs::create_dir(&folder).expect("created");
    let config = json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": shape.inner, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": HIDDEN / HEADS, "vocab_size": shape.vocab, "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": true, "hidden_act": "silu",
        "eos_token_id": 256, "torch_dtype": "float16"
    });
    text_file(&folder, "config.json", &config.to_string());
    text_file(&folder, "tokenizer.json", &tokenizer(shape.merges).to_string());
    weights(&folder.join("model.safetensors"), shape);
    folder
}

fn weights(path: &Path, shape: Shape) {
    let mut rng = ChaCha8Rng::seed_from_u64(9);
    let mut tensors: Vec<(String, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut add = |name: String, shape: &[usize], scale: f32| {
        let n: usize = shape.iter().product();
        let value = |rng: &mut ChaCha8Rng| if scale == 0.0 { 1.0 } else { scale * (rng.random::<f32>() - 0.5) };
        let bytes = (0..n).flat_map(|_| f16::from_f32(value(&mut rng)).to_le_bytes()).collect();
        tensors.push((name, shape.to_vec(), bytes));
    };
    let kv = HIDDEN / HEADS * KV_HEADS;
    add("model.embed_tokens.weight".into(), &[VOCAB, HIDDEN], 2.0);
    add("model.norm.weight".into(), &[HIDDEN], 0.0);
    for layer in 0..LAYERS {
        let at = format!("model.layers.{layer}");
        add(format!("{at}.input_layernorm.weight"), &[HIDDEN], 0.0);
        add(format!("{at}.post_attention_layernorm.weight"), &[HIDDEN], 0.0);
        let projections = [
            ("self_attn.q_proj", HIDDEN, HIDDEN),
            ("self_attn.k_proj", kv, HIDDEN),
            ("self_attn.v_proj", kv, HIDDEN),
            ("self_attn.o_proj", HIDDEN, HIDDEN),
            ("mlp.gate_proj", shape.inner, HIDDEN),
            ("mlp.up_proj", shape.inner, HIDDEN),
            ("mlp.down_proj", HIDDEN, shape.inner),
        ];
        for (name, rows, cols) in projections {
            add(format!("{at}.{name}.weight"), &[rows, cols], 0.8);
        }
    }
    // Padding: zeros, after what has a token.
    tensors[0].1[0] = shape.vocab;
    tensors[0].2.resize(shape.vocab * HIDDEN * 2, 0);
    if shape.nan {
        tensors[1].2[..2].copy_from_slice(&f16::NAN.to_le_bytes());
    }
    let views = tensors
        .iter()
        .map(|(name, shape, bytes)| (name.clone(), TensorView::new(Dtype::F16, shape.clone(), bytes).expect("fits")));
    serialize_to_file(views, None, path).expect("written");
}

/// A byte-level tokenizer without merges, or with one.
fn tokenizer(merges: bool) -> Value {
    let mut alphabet: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
    alphabet.sort_unstable();
    let mut vocab: Map<String, Value> = alphabet.iter().enumerate().map(|(i, c)| (c.to_string(), i.into())).collect();
    if merges {
        vocab.insert("th".into(), 257.into());
    }
    let merges: &[[&str; 2]] = if merges { &[["t", "h"]] } else { &[] };
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": 256, "content": "<end>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "pre_tokenizer": bytes, "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges}
    })
}
