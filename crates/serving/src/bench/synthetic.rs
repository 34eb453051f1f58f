//! Models of random codes, in memory: for speeds that a small model can't show.

use schemes::{Bits, FloatType, Grouping, RowOrder, Scheme};
use scoring::size::Size;
use scoring::text::any_tokens;
use scoring::{Error, Result};
use serde_json::{Map, Value, json};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use store::{Bytes, Container, DType, Model, Tensor};

/// The shape of a model of the llama family with a head of its own.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Width between gate and down.
    pub inner: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Entries of the vocabulary.
    pub vocab: usize,
}

/// Blocks as Llama 3 70B has them, eight of eighty: 6.9 billion weights.
pub const LARGE: Shape =
    Shape { layers: 8, hidden: 8192, inner: 28_672, heads: 64, kv_heads: 8, head_dim: 128, vocab: 8192 };

/// A model of random codes under `scheme`, which is f16 or of integers, and its sizes. Blocks share what they
/// hold in this process's memory; on a GPU each has its own.
///
/// # Errors
/// [`Error::Protocol`] for another scheme.
pub fn model(shape: Shape, scheme: Scheme) -> Result<(Model, Size)> {
    let coded = match scheme {
        Scheme::Float(FloatType::F16) => None,
        Scheme::Int(bits, grouping) => Some((bits, grouping)),
        _ => return Err(Error::Protocol(format!("a synthetic model is of f16, int8 or int4, not {scheme}"))),
    };
    let mut made = Made { coded, scheme, tensors: Vec::new(), declared: Map::new(), shared: HashMap::new() };
    let Shape { layers, hidden, inner, heads, kv_heads, head_dim, vocab } = shape;
    let (q, kv) = (heads * head_dim, kv_heads * head_dim);
    made.plain("model.embed_tokens.weight", &[vocab, hidden]);
    for layer in 0..layers {
        let at = |name: &str| format!("model.layers.{layer}.{name}.weight");
        made.plain(&at("input_layernorm"), &[hidden]);
        for (name, rows) in [("q_proj", q), ("k_proj", kv), ("v_proj", kv)] {
            made.projection(&at(&format!("self_attn.{name}")), rows, hidden);
        }
        made.projection(&at("self_attn.o_proj"), hidden, q);
        made.plain(&at("post_attention_layernorm"), &[hidden]);
        made.projection(&at("mlp.gate_proj"), inner, hidden);
        made.projection(&at("mlp.up_proj"), inner, hidden);
        made.projection(&at("mlp.down_proj"), hidden, inner);
    }
    made.plain("model.norm.weight", &[hidden]);
    made.plain("lm_head.weight", &[vocab, hidden]);
    let config = json!({
        "model_type": "llama", "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "head_dim": head_dim, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0, "max_position_embeddings": 8192,
        "tie_word_embeddings": false, "hidden_act": "silu",
    });
    let bytes = made.tensors.iter().map(|(_, t)| t.data.len() as u64).sum();
    let block = 2 * hidden * (q + kv) + 3 * hidden * inner + 2 * hidden;
    let parameters = (layers * block + 2 * vocab * hidden + hidden) as u64;
    let bpw = scheme.total_bits(hidden, hidden, 0, FloatType::F16) / (hidden * hidden) as f64;
    let file_bpw = 8.0 * bytes as f64 / parameters as f64;
    let size = Size { scheme: scheme.to_string(), bytes, parameters, bpw, file_bpw };
    let metadata = [("qconvert.tensors".to_string(), Value::Object(made.declared).to_string())];
    let model = Model {
        path: path(scheme),
        container: Container::Directory,
        tensors: made.tensors.into_iter().collect(),
        metadata: metadata.into_iter().filter(|_| coded.is_some()).collect(),
        config_json: Some(config),
        config_text: None,
        side_files: Vec::new(),
        warnings: Vec::new(),
    };
    Ok((model, size))
}

/// Tensors as they are made.
struct Made {
    coded: Option<(Bits, Grouping)>,
    scheme: Scheme,
    tensors: Vec<(String, Tensor)>,
    /// Entries of `qconvert.tensors`, one for each weight of the packed layout.
    declared: Map<String, Value>,
    /// Bytes of one kind and length.
    shared: HashMap<(&'static str, usize), Bytes>,
}

impl Made {
    fn push(&mut self, name: &str, dtype: DType, shape: &[usize], data: Bytes) {
        let tensor = Tensor {
            dtype,
            shape: shape.to_vec(),
            data,
            order: RowOrder::Natural,
            file: PathBuf::from("memory"),
            stored_name: name.into(),
        };
        self.tensors.push((name.into(), tensor));
    }

