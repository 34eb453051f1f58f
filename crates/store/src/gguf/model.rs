//! A GGUF file as a model: Hugging Face names, shapes and side files.

use super::config::{self, Keys};
use super::edited::{self, Carried};
use super::names::{ARCHITECTURES, block_part, gguf_to_hf_name};
use super::parse::{GgufFile, TensorInfo, parse};
use super::split;
use super::tokenizer::Vocabulary;
use super::value::Value;
use crate::hf::{FILE_KEY, is_plain_name};
use crate::{Bytes, DType, Error, Result, SideFile, Tensor, parse_json};
use indexmap::IndexMap;
use schemes::{GgmlType, RowOrder};
use serde_json::Value as Json;
use std::path::Path;

/// Beginning of the note on keys that give no configuration.
pub(crate) const NO_CONFIGURATION: &str = "no configuration: ";

/// Parts of a [`crate::Model`] that a GGUF file gives.
#[derive(Debug, Clone)]
pub struct GgufModel {
    /// Tensors in file order, under Hugging Face names (unknown names as they are).
    pub tensors: IndexMap<String, Tensor>,
    /// The string-valued metadata, without the side files.
    pub metadata: IndexMap<String, String>,
    /// config.json as carried in the file, or as rebuilt from its keys.
    pub config_json: Option<Json>,
    /// The text of config.json, where it is the carried one.
    pub config_text: Option<Bytes>,
    /// Side files as carried in the file, or as rebuilt from its keys.
    pub side_files: Vec<SideFile>,
    /// Notes for the user, such as a tokenizer that could not be rebuilt.
    pub warnings: Vec<String>,
}

/// Reads a mapped GGUF file as a model.
///
/// # Errors
/// Names the key or tensor and the offset. A tokenizer or configuration that can't be
/// rebuilt is no error but a warning.
pub fn read(path: &Path, bytes: &Bytes) -> Result<GgufModel> {
    let mut file = parse(path, bytes)?;
    let parts = split::others(path, &file)?;
    let keys = Keys::new(&file).filter(|k| ARCHITECTURES.contains(&k.arch()));
    let mut all = IndexMap::with_capacity(file.tensors.len());
    tensors(path, bytes, &file, keys.as_ref(), &mut all)?;
    for part in &parts {
        tensors(&part.path, &part.bytes, &part.file, keys.as_ref(), &mut all)?;
    }
    split::check_count(path, &file, all.len())?;
    // What is rebuilt below looks at the tensors too.
    file.tensors.extend(parts.into_iter().flat_map(|p| p.file.tensors));
    let mut warnings: Vec<String> = config::unread(&file).into_iter().collect();
    let mut side_files = verbatim(path, &file)?;
    let carried = side_files.iter().position(|f| f.name == "config.json").map(|i| side_files.remove(i));
    let (config_json, config_text) = configuration(path, &file, carried, &mut side_files, &mut warnings)?;
    rebuild(&file, &mut side_files, &mut warnings);
    let metadata = file
        .metadata
        .into_iter()
        .filter(|(key, _)| !key.starts_with(FILE_KEY))
        .filter_map(|(key, value)| match value {
            Value::String(s) => Some((key, s)),
            _ => None,
        })
        .collect();
    Ok(GgufModel { tensors: all, metadata, config_json, config_text, side_files, warnings })
}

/// The configuration and its text: that which the file carries unless its keys say otherwise, or that of the keys.
fn configuration(
    path: &Path,
    file: &GgufFile,
    carried: Option<SideFile>,
    side_files: &mut Vec<SideFile>,
    warnings: &mut Vec<String>,
) -> Result<(Option<Json>, Option<Bytes>)> {
    let rebuilt = config::config_json(file);
    let Some(carried) = carried else {
        let rebuilt = rebuilt.map_err(|e| warnings.push(format!("{NO_CONFIGURATION}{e}")));
        return Ok((rebuilt.ok(), None));
    };
    let mut json = parse_json(&carried.data)
        .map_err(|e| Error::malformed(path, format!("the key {FILE_KEY}config.json is not JSON: {e}")))?;
    let known = Keys::new(file).is_some_and(|keys| ARCHITECTURES.contains(&keys.arch()));
    let rebuilt = match rebuilt {
        Ok(rebuilt) => rebuilt,
        // llama.cpp would refuse these keys as well.
        Err(e) if known => {
            warnings.push(format!("{NO_CONFIGURATION}{e}"));
            return Ok((None, None));
        }
        Err(_) => return Ok((Some(json), Some(carried.data))),
    };
    let differing = if known { differing(path, &rebuilt, &json) } else { Vec::new() };
    if !differing.is_empty() {
        warnings.push(format!(
            "the keys and the carried config.json differ in {}: the keys are used, as llama.cpp does",
            differing.join(", ")
        ));
        let mut rebuilt = rebuilt;
        edited::follow_keys(file, &mut Carried { config: &mut rebuilt, side_files }, warnings);
        return Ok((Some(rebuilt), None));
    }
    let changed = edited::follow_keys(file, &mut Carried { config: &mut json, side_files }, warnings);
    Ok((Some(json), (!changed).then_some(carried.data)))
}

