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
        (json!({"hidden_act": null}), "hidden_act: is null"),
        (json!({"is_causal": false}), "is_causal false"),
        (json!({"is_causal": null}), "is_causal null"),
        (json!({"per_layer_config": {"0": {"intermediate_size": 8}}}), "per_layer_config"),
        (json!({"model_type": "qwen3", "head_dim": null}), "head_dim: is null"),
        (json!({"rms_norm_eps": null}), "rms_norm_eps: is null"),
        (json!({"rope_theta": null}), "rope_theta: is null"),
        (json!({"rope_parameters": {"rope_type": null, "type": "linear"}}), "rope_type: is null"),
        (json!({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}), "partial_rotary_factor"),
        (
            json!({"head_dim": 64, "max_position_embeddings": 65536,
                "rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 32}}),
            "runs backwards",
        ),
        (
            json!({"rope_scaling": {"type": "yarn", "factor": 2}, "original_max_position_embeddings": null}),
            "original_max_position_embeddings: is null",
        ),
        (json!({"rope_scaling": {"type": "mrope", "mrope_section": [1, 1]}}), "'mrope'"),
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

/// Results of transformers 5.24 for each, by `AutoConfig` and `AutoModelForCausalLM`.
#[test]
fn of_two_rotary_blocks_the_older_counts() {
    let linear = RopeScaling::Linear { factor: 2.0 };
    let new = json!({"rope_type": "default", "rope_theta": 1e6});
    let rope = |more: Value| {
        let c = with(more);
        (c.rope_scaling, c.rope_theta)
    };
    let old = json!({"type": "linear", "factor": 2.0});
    assert_eq!(rope(json!({"rope_parameters": new, "rope_scaling": old})), (linear.clone(), 10000.0));
    assert_eq!(rope(json!({"rope_parameters": new, "rope_scaling": old, "rope_theta": 5.0})), (linear.clone(), 5.0));
    assert_eq!(rope(json!({"rope_parameters": new, "rope_scaling": {}})), (RopeScaling::None, 1e6));
    assert_eq!(
        rope(json!({"rope_parameters": new, "rope_scaling": null, "rope_theta": 5.0})),
        (RopeScaling::None, 1e6)
    );

    let original = |more: Value| match with(more).rope_scaling {
        RopeScaling::Yarn { original_max_position, factor, truncate, .. } => (original_max_position, factor, truncate),
        RopeScaling::Llama3 { original_max_position, factor, .. } => (original_max_position, factor, true),
        other => panic!("{other:?}"),
    };
    let yarn = |more: Value| {
        let mut block = json!({"rope_type": "yarn", "factor": 4.0});
        block.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        block
    };
    assert_eq!(original(json!({"rope_scaling": yarn(json!({}))})), (64, 4.0, true));
    let outer = json!({"rope_scaling": yarn(json!({"original_max_position_embeddings": 32})),
        "original_max_position_embeddings": 16});
    assert_eq!(original(outer), (16, 4.0, true));
    let ratio = yarn(json!({"factor": null, "original_max_position_embeddings": 16}));
    assert_eq!(original(json!({"rope_scaling": ratio})), (16, 4.0, true));
    for off in [json!(false), Value::Null] {
        assert_eq!(original(json!({"rope_scaling": yarn(json!({"truncate": off}))})), (64, 4.0, false));
    }
    let llama3 = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0});
    assert_eq!(original(json!({"rope_scaling": llama3})), (64, 8.0, true));
    assert_eq!(original(json!({"rope_scaling": llama3, "original_max_position_embeddings": 16})), (16, 8.0, true));
}

/// Windows of 2 layers and a context of 64: as transformers 5.24 builds its masks.
#[test]
fn windows_are_those_of_the_family() {
    let window = |family: &str, more: Value| {
        let mut config = config_with(json!({"model_type": family, "num_hidden_layers": 2, "head_dim": 4}));
        config.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
        parse(config).map(|c| c.window)
    };
    for (family, more, want) in [
        ("mistral", json!({}), Some(4096)),
        ("mistral", json!({"sliding_window": null}), None),
        ("mistral", json!({"sliding_window": 64, "use_sliding_window": false}), Some(64)),
        ("qwen2", json!({"sliding_window": 8}), None),
        ("qwen2", json!({"sliding_window": 0, "use_sliding_window": false}), None),
        ("qwen3", json!({"sliding_window": 8, "use_sliding_window": true}), None),
        ("qwen3", json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 2}), None),
        ("qwen2", json!({"use_sliding_window": true, "max_window_layers": 1}), Some(4096)),
        ("qwen2", json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 1}), None),
        (
            "qwen3",
            json!({"use_sliding_window": true, "sliding_window": 8, "max_window_layers": 0,
            "layer_types": ["full_attention", "attention"]}),
            None,
        ),
        ("llama", json!({"sliding_window": null, "use_sliding_window": true}), None),
        ("llama", json!({"sliding_window": 100}), Some(100)),
    ] {
        assert_eq!(window(family, more.clone()), Ok(want), "{family} {more}");
    }
    for (family, more, want) in [
        ("mistral", json!({"max_position_embeddings": 5000}), "sliding_window 4096 (below the context of 5000)"),
        ("mistral", json!({"sliding_window": 8, "use_sliding_window": false}), "does not read use_sliding_window"),
        (
            "mistral",
            json!({"sliding_window": 8, "layer_types": ["full_attention", "full_attention"]}),
            "sliding_window 8",
        ),
        ("mistral", json!({"sliding_window": 0}), "sliding_window: must be an integer"),
        ("qwen2", json!({"sliding_window": 8, "use_sliding_window": true, "max_window_layers": 1}), "sliding_window 8"),
        ("qwen2", json!({"layer_types": ["full_attention", "sliding_attention"]}), "layer_types has sliding_attention"),
        (
            "qwen3",
            json!({"use_sliding_window": true, "sliding_window": 8,
            "layer_types": ["full_attention", "sliding_attention"]}),
            "sliding_window 8",
        ),
        ("qwen3", json!({"layer_types": ["full_attention"]}), "layer_types: 1 entries for 2 layers"),
        ("qwen3", json!({"layer_types": ["full_attention", "chunked_attention"]}), "layer_types 'chunked_attention'"),
        ("llama", json!({"sliding_window": 8}), "sliding_window 8"),
    ] {
        let error = window(family, more.clone()).expect_err("refused");
        assert!(error.contains(want), "{family} {more}: {error} has no '{want}'");
    }
    let mut mistral = config_with(json!({"model_type": "mistral"}));
    mistral.as_object_mut().expect("object").remove("max_position_embeddings");
    assert!(parse(mistral).expect_err("refused").contains("below the context of 131072"));
}

