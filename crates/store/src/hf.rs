//! Hugging Face directories: config.json, one safetensors file or shards with their index, and
//! the files that travel with them.

mod folders;
mod links;
mod names;

use crate::{
    Bytes, Container, Error, Model, Result, SideFile, Tensor,
    json::{UniqueStrings, shown},
    parse_json,
    safetensors::{self, INDEX_FILE},
};
use indexmap::{IndexMap, IndexSet, map::Entry};
use serde_json::Value;
use std::{
    collections::HashMap,
    fs,
    path::{Component, Path, PathBuf},
};

/// The longest config.json or shard index that is read.
const MAX_JSON: u64 = 64 << 20;

/// The longest file that travels along.
const MAX_SIDE_FILE: u64 = 64 << 20;

/// The most files that travel along.
const MAX_SIDE_FILES: usize = 1000;

/// Metadata keys that carry the text of a directory's file start so: `qconvert.hf.config.json`.
pub const FILE_KEY: &str = "qconvert.hf.";

/// The model's configuration.
pub const CONFIG_FILE: &str = "config.json";

pub(crate) use folders::other_format;

/// Extensions of weight files, whoever reads them.
const WEIGHTS: [&str; 13] =
    ["safetensors", "gguf", "ggml", "bin", "pt", "pth", "ckpt", "h5", "msgpack", "onnx", "ot", "npz", "tflite"];

/// Files that hold a folder's weights.
pub(crate) enum Weights {
    /// One safetensors file.
    File(PathBuf),
    /// The index of several.
    Index(PathBuf),
}

/// Reads the directory `dir`.
pub(crate) fn read_directory(dir: &Path) -> Result<Model> {
    let mut warnings = Vec::new();
    let weights = folders::weights(dir, &mut warnings)?;
    read_folder(dir, &weights, warnings)
}

/// Reads the weights of a folder with the folder's other files.
pub(crate) fn read_folder(dir: &Path, weights: &Weights, mut warnings: Vec<String>) -> Result<Model> {
    let config_path = dir.join(CONFIG_FILE);
    let config_text = match fs::symlink_metadata(&config_path) {
        Ok(_) => {
            links::check(dir, &config_path)?;
            Some(bounded(&config_path)?)
        }
        Err(_) => None,
    };
    let config_json = config_text.as_deref().map(|text| parse_object(&config_path, text)).transpose()?;
    let (mut tensors, metadata) = match weights {
        Weights::File(path) => {
            let contents = safetensors::read(path, &map_weights(path)?)?;
            (contents.tensors, contents.metadata)
        }
        Weights::Index(path) => read_shards(dir, path, &mut warnings)?,
    };
    folders::refuse_other_formats(weights, tensors.keys())?;
    warnings.extend(names::add_prefix(&mut tensors, config_json.as_ref())?);
    let side_files = side_files(dir, &mut warnings)?;
    Ok(Model {
        path: dir.to_path_buf(),
        container: Container::Directory,
        tensors,
        metadata,
        config_json,
        config_text,
        side_files,
        warnings,
    })
}

/// Maps a file of weights.
///
/// # Errors
/// When it can't be read, or is the pointer that Git leaves of a large file.
pub(crate) fn map_weights(path: &Path) -> Result<Bytes> {
    let bytes = Bytes::map(path)?;
    if is_lfs_pointer(&bytes) {
        return Err(Error::unsupported(path, "is a Git LFS pointer, not the file itself: run git lfs pull"));
    }
    Ok(bytes)
}

/// Returns whether a file is what Git keeps in the place of a large one.
fn is_lfs_pointer(bytes: &[u8]) -> bool {
    bytes.len() < 1024 && bytes.starts_with(b"version https://git-lfs")
}

