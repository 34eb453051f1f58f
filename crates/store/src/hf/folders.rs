//! Kinds of folders: the weight files of a model folder, or the reason why a folder has none, with the way out.

use super::{CONFIG_FILE, Weights, is_file, pickle, shard_of};
use crate::{
    Error, Result,
    json::shown,
    parse_json,
    safetensors::{INDEX_FILE, SINGLE_FILE},
};
use std::{fs, path::Path};

/// Error text for an adapter, with the way out.
const ADAPTER: &str = "is a PEFT (LoRA) adapter, not a model: merge it into its base model first (peft: \
    PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(folder)) and give that folder";

/// Error text for Mistral's own format, with the way out.
const MISTRAL: &str = "is in Mistral's own format, whose tensors have other names: convert it with transformers' \
    convert_mistral_weights_to_hf.py, or download the repository's other safetensors files, and give that folder";

/// Files with weights of other formats, by their ending.
const FOREIGN: [(&str, &str); 7] = [
    (".h5", "TensorFlow"),
    (".msgpack", "Flax"),
    (".onnx", "ONNX"),
    (".npz", "NumPy"),
    (".nemo", "NeMo"),
    (".tflite", "TensorFlow Lite"),
    (".ot", "Rust"),
];

/// Pickles that a trainer writes beside weights.
const TRAINER: [&str; 4] = ["training_args", "optimizer", "scheduler", "rng_state"];

/// Finds a folder's weights; notes what else could have been read.
///
/// # Errors
/// What the folder is instead, and the way out.
pub(super) fn weights(dir: &Path, warnings: &mut Vec<String>) -> Result<Weights> {
    let names = file_names(dir);
    let has = |name: &str| names.iter().any(|n| n == name);
    let (single, index) = (dir.join(SINGLE_FILE), dir.join(INDEX_FILE));
    let adapter = has("adapter_model.safetensors") || has("adapter_model.bin");
    if has("adapter_config.json") && adapter && (is_file(&single) || is_file(&index)) {
        return Err(Error::unsupported(
            dir,
            "holds a model and a PEFT adapter, which transformers would apply to it: merge the adapter \
             (merge_and_unload), or move adapter_config.json elsewhere",
        ));
    }
    if has("adapter_config.json") && !adapter && has(CONFIG_FILE) {
        warnings.push("adapter_config.json is not used: no adapter's weights are beside it".into());
    }
    if is_file(&single) {
        if is_file(&index) {
            warnings.push(format!("{SINGLE_FILE} is read; {INDEX_FILE} beside it is not"));
        }
        return Ok(Weights::File(single));
    }
    if is_file(&index) {
        return Ok(Weights::Index(index));
    }
    if !has(CONFIG_FILE) {
        return Err(without_weights(dir, &names));
    }
    match &variants(&names)[..] {
        [] => Err(without_weights(dir, &names)),
        [(variant, name)] => {
            warnings.push(format!("{name} is read: the weights' variant {variant}, and the only one"));
            let path = dir.join(name);
            Ok(if name.ends_with(".json") { Weights::Index(path) } else { Weights::File(path) })
        }
        several => {
            let names: Vec<&str> = several.iter().map(|(_, name)| *name).collect();
            let what = format!("holds variants of the weights ({}): give one of the files", names.join(", "));
            Err(Error::unsupported(dir, what))
        }
    }
}

/// Files of variants, as transformers names them: `model.fp16.safetensors`, `model.safetensors.index.fp16.json`.
fn variants(names: &[String]) -> Vec<(&str, &str)> {
    fn variant(name: &str) -> Option<&str> {
        let single = name.strip_prefix("model.").and_then(|n| n.strip_suffix(".safetensors"));
        let index = || name.strip_prefix("model.safetensors.index.").and_then(|n| n.strip_suffix(".json"));
        single.filter(|v| !v.contains("-of-")).or_else(index).filter(|v| !v.is_empty())
    }
    names.iter().filter_map(|name| Some((variant(name)?, name.as_str()))).collect()
}

/// Refuses weights whose names are those of another format.
///
/// # Errors
/// Says what it is.
pub(super) fn refuse_other_formats<'a>(weights: &Weights, names: impl Iterator<Item = &'a String>) -> Result<()> {
    let (Weights::File(path) | Weights::Index(path)) = weights;
    other_format(names).map_or(Ok(()), |what| Err(Error::unsupported(path, what)))
}

