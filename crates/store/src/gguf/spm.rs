//! Byte-fallback BPE, as Llama 2 and Mistral 7B have it: llama.cpp's "llama" tokenizer, which merges the neighbours whose
//! piece has the highest score, and spells unknown characters in byte tokens.

use super::sentencepiece;
use super::tokenizer::{kind, pad_name};
use super::vocab::Files;
use serde_json::{Value as Json, json};
use std::collections::HashMap;

/// The character that stands for a space.
pub(super) const SPACE: &str = "\u{2581}";
/// Scores of added tokens and of padding, as llama.cpp's converter has them.
const ADDED_SCORE: f32 = -1000.0;
const PADDING_SCORE: f32 = -10000.0;
/// Steps of finding the halves of all pieces at most: lengths squared, summed.
const MAX_SPLITTING: usize = 1 << 30;

/// A vocabulary with scores.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pieces {
    pub tokens: Vec<String>,
    pub scores: Vec<f32>,
    pub types: Vec<i32>,
}

/// Returns whether tokenizer.json holds such a tokenizer.
pub(super) fn is_spm(tokenizer: &Json) -> bool {
    tokenizer["model"]["byte_fallback"] == true
}

fn steps<'a>(json: &'a Json, list: &str) -> Vec<&'a Json> {
    match json["type"].as_str() {
        None => Vec::new(),
        Some("Sequence") => json[list].as_array().into_iter().flatten().collect(),
        Some(_) => vec![json],
    }
}

/// Returns whether a text begins with an added space, by the rules of tokenizer.json. `notes` gets the places where
/// llama.cpp adds one and tokenizer.json doesn't.
///
/// # Errors
/// Rules that llama.cpp's tokenizer has not.
pub(super) fn space_prefix(tokenizer: &Json, notes: &mut Vec<String>) -> Result<bool, String> {
    let mut prefix = false;
    let mut replaces = false;
    for step in steps(&tokenizer["normalizer"], "normalizers") {
        match step["type"].as_str() {
            Some("Prepend") if step["prepend"] == SPACE && !replaces => prefix = true,
            Some("Replace") if step["pattern"]["String"] == " " && step["content"] == SPACE => replaces = true,
            _ => return Err(format!("GGUF cannot carry this step of its normalizer: {step}")),
        }
    }
    for step in steps(&tokenizer["pre_tokenizer"], "pretokenizers") {
        let metaspace = step["type"] == "Metaspace" && step["replacement"].as_str().is_none_or(|r| r == SPACE);
        let split = step["split"].as_bool().unwrap_or(true);
        // Gemma's: spaces are already replaced, so there is nothing to split at.
        let nothing = step["type"] == "Split" && step["pattern"]["String"] == " " && replaces;
        if nothing {
            continue;
        }
        if !metaspace || (split && crosses_words(tokenizer)) {
            return Err(format!("GGUF cannot carry this step of its pre-tokenizer: {step}"));
        }
        replaces = true;
        let scheme = match (step["prepend_scheme"].as_str(), &step["add_prefix_space"]) {
            (Some(scheme), _) => scheme,
            (None, Json::Bool(false)) => "never",
            (None, _) => "always",
        };
        if scheme != "never" {
            prefix = true;
            let after = if scheme == "first" { " and after special tokens" } else { "" };
            notes.push(format!(
                "llama.cpp puts a space before every text{after}, tokenizer.json only before texts that begin with none"
            ));
        }
    }
    if replaces { Ok(prefix) } else { Err(format!("its text keeps spaces, which GGUF's tokenizer writes as {SPACE}")) }
}

/// Returns whether a piece of the vocabulary holds the start of a word behind its own start.
fn crosses_words(tokenizer: &Json) -> bool {
    let vocabulary = tokenizer["model"]["vocab"].as_object();
    vocabulary.into_iter().flatten().any(|(piece, _)| piece.chars().skip(1).any(|c| SPACE.contains(c)))
}

/// The vocabulary for `rows` entries: pieces and scores of tokenizer.model where the model has one, else the order of
/// the merges as scores. `notes` gets what llama.cpp may do otherwise.
pub(super) fn pieces(files: &Files<'_>, rows: usize, notes: &mut Vec<String>) -> Result<Pieces, String> {
    let own = own_tokens(files.tokenizer)?;
    let mut out = Pieces {
        tokens: (0..rows).map(pad_name).collect(),
        scores: vec![PADDING_SCORE; rows],
        types: vec![kind::UNUSED; rows],
    };
    match files.sentencepiece {
        Some(bytes) => from_sentencepiece(bytes, &own, &mut out)?,
        None => from_merges(files.tokenizer, &own, &mut out, notes)?,
    }
    added_tokens(files.tokenizer, &mut out)?;
    let mut seen = HashMap::with_capacity(rows);
    for (id, token) in out.tokens.iter().enumerate() {
        if let Some(other) = seen.insert(token, id) {
            return Err(format!("tokens {other} and {id} are both \"{}\"", token.escape_debug()));
        }
    }
    Ok(out)
}