/// Reads a .safetensors file on its own; config.json and other files come from its metadata.
pub(crate) fn read_bare(path: &Path) -> Result<Model> {
    if let Some(total) = shard_of(path) {
        return Err(Error::unsupported(path, format!("is one shard of {total}; give the folder that holds them")));
    }
    let mut contents = safetensors::read(path, &map_weights(path)?)?;
    let (mut config_json, mut config_text, mut side_files) = (None, None, Vec::new());
    for (key, value) in &contents.metadata {
        match key.strip_prefix(FILE_KEY) {
            Some(CONFIG_FILE) => {
                let json = parse_json(value.as_bytes());
                config_json = Some(json.map_err(|e| Error::malformed(path, format!("metadata {key}: {e}")))?);
                config_text = Some(Bytes::from(value.clone().into_bytes()));
            }
            Some(name) if is_plain_name(name) => {
                side_files.push(SideFile { name: name.into(), data: Bytes::from(value.clone().into_bytes()) });
            }
            Some(_) => {
                return Err(Error::malformed(path, format!("metadata {}: not a plain file name", shown(key))));
            }
            None => {}
        }
    }
    let warnings = names::add_prefix(&mut contents.tensors, config_json.as_ref())?.into_iter().collect();
    Ok(Model {
        path: path.to_path_buf(),
        container: Container::Safetensors,
        tensors: contents.tensors,
        metadata: contents.metadata,
        config_json,
        config_text,
        side_files,
        warnings,
    })
}

/// Returns whether `name` names a file in a directory and nothing beyond it.
pub(crate) fn is_plain_name(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(Component::Normal(n)), None) if n == name)
        && !name.contains(['\0', '/', '\\'])
}

fn is_file(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file())
}

fn parse_object(path: &Path, text: &[u8]) -> Result<Value> {
    let json = parse_json(text).map_err(|e| Error::malformed(path, e))?;
    if !json.is_object() {
        return Err(Error::malformed(path, "is not a JSON object"));
    }
    Ok(json)
}

fn bounded(path: &Path) -> Result<Bytes> {
    let bytes = Bytes::map(path)?;
    if bytes.len() as u64 > MAX_JSON {
        return Err(Error::malformed(path, format!("{} bytes are too many: the limit is {MAX_JSON}", bytes.len())));
    }
    Ok(bytes)
}

/// The number of shards, if the name is that of one of several.
fn shard_of(path: &Path) -> Option<u32> {
    let stem = path.file_name()?.to_str()?.strip_suffix(".safetensors")?;
    let (front, total) = stem.rsplit_once("-of-")?;
    let (_, number) = front.rsplit_once('-')?;
    let total: u32 = total.parse().ok()?;
    (number.parse::<u32>().is_ok() && total > 1).then_some(total)
}

/// The refusal of PyTorch's pickles.
pub(crate) fn pickle(path: &Path) -> Error {
    Error::unsupported(
        path,
        "is a PyTorch pickle, which can run code when read and is not supported; save the model as safetensors \
         (transformers: model.save_pretrained(folder, safe_serialization=True)) and give that folder",
    )
}

#[derive(serde::Deserialize)]
struct Index {
    weight_map: UniqueStrings,
}

type Read = (IndexMap<String, Tensor>, IndexMap<String, String>);

/// Reads the shards that `index` names, and checks them against it.
fn read_shards(dir: &Path, index: &Path, warnings: &mut Vec<String>) -> Result<Read> {
    let parsed: Index =
        serde_json::from_slice(&bounded(index)?).map_err(|e| Error::malformed(index, shown(&e.to_string())))?;
    let map = parsed.weight_map.0;
    let mut files: IndexSet<&str> = IndexSet::new();
    for (tensor, file) in &map {
        if files.insert(file) {
            check_shard(dir, index, tensor, file)?;
        }
    }
    files.sort();
    let (mut tensors, mut metadata): Read = Default::default();
    let mut homes: HashMap<String, &str> = HashMap::with_capacity(map.len());
    let mut unlisted = 0usize;
    for file in files {
        let path = dir.join(file);
        let contents = safetensors::read(&path, &map_weights(&path)?)?;
        merge_metadata(&path, &mut metadata, contents.metadata)?;
        for (name, tensor) in contents.tensors {
            if let Some(other) = homes.insert(name.clone(), file) {
                return Err(Error::tensor(index, shown(&name), format!("stands in two shards, {other} and {file}")));
            }
            unlisted += usize::from(!map.contains_key(&name));
            tensors.insert(name, tensor);
        }
    }
    for (name, file) in &map {
        match homes.get(name) {
            Some(home) if home == file => {}
            Some(home) => {
                let what = format!("the index says {}, but it lies in {home}", shown(file));
                return Err(Error::tensor(index, shown(name), what));
            }
            None => {
                return Err(Error::tensor(
                    index,
                    shown(name),
                    format!("is in no shard; the index says {}", shown(file)),
                ));
            }
        }
    }
    if unlisted > 0 {
        warnings.push(format!("{unlisted} tensors of the shards are not in {INDEX_FILE}; they are read all the same"));
    }
    Ok((tensors, metadata))
}

