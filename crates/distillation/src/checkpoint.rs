//! Writing the model as a Hugging Face directory.

use crate::error::{Error, Result};
use crate::model::Student;
use crate::recipe::Shape;
use crate::resume;
use crate::tokenizer::{END_OF_TEXT, END_OF_TEXT_ID};
use crate::train::state_file;
use crate::weights::{self, Entry, Values};
use half::f16;
use indexmap::IndexMap;
use safetensors::tensor::Dtype;
use schemes::FloatType;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use store::output::provenance::{FILES_KEY, METRICS_FILE, PLOT_FILE, SEAL_KEY, SEAL_PLACEHOLDER, files_list};
use store::output::{Begin, Existing, Form, WorkFolder, check_file, write_own_file};
use tokenizers::Tokenizer;

/// The weights' file in an output folder.
pub const WEIGHTS: &str = "model.safetensors";

/// A tensor on its way to or from a file.
#[derive(Debug, Clone, PartialEq)]
pub struct Weight {
    /// Name of the tensor in the checkpoint.
    pub name: String,
    /// Dimensions of the weight.
    pub shape: Vec<usize>,
    /// Values of the weight, row-major.
    pub values: Vec<f32>,
}

/// Makes and locks the folder of a training that reads `inputs`, before any other work.
///
/// # Errors
/// [`Error::Store`] for a folder that must stay as it is or that another run works in, [`Error::Resume`] for a state that
/// an interrupted training left, or didn't leave.
pub fn begin(folder: &Path, begin: Begin, inputs: &[&Path]) -> Result<WorkFolder> {
    let state = state_file(folder);
    if begin == Begin::Resume {
        resume::check_there(&state)?;
        resume::check_output(&state, folder)?;
    }
    let work = WorkFolder::begin(folder, begin, &["config.json", WEIGHTS, METRICS_FILE, PLOT_FILE], inputs);
    let existing = match (begin, &work) {
        // Both say that something is there, and this one how to go on.
        (Begin::New, Ok(_) | Err(store::Error::Exists { .. })) if state.exists() => {
            return Err(resume::leftover(&state));
        }
        (Begin::New, Ok(_)) => Existing::Refuse,
        (Begin::Overwrite, Ok(_)) => Existing::Overwrite,
        _ => return Ok(work?),
    };
    check_file(&state, Form::TrainingState, existing, inputs)?;
    Ok(work?)
}

/// Destination of a student: a folder that holds the best model so far.
#[derive(Debug)]
pub struct Output {
    /// The folder.
    pub work: WorkFolder,
    /// config.json.
    pub config: Value,
    /// The files beside it, by name.
    pub files: Vec<(String, Vec<u8>)>,
    /// Type of the stored weights.
    pub float: FloatType,
    /// The weights' metadata.
    pub metadata: IndexMap<String, String>,
}

impl Output {
    /// Writes the model; each file appears whole or not at all, the weights last. The first model replaces what an earlier
    /// training left, where the run was told to overwrite.
    ///
    /// # Errors
    /// [`Error::Weight`] for a value that the type can't hold, [`Error::Io`], [`Error::Store`].
    pub fn save(&self, student: &Student) -> Result<()> {
        let beside = self.beside();
        let mut metadata = self.metadata.clone();
        metadata.insert(FILES_KEY.into(), files_list(beside.iter().map(|(name, bytes)| (name.as_str(), &bytes[..]))));
        metadata.insert(SEAL_KEY.into(), SEAL_PLACEHOLDER.into());
        let parameters = student.parameters();
        let entries: Vec<Entry<'_>> = parameters.iter().map(|p| Entry::tensor(p.name.clone(), &p.var)).collect();
        if self.work.is_old() {
            // Of the training whose model is replaced.
            resume::remove(&state_file(self.folder()))?;
        }
        self.work.start(|folder| {
            let file = folder.join(WEIGHTS);
            // Where there are weights, what lies beside them was written before, and stays as it is.
            if !file.exists() {
                beside.iter().try_for_each(|(name, bytes)| write_own_file(&folder.join(name), bytes))?;
            }
            weights::write(&file, self.float, &entries, &metadata)
        })
    }

    /// Writes what is missing beside the weights.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn save_missing(&self) -> Result<()> {
        let missing = |name: &str| !self.folder().join(name).exists();
        let mut files = self.beside().into_iter().filter(|(name, _)| missing(name));
        Ok(files.try_for_each(|(name, bytes)| write_own_file(&self.folder().join(name), &bytes))?)
    }

    /// Files beside the weights: names and contents.
    fn beside(&self) -> Vec<(String, Vec<u8>)> {
        let config = ("config.json".to_string(), format!("{:#}\n", self.config).into_bytes());
        [config].into_iter().chain(self.files.iter().cloned()).collect()
    }

    /// Refuses names of files that the folder has from others.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn check_names(&self) -> Result<()> {
        Ok(self.work.check_names(self.files.iter().map(|(name, _)| name.as_str()))?)
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        self.work.path()
    }

    /// The weights' file.
    pub fn weights(&self) -> PathBuf {
        self.folder().join(WEIGHTS)
    }

    /// The BLAKE3 of the weights' file.
    ///
    /// # Errors
    /// [`Error::Store`] where it can't be read.
    pub fn weights_blake3(&self) -> Result<String> {
        let bytes = store::Bytes::map(&self.weights())?;
        Ok(blake3::Hasher::new().update_rayon(&bytes).finalize().to_string())
    }

    /// Removes what [`Output::save`] wrote and the metrics beside it: a training that failed before it can be resumed
    /// stands in no other's way. What an earlier training left stays.
    pub fn discard(&self) {
        if self.work.is_old() {
            return;
        }
        let made = ["config.json", WEIGHTS, METRICS_FILE];
        for name in made.into_iter().chain(self.files.iter().map(|(name, _)| name.as_str())) {
            // What isn't there needs no removing, and what can't be removed is named by the next training.
            let _ = std::fs::remove_file(self.folder().join(name));
        }
    }

    /// A Llama with a tokenizer that was made for it, in F16.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] when it can't be written down.
    pub fn of_pretrained(work: WorkFolder, shape: &Shape, tokenizer: &Tokenizer) -> Result<Self> {
        let tokenizer_json = tokenizer.to_string(false).map_err(|e| Error::Tokenizer(e.to_string()))?;
        let json = |name: &str, value: &Value| (name.to_string(), format!("{value:#}\n").into_bytes());
        Ok(Self {
            work,
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

/// Metadata that transformers asks of a safetensors file.
pub fn metadata() -> IndexMap<String, String> {
    IndexMap::from([("format".to_string(), "pt".to_string())])
}

/// Writes weights as F16, with a list of the files beside them; a value that F16 can't hold is an error.
pub fn save_weights(path: &Path, weights: &[Weight], beside: &[(&str, Vec<u8>)]) -> Result<()> {
    let entries: Vec<Entry<'_>> = weights
        .iter()
        .map(|w| Entry { name: w.name.clone(), shape: w.shape.clone(), values: Values::Slice(&w.values) })
        .collect();
    let mut metadata = metadata();
    metadata.insert(FILES_KEY.into(), files_list(beside.iter().map(|(name, bytes)| (*name, &bytes[..]))));
    metadata.insert(SEAL_KEY.into(), SEAL_PLACEHOLDER.into());
    weights::write(path, FloatType::F16, &entries, &metadata)
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
