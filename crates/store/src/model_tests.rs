use crate::{Config, Family, RopeScaling, open, testing::*};
use serde_json::{Value, json};
use std::fs;

fn parse(config: Value) -> Result<Config, String> {
    let dir = folder(&config, &[embedding()], &[]);
    open(dir.path()).map_err(|e| e.to_string())?.config().map_err(|e| e.to_string())
}

fn with(more: Value) -> Config {
    parse(config_with(more)).expect("a configuration")
}

fn refused(more: Value) -> String {
    let error = parse(config_with(more)).expect_err("refused");
    assert!(error.contains("config.json: "), "{error} names the file");
    error
}

#[test]
fn defaults_and_families() {
    let c = with(json!({}));
    assert_eq!((c.family, c.head_dim, c.kv_heads, c.heads, c.layers), (Family::Llama, 4, 1, 2, 1));
    assert_eq!((c.rope_theta, c.rope_scaling, c.bos_token_id), (10000.0, RopeScaling::None, Some(1)));
    assert_eq!((c.eos_token_ids, c.tie_word_embeddings), (vec![2, 3], true));
    assert_eq!(with(json!({"num_key_value_heads": null})).kv_heads, 2);
    assert_eq!(with(json!({"head_dim": 16})).head_dim, 16);
    assert_eq!(with(json!({"eos_token_id": 2, "tie_word_embeddings": null})).eos_token_ids, [2]);
    assert_eq!(with(json!({"model_type": "mistral", "sliding_window": null})).family, Family::Llama);
    assert_eq!(with(json!({"model_type": "mistral", "sliding_window": 64})).family, Family::Llama);
    assert_eq!(
        with(json!({"model_type": "qwen2", "sliding_window": 8, "use_sliding_window": false})).family,
        Family::Qwen2
    );
    assert_eq!(with(json!({"model_type": "qwen3", "layer_types": ["full_attention"]})).family, Family::Qwen3);
}

