//! tokenizer.json and tokenizer_config.json, rebuilt from a file's keys.

use super::config::token_id;
use super::parse::GgufFile;
use super::pre::{Pre, byte_level};
use super::spm;
use super::value::{Array, Strings, Value};
use serde::ser::{SerializeMap, SerializeSeq};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json, json};
use std::borrow::Cow;
use std::collections::HashSet;

/// Token types of GGUF.
pub(super) mod kind {
    pub const NORMAL: i32 = 1;
    pub const UNKNOWN: i32 = 2;
    pub const CONTROL: i32 = 3;
    pub const USER_DEFINED: i32 = 4;
    pub const UNUSED: i32 = 5;
    pub const BYTE: i32 = 6;
}

/// The name of a token that only pads the vocabulary.
pub(super) fn pad_name(id: usize) -> String {
    format!("[PAD{id}]")
}

/// The algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Byte-level BPE ("gpt2").
    ByteLevel(Pre),
    /// BPE with byte fallback ("llama").
    ByteFallback {
        /// True if texts begin with an added space.
        space_prefix: bool,
        /// The unknown token.
        unknown: Option<u64>,
    },
}

/// A tokenizer as the keys describe it.
pub(super) struct Vocabulary<'a> {
    tokens: &'a Strings,
    types: Vec<i64>,
    merges: Cow<'a, Strings>,
    kind: Kind,
    bos: Option<u64>,
    add_bos: bool,
    /// Notes for the user.
    pub notes: Vec<String>,
}

impl<'a> Vocabulary<'a> {
    /// Reads and checks the keys; `Ok(None)` when the file has no tokenizer, an error text
    /// when it has one that can't be rebuilt.
    pub fn read(file: &'a GgufFile) -> Result<Option<Self>, String> {
        let get = |key: &str| file.metadata.get(&format!("tokenizer.ggml.{key}"));
        let Some(model) = get("model") else { return Ok(None) };
        match model.str() {
            Some("gpt2" | "llama") => {}
            Some("none" | "no_vocab") => return Ok(None),
            Some(other) => {
                return Err(format!(
                    "tokenizer.ggml.model is {other}; only gpt2 (byte-level BPE) and llama (BPE with byte fallback) can be \
                     rebuilt"
                ));
            }
            None => return Err("tokenizer.ggml.model is not a string".into()),
        }
        let strings = |key: &str| {
            get(key).and_then(Value::strings).ok_or_else(|| format!("tokenizer.ggml.{key} is not an array of strings"))
        };
        let tokens = strings("tokens")?;
        let types = match get("token_type") {
            None => vec![i64::from(kind::NORMAL); tokens.len()],
            Some(Value::Array(a)) => integers(a)?,
            Some(_) => return Err("tokenizer.ggml.token_type is not an array".into()),
        };
        if types.len() != tokens.len() {
            return Err(format!("there are {} tokens but {} token types", tokens.len(), types.len()));
        }
        let mut seen = HashSet::with_capacity(tokens.len());
        if let Some((id, token)) = tokens.iter().enumerate().find(|(_, t)| !seen.insert(*t)) {
            return Err(format!("token {id} \"{}\" appears twice", token.escape_debug()));
        }
        let mut notes = Vec::new();
        let is_spm = model.str() == Some("llama");
        let (kind, merges) = if is_spm {
            let (space_prefix, merges) = byte_fallback(file, tokens, &mut notes)?;
            (Kind::ByteFallback { space_prefix, unknown: token_id(file, "unk") }, Cow::Owned(merges))
        } else {
            let pre = match get("pre").map(|v| v.str().unwrap_or("?")) {
                Some(name) => Pre::from_name(name)
                    .ok_or_else(|| format!("tokenizer.ggml.pre is {name}, which is not known here"))?,
                None => {
                    notes.push(
                        "the file names no pre-tokenizer (tokenizer.ggml.pre); llama.cpp's default is used".into(),
                    );
                    Pre::Default
                }
            };
            (Kind::ByteLevel(pre), Cow::Borrowed(strings("merges")?))
        };
        let add_bos = match (get("add_bos_token"), kind) {
            (Some(Value::Bool(b)), _) => *b,
            (_, Kind::ByteLevel(pre)) => pre.adds_bos(),
            (_, Kind::ByteFallback { .. }) => true,
        };
        // llama.cpp's ids of this kind of tokenizer, where the file names none.
        let bos = token_id(file, "bos").or(is_spm.then_some(1));
        Ok(Some(Vocabulary { tokens, types, merges, kind, bos, add_bos, notes }))
    }

