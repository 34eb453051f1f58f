//! From a Hugging Face directory to keys and back.

use super::export::{HfMetadata, HfSource, metadata_from_hf};
use super::{Array, Plan, PlannedTensor, Value, read};
use crate::{Bytes, Result, SideFile};
use schemes::GgmlType;
use serde_json::{Value as Json, json};
use std::path::Path;

pub(super) fn config() -> Json {
    json!({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 96,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "vocab_size": 8, "eos_token_id": [2, 3],
    })
}

/// Eight ids: six in the tokenizer, of which two are special, and two that pad.
pub(super) fn tokenizer() -> Json {
    json!({
        "added_tokens": [
            {"id": 0, "content": "<s>", "special": true, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false}, {"id": 5, "content": "<tool>", "special": false, "single_word": false, "lstrip": false,
                "rstrip": false, "normalized": false},
        ],
        "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": true},
            {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        ]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [0], "tokens": ["<s>"]}}},
        "model": {"type": "BPE", "vocab": {"<s>": 0, "a": 1, "b": 2, "ab": 3, "Ġ": 4}, "merges": [["a", "b"]]},
    })
}

pub(super) fn files(tokenizer: &Json) -> Vec<SideFile> {
    let file =
        |name: &str, json: &Json| SideFile { name: name.into(), data: Bytes::from(json.to_string().into_bytes()) };
    vec![
        file("tokenizer.json", tokenizer),
        file("tokenizer_config.json", &json!({"bos_token": {"content": "<s>"}, "chat_template": "{{ x }}"})),
        SideFile { name: "logo.png".into(), data: Bytes::from(vec![0xFF, 0xFE]) },
    ]
}

pub(super) fn export(config: &Json, side_files: &[SideFile], vocab_rows: usize) -> Result<HfMetadata> {
    let config_text = &config.to_string();
    let path = Path::new("hf");
    metadata_from_hf(&HfSource { path, config, config_text, side_files, name: "tiny", vocab_rows, file_type: 1 })
}

fn get<'a>(out: &'a HfMetadata, key: &str) -> Option<&'a Value> {
    out.metadata.iter().find(|(k, _)| k == key).map(|(_, v)| v)
}

fn error(config: &Json, side_files: &[SideFile], rows: usize) -> String {
    export(config, side_files, rows).expect_err("refused").to_string()
}

/// The metadata, without the keys that `drop` names, in a file with an embedding of `rows`.
pub(super) fn written(out: &HfMetadata, rows: usize, drop: &str) -> Bytes {
    let metadata: Vec<_> = out.metadata.iter().filter(|(k, _)| !k.starts_with(drop)).cloned().collect();
    let tensors = [
        PlannedTensor::new("token_embd.weight", GgmlType::F16, &[rows, 64]),
        PlannedTensor::new("blk.0.attn_q.weight", GgmlType::F16, &[64, 64]),
    ];
    let plan = Plan::new(Path::new("x.gguf"), &metadata, &tensors).expect("fine");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 0);
    Bytes::from(bytes)
}

#[test]
fn keys_of_a_small_model() {
    let out = export(&config(), &files(&tokenizer()), 8).expect("fine");
    let strings = |key: &str| get(&out, key).and_then(Value::strings).expect("strings").iter().collect::<Vec<_>>();
    assert_eq!(strings("tokenizer.ggml.tokens"), ["<s>", "a", "b", "ab", "Ġ", "<tool>", "[PAD6]", "[PAD7]"]);
    assert_eq!(strings("tokenizer.ggml.merges"), ["a b"]);
    let types = Value::Array(Array::I32(vec![3, 1, 1, 1, 1, 4, 5, 5]));
    for (key, want) in [
        ("general.architecture", Value::from("llama")),
        ("general.file_type", Value::U32(1)),
        ("llama.attention.head_count_kv", Value::U32(2)),
        ("llama.rope.dimension_count", Value::U32(16)),
        ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
        ("llama.vocab_size", Value::U32(8)),
        ("tokenizer.ggml.pre", "smollm".into()),
        ("tokenizer.ggml.token_type", types),
        ("tokenizer.ggml.bos_token_id", Value::U32(0)),
        ("tokenizer.ggml.eos_token_id", Value::U32(2)),
        ("tokenizer.ggml.add_bos_token", Value::Bool(true)),
        ("tokenizer.chat_template", "{{ x }}".into()),
    ] {
        assert_eq!(get(&out, key), Some(&want), "{key}");
    }
    assert!(get(&out, "llama.attention.key_length").is_none() && out.extra.is_empty());
    assert!(out.warnings.iter().any(|w| w.contains("logo.png")), "{:?}", out.warnings);
}

