//! Keys edited after the file was written, as gguf-py's scripts edit them.

use super::export_tests::{config, export, files, tokenizer, written};
use super::{Array, GgufModel, Value, read};
use crate::{SideFile, TextTokenizer};
use serde_json::{Value as Json, json};
use std::path::Path;

/// A file with carried files, some keys set and some removed.
fn edited(set: &[(&str, Value)], remove: &[&str]) -> GgufModel {
    let mut side_files = files(&tokenizer());
    side_files.push(SideFile {
        name: "generation_config.json".into(),
        data: json!({"bos_token_id": 0, "eos_token_id": [2, 3]}).to_string().into_bytes().into(),
    });
    let mut out = export(&config(), &side_files, 8).expect("fine");
    out.metadata.retain(|(key, _)| !remove.contains(&key.as_str()));
    for (key, value) in set {
        match out.metadata.iter_mut().find(|(k, _)| k == key) {
            Some(entry) => entry.1 = value.clone(),
            None => out.metadata.push((key.to_string(), value.clone())),
        }
    }
    read(Path::new("x.gguf"), &written(&out, 8, "none")).expect("a model")
}

fn side<'a>(model: &'a GgufModel, name: &str) -> Option<&'a [u8]> {
    model.side_files.iter().find(|f| f.name == name).map(|f| &*f.data)
}

fn side_json(model: &GgufModel, name: &str) -> Json {
    serde_json::from_slice(side(model, name).expect("carried")).expect("JSON")
}

fn note(model: &GgufModel) -> &str {
    model.warnings.iter().find(|w| w.contains("the keys are used")).map_or("", String::as_str)
}

/// The tokens of a text with what the tokenizer puts before it.
fn tokens(model: &GgufModel, text: &str) -> (Vec<u32>, Option<u32>) {
    let tokenizer = tokenizers::Tokenizer::from_bytes(side(model, "tokenizer.json").expect("there")).expect("loads");
    let ids = tokenizer.encode(text, true).expect("encodes").get_ids().to_vec();
    (ids, TextTokenizer::new(tokenizer).expect("fine").bos())
}

#[test]
fn untouched_keys_leave_the_files_as_they_are() {
    let model = edited(&[("tokenizer.ggml.add_eos_token", Value::Bool(false))], &[]);
    assert_eq!(note(&model), "");
    assert_eq!(side(&model, "tokenizer.json"), Some(tokenizer().to_string().as_bytes()));
    assert!(model.config_text.is_some());
}

#[test]
fn the_template_of_the_key_is_used() {
    let model = edited(&[("tokenizer.chat_template", "NEW {{ x }}".into())], &[]);
    assert!(note(&model).contains("tokenizer.chat_template"), "{:?}", model.warnings);
    assert_eq!(side(&model, "chat_template.jinja"), Some(&b"NEW {{ x }}"[..]));
    assert_eq!(side_json(&model, "tokenizer_config.json"), json!({"bos_token": {"content": "<s>"}}));
    assert!(model.config_text.is_some(), "config.json is untouched");

    let model = edited(&[], &["tokenizer.chat_template"]);
    assert!(note(&model).contains("tokenizer.chat_template"));
    assert_eq!(side(&model, "chat_template.jinja"), None);
    assert_eq!(side_json(&model, "tokenizer_config.json").get("chat_template"), None);
}

#[test]
fn end_tokens_of_the_keys_are_used() {
    let model = edited(&[("tokenizer.ggml.eos_token_id", Value::U32(1))], &[]);
    assert!(note(&model).contains("tokenizer.ggml.eos_token_id"));
    assert_eq!(side_json(&model, "generation_config.json")["eos_token_id"], json!([1, 3]));
    assert_eq!(model.config_json.as_ref().expect("there")["eos_token_id"], json!([1, 3]));
    assert_eq!(side_json(&model, "tokenizer_config.json")["eos_token"], "a");
    assert!(model.config_text.is_none(), "config.json has changed");

    let model = edited(&[("tokenizer.ggml.eot_token_id", Value::U32(5))], &[]);
    assert_eq!(side_json(&model, "generation_config.json")["eos_token_id"], json!([2, 3, 5]));

    let model = edited(&[], &["tokenizer.ggml.eos_token_id"]);
    assert_eq!(side_json(&model, "generation_config.json")["eos_token_id"], json!([3]));
}

#[test]
fn the_begin_token_of_the_keys_is_used() {
    assert_eq!(tokens(&edited(&[], &[]), "ab"), (vec![0, 3], Some(0)));
    let off = edited(&[("tokenizer.ggml.add_bos_token", Value::Bool(false))], &[]);
    assert_eq!(tokens(&off, "ab"), (vec![3], None));
    assert_eq!(side_json(&off, "tokenizer_config.json")["add_bos_token"], false);
    assert!(note(&off).contains("tokenizer.ggml.add_bos_token"));
    let other = edited(&[("tokenizer.ggml.bos_token_id", Value::U32(5))], &[]);
    assert_eq!(tokens(&other, "ab"), (vec![5, 3], Some(5)));
    assert_eq!(side_json(&other, "tokenizer_config.json")["bos_token"], "<tool>");
}

#[test]
fn a_begin_token_is_added_whatever_the_post_processor() {
    let step = |ty: &str| json!({"type": ty, "add_prefix_space": true, "trim_offsets": true, "use_regex": true});
    for post in [
        Json::Null,
        step("ByteLevel"),
        json!({"type": "Sequence", "processors": [step("ByteLevel")]}),
        json!({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {}}),
    ] {
        let mut plain = tokenizer();
        plain["post_processor"] = post;
        let mut out = export(&config(), &files(&plain), 8).expect("fine");
        let key = out.metadata.iter_mut().find(|(k, _)| k == "tokenizer.ggml.add_bos_token").expect("written");
        assert_eq!(key.1, Value::Bool(false));
        key.1 = Value::Bool(true);
        let model = read(Path::new("x.gguf"), &written(&out, 8, "none")).expect("a model");
        assert_eq!(tokens(&model, "ab"), (vec![0, 3], Some(0)), "{}", plain["post_processor"]);
    }
}

#[test]
fn an_edited_vocabulary_is_rebuilt() {
    let names = ["<s>", "a", "b", "ab", "\u{120}", "<call>", "[PAD6]", "[PAD7]"];
    let list = Value::Array(Array::String(names.into_iter().collect()));
    let model = edited(&[("tokenizer.ggml.tokens", list)], &[]);
    assert!(note(&model).contains("tokenizer.ggml.tokens"));
    assert_eq!(tokens(&model, "<call>ab"), (vec![0, 5, 3], Some(0)));

    let broken = edited(&[("tokenizer.ggml.pre", "of another world".into())], &[]);
    assert!(side(&broken, "tokenizer.json").is_none());
    assert!(broken.warnings.iter().any(|w| w.contains("no tokenizer: tokenizer.ggml.pre")), "{:?}", broken.warnings);
}

#[test]
fn keys_without_effect_are_named() {
    let model = edited(&[("tokenizer.ggml.mask_token_id", Value::U32(1)), ("llama.logit_scale", Value::F32(2.0))], &[]);
    let has = |text: &str| model.warnings.iter().any(|w| w.contains(text));
    assert!(has("tokenizer.ggml.mask_token_id was added after the file was written"), "{:?}", model.warnings);
    assert!(has("llama.logit_scale: no effect on llama"), "{:?}", model.warnings);
}
