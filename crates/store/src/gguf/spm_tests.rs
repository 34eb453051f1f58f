//! BPE with byte fallback, to GGUF and back, held to what llama.cpp makes of the written files.

use super::export_tests::{config, export, written};
use super::{GgufModel, HfMetadata, Value, read, sentencepiece};
use crate::{Bytes, SideFile};
use serde_json::{Value as Json, json};
use std::collections::HashMap;
use std::path::Path;
use tokenizers::Tokenizer;

/// `tokenizer`, and cases: changes to it, whether a tokenizer.model stands beside it, and texts, each with llama.cpp's
/// tokens of the written file and, where they differ, those of tokenizer.json.
fn golden() -> Json {
    serde_json::from_str(include_str!("../../tests/golden/spm.json")).expect("JSON")
}

fn tokenizer_of(golden: &Json, case: &Json) -> Json {
    let mut out = golden["tokenizer"].clone();
    for (key, value) in case["changes"].as_object().expect("an object") {
        out[key] = value.clone();
    }
    out
}

/// tokenizer.model of a tokenizer, with the scores that its merges stand for.
fn sentencepiece_of(tokenizer: &Json) -> Vec<u8> {
    let merges = tokenizer["model"]["merges"].as_array().expect("merges");
    let text = |json: &Json| json.as_str().expect("a text").to_string();
    let made: HashMap<String, usize> =
        merges.iter().enumerate().rev().map(|(rank, pair)| (text(&pair[0]) + &text(&pair[1]), rank)).collect();
    let mut vocabulary: Vec<(&String, u64)> = tokenizer["model"]["vocab"]
        .as_object()
        .expect("a vocabulary")
        .iter()
        .map(|(piece, id)| (piece, id.as_u64().expect("a number")))
        .collect();
    vocabulary.sort_by_key(|(_, id)| *id);
    let pieces = vocabulary.into_iter().map(|(piece, id)| {
        let kind = match piece.as_str() {
            "<unk>" => 2,
            "<s>" | "</s>" => 3,
            byte if byte.starts_with("<0x") => 6,
            _ => 1,
        };
        let score =
            if kind == 1 { -(made.get(piece).map_or(merges.len() + id as usize, |rank| *rank) as f32) } else { 0.0 };
        sentencepiece::Piece { text: piece.clone(), score, kind }
    });
    sentencepiece::testing::bytes(&sentencepiece::SentencePiece { pieces: pieces.collect(), algorithm: 2 })
}

/// The keys of a model, and the rows of its embedding.
fn exported(tokenizer: &Json, sentencepiece: bool) -> (HfMetadata, usize) {
    let file = |name: &str, data: Vec<u8>| SideFile { name: name.into(), data: Bytes::from(data) };
    let special = json!({"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": true});
    let mut files = vec![
        file("tokenizer.json", tokenizer.to_string().into_bytes()),
        file("tokenizer_config.json", special.to_string().into_bytes()),
    ];
    if sentencepiece {
        files.push(file("tokenizer.model", sentencepiece_of(tokenizer)));
    }
    let rows = tokenizer["model"]["vocab"].as_object().expect("a vocabulary").len() + 8;
    let mut config = config();
    config["vocab_size"] = json!(rows);
    config["eos_token_id"] = json!(2);
    (export(&config, &files, rows).expect("written"), rows)
}

/// The written file, read again: `without` names the keys that are left out.
fn model(tokenizer: &Json, sentencepiece: bool, without: &str) -> GgufModel {
    let (out, rows) = exported(tokenizer, sentencepiece);
    read(Path::new("x.gguf"), &written(&out, rows, without)).expect("a model")
}

fn loaded(model: &GgufModel) -> Tokenizer {
    let file = model.side_files.iter().find(|f| f.name == "tokenizer.json").expect("a tokenizer");
    Tokenizer::from_bytes(&*file.data).expect("loads")
}

fn ids(json: &Json) -> Vec<u32> {
    serde_json::from_value(json.clone()).expect("ids")
}

