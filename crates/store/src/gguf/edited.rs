//! Tokenizer keys that were edited after the file was written, against the files that it carries.
//!
//! qconvert writes a model's files word for word and derives `tokenizer.*` keys from them. gguf-py's scripts repair
//! keys and know nothing of the files, and llama.cpp goes by the keys. So the keys are derived again here: where the
//! file's own differ, they win, and the carried files are changed to say the same.

use super::config::token_id;
use super::parse::GgufFile;
use super::tokenizer::Vocabulary;
use super::value::Value;
use super::vocab;
use crate::{Bytes, SideFile, parse_json};
use indexmap::IndexMap;
use serde_json::{Value as Json, json};
use std::collections::BTreeSet;

const TOKENIZER: &str = "tokenizer.json";
const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const GENERATION_CONFIG: &str = "generation_config.json";
const TEMPLATE_FILE: &str = "chat_template.jinja";
const TEMPLATE_KEY: &str = "tokenizer.chat_template";

/// Special tokens: their name in keys of Hugging Face's files.
const SPECIAL: [&str; 4] = ["bos", "eos", "unk", "pad"];

/// Keys that say which tokens a text becomes, without BOS and EOS.
const VOCABULARY: [&str; 8] =
    ["model", "pre", "tokens", "token_type", "merges", "scores", "add_space_prefix", "precompiled_charsmap"];

/// The carried files that the keys may overrule.
pub(super) struct Carried<'a> {
    /// config.json.
    pub config: &'a mut Json,
    pub side_files: &'a mut Vec<SideFile>,
}

/// Changes the carried files to what edited keys say, with a note that names the keys. Gives whether config.json was
/// changed. Files that can't be read are left as they are, for whoever needs them to refuse.
pub(super) fn follow_keys(file: &GgufFile, carried: &mut Carried<'_>, warnings: &mut Vec<String>) -> bool {
    let Some(mut files) = Files::parse(carried) else { return false };
    let Some(edited) = edited(file, &files) else { return false };
    let (edited, unread): (BTreeSet<String>, BTreeSet<String>) = edited.into_iter().partition(|key| is_read(key));
    let names = |keys: &BTreeSet<String>| keys.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    if !unread.is_empty() {
        warnings.push(format!("{} was added after the file was written and has no effect here", names(&unread)));
    }
    if edited.is_empty() {
        return false;
    }
    warnings.push(format!(
        "the keys and the carried tokenizer files differ in {}: the keys are used, as llama.cpp does",
        names(&edited)
    ));
    let has = |key: &str| edited.contains(&format!("tokenizer.ggml.{key}"));
    let before = carried.config.clone();
    if VOCABULARY.iter().any(|key| has(key)) {
        match Vocabulary::read(file)
            .and_then(|v| v.ok_or_else(|| "the keys describe none".to_string())?.tokenizer_json())
        {
            Ok(text) => files.tokenizer = parse_json(&text).unwrap_or_default(),
            Err(e) => {
                warnings.push(format!("no tokenizer: {e}"));
                files.tokenizer = Json::Null;
            }
        }
    } else if has("add_bos_token") || has("bos_token_id") {
        let bos = special_token(file, "bos").filter(|_| adds_bos(file));
        set_bos(&mut files.tokenizer, bos);
    }
    for name in SPECIAL {
        let long = match name {
            "unk" => "unknown",
            "pad" => "padding",
            other => other,
        };
        if has(&format!("{long}_token_id")) {
            set_special(file, name, carried.config, &mut files);
        }
    }
    if has("eot_token_id") || has("eom_token_id") {
        add_end_tokens(file, carried.config, &mut files);
    }
    for switch in ["add_bos_token", "add_eos_token"] {
        if has(switch) {
            set(&mut files.tokenizer_config, switch, json!(flag(file, switch)));
        }
    }
    if edited.contains(TEMPLATE_KEY) {
        files.template = file.metadata.get(TEMPLATE_KEY).and_then(Value::str).map(str::to_string);
        if let Some(config) = files.tokenizer_config.as_object_mut() {
            config.shift_remove("chat_template");
        }
    }
    files.write(carried.side_files);
    *carried.config != before
}

/// Returns whether an edited key has an effect here.
fn is_read(key: &str) -> bool {
    const OTHERS: [&str; 8] = [
        "add_bos_token",
        "add_eos_token",
        "bos_token_id",
        "eos_token_id",
        "eot_token_id",
        "eom_token_id",
        "padding_token_id",
        "unknown_token_id",
    ];
    let name = key.strip_prefix("tokenizer.ggml.");
    key == TEMPLATE_KEY || name.is_some_and(|name| VOCABULARY.contains(&name) || OTHERS.contains(&name))
}

