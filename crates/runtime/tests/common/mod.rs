//! Small random models, built in memory.
#![allow(dead_code, missing_docs)]

use indexmap::IndexMap;
use runtime::{Transformer, cpu};
use schemes::RowOrder;
use serde_json::{Value, json};
use std::path::PathBuf;
use store::{Bytes, Container, DType, Model, Tensor};

/// The shape of a model.
#[derive(Debug, Clone, Copy)]
pub struct Size {
    pub vocab: usize,
    pub hidden: usize,
    pub inner: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
}

/// Most tests' shape.
pub const SIZE: Size = Size { vocab: 97, hidden: 64, inner: 112, layers: 2, heads: 6, kv_heads: 2, head_dim: 16 };

/// A model of that shape.
pub fn load(model_type: &str, tied: bool) -> Transformer {
    let store = model(config(model_type, SIZE, tied, json!({})), &weights(model_type, SIZE, tied), true);
    Transformer::load(&store, &cpu()).expect("loads")
}

/// Tokens of its vocabulary, other ones for each seed.
pub fn tokens(n: usize, seed: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 31 + seed * 17 + i * i) % SIZE.vocab) as u32).collect()
}

/// All values.
pub fn flat(t: &candle_core::Tensor) -> Vec<f32> {
    t.flatten_all().and_then(|t| t.to_vec1()).expect("f32")
}

/// Numbers in [-0.5, 0.5), the same for the same seed.
pub fn random(n: usize, seed: u64) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

/// config.json of a family, with keys of `extra` over it.
pub fn config(model_type: &str, size: Size, tied: bool, extra: Value) -> Value {
    let mut json = json!({
        "model_type": model_type, "vocab_size": size.vocab, "hidden_size": size.hidden,
        "intermediate_size": size.inner, "num_hidden_layers": size.layers, "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads, "head_dim": size.head_dim, "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0, "max_position_embeddings": 512, "tie_word_embeddings": tied, "hidden_act": "silu",
        "bos_token_id": 1, "eos_token_id": 2,
    });
    if let (Some(all), Value::Object(extra)) = (json.as_object_mut(), extra) {
        all.extend(extra);
    }
    json
}

/// Names and shapes of a family's tensors.
pub fn shapes(model_type: &str, size: Size, tied: bool) -> Vec<(String, Vec<usize>)> {
    let Size { vocab, hidden, inner, layers, heads, kv_heads, head_dim } = size;
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    let mut all = vec![("model.embed_tokens.weight".to_string(), vec![vocab, hidden])];
    for i in 0..layers {
        let mut add = |name: &str, shape: &[usize]| all.push((format!("model.layers.{i}.{name}"), shape.to_vec()));
        add("input_layernorm.weight", &[hidden]);
        for (name, rows) in [("q", q), ("k", kv), ("v", kv)] {
            add(&format!("self_attn.{name}_proj.weight"), &[rows, hidden]);
            if model_type == "qwen2" {
                add(&format!("self_attn.{name}_proj.bias"), &[rows]);
            }
        }
        if model_type == "qwen3" {
            add("self_attn.q_norm.weight", &[head_dim]);
            add("self_attn.k_norm.weight", &[head_dim]);
        }
        add("self_attn.o_proj.weight", &[hidden, q]);
        add("post_attention_layernorm.weight", &[hidden]);
        add("mlp.gate_proj.weight", &[inner, hidden]);
        add("mlp.up_proj.weight", &[inner, hidden]);
        add("mlp.down_proj.weight", &[hidden, inner]);
    }
    all.push(("model.norm.weight".into(), vec![hidden]));
    if !tied {
        all.push(("lm_head.weight".into(), vec![vocab, hidden]));
    }
    all
}

/// Weights of a family: norms about 1, the rest small.
pub fn weights(model_type: &str, size: Size, tied: bool) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let shapes = shapes(model_type, size, tied).into_iter().zip(1u64..);
    shapes
        .map(|((name, shape), seed)| {
            let mut values = random(shape.iter().product(), seed);
            if name.contains("norm") {
                values.iter_mut().for_each(|v| *v += 1.0);
            } else if let [_, cols] = shape[..] {
                values.iter_mut().for_each(|v| *v *= 4.0 / (cols as f32).sqrt());
            }
            (name, shape, values)
        })
        .collect()
}

/// A model of these tensors, in F32 or F16.
pub fn model(config: Value, weights: &[(String, Vec<usize>, Vec<f32>)], half: bool) -> Model {
    let tensor = |(name, shape, values): &(String, Vec<usize>, Vec<f32>)| {
        let data: Vec<u8> = if half {
            values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
        } else {
            values.iter().flat_map(|v| v.to_le_bytes()).collect()
        };
        let tensor = Tensor {
            dtype: if half { DType::F16 } else { DType::F32 },
            shape: shape.clone(),
            data: Bytes::from(data),
            order: RowOrder::Natural,
            file: PathBuf::from("memory"),
            stored_name: name.clone(),
        };
        (name.clone(), tensor)
    };
    Model {
        path: PathBuf::from("memory"),
        container: Container::Directory,
        tensors: weights.iter().map(tensor).collect(),
        metadata: IndexMap::new(),
        config_json: Some(config),
        config_text: None,
        side_files: Vec::new(),
        warnings: Vec::new(),
    }
}
