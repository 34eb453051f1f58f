//! A model opened from any container, its tensors under Hugging Face names.

use crate::panics::caught;
use crate::{
    Bytes, Config, DType, Description, Error, Family, Result, RopeScaling, TextTokenizer, config, gguf, hf,
    json::shown, layouts, parse_json, safetensors, unused::ROPE_FREQS,
};
use indexmap::IndexMap;
use schemes::{Activation, Matrix, RowOrder};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

/// Kind of file or folder that a model came from.
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
    /// Order of the rows (GGUF's q and k of the llama family are interleaved).
    pub order: RowOrder,
    /// The file that it lies in.
    pub file: PathBuf,
    /// Name in that file (the key in [`Model::tensors`] is the Hugging Face name).
    pub stored_name: String,
}

impl Tensor {
    /// BLAKE3 over `name`, type, shape and bytes.
    pub fn blake3(&self, name: &str) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(format!("{name}\0{}\0{:?}\0", self.dtype, self.shape).as_bytes());
        hasher.update_rayon(&self.data);
        hasher.finalize()
    }
}

/// The hash of a whole model from those of its tensors, given in the order of their names.
pub fn combined_blake3<'a>(hashes: impl IntoIterator<Item = &'a blake3::Hash>) -> String {
    let mut hasher = blake3::Hasher::new();
    for hash in hashes {
        hasher.update(hash.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
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
    /// Treatment of the layer's activations.
    pub activation: Activation,
}

/// An opened model.
#[derive(Debug, Clone)]
pub struct Model {
    /// Path that was opened.
    pub path: PathBuf,
    /// Container of the model.
    pub container: Container,
    /// Tensors in file order, under Hugging Face names.
    pub tensors: IndexMap<String, Tensor>,
    /// String metadata: of the safetensors header, or GGUF's string-valued keys.
    pub metadata: IndexMap<String, String>,
    /// config.json as it stands, or as rebuilt from GGUF keys; none when there is nothing.
    pub config_json: Option<serde_json::Value>,
    /// The text that `config_json` was read from, to be written again word for word; none where it
    /// was rebuilt.
    pub config_text: Option<Bytes>,
    /// Files that travel with the model, rebuilt from GGUF keys where they must be.
    pub side_files: Vec<SideFile>,
    /// Notes for the user, such as a stored lm_head beside a tied flag.
    pub warnings: Vec<String>,
}

/// The embedding's module.
const EMBEDDING: &str = "model.embed_tokens";

/// Opens a HF directory, a .safetensors file, a GGUF file (of several parts the first), or a folder
/// with one GGUF model and no other.
///
/// Everything is validated here: header sizes, offsets, shards, duplicate names; the tensor
/// data are only mapped.
///
/// # Errors
/// Names the file and the tensor, key or offset.
pub fn open(path: &Path) -> Result<Model> {
    let mut model = read(path)?;
    layouts::check_method(&model)?;
    for file in &model.side_files {
        if !hf::is_plain_name(&file.name) {
            return Err(Error::malformed(path, format!("{}: not a plain file name", shown(&file.name))));
        }
    }
    let warnings = model.notes();
    model.warnings.extend(warnings);
    Ok(model)
}

fn read(path: &Path) -> Result<Model> {
    let meta = fs::metadata(path).map_err(|e| Error::io(path, "open", e))?;
    if meta.is_dir() {
        return match gguf::only_model(path)? {
            Some(file) => read_gguf(&file, &hf::map_weights(&file)?),
            None => hf::read_directory(path),
        };
    }
    if !meta.is_file() {
        return Err(Error::malformed(path, "is neither a file nor a folder"));
    }
    let extension = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
    match extension.as_str() {
        "safetensors" => read_safetensors(path),
        "gguf" => read_gguf(path, &hf::map_weights(path)?),
        "bin" | "pt" | "pth" | "ckpt" | "pkl" => Err(hf::pickle(path)),
        _ => sniff(path),
    }
}

/// A file whose name says nothing.
fn sniff(path: &Path) -> Result<Model> {
    let bytes = hf::map_weights(path)?;
    if bytes.starts_with(b"GGUF") {
        return read_gguf(path, &bytes);
    }
    if safetensors::looks_like(&bytes) {
        return hf::read_bare(path);
    }
    if bytes.starts_with(b"PK\x03\x04") || bytes.starts_with(b"\x80\x02") {
        return Err(hf::pickle(path));
    }
    if path.ends_with(hf::CONFIG_FILE) {
        return Err(Error::unsupported(path, "is the configuration; give the folder that holds it"));
    }
    Err(Error::unsupported(path, "is neither a GGUF nor a safetensors file"))
}

/// A file beside a config.json is read with it, unless it carries a configuration of its own or is one of several.
fn read_safetensors(path: &Path) -> Result<Model> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let named = path.file_name().is_some_and(|n| n == safetensors::SINGLE_FILE);
    let beside = folder.join(hf::CONFIG_FILE).is_file();
    if named && beside {
        return hf::read_directory(folder);
    }
    let bare = hf::read_bare(path)?;
    if !beside || bare.config_json.is_some() {
        return Ok(bare);
    }
    hf::read_folder(folder, &hf::Weights::File(path.into()), Vec::new())
}

fn read_gguf(path: &Path, bytes: &Bytes) -> Result<Model> {
    let gguf = gguf::read(path, bytes)?;
    Ok(Model {
        path: path.to_path_buf(),
        container: Container::Gguf,
        tensors: gguf.tensors,
        metadata: gguf.metadata,
        config_json: gguf.config_json,
        config_text: gguf.config_text,
        side_files: gguf.side_files,
        warnings: gguf.warnings,
    })
}

impl Model {
    /// The parsed configuration.
    ///
    /// The vocabulary is as large as the embedding, whatever config.json says; a stored
    /// `lm_head` that differs from the embedding overrules a tied flag, and a GGUF file without one is tied. Stored rope
    /// factors overrule the rope scaling, and generation_config.json the end-of-sequence tokens.
    ///
    /// # Errors
    /// When there is none, or the family, activation, or rope scaling is not supported (by name); when the embedding or
    /// `lm_head` doesn't suit it.
    pub fn config(&self) -> Result<Config> {
        let path = self.config_path();
        let json = self.config_json.as_ref().ok_or_else(|| self.no_config())?;
        let mut config = config::parse(&path, json)?;
        self.unasked_biases(json, config.family)?;
        let embedding = self.shape(EMBEDDING)?;
        if let (None, Some(other)) = (embedding, self.tensors.keys().find(|n| n.ends_with(".embed_tokens.weight"))) {
            let what = format!(
                "is missing, and {other} is there: transformers finds no weights by such names either; rename the \
                 tensors so that they begin with 'model.'"
            );
            return Err(Error::tensor(&self.path, format!("{EMBEDDING}.weight"), what));
        }
        if let Some((rows, cols)) = embedding {
            if cols != config.hidden_size {
                let what = format!("[{rows}, {cols}] does not suit hidden_size {}", config.hidden_size);
                return Err(Error::tensor(&self.path, format!("{EMBEDDING}.weight"), what));
            }
            config.vocab_size = rows;
        }
        if let Some((rows, _)) = self.shape("lm_head")? {
            if rows != config.vocab_size {
                let what = format!("has {rows} rows, the embedding {}", config.vocab_size);
                return Err(Error::tensor(&self.path, "lm_head.weight", what));
            }
            config.tie_word_embeddings = config.tie_word_embeddings && !self.head_differs();
        } else if self.container == Container::Gguf {
            config.tie_word_embeddings = true;
        }
        self.rope_factors(&mut config)?;
        self.generation_tokens(&mut config)?;
        Ok(config)
    }

    /// The tokenizer.
    ///
    /// # Errors
    /// When there is none or it can't be parsed.
    pub fn tokenizer(&self) -> Result<tokenizers::Tokenizer> {
        let name = "tokenizer.json";
        let Some(json) = self.side_file(name) else {
            let what = match self.side_file("tokenizer.model") {
                Some(_) => "has tokenizer.model and no tokenizer.json: save it as a fast tokenizer first",
                None => "has no tokenizer.json",
            };
            return Err(Error::unsupported(&self.path, what));
        };
        let parsed = caught(|| tokenizers::Tokenizer::from_bytes(json).map_err(|e| e.to_string()));
        parsed.and_then(|tokenizer| tokenizer).map_err(|e| Error::malformed(self.beside(name), shown(&e)))
    }

    /// The tokenizer, set up for running text.
    ///
    /// # Errors
    /// As [`Model::tokenizer`].
    pub fn text_tokenizer(&self) -> Result<TextTokenizer> {
        let fails =
            |e: tokenizers::Error| Error::malformed(&self.path, format!("tokenizer: {}", shown(&e.to_string())));
        TextTokenizer::new(self.tokenizer()?).map_err(fails)
    }

    /// BLAKE3 over names, types, shapes and bytes of all tensors, whatever their order: what artifacts name their
    /// source by.
    pub fn blake3(&self) -> String {
        let hashes: BTreeMap<&str, blake3::Hash> =
            self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor.blake3(name))).collect();
        combined_blake3(hashes.values())
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
        let tied = module == "lm_head" && !layouts::is_stored(self, module) && self.ties();
        layouts::linear(self, if tied { EMBEDDING } else { module })
    }

    /// Describes the linear layer of `module`, whatever the layout; none when it isn't there. The layer isn't opened.
    ///
    /// # Errors
    /// As [`Model::linear`].
    pub fn describe(&self, module: &str) -> Result<Option<Description>> {
        layouts::Gate::new(self).describe(module)
    }

    /// Describes all linear layers (the embedding among them), by module, with the schemes that the artifact declares.
    /// For a layer that can't be described there is the error.
    pub fn layers(&self) -> IndexMap<String, Result<Description>> {
        layouts::layers(self)
    }

    /// Opens a layer of this model that has been described.
    ///
    /// # Errors
    /// When its tensors are no longer as they were described.
    pub fn open_layer(&self, description: Description) -> Result<Linear> {
        layouts::open(self, description)
    }

    /// Opens only the weights of a layer that has been described: its bias is not looked at.
    ///
    /// # Errors
    /// As [`Model::open_layer`].
    pub fn open_matrix(&self, description: Description) -> Result<Matrix<Bytes>> {
        layouts::open_matrix(self, description)
    }

    /// Rows and columns of the linear layer of `module`, whatever the layout; none when it isn't there. The layer
    /// isn't opened.
    ///
    /// # Errors
    /// As [`Model::linear`].
    pub fn shape(&self, module: &str) -> Result<Option<(usize, usize)>> {
        Ok(self.describe(module)?.map(|d| (d.rows, d.cols)))
    }

    /// A small dense tensor (a norm, a bias) as f32; none when it isn't there.
    ///
    /// # Errors
    /// When it isn't of a float type.
    pub fn dense(&self, name: &str) -> Result<Option<Vec<f32>>> {
        self.tensors.get(name).map(layouts::dense).transpose()
    }

    /// The scheme names of the linear layers (the embedding among them) as the artifact declares
    /// or implies them, by module. What can't be understood is "unknown".
    pub fn declared_schemes(&self) -> IndexMap<String, String> {
        layouts::declared_schemes(self)
    }

    /// Returns whether a missing lm_head stands for the embedding.
    fn ties(&self) -> bool {
        match &self.config_json {
            Some(json) if self.container != Container::Gguf => {
                json.get("tie_word_embeddings").and_then(|v| v.as_bool()).unwrap_or(false)
            }
            _ => true,
        }
    }

    /// Returns whether lm_head is stored and is not the embedding again.
    fn head_differs(&self) -> bool {
        let weight = |module: &str| self.tensors.get(&format!("{module}.weight"));
        match (weight("lm_head"), weight(EMBEDDING)) {
            (Some(head), Some(embedding)) => head.dtype != embedding.dtype || *head.data != *embedding.data,
            _ => layouts::is_stored(self, "lm_head"),
        }
    }

    /// The error of a model without a configuration.
    fn no_config(&self) -> Error {
        match self.warnings.iter().find(|w| w.starts_with(gguf::NO_CONFIGURATION)) {
            Some(reason) => Error::unsupported(&self.path, reason),
            None => match hf::other_format(self.tensors.keys()) {
                Some(what) => Error::unsupported(&self.path, what),
                None => {
                    Error::malformed(&self.path, "has no config.json: give a folder that holds one beside the weights")
                }
            },
        }
    }

    /// Refuses biases that config.json doesn't ask for, which transformers would leave out, and in GGUF those that
    /// llama.cpp doesn't read. Biases of zeros, which quantizers write, change nothing.
    fn unasked_biases(&self, json: &serde_json::Value, family: Family) -> Result<()> {
        let outside = [EMBEDDING, "lm_head"];
        for name in self.tensors.keys() {
            let Some(module) = name.strip_suffix(".bias") else { continue };
            let linear = module.starts_with("model.layers.") && module.ends_with("_proj");
            if !linear && !outside.contains(&module) {
                continue;
            }
            let switch = if module.contains(".mlp.") { "mlp_bias" } else { "attention_bias" };
            let qkv = ["q_proj", "k_proj", "v_proj"].iter().any(|p| module.ends_with(p));
            let asked = match (self.container, json["model_type"].as_str(), switch) {
                (Container::Gguf, ..) => gguf::reads_bias(family, module),
                _ if !linear => false,
                (_, Some("qwen2"), "attention_bias") => qkv,
                (_, Some("llama"), _) | (_, Some("qwen3"), "attention_bias") => json[switch] == true,
                _ => false,
            };
            if !asked && self.dense(name)?.is_some_and(|bias| bias.iter().any(|b| *b != 0.0)) {
                let what = match self.container {
                    Container::Gguf => "llama.cpp reads no such bias of this architecture and refuses the file".into(),
                    _ if !linear => "transformers has no such bias and would leave it out".into(),
                    _ => format!("{switch} of config.json does not ask for it: transformers would leave it out"),
                };
                return Err(Error::tensor(&self.path, &self.tensors[name].stored_name, what));
            }
        }
        Ok(())
    }

    /// Explicit rotary factors of a GGUF file.
    fn rope_factors(&self, config: &mut Config) -> Result<()> {
        let Some(factors) = self.dense(ROPE_FREQS)? else { return Ok(()) };
        let bad = |what: String| Err(Error::tensor(&self.path, ROPE_FREQS, what));
        if config.family != Family::Llama {
            return bad(format!(
                "rotary factors of a {:?} model are not supported; llama.cpp reads them of llama",
                config.family
            ));
        }
        if factors.len() != config.head_dim / 2 {
            return bad(format!("{} factors for {} frequencies", factors.len(), config.head_dim / 2));
        }
        if let Some(f) = factors.iter().find(|f| !(**f > 0.0 && f.is_finite())) {
            return bad(format!("factor {f} is not positive"));
        }
        if !matches!(config.rope_scaling, RopeScaling::None | RopeScaling::Llama3 { .. }) {
            return bad("stands beside another rope scaling; both at once are not supported".into());
        }
        config.rope_scaling = RopeScaling::Factors(factors);
        Ok(())
    }

    /// End tokens of generation_config.json, which generation goes by where it names any.
    fn generation_tokens(&self, config: &mut Config) -> Result<()> {
        let name = "generation_config.json";
        let Some(text) = self.side_file(name) else { return Ok(()) };
        let path = self.beside(name);
        let json = parse_json(text).map_err(|e| Error::malformed(&path, e))?;
        let ids = config::token_ids(&path, &json, "eos_token_id")?;
        if !ids.is_empty() {
            config.eos_token_ids = ids;
        }
        Ok(())
    }

    fn config_path(&self) -> PathBuf {
        self.beside(hf::CONFIG_FILE)
    }

    /// The path of a side file, for errors.
    fn beside(&self, name: &str) -> PathBuf {
        match self.container {
            Container::Directory => self.path.join(name),
            _ => self.path.clone(),
        }
    }

    /// Notes for the user on the model as a whole.
    fn notes(&self) -> Vec<String> {
        let mut notes = layouts::notes(self);
        notes.extend(self.needless_notes());
        let Some(json) = &self.config_json else { return notes };
        notes.extend(config::notes(json));
        if json.get("tie_word_embeddings").and_then(|v| v.as_bool()) == Some(true) && self.head_differs() {
            notes.push(
                "config.json ties lm_head to the embedding, but a different lm_head is stored: what is stored is used"
                    .into(),
            );
        }
        let said = json.get("vocab_size").and_then(|v| v.as_u64());
        if let (Some(said), Ok(Some((rows, _)))) = (said, self.shape(EMBEDDING))
            && said != rows as u64
        {
            notes.push(format!(
                "config.json says {said} vocabulary entries, the embedding has {rows} rows: {rows} are used"
            ));
        }
        notes
    }
}

#[cfg(test)]
#[path = "model_tests.rs"]
mod tests;
