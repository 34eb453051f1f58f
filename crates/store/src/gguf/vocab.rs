//! `tokenizer.ggml.*`, from the files of a Hugging Face directory.

use super::pre::Pre;
use super::spm;
use super::tokenizer::{kind, pad_name};
use super::value::{Array, Strings, Value};
use serde_json::Value as Json;
use std::collections::HashMap;

/// The tokenizer's files, parsed; null where absent.
pub(super) struct Files<'a> {
    pub tokenizer: &'a Json,
    pub tokenizer_config: &'a Json,
    pub config: &'a Json,
    pub generation_config: &'a Json,
    /// chat_template.jinja, which goes before the template in tokenizer_config.json.
    pub template: Option<&'a str>,
    /// tokenizer.model, whose scores go before what tokenizer.json's merges say.
    pub sentencepiece: Option<&'a [u8]>,
}

type Entries = Vec<(String, Value)>;

/// The keys for a vocabulary of `rows` entries, as the embedding has rows; `notes` gets what a user should know.
pub(super) fn keys(files: &Files<'_>, rows: usize, notes: &mut Vec<String>) -> Result<Entries, String> {
    let model = &files.tokenizer["model"];
    match model["type"].as_str() {
        Some("BPE") => {}
        // Old files leave the type out.
        None if model["merges"].is_array() => {}
        other => {
            return Err(format!("a tokenizer of type {} cannot be written to GGUF; only BPE", other.unwrap_or("?")));
        }
    }
    let (tokens, mut out, space_prefix) =
        if spm::is_spm(files.tokenizer) { spm_keys(files, rows, notes)? } else { bpe_keys(files, rows)? };
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(i, t)| (t.as_str(), i)).collect();
    let mut bos = None;
    for (name, key) in [("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")] {
        if let Some(id) = special_id(files, name, &ids).filter(|id| *id < rows) {
            out.push((format!("tokenizer.ggml.{key}_token_id"), Value::U32(id as u32)));
            bos = bos.or((name == "bos").then_some(id));
        }
    }
    out.push(("tokenizer.ggml.add_bos_token".into(), Value::Bool(adds_bos(files, bos))));
    if files.tokenizer_config["add_eos_token"] == true {
        out.push(("tokenizer.ggml.add_eos_token".into(), Value::Bool(true)));
    }
    out.push(("tokenizer.ggml.add_space_prefix".into(), Value::Bool(space_prefix)));
    if let Some(template) = files.template.or_else(|| chat_template(&files.tokenizer_config["chat_template"])) {
        out.push(("tokenizer.chat_template".into(), template.into()));
    }
    Ok(out)
}

/// Tokens, their keys, and whether texts begin with a space that isn't there, for byte-level BPE.
fn bpe_keys(files: &Files<'_>, rows: usize) -> Result<(Vec<String>, Entries, bool), String> {
    let pre = Pre::detect(files.tokenizer)?;
    let (tokens, types) = tokens(files.tokenizer, rows)?;
    let out = vec![
        ("tokenizer.ggml.model".into(), "gpt2".into()),
        ("tokenizer.ggml.pre".into(), pre.name().into()),
        ("tokenizer.ggml.tokens".into(), Value::Array(Array::String(tokens.iter().collect()))),
        ("tokenizer.ggml.token_type".into(), Value::Array(Array::I32(types))),
        ("tokenizer.ggml.merges".into(), Value::Array(Array::String(merges(&files.tokenizer["model"]["merges"])?))),
    ];
    Ok((tokens, out, false))
}

/// Vocabulary keys of BPE with byte fallback.
fn spm_keys(files: &Files<'_>, rows: usize, notes: &mut Vec<String>) -> Result<(Vec<String>, Entries, bool), String> {
    let space_prefix = spm::space_prefix(files.tokenizer, notes)?;
    let spm::Pieces { tokens, scores, types } = spm::pieces(files, rows, notes)?;
    let out = vec![
        ("tokenizer.ggml.model".into(), "llama".into()),
        ("tokenizer.ggml.pre".into(), "default".into()),
        ("tokenizer.ggml.tokens".into(), Value::Array(Array::String(tokens.iter().collect()))),
        ("tokenizer.ggml.scores".into(), Value::Array(Array::F32(scores))),
        ("tokenizer.ggml.token_type".into(), Value::Array(Array::I32(types))),
    ];
    Ok((tokens, out, space_prefix))
}