/// Returns the error text, with the way out, for weights whose names show a format that is not read.
pub(crate) fn other_format<'a>(mut names: impl Iterator<Item = &'a String>) -> Option<&'static str> {
    let name = names.find(|name| name.contains(".lora_A.") || *name == "tok_embeddings.weight")?;
    Some(if name.contains(".lora_A.") { ADAPTER } else { MISTRAL })
}

/// The error of a folder without safetensors weights that can be read, with the way out.
fn without_weights(dir: &Path, names: &[String]) -> Error {
    let has = |name: &str| names.iter().any(|n| n == name);
    let ending = |ends: &[&str]| names.iter().filter(|n| ends.iter().any(|e| n.ends_with(e))).min();
    if has("adapter_config.json") {
        return adapter(dir);
    }
    if has("model_index.json") {
        let what = "is a diffusers pipeline, not a language model; its text encoder, if any, is a folder of its own";
        return Error::unsupported(dir, what);
    }
    if names.iter().any(|n| n.starts_with("consolidated") && n.ends_with(".safetensors")) {
        return Error::unsupported(dir, format!("holds consolidated.safetensors only: it {MISTRAL}"));
    }
    if has("params.json") && ending(&[".pth"]).is_some() {
        let what = "is in Meta's own format: convert it with transformers' convert_llama_weights_to_hf.py";
        return Error::unsupported(dir, what);
    }
    let is_model = |n: &&String| !TRAINER.iter().any(|t| n.starts_with(t));
    let pickles = names.iter().filter(is_model).filter(|n| [".bin", ".pt", ".pth"].iter().any(|e| n.ends_with(e)));
    if let Some(name) = pickles.min() {
        return pickle(&dir.join(name));
    }
    if let Some(name) = ending(&[".gguf"]) {
        return Error::unsupported(dir, format!("holds no {SINGLE_FILE}; to read {name}, give that file"));
    }
    if let Some(name) = names.iter().find(|n| shard_of(Path::new(n)).is_some()) {
        let what = format!("holds {name} and no {INDEX_FILE}, which says where each tensor lies: download it as well");
        return Error::malformed(dir, what);
    }
    if let Some(name) = ending(&[".safetensors"]) {
        let what = format!("holds neither {SINGLE_FILE} nor {INDEX_FILE}; to read {name}, give that file");
        return Error::malformed(dir, what);
    }
    for (end, kind) in FOREIGN {
        if let Some(name) = ending(&[end]) {
            let what = format!("holds {name} ({kind} weights), which is not supported; save the model as safetensors");
            return Error::unsupported(dir, what);
        }
    }
    let below = models_below(dir);
    if !below.is_empty() {
        return Error::malformed(dir, format!("is no model directory; give the folder of one: {}", below.join(", ")));
    }
    if has(CONFIG_FILE) {
        let what = format!("holds {CONFIG_FILE} and no weights: neither {SINGLE_FILE} nor {INDEX_FILE} is in it");
        return Error::malformed(dir, what);
    }
    Error::malformed(dir, format!("is no model directory: neither {SINGLE_FILE} nor {INDEX_FILE} is in it"))
}

/// An adapter's folder; its configuration names the base model.
fn adapter(dir: &Path) -> Error {
    let path = dir.join("adapter_config.json");
    let text = if is_file(&path) { super::bounded(&path).ok() } else { None };
    let json = text.and_then(|text| parse_json(&text).ok()).unwrap_or_default();
    let base = json["base_model_name_or_path"].as_str().map(shown);
    let base = base.filter(|b| !b.is_empty()).map_or(String::new(), |b| format!("; its base model is {b}"));
    Error::unsupported(dir, format!("{ADAPTER}{base}"))
}

/// Folders below that hold a model, at most three: one level down, and the snapshots of a Hugging Face cache.
fn models_below(dir: &Path) -> Vec<String> {
    let mut below: Vec<String> = Vec::new();
    for folder in ["", "snapshots"] {
        for name in entries(&dir.join(folder)) {
            let path = Path::new(folder).join(&name);
            let inside = file_names(&dir.join(&path));
            if inside.iter().any(|n| n == SINGLE_FILE || n == INDEX_FILE || n.ends_with(".gguf")) {
                below.push(path.display().to_string());
            }
        }
    }
    below.sort();
    below.truncate(3);
    below
}

/// Names of a folder's files; none where it can't be listed.
fn file_names(dir: &Path) -> Vec<String> {
    entries(dir).into_iter().filter(|name| is_file(&dir.join(name))).collect()
}

/// Names in a folder, in order, at most 10,000.
fn entries(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).into_iter().flatten().take(10_000);
    let mut names: Vec<String> = all.filter_map(|e| e.ok()?.file_name().into_string().ok()).collect();
    names.sort();
    names
}