#[test]
fn defaults_differ_by_family() {
    let without = |family: &str, key: &str| {
        let mut config = config_with(json!({"model_type": family, "num_attention_heads": 64, "hidden_size": 128}));
        config.as_object_mut().expect("object").remove(key);
        let dir = folder(&config, &[], &[]);
        open(dir.path()).expect("a model").config().expect("a configuration")
    };
    assert_eq!(without("llama", "num_key_value_heads").kv_heads, 64);
    assert_eq!(without("qwen2", "num_key_value_heads").kv_heads, 32);
    assert_eq!(without("mistral", "num_key_value_heads").kv_heads, 8);
    assert_eq!(without("qwen3", "head_dim").head_dim, 128);
    assert_eq!(without("qwen2", "head_dim").head_dim, 2);
    assert_eq!(without("qwen3", "max_position_embeddings").max_position, 32768);
    assert_eq!(without("llama", "rms_norm_eps").rms_norm_eps, 1e-6);
    assert!(!without("qwen3", "tie_word_embeddings").tie_word_embeddings);
}

#[test]
fn keys_without_effect_are_named() {
    let notes = |more: Value| {
        let dir = folder(&config_with(more), &[embedding()], &[]);
        open(dir.path()).expect("a model").warnings
    };
    assert_eq!(notes(json!({"logit_scale": 1.0, "use_mrope": false, "rope_interleaved": false})), [""; 0]);
    for (more, want) in [
        (json!({"logit_scale": 0.5, "qk_norm": true}), "config.json: logit_scale, qk_norm of model_type llama has no"),
        (json!({"model_type": "mistral", "attention_bias": true}), "attention_bias of model_type mistral"),
        (json!({"auto_map": {"AutoModel": "x.Y"}}), "auto_map names Python code"),
        (json!({"rope_scaling": {"type": "linear", "factor": 2, "attn_factor": 3}}), "attn_factor among the rotary"),
        (
            json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}),
            "rope_scaling counts and rope_parameters beside it does not",
        ),
    ] {
        let notes = notes(more);
        assert!(notes.iter().any(|n| n.contains(want)), "{notes:?} has no '{want}'");
    }
}

#[test]
fn biases_that_nothing_asks_for_are_refused() {
    let outcome = |more: Value, module: &str, values: &[f32]| {
        let name = format!("model.layers.0.{module}.bias");
        let dir = folder(&config_with(more), &[embedding(), f32s(&name, &[values.len()], values)], &[]);
        open(dir.path()).expect("a model").config().map(|_| ()).map_err(|e| e.to_string())
    };
    for (more, module) in [
        (json!({"attention_bias": true}), "self_attn.o_proj"),
        (json!({"mlp_bias": true}), "mlp.up_proj"),
        (json!({"model_type": "qwen2"}), "self_attn.k_proj"),
        (json!({"model_type": "qwen3", "attention_bias": true}), "self_attn.o_proj"),
    ] {
        assert_eq!(outcome(more, module, &[1.0, 2.0]), Ok(()));
    }
    for (more, module, switch) in [
        (json!({}), "self_attn.q_proj", "attention_bias"),
        (json!({"attention_bias": true}), "mlp.up_proj", "mlp_bias"),
        (json!({"model_type": "mistral", "attention_bias": true}), "self_attn.q_proj", "attention_bias"),
        (json!({"model_type": "qwen2", "attention_bias": true}), "self_attn.o_proj", "attention_bias"),
    ] {
        assert_eq!(outcome(more.clone(), module, &[0.0, 0.0]), Ok(()));
        let error = outcome(more, module, &[0.0, 1.0]).expect_err("refused");
        assert!(error.contains(&format!("{module}.bias: {switch}")), "{error}");
    }
}

#[test]
fn numbers_that_are_none_are_refused_where_they_are_read() {
    for (text, want) in [
        (r#"{"rope_theta": Infinity}"#, "rope_theta: must be a finite number"),
        (r#"{"rms_norm_eps": NaN}"#, "rms_norm_eps: must be a finite number"),
        (r#"{"time_step_limit": [0.0, Infinity]}"#, ""),
    ] {
        let dir = folder(&config(), &[embedding()], &[]);
        let more = config().to_string().replacen('{', &format!("{},", text.trim_end_matches('}')), 1);
        let more = more.replace(r#""rms_norm_eps":0.00001,"#, "");
        fs::write(dir.path().join("config.json"), more).expect("write");
        match open(dir.path()).expect("a model").config() {
            Ok(_) => assert_eq!(want, ""),
            Err(e) => assert!(!want.is_empty() && e.to_string().contains(want), "{e}"),
        }
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