    /// Bytes that `make` gives for a length, the same for all of one kind.
    fn shared(&mut self, kind: &'static str, n: usize, make: impl Fn(usize) -> Vec<u8>) -> Bytes {
        self.shared.entry((kind, n)).or_insert_with(|| Bytes::from(make(n))).clone()
    }

    /// In f16: norms of ones, matrices of small values.
    fn plain(&mut self, name: &str, shape: &[usize]) {
        let n = shape.iter().product::<usize>();
        let width = shape.last().copied().unwrap_or(1) as f32;
        let data = if shape.len() == 1 {
            self.shared("ones", n, |n| half(1.0).repeat(n))
        } else {
            let value = move |t: u32| half((t as f32 / 128.0 - 1.0) / width.sqrt());
            self.shared("values", n, |n| any_tokens(n, 1, 256).into_iter().flat_map(value).collect())
        };
        self.push(name, DType::F16, shape, data);
    }

    /// A projection under the scheme.
    fn projection(&mut self, name: &str, rows: usize, cols: usize) {
        let Some((bits, grouping)) = self.coded else { return self.plain(name, &[rows, cols]) };
        let (packing, row, largest) = match bits {
            Bits::Eight => ("i8", cols, 127.0),
            Bits::Four => ("nibble", cols.div_ceil(2), 7.0),
        };
        let group = match grouping {
            Grouping::Tensor => -1,
            Grouping::Row => 0,
            Grouping::Group(n) => n as i64,
        };
        let scales = if grouping == Grouping::Tensor { vec![1] } else { vec![rows, grouping.per_row(cols)] };
        let codes = self.shared("codes", rows * row, |n| any_tokens(n, 2, 251).into_iter().map(|t| t as u8).collect());
        self.push(&format!("{name}.codes"), DType::I8, &[rows, row], codes);
        let scale = half(1.0 / (largest * (cols as f32).sqrt()));
        let data =
            self.shared(if bits == Bits::Eight { "8" } else { "4" }, scales.iter().product(), |n| scale.repeat(n));
        self.push(&format!("{name}.scales"), DType::F16, &scales, data);
        let entry = json!({
            "scheme": self.scheme.to_string(), "shape": [rows, cols], "kind": "int", "packing": packing, "group": group,
        });
        self.declared.insert(name.into(), entry);
    }
}

fn half(value: f32) -> [u8; 2] {
    let mut bytes = Vec::with_capacity(2);
    // A value that f16 holds.
    let _ = schemes::encode_floats(FloatType::F16, &[value], schemes::Overflow::Clamp, &mut bytes);
    [bytes[0], bytes[1]]
}

/// Returns the name of a synthetic model, in place of a path.
pub fn path(scheme: Scheme) -> PathBuf {
    Path::new("synthetic").join(scheme.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::{Transformer, cpu};

    const SMALL: Shape = Shape { layers: 2, hidden: 64, inner: 96, heads: 4, kv_heads: 2, head_dim: 16, vocab: 50 };

    #[test]
    fn random_models_run() {
        for name in ["f16", "int8-row", "int8-absmax", "int4-g32", "int4-row"] {
            let (files, size) = model(SMALL, name.parse().expect("a scheme")).expect("it is made");
            let loaded = Transformer::load(&files, &cpu()).expect("it loads");
            let hidden = loaded.hidden(&[&[1, 2, 3]], None).expect("it runs");
            let logits = loaded.logits(&hidden).and_then(|l| Ok(l.flatten_all()?.to_vec1::<f32>()?)).expect("f32");
            assert!(logits.len() == 150 && logits.iter().all(|v| v.is_finite()), "{name}");
            assert!(logits.iter().any(|v| v.abs() > 1e-3), "{name}");
            assert_eq!(size.parameters, 2 * (2 * 64 * (64 + 32) + 3 * 64 * 96 + 128) + 2 * 50 * 64 + 64);
        }
    }

    #[test]
    fn other_schemes_are_refused() {
        let e = model(SMALL, "nf4".parse().expect("a scheme")).expect_err("refused");
        assert!(matches!(e, Error::Protocol(_)), "{e}");
    }
}