#[test]
fn texts_become_llama_cpps_tokens() {
    let golden = golden();
    let cases = golden["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 8);
    for (i, case) in cases.iter().enumerate() {
        let tokenizer = tokenizer_of(&golden, case);
        let sentencepiece = case["sentencepiece"] == true;
        // With the carried files, and rebuilt from the keys that llama.cpp reads.
        let carried = model(&tokenizer, sentencepiece, "none");
        assert!(carried.warnings.is_empty(), "case {i}: a new file has no edited keys: {:?}", carried.warnings);
        let (carried, rebuilt) = (loaded(&carried), loaded(&model(&tokenizer, sentencepiece, "qconvert.")));
        for text in case["texts"].as_array().expect("texts") {
            let words = text[0].as_str().expect("a text");
            let encode = |tokenizer: &Tokenizer| tokenizer.encode(words, true).expect("encodes").get_ids().to_vec();
            let theirs = ids(&text[1]);
            assert_eq!(encode(&rebuilt), theirs, "case {i}, rebuilt: {words:?}");
            let own = if text[2].is_array() { ids(&text[2]) } else { theirs };
            assert_eq!(encode(&carried), own, "case {i}, carried: {words:?}");
        }
    }
}

#[test]
fn decoded_texts_are_the_texts() {
    let golden = golden();
    for case in golden["cases"].as_array().expect("cases") {
        let tokenizer = tokenizer_of(&golden, case);
        let rebuilt = loaded(&model(&tokenizer, false, "qconvert."));
        for text in ["Hello, world", "日本 😀", "a\n\n b", "x"] {
            let tokens = rebuilt.encode(text, false).expect("encodes").get_ids().to_vec();
            assert_eq!(rebuilt.decode(&tokens, true).expect("decodes"), text);
        }
    }
}

#[test]
fn what_llama_cpp_does_otherwise_is_noted() {
    let golden = golden();
    for case in golden["cases"].as_array().expect("cases") {
        let tokenizer = tokenizer_of(&golden, case);
        let differs = case["texts"].as_array().expect("texts").iter().any(|text| text[2].is_array());
        let files = vec![SideFile { name: "tokenizer.json".into(), data: tokenizer.to_string().into_bytes().into() }];
        let out = export(&config(), &files, tokenizer["model"]["vocab"].as_object().expect("it").len() + 8);
        let warnings = out.expect("written").warnings;
        assert_eq!(warnings.iter().any(|w| w.contains("puts a space before every text")), differs, "{warnings:?}");
    }
}

#[test]
fn scores_and_types_are_llama_cpps() {
    let golden = golden();
    let tokenizer = tokenizer_of(&golden, &golden["cases"][7]);
    let (out, rows) = exported(&tokenizer, false);
    let get = |key: &str| out.metadata.iter().find(|(k, _)| *k == format!("tokenizer.ggml.{key}")).map(|(_, v)| v);
    assert_eq!((get("model"), get("add_space_prefix")), (Some(&"llama".into()), Some(&Value::Bool(false))));
    let Some(Value::Array(super::Array::F32(scores))) = get("scores") else { panic!("no scores") };
    let Some(Value::Array(types)) = get("token_type") else { panic!("no types") };
    let types = types.integers().expect("integers");
    assert_eq!((types.len(), scores.len()), (rows, rows));
    assert_eq!(&types[..4], [3, 3, 3, 6], "unknown, BOS and EOS are added tokens; then come the bytes");
    let added = tokenizer["added_tokens"].as_array().expect("a list");
    let kinds: Vec<i64> = added[3..].iter().map(|a| types[a["id"].as_u64().expect("a number") as usize]).collect();
    assert_eq!(kinds, [3, 4], "a special token and an ordinary one");
    assert_eq!((types[rows - 1], scores[rows - 1]), (5, -10000.0), "padding");
    // The first merge has the highest score of all pieces.
    let first = &tokenizer["model"]["merges"][0];
    let piece = format!("{}{}", first[0].as_str().expect("a text"), first[1].as_str().expect("a text"));
    let id = tokenizer["model"]["vocab"][&piece].as_u64().expect("a number") as usize;
    assert_eq!((scores[id], types[id]), (0.0, 1));
}

#[test]
fn what_gguf_cannot_hold_is_refused() {
    let golden = golden();
    let refuse = |change: &dyn Fn(&mut Json)| {
        let mut tokenizer = golden["tokenizer"].clone();
        change(&mut tokenizer);
        let files = vec![SideFile { name: "tokenizer.json".into(), data: tokenizer.to_string().into_bytes().into() }];
        export(&config(), &files, 500).expect_err("refused").to_string()
    };
    assert!(refuse(&|t| t["normalizer"] = json!({"type": "NFKC"})).contains("NFKC"));
    assert!(refuse(&|t| t["normalizer"] = Json::Null).contains("keeps spaces"));
    assert!(refuse(&|t| t["pre_tokenizer"] = json!({"type": "Digits"})).contains("Digits"));
    assert!(refuse(&|t| t["model"]["vocab"]["far"] = json!(1_000_000)).contains("has no row in the embedding"));
    assert!(refuse(&|t| t["model"]["vocab"]["twice"] = json!(5)).contains("both have the number 5"));
}
