//! Against candle-transformers' own models, on the same weights.

mod common;

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, qwen2, qwen3};
use common::{Size, config, model, weights};
use runtime::{Transformer, cpu};
use serde_json::json;
use std::collections::HashMap;

const SIZE: Size = Size { vocab: 67, hidden: 48, inner: 80, layers: 3, heads: 6, kv_heads: 2, head_dim: 8 };
const TOKENS: [u32; 21] = [1, 5, 66, 0, 12, 12, 33, 41, 9, 60, 7, 7, 23, 18, 2, 50, 31, 4, 11, 29, 64];

fn builder(weights: &[(String, Vec<usize>, Vec<f32>)]) -> VarBuilder<'static> {
    let tensors: HashMap<String, Tensor> = weights
        .iter()
        .map(|(name, shape, values)| {
            let t = Tensor::from_slice(values, shape.as_slice(), &Device::Cpu).expect("shape fits");
            (name.clone(), t)
        })
        .collect();
    VarBuilder::from_tensors(tensors, DType::F32, &Device::Cpu)
}

/// Our logits of the last token.
fn ours(model_type: &str, tied: bool, extra: serde_json::Value) -> Vec<f32> {
    let weights = weights(model_type, SIZE, tied);
    let store = model(config(model_type, SIZE, tied, extra), &weights, false);
    let model = Transformer::load(&store, &cpu()).expect("loads");
    let hidden = model.hidden(&[&TOKENS], None).expect("runs");
    let logits = model.logits(&hidden).expect("runs");
    assert_eq!(logits.dims(), [1, TOKENS.len(), SIZE.vocab]);
    logits.narrow(1, TOKENS.len() - 1, 1).and_then(|t| t.flatten_all()?.to_vec1()).expect("f32")
}

fn ids() -> Tensor {
    Tensor::new(&[TOKENS], &Device::Cpu).expect("ids")
}

fn close(ours: &[f32], theirs: &Tensor) {
    let theirs: Vec<f32> = theirs.flatten_all().and_then(|t| t.to_vec1()).expect("f32");
    assert_eq!(ours.len(), theirs.len());
    for (a, b) in ours.iter().zip(&theirs) {
        assert!((a - b).abs() < 1e-4, "{a} {b}");
    }
    assert!(theirs.iter().any(|v| v.abs() > 0.1), "the comparison says something");
}

fn llama_config(tied: bool, scaling: Option<llama::Llama3RopeConfig>) -> llama::Config {
    llama::Config {
        hidden_size: SIZE.hidden,
        intermediate_size: SIZE.inner,
        vocab_size: SIZE.vocab,
        num_hidden_layers: SIZE.layers,
        num_attention_heads: SIZE.heads,
        num_key_value_heads: SIZE.kv_heads,
        use_flash_attn: false,
        rms_norm_eps: 1e-6,
        rope_theta: 10000.0,
        bos_token_id: None,
        eos_token_id: None,
        rope_scaling: scaling,
        max_position_embeddings: 512,
        tie_word_embeddings: tied,
    }
}

fn llama_logits(c: &llama::Config) -> Tensor {
    let theirs = llama::Llama::load(builder(&weights("llama", SIZE, c.tie_word_embeddings)), c).expect("loads");
    let mut cache = llama::Cache::new(true, DType::F32, c, &Device::Cpu).expect("cache");
    theirs.forward(&ids(), 0, &mut cache).expect("runs")
}

#[test]
fn llama_tied_and_untied() {
    for tied in [true, false] {
        close(&ours("llama", tied, json!({})), &llama_logits(&llama_config(tied, None)));
    }
}

#[test]
fn llama3_rope_scaling() {
    let scaling = llama::Llama3RopeConfig {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 16,
        rope_type: llama::Llama3RopeType::Llama3,
    };
    let extra = json!({"rope_scaling": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }});
    close(&ours("llama", true, extra), &llama_logits(&llama_config(true, Some(scaling))));
}

#[test]
fn qwen2_with_biases() {
    for tied in [true, false] {
        let c = qwen2::Config {
            vocab_size: SIZE.vocab,
            hidden_size: SIZE.hidden,
            intermediate_size: SIZE.inner,
            num_hidden_layers: SIZE.layers,
            num_attention_heads: SIZE.heads,
            num_key_value_heads: SIZE.kv_heads,
            max_position_embeddings: 512,
            sliding_window: 512,
            max_window_layers: 0,
            tie_word_embeddings: tied,
            rope_theta: 10000.0,
            rms_norm_eps: 1e-6,
            use_sliding_window: false,
            hidden_act: candle_nn::Activation::Silu,
        };
        let mut theirs = qwen2::ModelForCausalLM::new(&c, builder(&weights("qwen2", SIZE, tied))).expect("loads");
        close(&ours("qwen2", tied, json!({})), &theirs.forward(&ids(), 0).expect("runs"));
    }
}

#[test]
fn qwen3_with_head_norms() {
    let c = qwen3::Config {
        vocab_size: SIZE.vocab,
        hidden_size: SIZE.hidden,
        intermediate_size: SIZE.inner,
        num_hidden_layers: SIZE.layers,
        num_attention_heads: SIZE.heads,
        head_dim: SIZE.head_dim,
        attention_bias: false,
        num_key_value_heads: SIZE.kv_heads,
        max_position_embeddings: 512,
        sliding_window: None,
        max_window_layers: 0,
        tie_word_embeddings: false,
        rope_theta: 10000.0,
        rms_norm_eps: 1e-6,
        use_sliding_window: false,
        hidden_act: candle_nn::Activation::Silu,
    };
    let mut theirs = qwen3::ModelForCausalLM::new(&c, builder(&weights("qwen3", SIZE, false))).expect("loads");
    close(&ours("qwen3", false, json!({})), &theirs.forward(&ids(), 0).expect("runs"));
}
