//! Writing the model as a Hugging Face directory.

use crate::error::{Error, Result};
use crate::model::Student;
use crate::recipe::Shape;
use crate::tokenizer::{END_OF_TEXT, END_OF_TEXT_ID};
use crate::weights::{self, Entry, Values};
use half::f16;
use indexmap::IndexMap;
use safetensors::tensor::Dtype;
use schemes::FloatType;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use store::output::write_file;
use tokenizers::Tokenizer;

/// The weights' file in an output folder.
pub const WEIGHTS: &str = "model.safetensors";

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

/// Where a student goes: a folder that holds the best model so far.
#[derive(Debug)]
pub struct Output {
    /// The folder.
    pub folder: PathBuf,
    /// config.json.
    pub config: Value,
    /// The files beside it, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// What the weights are stored in.
    pub float: FloatType,
    /// The weights' metadata.
    pub metadata: IndexMap<String, String>,
}

impl Output {
    /// Writes the model; each file appears whole or not at all, the weights last.
    ///
    /// # Errors
    /// [`Error::Weight`] for a value that the type can't hold, [`Error::Io`], [`Error::Store`].
    pub fn save(&self, student: &Student) -> Result<()> {
        let file = self.weights();
        // Where there are weights, what lies beside them was written before, and stays as it is.
        if !file.exists() {
            self.save_files()?;
        }
        let parameters = student.parameters();
        let entries: Vec<Entry<'_>> = parameters.iter().map(|p| Entry::tensor(p.name.clone(), &p.var)).collect();
        weights::write(&file, self.float, &entries, &self.metadata)
    }

    /// Writes what lies beside the weights.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Store`].
    pub fn save_files(&self) -> Result<()> {
        std::fs::create_dir_all(&self.folder).map_err(Error::io(&self.folder))?;
        write_file(&self.folder.join("config.json"), format!("{:#}\n", self.config).as_bytes())?;
        Ok(self.files.iter().try_for_each(|(name, bytes)| write_file(&self.folder.join(name), bytes))?)
    }

    /// The weights' file.
    pub fn weights(&self) -> PathBuf {
        self.folder.join(WEIGHTS)
    }

    /// The BLAKE3 of the weights' file.
    ///
    /// # Errors
    /// [`Error::Store`] where it can't be read.
    pub fn weights_blake3(&self) -> Result<String> {
        let bytes = store::Bytes::map(&self.weights())?;
        Ok(blake3::Hasher::new().update_rayon(&bytes).finalize().to_string())
    }

    /// Removes what [`Output::save`] wrote and the metrics beside it, and the folder unless it existed before: a training
    /// that failed before it can be resumed stands in no other's way.
    pub fn discard(&self, existed: bool) {
        let made = ["config.json", WEIGHTS, crate::metrics::FILE];
        for name in made.into_iter().chain(self.files.iter().map(|(name, _)| name.as_str())) {
            // What isn't there needs no removing, and what can't be removed is named by the next training.
            let _ = std::fs::remove_file(self.folder.join(name));
        }
        if !existed {
            let _ = std::fs::remove_dir(&self.folder);
        }
    }

    /// A Llama with a tokenizer that was made for it, in F16.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it can't be written down.
    pub fn of_pretrained(folder: &Path, shape: &Shape, tokenizer: &Tokenizer) -> Result<Self> {
        let tokenizer_json = tokenizer.to_string(false).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let json = |name: &str, value: &Value| (name.to_string(), format!("{value:#}\n").into_bytes());
        Ok(Self {
            folder: folder.into(),
            config: config(shape, tokenizer.get_vocab_size(true)),
            files: vec![
                json("generation_config.json", &generation_config()),
                json("tokenizer_config.json", &tokenizer_config(shape)),
                ("tokenizer.json".into(), tokenizer_json.into_bytes()),
            ],
            float: FloatType::F16,
            metadata: metadata(),
        })
    }
}

/// What transformers asks of a safetensors file.
pub fn metadata() -> IndexMap<String, String> {
    IndexMap::from([("format".to_string(), "pt".to_string())])
}

/// Writes weights as F16; a value that F16 can't hold is an error.
pub fn save_weights(path: &Path, weights: &[Weight]) -> Result<()> {
    let entries: Vec<Entry<'_>> = weights
        .iter()
        .map(|w| Entry { name: w.name.clone(), shape: w.shape.clone(), values: Values::Slice(&w.values) })
        .collect();
    weights::write(path, FloatType::F16, &entries, &metadata())
}

/// Reads the F16 weights of a checkpoint that [`save_weights`] wrote, in the file's order.
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

fn config(shape: &Shape, vocabulary: usize) -> Value {
    json!({
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": shape.biases,
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
        "tie_word_embeddings": shape.tied,
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