/// Scores follow from tokenizer.model where the model had one, and that isn't carried.
const SCORES: &str = "tokenizer.ggml.scores";

/// The keys whose values are not those that the carried files give; none where these give no keys.
fn edited(file: &GgufFile, files: &Files) -> Option<BTreeSet<String>> {
    let tokens = file.metadata.get("tokenizer.ggml.tokens").and_then(Value::strings).map(|t| t.len());
    let derived = vocab::keys(&files.borrow(), tokens?, &mut Vec::new()).ok()?;
    let derived: IndexMap<String, Value> = derived.into_iter().collect();
    let own = file.metadata.iter().filter(|(key, _)| key.starts_with("tokenizer.") && *key != SCORES);
    let mut edited: BTreeSet<String> =
        own.filter(|(key, value)| !same(derived.get(*key), value)).map(|(key, _)| key.clone()).collect();
    edited.extend(derived.into_keys().filter(|key| !file.metadata.contains_key(key)));
    Some(edited)
}

/// Returns whether two values mean the same, whatever their integer type. A switch that is off means the same as no
/// switch.
fn same(derived: Option<&Value>, own: &Value) -> bool {
    match derived {
        Some(derived) => derived == own || (derived.integer().is_some() && derived.integer() == own.integer()),
        None => *own == Value::Bool(false),
    }
}

fn flag(file: &GgufFile, key: &str) -> bool {
    file.metadata.get(&format!("tokenizer.ggml.{key}")) == Some(&Value::Bool(true))
}

/// Returns whether texts get BOS, by the key or by llama.cpp's default for the pre-tokenizer.
fn adds_bos(file: &GgufFile) -> bool {
    match file.metadata.get("tokenizer.ggml.add_bos_token") {
        Some(Value::Bool(add)) => *add,
        _ => Vocabulary::read(file).ok().flatten().is_some_and(|v| v.adds_bos()),
    }
}

/// A special token's id and text.
fn special_token(file: &GgufFile, name: &str) -> Option<(u64, String)> {
    let id = token_id(file, name)?;
    let tokens = file.metadata.get("tokenizer.ggml.tokens").and_then(Value::strings)?;
    Some((id, tokens.get(usize::try_from(id).ok()?)?.to_string()))
}

/// The carried files, parsed; null where absent.
struct Files {
    tokenizer: Json,
    tokenizer_config: Json,
    generation_config: Json,
    config: Json,
    template: Option<String>,
}

impl Files {
    /// None where there is no tokenizer, or a file isn't JSON.
    fn parse(carried: &Carried<'_>) -> Option<Self> {
        let find = |name: &str| carried.side_files.iter().find(|f| f.name == name).map(|f| &*f.data);
        let json = |name: &str| find(name).map_or(Some(Json::Null), |bytes| parse_json(bytes).ok());
        find(TOKENIZER)?;
        Some(Files {
            tokenizer: json(TOKENIZER)?,
            tokenizer_config: json(TOKENIZER_CONFIG)?,
            generation_config: json(GENERATION_CONFIG)?,
            config: carried.config.clone(),
            template: find(TEMPLATE_FILE).and_then(|b| String::from_utf8(b.to_vec()).ok()),
        })
    }

    fn borrow(&self) -> vocab::Files<'_> {
        vocab::Files {
            tokenizer: &self.tokenizer,
            tokenizer_config: &self.tokenizer_config,
            config: &self.config,
            generation_config: &self.generation_config,
            template: self.template.as_deref(),
            // No text, so it isn't carried.
            sentencepiece: None,
        }
    }

    /// Writes what differs from the files as they are.
    fn write(self, side_files: &mut Vec<SideFile>) {
        let json = [
            (TOKENIZER, self.tokenizer),
            (TOKENIZER_CONFIG, self.tokenizer_config),
            (GENERATION_CONFIG, self.generation_config),
        ];
        for (name, value) in json {
            let at = side_files.iter().position(|f| f.name == name);
            let unchanged = at.is_some_and(|at| parse_json(&side_files[at].data).as_ref() == Ok(&value));
            match (at, value.is_null()) {
                _ if unchanged => {}
                (Some(at), true) => {
                    side_files.remove(at);
                }
                (None, true) => {}
                (_, false) => put(side_files, name, format!("{value:#}\n")),
            }
        }
        match self.template {
            Some(text) => put(side_files, TEMPLATE_FILE, text),
            None => side_files.retain(|f| f.name != TEMPLATE_FILE),
        }
    }
}

fn put(side_files: &mut Vec<SideFile>, name: &str, text: String) {
    let data = Bytes::from(text.into_bytes());
    match side_files.iter_mut().find(|f| f.name == name) {
        Some(file) => file.data = data,
        None => side_files.push(SideFile { name: name.into(), data }),
    }
}