#[test]
fn what_would_change_the_arithmetic_is_refused_by_name() {
    for (more, want) in [
        (json!({"model_type": "gpt2"}), "model_type 'gpt2'"),
        (json!({"model_type": null}), "model_type is missing"),
        (json!({"model_type": "mistral", "sliding_window": 32}), "sliding_window 32"),
        (
            json!({"model_type": "qwen2", "use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0}),
            "sliding_window 8",
        ),
        (json!({"model_type": "qwen3", "layer_types": ["sliding_attention"]}), "layer_types"),
        (json!({"hidden_act": "gelu"}), "hidden_act 'gelu'"),
        (json!({"partial_rotary_factor": 0.5}), "partial_rotary_factor"),
        (json!({"rope_scaling": {"type": "dynamic", "factor": 2}}), "'dynamic'"),
        (json!({"rope_scaling": {"rope_type": "longrope"}}), "'longrope'"),
        (json!({"rope_scaling": {"rope_type": "linear"}}), "factor: must be a positive number"),
        (json!({"rope_scaling": {"factor": 2}}), "no rope_type"),
        (json!({"rope_parameters": {"full_attention": {"rope_type": "default"}}}), "by layer type"),
        (json!({"rope_scaling": "linear"}), "rope_scaling: must be an object"),
        (json!({"num_key_value_heads": 3}), "num_key_value_heads: 3 does not divide"),
        (json!({"num_attention_heads": 0}), "num_attention_heads: must be an integer from 1"),
        (json!({"hidden_size": 100_000_000}), "hidden_size: must be an integer from 1"),
        (json!({"hidden_size": "8"}), "hidden_size"),
        (json!({"hidden_size": null}), "hidden_size: is missing"),
        (json!({"hidden_size": 9}), "not a multiple of the 2 heads"),
        (json!({"head_dim": 5}), "head_dim: 5 is odd"),
        (json!({"head_dim": 9_000_000}), "head_dim"),
        (json!({"rms_norm_eps": -1}), "rms_norm_eps"),
        (json!({"rope_theta": 0}), "rope_theta"),
        (json!({"eos_token_id": -1}), "eos_token_id: must be a token id"),
    ] {
        let error = refused(more);
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn rope_scalings_are_read_in_old_and_new_form() {
    let linear = RopeScaling::Linear { factor: 2.0 };
    assert_eq!(with(json!({"rope_scaling": {"type": "linear", "factor": 2.0}})).rope_scaling, linear);
    let new = with(
        json!({"rope_theta": 5.0, "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 500000.0}}),
    );
    assert_eq!((new.rope_scaling, new.rope_theta), (linear, 500000.0));
    let default = with(json!({"rope_theta": 5.0, "rope_parameters": {"rope_type": "default"}}));
    assert_eq!((default.rope_scaling, default.rope_theta), (RopeScaling::None, 5.0));
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192});
    assert_eq!(
        with(json!({"rope_scaling": llama3})).rope_scaling,
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 8192 }
    );
    let yarn = |more: Value| {
        let mut block = json!({"rope_type": "yarn", "factor": 4.0});
        block.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        match with(json!({"rope_scaling": block})).rope_scaling {
            RopeScaling::Yarn { beta_fast, beta_slow, attention_factor, original_max_position, .. } => {
                (beta_fast, beta_slow, attention_factor, original_max_position)
            }
            other => panic!("{other:?}"),
        }
    };
    let default = 0.1 * 4f64.ln() + 1.0;
    assert_eq!(yarn(json!({})), (32.0, 1.0, default, 64));
    assert_eq!(yarn(json!({"original_max_position_embeddings": 16, "beta_fast": 24})), (24.0, 1.0, default, 16));
    assert_eq!(yarn(json!({"attention_factor": 0.5})).2, 0.5);
    let scaled = (0.1 * 0.707 * 4f64.ln() + 1.0) / (0.1 * 2.0 * 4f64.ln() + 1.0);
    assert_eq!(yarn(json!({"mscale": 0.707, "mscale_all_dim": 2.0})).2, scaled);
}

#[test]
fn rope_freqs_become_factors() {
    let dir = folder(&config(), &[embedding(), f32s("rope_freqs.weight", &[2], &[1.0, 8.0])], &[]);
    let config = open(dir.path()).expect("a model").config().expect("a configuration");
    assert_eq!(config.rope_scaling, RopeScaling::Factors(vec![1.0, 8.0]));
    for (values, want) in [(vec![1.0], "1 factors for 2 frequencies"), (vec![1.0, -1.0], "not positive")] {
        let dir =
            folder(&crate::testing::config(), &[embedding(), f32s("rope_freqs.weight", &[values.len()], &values)], &[]);
        let error = open(dir.path()).expect("a model").config().expect_err("refused").to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn the_embedding_says_how_large_the_vocabulary_is() {
    let dir = folder(&config_with(json!({"vocab_size": 9})), &[embedding()], &[]);
    let model = open(dir.path()).expect("a model");
    assert!(model.warnings[0].contains("9 vocabulary entries, the embedding has 4 rows"), "{:?}", model.warnings);
    assert_eq!(model.config().expect("a configuration").vocab_size, 4);

    let head = f16s("lm_head.weight", &[3, 8], &[0.0; 24]);
    let dir = folder(&config(), &[embedding(), head], &[]);
    let error = open(dir.path()).expect("a model").config().expect_err("refused").to_string();
    assert!(error.contains("lm_head.weight: has 3 rows, the embedding 4"), "{error}");

    let dir = folder(&config_with(json!({"hidden_size": 16})), &[embedding()], &[]);
    let error = open(dir.path()).expect("a model").config().expect_err("refused").to_string();
    assert!(error.contains("does not suit hidden_size 16"), "{error}");
}

#[test]
fn tied_heads_and_stored_heads() {
    let embedding_values: Vec<f32> = (0..32).map(|i| i as f32).collect();
    let same = f16s("lm_head.weight", &[4, 8], &embedding_values);
    let other = f16s("lm_head.weight", &[4, 8], &[2.0; 32]);
    let tied = |flag: bool, parts: &[Part]| {
        let dir = folder(&config_with(json!({"tie_word_embeddings": flag})), parts, &[]);
        let model = open(dir.path()).expect("a model");
        let head = model.linear("lm_head").map(|l| l.matrix.decode_all()).map_err(|e| e.to_string());
        (model.config().expect("a configuration").tie_word_embeddings, model.warnings.len(), head)
    };
    assert_eq!(tied(true, &[embedding()]), (true, 0, Ok(embedding_values.clone())));
    assert_eq!(tied(true, &[embedding(), same]), (true, 0, Ok(embedding_values)));
    assert_eq!(tied(true, &[embedding(), other.clone()]), (false, 1, Ok(vec![2.0; 32])));
    assert_eq!(tied(false, &[embedding(), other]), (false, 0, Ok(vec![2.0; 32])));
    let (_, _, missing) = tied(false, &[embedding()]);
    assert!(missing.expect_err("missing").contains("tensor lm_head.weight: is missing"));
}

#[test]
fn generation_goes_by_its_own_end_tokens() {
    let dir = folder(&config(), &[embedding()], &[]);
    let path = dir.path().join("generation_config.json");
    let tokens = || open(dir.path()).expect("a model").config().map(|c| c.eos_token_ids).map_err(|e| e.to_string());
    fs::write(&path, "{}").expect("write");
    assert_eq!(tokens(), Ok(vec![2, 3]));
    fs::write(&path, r#"{"eos_token_id": 1}"#).expect("write");
    assert_eq!(tokens(), Ok(vec![1]));
    fs::write(&path, "[").expect("write");
    assert!(tokens().expect_err("refused").contains("generation_config.json: "));
}

#[test]
fn a_wrong_tokenizer_is_an_error() {
    let dir = folder(&config(), &[embedding()], &[]);
    fs::write(dir.path().join("tokenizer.json"), "{}").expect("write");
    let error = open(dir.path()).expect("a model").tokenizer().expect_err("refused").to_string();
    assert!(error.contains("tokenizer.json: "), "{error}");
}
