//! A model opened from any container, its tensors under Hugging Face names.

use crate::{Bytes, Config, DType, Result};
use indexmap::IndexMap;
use schemes::{Activation, Matrix, RowOrder};
use std::path::{Path, PathBuf};

/// What kind of file or folder a model came from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// A directory with config.json and safetensors.
    Directory,
    /// A bare .safetensors file.
    Safetensors,
    /// A GGUF file.
    Gguf,
}

/// A stored tensor.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Element type.
    pub dtype: DType,
    /// Shape, outermost first (`[out, in]` for projections), whatever the container's order.
    pub shape: Vec<usize>,
    /// The bytes, little-endian.
    pub data: Bytes,
    /// How its rows are ordered (GGUF's q and k of the llama family are interleaved).
    pub order: RowOrder,
    /// The file that it lies in.
    pub file: PathBuf,
    /// Its name in that file (the key in [`Model::tensors`] is the Hugging Face name).
    pub stored_name: String,
}

/// A file that travels with the model (tokenizer.json, generation_config.json, ...).
#[derive(Debug, Clone)]
pub struct SideFile {
    /// File name.
    pub name: String,
    /// Contents.
    pub data: Bytes,
}

/// A linear layer in packed form.
#[derive(Debug, Clone)]
pub struct Linear {
    /// Weights `[out, in]`.
    pub matrix: Matrix<Bytes>,
    /// Bias `[out]`.
    pub bias: Option<Vec<f32>>,
    /// What to do with its activations.
    pub activation: Activation,
}

/// An opened model.
#[derive(Debug, Clone)]
pub struct Model {
    /// What was opened.
    pub path: PathBuf,
    /// Its container.
    pub container: Container,
    /// Tensors in file order, under Hugging Face names.
    pub tensors: IndexMap<String, Tensor>,
    /// String metadata: of the safetensors header, or GGUF's string-valued keys.
    pub metadata: IndexMap<String, String>,
    /// config.json as it stands, or as rebuilt from GGUF keys; none when there is nothing.
    pub config_json: Option<serde_json::Value>,
    /// Files that travel with the model, rebuilt from GGUF keys where they must be.
    pub side_files: Vec<SideFile>,
    /// Notes for the user, such as a stored lm_head beside a tied flag.
    pub warnings: Vec<String>,
}

/// Opens a HF directory, a .safetensors file or a GGUF file.
///
/// Everything is validated here: header sizes, offsets, shards, duplicate names; the tensor
/// data are only mapped.
///
/// # Errors
/// Names the file and the tensor, key or offset.
pub fn open(path: &Path) -> Result<Model> {
    let _ = path;
    todo!()
}

impl Model {
    /// The parsed configuration.
    ///
    /// # Errors
    /// When there is none, or the family, activation, or rope scaling is not supported (by name).
    pub fn config(&self) -> Result<Config> {
        todo!()
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// When there is none or it can't be parsed.
    pub fn tokenizer(&self) -> Result<tokenizers::Tokenizer> {
        todo!()
    }

    /// Contents of a side file.
    pub fn side_file(&self, name: &str) -> Option<&[u8]> {
        self.side_files.iter().find(|f| f.name == name).map(|f| &*f.data)
    }

    /// The linear layer of `module` (such as `model.layers.0.mlp.down_proj` or `lm_head`),
    /// whatever the layout. For a tied model `lm_head` gives the embedding.
    ///
    /// # Errors
    /// When a tensor is missing, or its type, shape or layout is not understood.
    pub fn linear(&self, module: &str) -> Result<Linear> {
        let _ = module;
        todo!()
    }

    /// A small dense tensor (a norm, a bias) as f32; none when it isn't there.
    ///
    /// # Errors
    /// When it isn't of a float type.
    pub fn dense(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let _ = name;
        todo!()
    }

    /// The scheme names of the linear layers as the artifact declares or implies them, by module.
    pub fn declared_schemes(&self) -> IndexMap<String, String> {
        todo!()
    }
}
