//! Contents of a model's files: tensors with types, shapes and bytes, the architecture, totals.

use crate::Result;
use crate::metadata::{self, Entry};
use indexmap::IndexMap;
use runtime::KvType;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::Path;
use store::{Config, Container, Model};

/// A stored tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct TensorInfo {
    /// Hugging Face name of the tensor.
    pub name: String,
    /// Name of the tensor in the file.
    pub stored_name: String,
    /// Element type of the tensor.
    #[serde(rename = "type")]
    pub dtype: String,
    /// Shape of the tensor, outermost dimension first.
    pub shape: Vec<usize>,
    /// Bytes of the tensor.
    pub bytes: u64,
    /// The scheme of the linear layer that it belongs to; none for norms, biases and the like.
    pub scheme: Option<String>,
    /// The file's name.
    pub file: String,
}

/// All tensors of a type, or all weights of a scheme.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Total {
    /// The type or scheme.
    pub name: String,
    /// Tensors of the type, or layers of the scheme.
    pub count: usize,
    /// Elements of the tensors, or weights of the layers.
    pub elements: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bits of an element.
    pub bits: f64,
}

/// Architecture, as config.json or the keys of a GGUF file give it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Architecture {
    /// The name, such as `LlamaForCausalLM`.
    pub name: String,
    /// Blocks.
    pub layers: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Rows of the embedding.
    pub vocab_size: usize,
    /// Context that the model was trained for.
    pub max_position: usize,
    /// True if the output projection is the embedding.
    pub tied: bool,
    /// Bytes of the cache for one token in F16.
    pub cache_bytes_per_token: usize,
}

/// Contents of a model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Tensors {
    /// Path of the model.
    pub model: String,
    /// `directory`, `safetensors` or `gguf`.
    pub container: &'static str,
    /// Architecture of the model, if it is one that is known here.
    pub architecture: Option<Architecture>,
    /// Weights, biases and norms; a tied output projection counts once.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub bytes: u64,
    /// By type in the file.
    pub types: Vec<Total>,
    /// By scheme of the linear layers.
    pub schemes: Vec<Total>,
    /// The tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// The metadata, where it is asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<Vec<Entry>>,
    /// Things that a user should know.
    pub notes: Vec<String>,
}

/// Looks into a model.
///
/// # Errors
/// When it can't be opened.
pub fn look(path: &Path, with_metadata: bool) -> Result<Tensors> {
    let model = store::open(path)?;
    let declared = model.declared_schemes();
    let mut notes = model.warnings.clone();
    let config = model.config().map_err(|e| notes.push(report::error_line(&e))).ok();
    let tensors: Vec<TensorInfo> = model
        .tensors
        .iter()
        .map(|(name, tensor)| TensorInfo {
            name: name.clone(),
            stored_name: tensor.stored_name.clone(),
            dtype: tensor.dtype.to_string(),
            shape: tensor.shape.clone(),
            bytes: tensor.data.len() as u64,
            scheme: module_of(name, &declared).and_then(|module| declared.get(module)).cloned(),
            file: tensor.file.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default(),
        })
        .collect();
    let (schemes, broken) = scheme_totals(&model, &declared, &tensors);
    // What programs that need a whole model would say of this one.
    let missing = || report::error_line(&conversion::check_whole(&model, config.as_ref()?).err()?).into();
    notes.extend(broken.map(|e| report::error_line(&e)).or_else(missing));
    Ok(Tensors {
        model: path.display().to_string(),
        container: match model.container {
            Container::Directory => "directory",
            Container::Safetensors => "safetensors",
            Container::Gguf => "gguf",
        },
        architecture: config.as_ref().map(|config| architecture(&model, config)),
        parameters: schemes.iter().map(|t| t.elements).sum::<u64>() + others(&tensors),
        bytes: tensors.iter().map(|t| t.bytes).sum(),
        types: type_totals(&tensors),
        schemes,
        metadata: if with_metadata { Some(metadata::entries(&model)?) } else { None },
        tensors,
        notes,
    })
}

fn architecture(model: &Model, config: &Config) -> Architecture {
    let said = |pointer: &str| model.config_json.as_ref()?.pointer(pointer)?.as_str().map(str::to_owned);
    Architecture {
        name: said("/architectures/0")
            .or_else(|| said("/model_type"))
            .unwrap_or_else(|| format!("{:?}", config.family)),
        layers: config.layers,
        hidden_size: config.hidden_size,
        intermediate_size: config.intermediate_size,
        heads: config.heads,
        kv_heads: config.kv_heads,
        head_dim: config.head_dim,
        vocab_size: config.vocab_size,
        max_position: config.max_position,
        tied: config.tie_word_embeddings,
        cache_bytes_per_token: KvType::F16.bytes_per_token(config),
    }
}

/// The linear layer that a tensor belongs to, its bias aside.
fn module_of<'a>(name: &'a str, declared: &IndexMap<String, String>) -> Option<&'a str> {
    if name.ends_with(".bias") {
        return None;
    }
    name.rmatch_indices('.').map(|(at, _)| &name[..at]).find(|module| declared.contains_key(*module))
}