/// A shard must lie in the directory and be there.
fn check_shard(dir: &Path, index: &Path, tensor: &str, file: &str) -> Result<()> {
    let inside = !file.is_empty() && Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
    if !inside || file.contains('\0') {
        let what = format!("the index puts it outside of the folder, in '{}'", shown(file));
        return Err(Error::tensor(index, shown(tensor), what));
    }
    if is_file(&dir.join(file)) {
        return Ok(());
    }
    Err(Error::tensor(index, shown(tensor), format!("its shard {} is absent", shown(file))))
}

/// The first shard's word stands, but provenance must agree.
fn merge_metadata(path: &Path, all: &mut IndexMap<String, String>, more: IndexMap<String, String>) -> Result<()> {
    for (key, value) in more {
        match all.entry(key) {
            Entry::Vacant(slot) => {
                slot.insert(value);
            }
            Entry::Occupied(slot) if slot.key().starts_with("qconvert.") && *slot.get() != value => {
                let what = format!("metadata {} differs from the shards before: not of one model", shown(slot.key()));
                return Err(Error::malformed(path, what));
            }
            Entry::Occupied(_) => {}
        }
    }
    Ok(())
}

/// Every regular file that holds neither weights nor their index, by name; config.json is
/// [`Model::config_json`].
fn side_files(dir: &Path, warnings: &mut Vec<String>) -> Result<Vec<SideFile>> {
    let io = |e| Error::io(dir, "list", e);
    let mut found: Vec<(String, PathBuf)> = Vec::new();
    for entry in fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        let Ok(name) = entry.file_name().into_string() else {
            warnings.push(format!("{}: left behind: the name is not UTF-8", entry.path().display()));
            continue;
        };
        if !travels(&name) {
            continue;
        }
        if is_file(&entry.path()) {
            found.push((name, entry.path()));
        } else if !entry.path().exists() {
            warnings.push(format!("{name}: left behind: it is a link to what is absent"));
        }
    }
    found.sort();
    if found.len() > MAX_SIDE_FILES {
        warnings
            .push(format!("{} files left behind: only {MAX_SIDE_FILES} travel along", found.len() - MAX_SIDE_FILES));
        found.truncate(MAX_SIDE_FILES);
    }
    let mut files = Vec::with_capacity(found.len());
    for (name, path) in found {
        links::check(dir, &path)?;
        let data = Bytes::map(&path)?;
        if is_lfs_pointer(&data) {
            warnings.push(format!("{name} is a Git LFS pointer, not the file itself: run git lfs pull"));
        }
        if data.len() as u64 > MAX_SIDE_FILE {
            warnings.push(format!("{name}: left behind: {} bytes are over the limit of {MAX_SIDE_FILE}", data.len()));
            continue;
        }
        files.push(SideFile { name, data });
    }
    Ok(files)
}

fn travels(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let extension = Path::new(&lower).extension().and_then(|e| e.to_str()).unwrap_or("");
    !(name.starts_with('.')
        || name == CONFIG_FILE
        || lower.ends_with(".index.json")
        || extension == "tmp"
        || WEIGHTS.contains(&extension))
}

#[cfg(test)]
#[path = "hf_tests.rs"]
mod tests;