#[test]
fn what_is_carried_comes_back_word_for_word() {
    let out = export(&config(), &files(&tokenizer()), 8).expect("fine");
    let model = read(Path::new("x.gguf"), &written(&out, 8, "none")).expect("a model");
    assert_eq!(model.config_json, Some(config()));
    assert_eq!(model.config_text.as_deref(), Some(config().to_string().as_bytes()));
    let tokenizer_json = model.side_files.iter().find(|f| f.name == "tokenizer.json").expect("carried");
    assert_eq!(&*tokenizer_json.data, tokenizer().to_string().as_bytes());
    assert!(!model.metadata.keys().any(|k| k.starts_with("qconvert.hf.")));
}

#[test]
fn edited_keys_win_over_what_is_carried() {
    let mut out = export(&config(), &files(&tokenizer()), 8).expect("fine");
    for (key, value) in &mut out.metadata {
        match key.as_str() {
            "llama.rope.freq_base" => *value = Value::F32(123.0),
            "llama.attention.layer_norm_rms_epsilon" => *value = Value::F32(0.5),
            _ => {}
        }
    }
    let model = read(Path::new("x.gguf"), &written(&out, 8, "none")).expect("a model");
    assert!(model.config_text.is_none());
    let used = model.config_json.expect("rebuilt");
    assert_eq!((&used["rope_theta"], &used["rms_norm_eps"]), (&json!(123.0), &json!(0.5)));
    let warning = model.warnings.iter().find(|w| w.contains("the keys are used")).expect("a note");
    assert!(warning.contains("differ in rms_norm_eps, rope_theta:"), "{warning}");
}

#[test]
fn what_is_not_carried_is_rebuilt() {
    let out = export(&config(), &files(&tokenizer()), 8).expect("fine");
    let model = read(Path::new("x.gguf"), &written(&out, 8, "qconvert.")).expect("a model");
    assert!(model.warnings.is_empty(), "{:?}", model.warnings);
    let rebuilt = model.config_json.as_ref().expect("rebuilt");
    for key in ["model_type", "hidden_size", "num_key_value_heads", "rms_norm_eps", "rope_theta", "vocab_size"] {
        assert_eq!(rebuilt[key], config()[key], "{key}");
    }
    assert_eq!((&rebuilt["tie_word_embeddings"], &rebuilt["torch_dtype"]), (&json!(true), &json!("float16")));
    let bytes = &model.side_files.iter().find(|f| f.name == "tokenizer.json").expect("rebuilt").data;
    let tokenizer = tokenizers::Tokenizer::from_bytes(bytes).expect("loads");
    let ids = tokenizer.encode("ab<tool> b<s>", true).expect("encodes").get_ids().to_vec();
    assert_eq!(ids, [0, 3, 5, 4, 2, 0], "BOS first, added tokens whole");
    assert_eq!(tokenizer.get_vocab_size(true), 6, "padding is left out");
    // And again: the same keys.
    let again = export(rebuilt, &model.side_files, 8).expect("fine");
    for key in ["tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.pre", "tokenizer.chat_template"] {
        assert_eq!(get(&again, key), get(&out, key), "{key}");
    }
}

#[test]
fn other_tokenizers_leave_a_note() {
    let keys = [
        ("general.architecture".to_string(), Value::from("gemma")),
        ("tokenizer.ggml.model".to_string(), "rwkv".into()),
    ];
    let plan = Plan::new(Path::new("x"), &keys, &[PlannedTensor::new("blk.0.attn_q.weight", GgmlType::F32, &[0])]);
    let model = read(Path::new("x"), &Bytes::from(plan.expect("fine").header().to_vec())).expect("opens");
    assert!(model.tensors.contains_key("blk.0.attn_q.weight"), "names of unknown families stay");
    assert!(model.warnings.iter().any(|w| w.contains("tokenizer.ggml.model is rwkv")), "{:?}", model.warnings);
}

#[test]
fn biases_that_llama_cpp_does_not_read_are_refused() {
    let mut config = config();
    config["attention_bias"] = true.into();
    config["model_type"] = "qwen3".into();
    assert!(error(&config, &[], 8).contains("bias of o_proj"));
    config["model_type"] = "llama".into();
    assert!(export(&config, &[], 8).is_ok());
}