fn type_totals(tensors: &[TensorInfo]) -> Vec<Total> {
    let mut by_type: IndexMap<&str, Total> = IndexMap::new();
    for tensor in tensors {
        let total = by_type.entry(&tensor.dtype).or_insert_with(|| empty(&tensor.dtype));
        total.count += 1;
        total.elements += tensor.shape.iter().map(|&n| n as u64).product::<u64>();
        total.bytes += tensor.bytes;
    }
    finish(by_type.into_values().collect())
}

/// By scheme; and the error of the first layer whose layout is not understood.
fn scheme_totals(
    model: &Model,
    declared: &IndexMap<String, String>,
    tensors: &[TensorInfo],
) -> (Vec<Total>, Option<store::Error>) {
    let mut by_scheme: IndexMap<&str, Total> = IndexMap::new();
    let (mut broken, mut layers) = (None, model.layers());
    for (module, scheme) in declared {
        let total = by_scheme.entry(scheme).or_insert_with(|| empty(scheme));
        total.count += 1;
        match layers.swap_remove(module) {
            Some(Ok(layer)) => total.elements += layer.weights() as u64,
            // Its number of weights is not known.
            Some(Err(e)) => broken = broken.or(Some(e)),
            None => {}
        }
    }
    for tensor in tensors {
        if let Some(total) = tensor.scheme.as_deref().and_then(|scheme| by_scheme.get_mut(scheme)) {
            total.bytes += tensor.bytes;
        }
    }
    (finish(by_scheme.into_values().collect()), broken)
}

/// Elements of what belongs to no linear layer, buffers aside.
fn others(tensors: &[TensorInfo]) -> u64 {
    let is_buffer = |name: &str| name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight";
    let counted = tensors.iter().filter(|t| t.scheme.is_none() && !is_buffer(&t.name));
    counted.map(|t| t.shape.iter().map(|&n| n as u64).product::<u64>()).sum()
}

fn empty(name: &str) -> Total {
    Total { name: name.into(), count: 0, elements: 0, bytes: 0, bits: 0.0 }
}

/// The largest first.
fn finish(mut totals: Vec<Total>) -> Vec<Total> {
    for total in &mut totals {
        total.bits = if total.elements == 0 { 0.0 } else { 8.0 * total.bytes as f64 / total.elements as f64 };
    }
    totals.sort_by_key(|total| std::cmp::Reverse(total.bytes));
    totals
}

/// Tensors that differ in the number of their block alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Alike<'a> {
    /// The name, with `*` for the block's number where there are several.
    pub name: String,
    /// Number of tensors.
    pub count: usize,
    /// Bytes of all.
    pub bytes: u64,
    /// The first of them.
    pub first: &'a TensorInfo,
}

/// Properties that tensors of one group share: name without number, type, shape, scheme.
type Likeness<'a> = (String, &'a str, &'a [usize], Option<&'a str>);

/// The tensors in file order, those of equal type, shape and scheme in different blocks together.
pub fn alike(tensors: &[TensorInfo]) -> Vec<Alike<'_>> {
    let mut groups: IndexMap<Likeness<'_>, Alike<'_>> = IndexMap::new();
    for tensor in tensors {
        let name = without_number(&tensor.name);
        let key = (name.clone(), tensor.dtype.as_str(), tensor.shape.as_slice(), tensor.scheme.as_deref());
        let group = groups.entry(key).or_insert(Alike { name, count: 0, bytes: 0, first: tensor });
        group.count += 1;
        group.bytes += tensor.bytes;
    }
    let named = |group: Alike<'_>| if group.count == 1 { group.first.name.clone() } else { group.name };
    groups.into_values().map(|group| Alike { name: named(group.clone()), ..group }).collect()
}

/// The name with `*` for its first numeric part.
pub(crate) fn without_number(name: &str) -> String {
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match name.split('.').position(|part| is_number(&part)) {
        Some(at) => {
            name.split('.').enumerate().map(|(i, p)| if i == at { "*" } else { p }).collect::<Vec<_>>().join(".")
        }
        None => name.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_the_number_of_their_block() {
        assert_eq!(without_number("model.layers.12.mlp.up_proj.weight"), "model.layers.*.mlp.up_proj.weight");
        assert_eq!(without_number("model.norm.weight"), "model.norm.weight");
        assert_eq!(without_number(""), "");
    }

    #[test]
    fn the_fixture() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny"));
        let found = look(path, true).expect("opens");
        let architecture = found.architecture.as_ref().expect("known");
        assert_eq!((architecture.cache_bytes_per_token, architecture.tied), (1024, true));
        assert_eq!((found.parameters, found.bytes), (1_820_352, 2 * 1_820_352));
        let groups = alike(&found.tensors);
        assert_eq!(groups.iter().map(|g| g.count).sum::<usize>(), found.tensors.len());
        assert!(groups.iter().any(|g| g.name == "model.layers.*.mlp.down_proj.weight" && g.count == 4));
    }
}
