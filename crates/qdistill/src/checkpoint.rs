//! Writing the model as a Hugging Face directory.

use crate::error::{Error, Result};
use crate::model::Student;
use crate::recipe::Shape;
use crate::tokenizer::{END_OF_TEXT, END_OF_TEXT_ID};
use half::f16;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::io::Write;
use std::path::Path;
use tokenizers::Tokenizer;

/// A tensor on its way to or from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Its name in the checkpoint.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Vec<f32>,
}

/// Refuses an output folder that holds anything.
pub fn check_vacant(folder: &Path) -> Result<()> {
    match std::fs::read_dir(folder) {
        Ok(mut entries) => match entries.next() {
            Some(_) => Err(Error::Occupied(folder.to_path_buf())),
            None => Ok(()),
        },
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(Error::io(folder)(e)),
    }
}

/// Writes everything; each file appears whole or not at all, the weights last.
pub fn save(folder: &Path, student: &Student, tokenizer: &Tokenizer) -> Result<()> {
    let tokenizer_json = tokenizer.to_string(false).map_err(|e| Error::Tokenizer(e.to_string()))?;
    let vocabulary = tokenizer.get_vocab_size(true);
    let shape = student.shape();
    std::fs::create_dir_all(folder).map_err(Error::io(folder))?;
    write_json(&folder.join("config.json"), &config(shape, vocabulary))?;
    write_json(&folder.join("generation_config.json"), &generation_config())?;
    write_json(&folder.join("tokenizer_config.json"), &tokenizer_config(shape))?;
    write(&folder.join("tokenizer.json"), tokenizer_json.as_bytes())?;
    save_weights(&folder.join("model.safetensors"), &weights(student)?)
}

/// A model's weights, under their names.
pub fn weights(student: &Student) -> Result<Vec<Weight>> {
    let weight = |p: crate::model::Parameter| -> Result<Weight> {
        let values = p.var.flatten_all()?.to_vec1::<f32>()?;
        Ok(Weight { name: p.name, shape: p.var.dims().to_vec(), values })
    };
    student.parameters().into_iter().map(weight).collect()
}

/// Writes weights as F16; a value that F16 can't hold is an error.
pub fn save_weights(path: &Path, weights: &[Weight]) -> Result<()> {
    let mut encoded = Vec::with_capacity(weights.len());
    for weight in weights {
        let mut bytes = Vec::with_capacity(2 * weight.values.len());
        for &value in &weight.values {
            let half = f16::from_f32(value);
            if !half.is_finite() {
                return Err(Error::Weight { name: weight.name.clone(), value });
            }
            bytes.extend_from_slice(&half.to_le_bytes());
        }
        encoded.push((weight, bytes));
    }
    let mut views = Vec::with_capacity(encoded.len());
    for (weight, bytes) in &encoded {
        let view = TensorView::new(Dtype::F16, weight.shape.clone(), bytes);
        views.push((weight.name.clone(), view.map_err(|e| Error::malformed(path, e))?));
    }
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    let file = safetensors::serialize(views, Some(metadata)).map_err(|e| Error::malformed(path, e))?;
    write(path, &file)
}

/// Reads the F16 weights of a checkpoint that [`save`] wrote, in the file's order.
pub fn load_weights(path: &Path) -> Result<Vec<Weight>> {
    let bytes = std::fs::read(path).map_err(Error::io(path))?;
    let file = safetensors::SafeTensors::deserialize(&bytes).map_err(|e| Error::malformed(path, e))?;
    let mut weights: Vec<Weight> = Vec::with_capacity(file.len());
    for (name, view) in file.iter() {
        if view.dtype() != Dtype::F16 {
            return Err(Error::malformed(path, format!("'{name}' is {:?}; only F16 is read here", view.dtype())));
        }
        let halves = view.data().chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32());
        weights.push(Weight { name: name.to_string(), shape: view.shape().to_vec(), values: halves.collect() });
    }
    weights.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(weights)
}

/// Writes a file beside its place, then renames it there.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(Error::io(folder))?;
    file.write_all(bytes).map_err(Error::io(path))?;
    make_readable(file.as_file()).map_err(Error::io(path))?;
    file.as_file().sync_all().map_err(Error::io(path))?;
    file.persist(path).map_err(|e| Error::io(path)(e.error))?;
    std::fs::File::open(folder).and_then(|f| f.sync_all()).map_err(Error::io(folder))
}

/// Temporary files are private; a checkpoint need not be.
#[cfg(unix)]
fn make_readable(file: &std::fs::File) -> std::io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    file.set_permissions(std::fs::Permissions::from_mode(0o644))
}

#[cfg(not(unix))]
fn make_readable(_: &std::fs::File) -> std::io::Result<()> {
    Ok(())
}

fn write_json(path: &Path, value: &Value) -> Result<()> {
    write(path, format!("{value:#}\n").as_bytes())
}

fn config(shape: &Shape, vocabulary: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": false,
        "attention_dropout": 0.0,
        "bos_token_id": END_OF_TEXT_ID,
        "eos_token_id": END_OF_TEXT_ID,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "initializer_range": 0.02,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_positions,
        "mlp_bias": false,
        "model_type": "llama",
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "pretraining_tp": 1,
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_scaling": null,
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": true,
        "torch_dtype": "float16",
        "use_cache": true,
        "vocab_size": vocabulary,
    })
}

fn generation_config() -> Value {
    json!({
        "bos_token_id": END_OF_TEXT_ID,
        "do_sample": false,
        "eos_token_id": END_OF_TEXT_ID,
        "pad_token_id": END_OF_TEXT_ID,
    })
}

fn tokenizer_config(shape: &Shape) -> Value {
    json!({
        "add_bos_token": false,
        "add_prefix_space": false,
        "bos_token": END_OF_TEXT,
        "clean_up_tokenization_spaces": false,
        "eos_token": END_OF_TEXT,
        "model_max_length": shape.max_positions,
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": END_OF_TEXT,
    })
}