    /// Returns whether texts get BOS first.
    pub fn adds_bos(&self) -> bool {
        self.add_bos
    }

    /// Returns whether token `id` stands in text as it is, outside the BPE model.
    fn is_added(&self, id: usize) -> bool {
        matches!(self.types.get(id), Some(3 | 4))
    }

    fn is_padding(&self, id: usize, token: &str) -> bool {
        self.types.get(id) == Some(&i64::from(kind::UNUSED)) && token == pad_name(id)
    }

    fn token(&self, id: Option<u64>) -> Option<&'a str> {
        self.tokens.get(usize::try_from(id?).ok()?)
    }

    /// The bytes of tokenizer.json.
    pub fn tokenizer_json(&self) -> Result<Vec<u8>, String> {
        if let Some(odd) = self.merges.iter().find(|m| m.split(' ').count() != 2) {
            return Err(format!("the merge \"{}\" is not a pair", odd.escape_debug()));
        }
        let document = Document {
            version: "1.0",
            truncation: None,
            padding: None,
            added_tokens: AddedTokens(self),
            normalizer: match self.kind {
                Kind::ByteLevel(pre) => pre.normalizer(),
                Kind::ByteFallback { space_prefix, .. } => spm::normalizer(space_prefix),
            },
            pre_tokenizer: match self.kind {
                Kind::ByteLevel(pre) => pre.pre_tokenizer(),
                Kind::ByteFallback { .. } => Json::Null,
            },
            post_processor: self.post_processor(),
            decoder: match self.kind {
                Kind::ByteLevel(_) => byte_level(true, true),
                Kind::ByteFallback { space_prefix, .. } => spm::decoder(space_prefix),
            },
            model: Model {
                r#type: "BPE",
                dropout: None,
                unk_token: match self.kind {
                    Kind::ByteLevel(_) => None,
                    Kind::ByteFallback { unknown, .. } => self.token(unknown),
                },
                continuing_subword_prefix: None,
                end_of_word_suffix: None,
                fuse_unk: matches!(self.kind, Kind::ByteFallback { .. }),
                byte_fallback: matches!(self.kind, Kind::ByteFallback { .. }),
                ignore_merges: matches!(self.kind, Kind::ByteLevel(pre) if pre.ignore_merges()),
                vocab: Vocab(self),
                merges: Merges(&self.merges),
            },
        };
        let mut out = Vec::new();
        serde_json::to_writer_pretty(&mut out, &document).map_err(|e| e.to_string())?;
        Ok(out)
    }

    /// Puts BOS first where the file says so.
    fn post_processor(&self) -> Json {
        let bytes = match self.kind {
            Kind::ByteLevel(_) => byte_level(false, true),
            Kind::ByteFallback { .. } => Json::Null,
        };
        let (true, Some(bos), Some(id)) = (self.add_bos, self.token(self.bos), self.bos) else {
            return bytes;
        };
        let special = json!({"SpecialToken": {"id": bos, "type_id": 0}});
        let template = json!({
            "type": "TemplateProcessing",
            "single": [special, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                special, {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": bos, "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [id], "tokens": [bos]}},
        });
        match bytes {
            Json::Null => template,
            bytes => json!({"type": "Sequence", "processors": [bytes, template]}),
        }
    }

    /// tokenizer_config.json.
    pub fn tokenizer_config(&self, file: &GgufFile) -> Json {
        let mut out = Map::new();
        out.insert("add_bos_token".into(), json!(self.add_bos));
        for name in ["bos", "eos", "pad", "unk"] {
            if let Some(token) = self.token(token_id(file, name)) {
                out.insert(format!("{name}_token"), json!(token));
            }
        }
        if let Some(template) = file.metadata.get("tokenizer.chat_template").and_then(Value::str) {
            out.insert("chat_template".into(), json!(template));
        }
        out.insert("clean_up_tokenization_spaces".into(), json!(false));
        out.insert("tokenizer_class".into(), json!("PreTrainedTokenizerFast"));
        Json::Object(out)
    }
}

