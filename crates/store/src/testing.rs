//! Small models in temporary folders, for tests.

use crate::{DType, safetensors};
use indexmap::IndexMap;
use serde_json::{Value, json};
use std::{fs, path::Path};
use tempfile::TempDir;

/// A tensor with its bytes.
pub(crate) type Part = (String, DType, Vec<usize>, Vec<u8>);

pub(crate) fn part(name: &str, dtype: DType, shape: &[usize], bytes: impl Into<Vec<u8>>) -> Part {
    (name.into(), dtype, shape.to_vec(), bytes.into())
}

/// An F32 tensor.
pub(crate) fn f32s(name: &str, shape: &[usize], values: &[f32]) -> Part {
    part(name, DType::F32, shape, values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())
}

/// An F16 tensor.
pub(crate) fn f16s(name: &str, shape: &[usize], values: &[f32]) -> Part {
    let bytes: Vec<u8> = values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect();
    part(name, DType::F16, shape, bytes)
}

/// The bytes of a safetensors file.
pub(crate) fn safetensors_bytes(parts: &[Part], metadata: &[(&str, &str)]) -> Vec<u8> {
    let specs: Vec<_> = parts
        .iter()
        .map(|(name, dtype, shape, _)| safetensors::TensorSpec {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
        })
        .collect();
    let metadata: IndexMap<String, String> = metadata.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let plan = safetensors::plan(Path::new("test"), &specs, &metadata).expect("a plan");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 0);
    for ((_, _, _, data), &at) in parts.iter().zip(plan.offsets()) {
        bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
    }
    bytes
}

/// The configuration of a very small llama.
pub(crate) fn config() -> Value {
    json!({
        "model_type": "llama", "vocab_size": 4, "hidden_size": 8, "intermediate_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": [2, 3], "tie_word_embeddings": true,
    })
}

/// `config` with some keys replaced.
pub(crate) fn config_with(more: Value) -> Value {
    let mut config = config();
    if let (Value::Object(map), Value::Object(more)) = (&mut config, more) {
        map.extend(more);
    }
    config
}

/// A folder with config.json and model.safetensors.
pub(crate) fn folder(config: &Value, parts: &[Part], metadata: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    fs::write(dir.path().join("config.json"), config.to_string()).expect("write");
    fs::write(dir.path().join("model.safetensors"), safetensors_bytes(parts, metadata)).expect("write");
    dir
}

/// An embedding of 4 x 8.
pub(crate) fn embedding() -> Part {
    f16s("model.embed_tokens.weight", &[4, 8], &(0..32).map(|i| i as f32).collect::<Vec<_>>())
}
