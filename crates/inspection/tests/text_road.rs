//! One road from text to tokens: conversion, inspection, evaluation and distillation take the same tokens in the same
//! sequences, whatever a tokenizer.json asks for besides.

use inspection::text::{Cut, Text, encoder, sequences};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use store::{Bos, TrainedOn};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

/// The fixture with a tokenizer that truncates to 16 tokens, pads to 32, and begins texts with BOS.
fn model(dir: &Path, truncates: bool, pads: bool, bos: bool) -> store::Model {
    for file in ["config.json", "generation_config.json", "model.safetensors", "tokenizer_config.json"] {
        std::fs::copy(fixture().join(file), dir.join(file)).expect("copied");
    }
    let text = std::fs::read_to_string(fixture().join("tokenizer.json")).expect("read");
    let mut tokenizer: Value = serde_json::from_str(&text).expect("JSON");
    let special = &tokenizer["added_tokens"][0];
    let (id, name) = (special["id"].clone(), special["content"].as_str().expect("a text").to_string());
    if truncates {
        tokenizer["truncation"] =
            json!({"direction": "Right", "max_length": 16, "strategy": "LongestFirst", "stride": 0});
    }
    if pads {
        tokenizer["padding"] = json!({"strategy": {"Fixed": 32}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": id, "pad_type_id": 0, "pad_token": name});
    }
    if bos {
        let piece = json!({"SpecialToken": {"id": name, "type_id": 0}});
        let template = json!({"type": "TemplateProcessing",
            "single": [piece, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [piece, {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {&name: {"id": name, "ids": [id], "tokens": [name]}}});
        tokenizer["post_processor"] = match tokenizer["post_processor"].take() {
            Value::Null => template,
            first => json!({"type": "Sequence", "processors": [first, template]}),
        };
    }
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    store::open(dir).expect("opens")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn all_programs_take_the_same_tokens(
        words in prop::collection::vec("[a-z]{1,9}|<\\|endoftext\\|>|é😀|\n| {1,3}", 1..120),
        flags in any::<[bool; 3]>(),
        tokens in 1usize..400,
    ) {
        let text = format!("a{}", words.join(" "));
        let (dir, plain) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
        let model_of = |dir: &tempfile::TempDir, flags: [bool; 3]| model(dir.path(), flags[0], flags[1], flags[2]);
        let (model, plain) = (model_of(&dir, flags), model_of(&plain, [false; 3]));
        let ids = plain.text_tokenizer().expect("a tokenizer").encode(&text).expect("encodes");

        let encoder = encoder(&model).expect("a tokenizer");
        prop_assert_eq!(&encoder.encode(&text).expect("encodes").ids, &ids, "qeval");
        let bos = encoder.bos(Bos::Auto).expect("a rule");
        prop_assert_eq!(bos.is_some(), flags[2]);
        let prompt: Vec<u32> = bos.into_iter().chain(ids.iter().copied()).collect();
        prop_assert_eq!(encoder.prompt(&text, Bos::Auto).expect("encodes"), prompt);

        let cut = Cut { tokens, ctx: Cut::CTX, bos: Bos::Auto };
        let inspected = sequences(&cut, &encoder, &Text { name: "t".into(), text: text.clone() }).expect("sequences");
        let calibrated = conversion::calibration_sequences(&model, &text, tokens).expect("sequences");
        prop_assert_eq!(&inspected, &calibrated, "qinspect and qconvert");
        let flat: Vec<u32> = calibrated.iter().flat_map(|s| &s[usize::from(bos.is_some())..]).copied().collect();
        prop_assert_eq!(&flat[..], &ids[..tokens.min(ids.len())]);

        let tokenizer = model.tokenizer().expect("a tokenizer");
        let corpus = distillation::data::Corpus::new(&tokenizer, &[text], &[], 1, 0.0).expect("a corpus");
        prop_assert_eq!(corpus.documents, TrainedOn::new([&ids[..]]), "qdistill");
    }
}