#[test]
fn rope_scaling_is_carried_or_refused() {
    let with = |scaling: Json| {
        let mut config = config();
        config["rope_scaling"] = scaling;
        config
    };
    for scaling in [
        json!({"rope_type": "linear", "factor": 2.0}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}),
        json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32.0}),
    ] {
        let out = export(&with(scaling.clone()), &[], 8).expect("carried");
        let model = read(Path::new("x"), &written(&out, 8, "qconvert.")).expect("a model");
        let back = model.config_json.expect("rebuilt")["rope_scaling"].clone();
        back.as_object().into_iter().flatten().for_each(|(k, v)| assert_eq!(&scaling[k], v));
        assert!(back.as_object().is_some_and(|m| m.len() > 1));
    }
    let attention = json!({"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5});
    let out = export(&with(attention), &[], 8).expect("carried");
    let model = read(Path::new("x"), &written(&out, 8, "qconvert.")).expect("a model");
    let back = model.config_json.expect("rebuilt")["rope_scaling"]["attention_factor"].as_f64().expect("a number");
    assert!((back - 1.5).abs() < 1e-6);
    for odd in [json!({"beta_fast": 16.0}), json!({"beta_slow": 2}), json!({"truncate": false})] {
        let mut yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32});
        yarn.as_object_mut().expect("an object").extend(odd.as_object().expect("an object").clone());
        assert!(error(&with(yarn), &[], 8).contains("llama.cpp reads no such keys"));
    }
    for kind in ["dynamic", "longrope"] {
        assert!(error(&with(json!({"type": kind, "factor": 2.0})), &[], 8).contains(kind));
    }
    let mut qwen = with(json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}));
    qwen["model_type"] = json!("qwen2");
    assert!(error(&qwen, &[], 8).contains("llama3"));
}

/// Factors that torch computes in llama.cpp's converter for Llama 3.2 1B.
#[test]
fn llama3_factors_equal_the_converter_s() {
    let mut config = config();
    config["head_dim"] = json!(64);
    config["rope_parameters"] = json!({
        "rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    });
    let out = export(&config, &[], 8).expect("carried");
    assert_eq!(get(&out, "llama.attention.key_length"), Some(&Value::U32(64)));
    assert_eq!(out.extra[0].name, "rope_freqs.weight");
    let values = &out.extra[0].values;
    assert_eq!(values.len(), 32);
    assert!(values[..15].iter().all(|v| *v == 1.0) && values[18..].iter().all(|v| *v == 32.0), "{values:?}");
    for (got, want) in values[15..18].iter().zip(CONVERTER) {
        assert!((got / want - 1.0).abs() < 1e-5, "{values:?}");
    }
}

const CONVERTER: [f32; 3] = [1.651_329_3, 3.292_262_8, 9.666_731];

#[test]
fn faults_name_what_gguf_cannot_hold() {
    let mut odd = tokenizer();
    assert!(error(&config(), &files(&odd), 5).contains("token 5 \"<tool>\" has no row in the embedding, which has 5"));
    odd["pre_tokenizer"] = json!({"type": "Metaspace"});
    assert!(error(&config(), &files(&odd), 8).contains("Metaspace"));
    odd = tokenizer();
    odd["model"]["type"] = json!("Unigram");
    assert!(error(&config(), &files(&odd), 8).contains("Unigram"));
    odd = tokenizer();
    odd["model"]["merges"] = json!(["a b c"]);
    assert!(error(&config(), &files(&odd), 8).contains("a b c"));
    odd["model"] = json!({"type": "BPE", "vocab": {"a": 1, "b": 1}, "merges": []});
    assert!(error(&config(), &files(&odd), 8).contains("both have the number 1"));
    let mut other = config();
    other["model_type"] = json!("gemma3");
    assert!(error(&other, &[], 8).contains("gemma3"));
    other = config();
    other["hidden_size"] = json!("64");
    assert!(error(&other, &[], 8).contains("hidden_size"));
    other = config();
    other["model_type"] = json!("mistral");
    other["sliding_window"] = json!(64);
    assert!(error(&other, &[], 8).contains("sliding_window 64"));
    other["sliding_window"] = Json::Null;
    other["is_causal"] = json!(false);
    assert!(error(&other, &[], 8).contains("is_causal false"));
}