/// Tokens of tokenizer.json's model by id.
fn own_tokens(tokenizer: &Json) -> Result<HashMap<usize, &str>, String> {
    let vocabulary = tokenizer["model"]["vocab"].as_object().ok_or("tokenizer.json has no vocabulary")?;
    let mut out = HashMap::with_capacity(vocabulary.len());
    for (token, id) in vocabulary {
        let number = id.as_u64().and_then(|id| usize::try_from(id).ok());
        let number = number.ok_or_else(|| format!("token \"{}\" has no number", token.escape_debug()))?;
        if let Some(other) = out.insert(number, token.as_str()) {
            return Err(format!("tokens \"{other}\" and \"{token}\" both have the number {number}"));
        }
    }
    Ok(out)
}

/// Refuses a token without a row of the embedding.
fn row(id: usize, token: &str, rows: usize) -> Result<usize, String> {
    let what = || format!("token {id} \"{}\" has no row in the embedding, which has {rows}", token.escape_debug());
    if id < rows { Ok(id) } else { Err(what()) }
}

fn from_sentencepiece(bytes: &[u8], own: &HashMap<usize, &str>, out: &mut Pieces) -> Result<(), String> {
    let model = sentencepiece::read(bytes)?;
    if model.algorithm != 2 {
        return Err("tokenizer.model is no BPE model, tokenizer.json is: GGUF can hold one of them only".into());
    }
    let rows = out.tokens.len();
    for (id, piece) in model.pieces.into_iter().enumerate() {
        row(id, &piece.text, rows)?;
        if let Some(token) = own.get(&id).filter(|token| **token != piece.text) {
            let (a, b) = (piece.text.escape_debug(), token.escape_debug());
            return Err(format!("token {id} is \"{a}\" in tokenizer.model and \"{b}\" in tokenizer.json"));
        }
        (out.scores[id], out.types[id], out.tokens[id]) = (piece.score, piece.kind, piece.text);
    }
    // Tokens that only tokenizer.json has.
    for (&id, token) in own {
        row(id, token, rows)?;
        if out.types[id] == kind::UNUSED && out.tokens[id] != **token {
            (out.scores[id], out.types[id], out.tokens[id]) = (ADDED_SCORE, kind::NORMAL, token.to_string());
        }
    }
    Ok(())
}

/// Scores that make llama.cpp merge in the order of tokenizer.json's merges: its converter gives every token the same
/// score then, by which llama.cpp merges from left to right.
fn from_merges(
    tokenizer: &Json,
    own: &HashMap<usize, &str>,
    out: &mut Pieces,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let unknown = tokenizer["model"]["unk_token"].as_str();
    let rows = out.tokens.len();
    let mut by_piece: HashMap<String, f32> = HashMap::new();
    let merges = tokenizer["model"]["merges"].as_array().ok_or("tokenizer.json has no merges")?;
    let mut listed = std::collections::HashSet::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let pair = match merge {
            Json::String(s) => s.split_once(' '),
            other => other[0].as_str().zip(other[1].as_str()),
        };
        let (left, right) = pair.ok_or_else(|| format!("the merge {merge} is not a pair"))?;
        by_piece.entry(format!("{left}{right}")).or_insert(-(rank as f32));
        listed.insert((left, right));
    }
    for (&id, token) in own {
        row(id, token, rows)?;
        let ty = match token {
            token if is_byte(token) => kind::BYTE,
            token if Some(*token) == unknown => kind::UNKNOWN,
            _ => kind::NORMAL,
        };
        let score = by_piece.get(*token).copied().unwrap_or(if ty == kind::NORMAL { ADDED_SCORE } else { 0.0 });
        // Below every merge, where there are more than a thousand.
        let least = -(merges.len() as f32) - 1.0;
        let score = if score == ADDED_SCORE && ty == kind::NORMAL { score.min(least) } else { score };
        (out.scores[id], out.types[id], out.tokens[id]) = (score, ty, token.to_string());
    }
    let vocabulary: HashMap<&str, f32> = own.values().map(|token| (*token, 0.0)).collect();
    let all = splits(&vocabulary)?;
    let missing = all.iter().filter(|(left, right)| !listed.contains(&(*left, *right)));
    let missing: Vec<&(&str, &str)> = missing.collect();
    if let Some((left, right)) = missing.first() {
        notes.push(format!(
            "llama.cpp may cut some texts into other tokens: it merges any neighbours that form a token, and {} such \
             pairs are no merges of tokenizer.json (\"{left}\" and \"{right}\" is one)",
            missing.len()
        ));
    }
    Ok(())
}