/// Sets a key of an object, which null becomes.
fn set(object: &mut Json, key: &str, value: Json) {
    if object.is_null() {
        *object = json!({});
    }
    if let Some(map) = object.as_object_mut() {
        map.insert(key.into(), value);
    }
}

/// Gives a special token the id and text of the keys, or none.
fn set_special(file: &GgufFile, name: &str, config: &mut Json, files: &mut Files) {
    let (id_key, text_key) = (format!("{name}_token_id"), format!("{name}_token"));
    let old = first_id(&files.config[&id_key]).or_else(|| first_id(&files.generation_config[&id_key]));
    let token = special_token(file, name);
    set(&mut files.tokenizer_config, &text_key, token.as_ref().map_or(Json::Null, |(_, text)| json!(text)));
    for json in [config, &mut files.generation_config] {
        if json[&id_key].is_null() && !json.is_object() {
            continue;
        }
        let ids = replaced(&json[&id_key], old, token.as_ref().map(|(id, _)| *id));
        set(json, &id_key, ids);
    }
}

/// An id, the first of several.
fn first_id(json: &Json) -> Option<u64> {
    json.as_u64().or_else(|| json[0].as_u64())
}

/// The ids with `old` replaced by `new`; other ids of a list stay.
fn replaced(ids: &Json, old: Option<u64>, new: Option<u64>) -> Json {
    let Some(list) = ids.as_array() else { return json!(new) };
    let mut out: Vec<u64> = new.into_iter().collect();
    out.extend(list.iter().filter_map(Json::as_u64).filter(|id| Some(*id) != old && Some(*id) != new));
    json!(out)
}

/// Adds the ends of a turn and of a message to the tokens that end a generation.
fn add_end_tokens(file: &GgufFile, config: &mut Json, files: &mut Files) {
    let ends: Vec<u64> = ["eot", "eom"].iter().filter_map(|name| token_id(file, name)).collect();
    for json in [config, &mut files.generation_config] {
        let ids = &json["eos_token_id"];
        let mut all: Vec<u64> = match ids.as_array() {
            Some(list) => list.iter().filter_map(Json::as_u64).collect(),
            None => ids.as_u64().into_iter().collect(),
        };
        // generation_config.json counts only where it names end tokens.
        if all.is_empty() && json.is_null() {
            continue;
        }
        all.extend(ends.iter().filter(|id| !all.contains(id)).copied().collect::<Vec<_>>());
        set(json, "eos_token_id", json!(all));
    }
}

/// Makes a tokenizer put `bos` before texts, or nothing.
fn set_bos(tokenizer: &mut Json, bos: Option<(u64, String)>) {
    let post = &mut tokenizer["post_processor"];
    for step in steps(post).into_iter().filter(|step| step["type"] == "TemplateProcessing") {
        let first = step["single"][0]["SpecialToken"]["id"].clone();
        for form in ["single", "pair"] {
            if let Some(pieces) = step[form].as_array_mut().filter(|_| !first.is_null()) {
                pieces.retain(|piece| piece["SpecialToken"]["id"] != first);
            }
        }
    }
    let Some((id, text)) = bos else { return };
    let piece = json!({"SpecialToken": {"id": text, "type_id": 0}});
    let special = json!({"id": text, "ids": [id], "tokens": [text]});
    if let Some(step) = steps(post).into_iter().find(|step| step["type"] == "TemplateProcessing") {
        for form in ["single", "pair"] {
            if let Some(pieces) = step[form].as_array_mut() {
                pieces.insert(0, piece.clone());
            }
        }
        set(&mut step["special_tokens"], &text, special);
        return;
    }
    let sequence = |name: &str, ty: u8| json!({"Sequence": {"id": name, "type_id": ty}});
    let template = json!({
        "type": "TemplateProcessing",
        "single": [piece, sequence("A", 0)],
        "pair": [piece, sequence("A", 0), sequence("B", 1)],
        "special_tokens": {&text: special},
    });
    *post = match post.take() {
        Json::Null => template,
        Json::Object(mut old) if old.get("type") == Some(&json!("Sequence")) => {
            if let Some(Json::Array(steps)) = old.get_mut("processors") {
                steps.push(template);
            }
            Json::Object(old)
        }
        old => json!({"type": "Sequence", "processors": [old, template]}),
    };
}

/// The steps of a post-processor, which may be a sequence of them.
fn steps(post: &mut Json) -> Vec<&mut Json> {
    if post["processors"].is_array() {
        post["processors"].as_array_mut().into_iter().flatten().collect()
    } else {
        vec![post]
    }
}