/// Names of the fields in which the keys' configuration differs from the carried one. llama.cpp goes by the keys, so
/// the keys of an edited file win.
fn differing(path: &Path, rebuilt: &Json, carried: &Json) -> Vec<&'static str> {
    let parse = |json| crate::config::parse(path, json);
    match (parse(rebuilt), parse(carried)) {
        (Ok(keys), Ok(json)) => config::differing(&keys, &json),
        // The keys ask for arithmetic that is refused by name, where the configuration is used.
        (Err(_), Ok(_)) => vec!["what is not supported"],
        (_, Err(_)) => Vec::new(),
    }
}

/// The files that the keys carry word for word.
fn verbatim(path: &Path, file: &GgufFile) -> Result<Vec<SideFile>> {
    let mut out = Vec::new();
    for (key, value) in &file.metadata {
        let Some(name) = key.strip_prefix(FILE_KEY) else { continue };
        if !is_plain_name(name) {
            return Err(Error::malformed(path, format!("the key {key} does not name a file")));
        }
        let Value::String(text) = value else {
            return Err(Error::malformed(path, format!("the key {key} is a {}, not a string", value.type_name())));
        };
        out.push(SideFile { name: name.to_string(), data: Bytes::from(text.clone().into_bytes()) });
    }
    Ok(out)
}

/// Adds the side files that the file does not carry but its keys describe.
fn rebuild(file: &GgufFile, side_files: &mut Vec<SideFile>, warnings: &mut Vec<String>) {
    let has = |files: &[SideFile], name: &str| files.iter().any(|f| f.name == name);
    let add = |files: &mut Vec<SideFile>, name: &str, data: Vec<u8>| {
        if !has(files, name) {
            files.push(SideFile { name: name.to_string(), data: Bytes::from(data) });
        }
    };
    if !has(side_files, "tokenizer.json") {
        match Vocabulary::read(file).and_then(|v| v.map(|v| Ok((v.tokenizer_json()?, v))).transpose()) {
            Ok(Some((json, vocabulary))) => {
                add(side_files, "tokenizer.json", json);
                add(side_files, "tokenizer_config.json", pretty(&vocabulary.tokenizer_config(file)));
                warnings.extend(vocabulary.notes);
            }
            Ok(None) => {}
            Err(e) => warnings.push(format!("no tokenizer: {e}")),
        }
    }
    if let Some(json) = config::generation_config(file) {
        add(side_files, "generation_config.json", pretty(&json));
    }
}

fn pretty(json: &Json) -> Vec<u8> {
    format!("{json:#}\n").into_bytes()
}

/// Adds the tensors of one file; `known` are the keys of the first, where its architecture is known.
fn tensors(
    path: &Path,
    bytes: &Bytes,
    file: &GgufFile,
    known: Option<&Keys<'_>>,
    out: &mut IndexMap<String, Tensor>,
) -> Result<()> {
    for info in &file.tensors {
        let fail = |what: String| Error::tensor(path, &info.name, what);
        let name = known.and_then(|_| gguf_to_hf_name(&info.name)).unwrap_or_else(|| info.name.clone());
        let order = match known {
            Some(keys) => row_order(keys, info).map_err(fail)?,
            None => RowOrder::Natural,
        };
        let shape = info.dims.iter().rev().map(|&d| usize::try_from(d)).collect::<Result<Vec<_>, _>>();
        let tensor = Tensor {
            dtype: dtype(info.ggml_type),
            shape: shape.map_err(|_| fail("a dimension does not fit this machine".into()))?,
            data: bytes.slice(file.range(info)).ok_or_else(|| fail("lies outside the file".into()))?,
            order,
            file: path.to_path_buf(),
            stored_name: info.name.clone(),
        };
        if out.insert(name.clone(), tensor).is_some() {
            return Err(fail(format!("two tensors are {name}")));
        }
    }
    Ok(())
}

/// Rows of q and k of the llama family are stored in the interleaved rotary order.
fn row_order(keys: &Keys<'_>, info: &TensorInfo) -> Result<RowOrder, String> {
    let parameter = [".weight", ".bias"].iter().any(|p| info.name.ends_with(p)) || info.name.contains(".weight.");
    if keys.arch() != "llama" || !parameter || !matches!(block_part(&info.name), Some("attn_q" | "attn_k")) {
        return Ok(RowOrder::Natural);
    }
    let head_dim = usize::try_from(keys.head_dim()?).map_err(|_| "its head width does not fit this machine")?;
    if head_dim == 0 || !head_dim.is_multiple_of(2) {
        return Err(format!("heads of {head_dim} rows cannot be rotated"));
    }
    // Parts of the packed layout may be flattened: there the layout checks the rows.
    let whole = info.name.ends_with(".weight") || info.name.ends_with(".bias");
    match info.dims.last() {
        Some(rows) if whole && !rows.is_multiple_of(head_dim as u64) => {
            Err(format!("{rows} rows are no whole heads of {head_dim}"))
        }
        _ => Ok(RowOrder::Interleaved { head_dim }),
    }
}

/// The plain type where there is one.
fn dtype(ty: GgmlType) -> DType {
    match ty {
        GgmlType::F64 => DType::F64,
        GgmlType::F32 => DType::F32,
        GgmlType::F16 => DType::F16,
        GgmlType::BF16 => DType::BF16,
        GgmlType::I64 => DType::I64,
        GgmlType::I32 => DType::I32,
        GgmlType::I16 => DType::I16,
        GgmlType::I8 => DType::I8,
        other => DType::Ggml(other),
    }
}