fn is_byte(token: &str) -> bool {
    let digits = token.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    digits.is_some_and(|d| d.len() == 2 && d.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Types, scores and texts of added tokens, as llama.cpp's converter has them.
fn added_tokens(tokenizer: &Json, out: &mut Pieces) -> Result<(), String> {
    for added in tokenizer["added_tokens"].as_array().into_iter().flatten() {
        let content = added["content"].as_str().ok_or("an added token has no content")?;
        let id = added["id"].as_u64().and_then(|id| usize::try_from(id).ok());
        let id = row(id.ok_or("an added token has no number")?, content, out.tokens.len())?;
        out.scores[id] = ADDED_SCORE;
        (out.types[id], out.tokens[id]) = match added["special"] == true || looks_special(content) {
            true => (kind::CONTROL, content.to_string()),
            false => (kind::USER_DEFINED, content.replace(SPACE, " ")),
        };
    }
    Ok(())
}

/// Tokens that are control tokens though their files don't say so.
fn looks_special(token: &str) -> bool {
    let between = |start: &str, end: &str| token.starts_with(start) && token.ends_with(end);
    matches!(token, "<pad>" | "<mask>" | "<2mass>" | "[@BOS@]")
        || between("<|", "|>")
        || between("<\u{ff5c}", "\u{ff5c}>")
        || between("<unused", ">")
}

/// Pairs of tokens that together are a token.
fn splits<'a>(vocabulary: &HashMap<&'a str, f32>) -> Result<Vec<(&'a str, &'a str)>, String> {
    let work = vocabulary.keys().map(|token| token.len().saturating_mul(token.len())).fold(0, usize::saturating_add);
    if work > MAX_SPLITTING {
        return Err("its tokens are too long to find their merges".into());
    }
    let mut out = Vec::new();
    for token in vocabulary.keys() {
        for (at, _) in token.char_indices().skip(1) {
            let (left, right) = token.split_at(at);
            if vocabulary.contains_key(left) && vocabulary.contains_key(right) {
                out.push((left, right));
            }
        }
    }
    Ok(out)
}

/// The merges that follow from scores: each pair of tokens that is a token, the highest score first. Second, whether
/// two of the tokens that they make share a score, whose order llama.cpp takes from the text.
pub(super) fn merges(tokens: &[&str], scores: &[f32]) -> Result<(Vec<String>, bool), String> {
    let by_token: HashMap<&str, f32> = tokens.iter().copied().zip(scores.iter().copied()).collect();
    let ids: HashMap<&str, usize> = tokens.iter().enumerate().map(|(id, token)| (*token, id)).collect();
    let mut all: Vec<(f32, usize, String)> = Vec::new();
    for (left, right) in splits(&by_token)? {
        // A space can't be told from the one between both halves.
        if left.contains(' ') || right.contains(' ') {
            continue;
        }
        let whole = format!("{left}{right}");
        let (Some(score), Some(id)) = (by_token.get(whole.as_str()), ids.get(whole.as_str())) else { continue };
        all.push((*score, *id, format!("{left} {right}")));
    }
    all.sort_by(|a, b| {
        b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)).then_with(|| a.2.len().cmp(&b.2.len())).then_with(|| a.2.cmp(&b.2))
    });
    let shared = all.windows(2).any(|pair| pair[0].0 == pair[1].0 && pair[0].1 != pair[1].1);
    Ok((all.into_iter().map(|(_, _, merge)| merge).collect(), shared))
}

/// The `normalizer` of tokenizer.json.
pub(super) fn normalizer(prefix: bool) -> Json {
    let replace = json!({"type": "Replace", "pattern": {"String": " "}, "content": SPACE});
    let prepend = json!({"type": "Prepend", "prepend": SPACE});
    json!({"type": "Sequence", "normalizers": if prefix { vec![prepend, replace] } else { vec![replace] }})
}

/// The `decoder` of tokenizer.json.
pub(super) fn decoder(prefix: bool) -> Json {
    let mut steps = vec![
        json!({"type": "Replace", "pattern": {"String": SPACE}, "content": " "}),
        json!({"type": "ByteFallback"}),
        json!({"type": "Fuse"}),
    ];
    if prefix {
        steps.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    json!({"type": "Sequence", "decoders": steps})
}