/// Every token up to `rows`, gaps filled with padding, and its type.
fn tokens(tokenizer: &Json, rows: usize) -> Result<(Vec<String>, Vec<i32>), String> {
    let mut tokens: Vec<Option<(&str, i32)>> = vec![None; rows];
    let place = |id: &Json, token: &str, ty: i32| -> Result<usize, String> {
        let id = id.as_u64().and_then(|id| usize::try_from(id).ok());
        match id {
            Some(id) if id < rows => Ok(id),
            Some(id) => {
                Err(format!("token {id} \"{}\" has no row in the embedding, which has {rows}", token.escape_debug()))
            }
            None => Err(format!("token \"{}\" (type {ty}) has no number", token.escape_debug())),
        }
    };
    let vocab = tokenizer["model"]["vocab"].as_object().ok_or("tokenizer.json has no vocabulary")?;
    for (token, id) in vocab {
        let at = place(id, token, kind::NORMAL)?;
        if let Some((other, _)) = tokens[at] {
            return Err(format!("tokens \"{other}\" and \"{token}\" both have the number {at}"));
        }
        tokens[at] = Some((token, kind::NORMAL));
    }
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let content = added["content"].as_str().ok_or("an added token has no content")?;
        let ty = if added["special"] == true { kind::CONTROL } else { kind::USER_DEFINED };
        let at = place(&added["id"], content, ty)?;
        tokens[at] = Some((content, ty));
    }
    let mut seen = HashMap::with_capacity(rows);
    let mut texts = Vec::with_capacity(rows);
    let mut types = Vec::with_capacity(rows);
    for (id, token) in tokens.into_iter().enumerate() {
        let (text, ty) = token.map_or_else(|| (pad_name(id), kind::UNUSED), |(t, ty)| (t.to_string(), ty));
        if let Some(other) = seen.insert(text.clone(), id) {
            return Err(format!("tokens {other} and {id} are both \"{}\"", text.escape_debug()));
        }
        texts.push(text);
        types.push(ty);
    }
    Ok((texts, types))
}

/// Merges as `"a b"`, whichever of its two forms tokenizer.json has.
fn merges(merges: &Json) -> Result<Strings, String> {
    let mut out = Strings::default();
    for merge in merges.as_array().ok_or("tokenizer.json has no merges")? {
        let pair = match merge {
            Json::String(s) => s.split_once(' '),
            Json::Array(pair) => match pair.as_slice() {
                [Json::String(a), Json::String(b)] => Some((a.as_str(), b.as_str())),
                _ => None,
            },
            _ => None,
        };
        match pair {
            Some((a, b)) if !a.contains(' ') && !b.contains(' ') => out.push(&format!("{a} {b}")),
            _ => return Err(format!("the merge {merge} is not a pair that GGUF can hold")),
        }
    }
    Ok(out)
}

/// The number of a special token: by its text in tokenizer_config.json, else by its id in
/// config.json or generation_config.json (the first of several).
fn special_id(files: &Files<'_>, name: &str, ids: &HashMap<&str, usize>) -> Option<usize> {
    let named = &files.tokenizer_config[format!("{name}_token")];
    let text = named.as_str().or_else(|| named["content"].as_str());
    if let Some(id) = text.and_then(|t| ids.get(t)) {
        return Some(*id);
    }
    let key = format!("{name}_token_id");
    [files.config, files.generation_config].into_iter().find_map(|json| {
        let id = &json[key.as_str()];
        id.as_u64().or_else(|| id[0].as_u64()).and_then(|id| usize::try_from(id).ok())
    })
}

/// Returns whether text is encoded with BOS first: tokenizer_config.json says so, or else the
/// post-processor's template does it.
fn adds_bos(files: &Files<'_>, bos: Option<usize>) -> bool {
    if let Some(add) = files.tokenizer_config["add_bos_token"].as_bool() {
        return add && bos.is_some();
    }
    let post = &files.tokenizer["post_processor"];
    let steps = post["processors"].as_array().map_or(std::slice::from_ref(post), Vec::as_slice);
    steps.iter().filter(|s| s["type"] == "TemplateProcessing").any(|s| {
        let first = s["single"][0]["SpecialToken"]["id"].as_str().unwrap_or_default();
        let id = &s["special_tokens"][first]["ids"][0];
        bos.is_some() && id.as_u64() == bos.map(|b| b as u64)
    })
}

/// The template, or the one called "default" of several.
fn chat_template(json: &Json) -> Option<&str> {
    json.as_str().or_else(|| json.as_array()?.iter().find(|t| t["name"] == "default")?["template"].as_str())
}