/// Returns whether texts begin with an added space, and the merges that the scores of a "llama" tokenizer stand for.
fn byte_fallback(file: &GgufFile, tokens: &Strings, notes: &mut Vec<String>) -> Result<(bool, Strings), String> {
    let get = |key: &str| file.metadata.get(&format!("tokenizer.ggml.{key}"));
    let space_prefix = !matches!(get("add_space_prefix"), Some(Value::Bool(false)));
    let scores = match get("scores") {
        Some(Value::Array(Array::F32(scores))) if scores.len() == tokens.len() => scores,
        Some(Value::Array(Array::F32(scores))) => {
            return Err(format!("there are {} tokens but {} scores", tokens.len(), scores.len()));
        }
        _ => return Err("tokenizer.ggml.scores is not an array of F32".into()),
    };
    let tokens: Vec<&str> = tokens.iter().collect();
    let (merges, shared) = spm::merges(&tokens, scores)?;
    if shared {
        notes.push(
            "tokens of its tokenizer share a score: which are merged first follows from their numbers here, from their \
             places in the text in llama.cpp"
                .into(),
        );
    }
    Ok((space_prefix, merges.iter().map(String::as_str).collect()))
}

fn integers(array: &Array) -> Result<Vec<i64>, String> {
    array.integers().ok_or_else(|| "tokenizer.ggml.token_type is not an array of integers".into())
}

#[derive(Serialize)]
struct Document<'a> {
    version: &'static str,
    truncation: Option<()>,
    padding: Option<()>,
    added_tokens: AddedTokens<'a>,
    normalizer: Json,
    pre_tokenizer: Json,
    post_processor: Json,
    decoder: Json,
    model: Model<'a>,
}

#[derive(Serialize)]
struct Model<'a> {
    r#type: &'static str,
    dropout: Option<()>,
    unk_token: Option<&'a str>,
    continuing_subword_prefix: Option<()>,
    end_of_word_suffix: Option<()>,
    fuse_unk: bool,
    byte_fallback: bool,
    ignore_merges: bool,
    vocab: Vocab<'a>,
    merges: Merges<'a>,
}

/// Control tokens are special; user-defined ones are not. Both stand in text as they are.
struct AddedTokens<'a>(&'a Vocabulary<'a>);

impl Serialize for AddedTokens<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(None)?;
        for (id, token) in self.0.tokens.iter().enumerate().filter(|(id, t)| self.0.is_added(*id) && !t.is_empty()) {
            let special = self.0.types.get(id) == Some(&i64::from(kind::CONTROL));
            seq.serialize_element(&json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
            }))?;
        }
        seq.end()
    }
}

/// Every token with its number; those that only pad the vocabulary are left out.
struct Vocab<'a>(&'a Vocabulary<'a>);

impl Serialize for Vocab<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut map = s.serialize_map(None)?;
        for (id, token) in self.0.tokens.iter().enumerate().filter(|(id, t)| !self.0.is_padding(*id, t)) {
            map.serialize_entry(token, &id)?;
        }
        map.end()
    }
}

struct Merges<'a>(&'a Strings);

impl Serialize for Merges<'_> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut seq = s.serialize_seq(Some(self.0.len()))?;
        for (a, b) in self.0.iter().filter_map(|m| m.split_once(' ')) {
            seq.serialize_element(&[a, b])?;
        }
        seq.end()
    }
}
