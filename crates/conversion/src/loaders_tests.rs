use super::*;
use crate::{Rules, Settings, Target};
use serde_json::json;
use std::collections::HashSet;
use std::path::Path;

/// A folder with tensors of zeros and a config.json.
fn write_model(dir: &Path, config: &Value, tensors: &[(&str, &[usize])]) {
    let zeros = vec![0u8; 4 << 16];
    let tensor = |shape: &[usize]| {
        let bytes = &zeros[..4 * shape.iter().product::<usize>()];
        safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.to_vec(), bytes).expect("fits")
    };
    let views = tensors.iter().map(|(name, shape)| (*name, tensor(shape)));
    let bytes = safetensors::serialize(views, None).expect("serializes");
    std::fs::write(dir.join("model.safetensors"), bytes).expect("writes");
    std::fs::write(dir.join("config.json"), config.to_string()).expect("writes");
}

/// Plans a model in a scheme under some rules, and shows the plan.
fn planned_by<T>(
    (config, tensors): (&Value, &[(&str, &[usize])]),
    scheme: &str,
    (include, exclude): (&[&str], &[&str]),
    see: impl FnOnce(&Source<'_>, Result<Plan>) -> T,
) -> T {
    let dir = tempfile::tempdir().expect("temp dir");
    write_model(dir.path(), config, tensors);
    let model = store::open(dir.path()).expect("opens");
    let source = Source::new(&model).expect("lists");
    let mut settings = Settings::new(Target::Safetensors);
    let owned = |patterns: &[&str]| patterns.iter().map(|p| (*p).to_string()).collect::<Vec<_>>();
    settings.rules = Rules::new(&owned(include), &owned(exclude), None).expect("rules");
    let plan = source.plan(scheme.parse().expect("known"), &settings, &HashSet::new());
    see(&source, plan)
}

/// Plans a model in a scheme, with some modules excluded, and shows the plan.
fn planned<T>(
    model: (&Value, &[(&str, &[usize])]),
    (scheme, exclude): (&str, &[&str]),
    see: impl FnOnce(&Source<'_>, Result<Plan>) -> T,
) -> T {
    planned_by(model, scheme, (&[], exclude), see)
}

/// Returns the modules of a planned model that stay float, and those that are quantized.
fn kept_and_quantized(source: &Source<'_>, plan: &Plan) -> (Kept, Vec<String>) {
    let quantized = plan.weights.iter().filter(|w| w.scheme.is_some());
    (kept(source, plan), quantized.map(|w| source.weights[w.index].module().to_string()).collect())
}

/// Why a plan with some modules included is refused.
fn refused_with(config: &Value, tensors: &[(&str, &[usize])], include: &str) -> String {
    let refusal = |_: &Source<'_>, plan: Result<Plan>| plan.expect_err("refused").to_string();
    planned_by((config, tensors), "int8-row", (&[include], &[]), refusal)
}

#[test]
fn named_weights_that_transformers_computes_with_as_floats_are_refused() {
    let e = refused_with(&json!({"model_type": "qwen2_moe", "num_experts": 4}), &MOE, "*.gate");
    assert!(e.contains("model.layers.0.mlp.gate.weight is a router"), "{e}");
    let mamba: [(&str, &[usize]); 3] = [
        ("backbone.layers.0.mixer.in_proj.weight", &[64, 64]),
        ("backbone.layers.0.mixer.out_proj.weight", &[64, 64]),
        ("backbone.layers.0.mixer.A_log", &[64, 4]),
    ];
    let e = refused_with(&json!({"model_type": "mamba"}), &mamba, "*_proj");
    assert!(e.contains("mixer.out_proj.weight has a float weight that transformers initializes"), "{e}");
}

/// Matches a module against entries of `ignore` as compressed-tensors does.
fn is_ignored(ignore: &[String], module: &str) -> bool {
    ignore.iter().any(|entry| match entry.strip_prefix("re:") {
        Some(pattern) => Regex::new(&format!("^(?:{pattern})")).expect("a pattern").is_match(module),
        None => entry == module,
    })
}

/// Matches a module against entries of `llm_int8_skip_modules` as transformers does.
fn is_skipped(skip: &[String], module: &str) -> bool {
    skip.iter().any(|entry| {
        let start = Regex::new(&format!(r"^(?:{entry})(?:\.|$)")).expect("a pattern");
        start.is_match(module) || module.ends_with(entry.as_str())
    })
}

const MOE: [(&str, &[usize]); 6] = [
    ("model.embed_tokens.weight", &[16, 64]),
    ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
    ("model.layers.0.mlp.gate.weight", &[4, 64]),
    ("model.layers.0.mlp.experts.0.up_proj.weight", &[32, 64]),
    ("model.layers.0.mlp.shared_expert_gate.weight", &[1, 64]),
    ("lm_head.weight", &[16, 64]),
];

#[test]
fn what_stays_float_is_ignored_and_nothing_else() {
    let config = json!({"model_type": "qwen2_moe", "num_experts": 4});
    let (kept, quantized) = planned((&config, &MOE), ("int8-row", &[]), |source, plan| {
        let plan = plan.expect("plans");
        kept_and_quantized(source, &plan)
    });
    assert_eq!(quantized, ["model.layers.0.mlp.experts.0.up_proj", "model.layers.0.self_attn.q_proj"]);
    let (ignore, skip) = (kept.ignore(), kept.skip_modules(&quantized));
    for module in [
        "lm_head",
        "model.layers.0.mlp.gate",
        "model.layers.0.mlp.shared_expert_gate",
        // The base model alone has no `model.`, and phimoe's gates become routers.
        "layers.0.mlp.shared_expert_gate",
        "model.layers.0.mlp.router",
    ] {
        assert!(is_ignored(&ignore, module) && is_skipped(&skip, module), "{module}: {ignore:?} {skip:?}");
    }
    for module in &quantized {
        assert!(!is_ignored(&ignore, module) && !is_skipped(&skip, module), "{module}: {ignore:?} {skip:?}");
    }
}

#[test]
fn towers_are_ignored_under_every_name_that_transformers_gives_them() {
    let config = json!({"model_type": "llava", "text_config": {"model_type": "llama"}});
    let tensors: [(&str, &[usize]); 6] = [
        ("language_model.model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("language_model.model.layers.0.mlp.up_proj.weight", &[64, 64]),
        ("language_model.lm_head.weight", &[16, 64]),
        ("vision_tower.vision_model.encoder.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("vision_tower.vision_model.encoder.layers.0.mlp.up_proj.weight", &[64, 64]),
        ("mlp1.1.weight", &[64, 64]),
    ];
    let (kept, quantized) = planned((&config, &tensors), ("nf4", &[]), |source, plan| {
        let plan = plan.expect("plans");
        assert!(plan.notes.iter().any(|n| n.contains("vision") && n.contains("float")), "{:?}", plan.notes);
        kept_and_quantized(source, &plan)
    });
    assert_eq!(quantized.len(), 2);
    let (ignore, skip) = (kept.ignore(), kept.skip_modules(&quantized));
    for module in [
        "vision_tower.vision_model.encoder.layers.0.self_attn.q_proj",
        "model.vision_tower.encoder.layers.0.self_attn.q_proj",
        "model.vision_tower.layers.0.mlp.up_proj",
        "model.multi_modal_projector.linear_1",
        "lm_head",
    ] {
        assert!(is_ignored(&ignore, module) && is_skipped(&skip, module), "{module}: {ignore:?} {skip:?}");
    }
    for module in ["model.language_model.layers.0.self_attn.q_proj", "language_model.model.layers.0.mlp.up_proj"] {
        assert!(!is_ignored(&ignore, module) && !is_skipped(&skip, module), "{module}: {ignore:?} {skip:?}");
    }
}

#[test]
fn one_excluded_layer_is_ignored_by_its_name_alone() {
    let config = json!({"model_type": "unknown"});
    let tensors: [(&str, &[usize]); 2] =
        [("model.layers.0.mlp.up_proj.weight", &[64, 64]), ("model.layers.1.mlp.up_proj.weight", &[64, 64])];
    planned((&config, &tensors), ("int8-row", &["model.layers.0.*"]), |source, plan| {
        let ignore = kept(source, &plan.expect("plans")).ignore();
        assert!(is_ignored(&ignore, "model.layers.0.mlp.up_proj"), "{ignore:?}");
        assert!(!is_ignored(&ignore, "model.layers.1.mlp.up_proj"), "{ignore:?}");
    });
}

#[test]
fn what_transformers_can_not_load_is_refused_or_stays_float() {
    let moe = json!({"model_type": "qwen2_moe", "num_experts": 4});
    let refusal = |config: &Value, tensors: &[(&str, &[usize])], scheme: &str, exclude: &[&str]| {
        planned((config, tensors), (scheme, exclude), |_, plan| plan.expect_err("refused").to_string())
    };
    let e = refusal(&moe, &MOE, "w8a8-token", &[]);
    assert!(e.contains("experts.0.up_proj") && e.contains("--recipe"), "{e}");
    let e = refusal(&moe, &MOE, "int8-row", &["*experts*"]);
    assert!(e.contains("would stay float"), "{e}");
    // bitsandbytes' experts stay float, and are named by one pattern.
    planned((&moe, &MOE), ("nf4", &[]), |source, plan| {
        let plan = plan.expect("plans");
        let kept = kept(source, &plan);
        assert!(kept.patterns.iter().any(|p| p.contains("experts")), "{kept:?}");
        assert!(!kept.names.iter().any(|n| n.contains("experts.")), "{kept:?}");
        let said = plan.notes.iter().find(|n| n.contains("merges experts")).expect("a warning");
        assert!(said.starts_with("warning: 1 matrix") && said.contains("--include"), "{said}");
    });
    let up: [(&str, &[usize]); 1] = [("model.layers.0.mlp.up_proj.weight", &[64, 64])];
    for (family, scheme) in [
        ("falcon", "int8-row"),
        ("falcon", "nf4"),
        ("hrm_text", "int8-row"),
        ("t5", "int8-row"),
        ("olmo_hybrid", "int8-row"),
        ("gte", "int8-row"),
        ("nomic_bert", "nf4"),
        ("molmo2", "w8a8-token"),
    ] {
        let e = refusal(&json!({"model_type": family}), &up, scheme, &[]);
        assert!(e.contains(family) && e.contains("--layout packed") && !e.contains('\n'), "{e}");
    }
    let llama4: [(&str, &[usize]); 2] = [up[0], ("model.layers.0.feed_forward.experts.gate_up_proj", &[4, 8, 16])];
    let e = refusal(&json!({"model_type": "llama4_text"}), &llama4, "int8-row", &[]);
    assert!(e.contains("feed_forward.experts.gate_up_proj"), "{e}");
    let gpt2: [(&str, &[usize]); 1] = [("transformer.h.0.attn.c_attn.weight", &[64, 192])];
    let e = refusal(&json!({"model_type": "gpt2"}), &gpt2, "int8-row", &[]);
    assert!(e.contains("Conv1D") && e.contains("f16"), "{e}");
    let mamba: [(&str, &[usize]); 2] =
        [("backbone.layers.0.mixer.in_proj.weight", &[64, 64]), ("backbone.layers.0.mixer.A_log", &[64, 4])];
    let e = refusal(&json!({"model_type": "mamba"}), &mamba, "nf4", &[]);
    assert!(e.contains("no tensor is known as a projection") && e.contains("--include"), "{e}");
}

#[test]
fn shapes_that_bitsandbytes_can_not_run_stay_float() {
    let tensors: [(&str, &[usize]); 3] = [
        ("model.layers.0.mlp.up_proj.weight", &[96, 64]),
        ("model.layers.0.mlp.down_proj.weight", &[64, 96]),
        ("model.layers.0.self_attn.k_proj.weight", &[24, 64]),
    ];
    planned((&json!({"model_type": "unknown"}), &tensors), ("nf4", &[]), |source, plan| {
        let plan = plan.expect("plans");
        let float: Vec<&str> =
            plan.weights.iter().filter(|w| w.scheme.is_none()).map(|w| source.weights[w.index].module()).collect();
        assert_eq!(float.len(), 2, "{float:?}");
        assert!(!float.contains(&"model.layers.0.mlp.up_proj"));
    });
}

#[test]
fn groups_target_experts_and_renamed_modules_by_pattern() {
    planned((&json!({"model_type": "qwen2_moe"}), &MOE), ("int8-row", &[]), |source, _| {
        let expert = target("model.layers.0.mlp.experts.0.up_proj", source);
        assert_eq!(expert, r"re:(.*\.)?experts\.\d+\.up_proj$");
        assert_eq!(target("model.layers.0.self_attn.q_proj", source), "model.layers.0.self_attn.q_proj");
    });
}

#[test]
fn linears_are_ignored_where_transformers_moves_or_renames_them() {
    let up: (&str, &[usize]) = ("model.layers.0.mlp.up_proj.weight", &[64, 64]);
    let cases = [
        // Linears that make embeddings, within blocks and outside.
        (
            "prophetnet",
            "decoder.layers.0.self_attn.relative_pos_embeddings",
            "decoder.layers.0.self_attn.relative_pos_embeddings",
        ),
        ("mobilebert", "embeddings.embedding_transformation", "mobilebert.embeddings.embedding_transformation"),
        // A model within another.
        ("granite_speech", "encoder.input_linear", "model.encoder.input_linear"),
        // A mixer within attention, whose Linears get other names.
        ("deepseek_v4", "layers.0.attn.compressor.wkv", "layers.0.self_attn.compressor.kv_proj"),
        ("deepseek_v4", "layers.0.attn.indexer.wq_b", "layers.0.self_attn.indexer.q_b_proj"),
        // Linears of a norm.
        ("axk2", "model.layers.0.input_layernorm.W_down", "model.layers.0.input_layernorm.mlp.fc1"),
        ("hy_v4", "model.layers.0.mlp.linear_gate", "model.layers.0.mlp.gate_proj"),
    ];
    for (family, stored, loaded) in cases {
        let weight = format!("{stored}.weight");
        let config = json!({"model_type": family});
        planned((&config, &[up, (&weight, &[32, 64])]), ("int8-row", &[]), |source, plan| {
            let plan = plan.expect("plans");
            assert_eq!(plan.weights.iter().filter(|w| w.scheme.is_some()).count(), 1, "{family}");
            let ignore = kept(source, &plan).ignore();
            assert!(is_ignored(&ignore, stored) && is_ignored(&ignore, loaded), "{family} {loaded}: {ignore:?}");
            assert!(!is_ignored(&ignore, "model.layers.0.mlp.up_proj"), "{ignore:?}");
        });
    }
}

#[test]
fn excluded_projections_are_ignored_under_their_new_names() {
    let tensors: [(&str, &[usize]); 2] =
        [("layers.0.attn.wq_a.weight", &[32, 64]), ("layers.0.attn.wq_b.weight", &[64, 32])];
    planned((&json!({"model_type": "deepseek_v4"}), &tensors), ("int8-row", &["*.wq_a"]), |source, plan| {
        let ignore = kept(source, &plan.expect("plans")).ignore();
        assert!(is_ignored(&ignore, "layers.0.self_attn.q_a_proj"), "{ignore:?}");
        assert!(!is_ignored(&ignore, "layers.0.self_attn.q_b_proj"), "{ignore:?}");
    });
}

#[test]
fn weights_beside_unknown_tensors_are_not_quantized() {
    let tensors: [(&str, &[usize]); 3] = [
        ("encoder.layer.0.output.dense.weight", &[64, 64]),
        ("encoder.layer.0.output.dense.bias", &[64]),
        ("encoder.layer.0.output.dense.bias_integer", &[64]),
    ];
    planned((&json!({"model_type": "ibert"}), &tensors), ("int8-row", &[]), |_, plan| {
        let misfits = plan.expect("plans").misfits;
        assert!(misfits.len() == 1 && misfits[0].why.contains("dense.bias_integer"), "{misfits:?}");
    });
    planned((&json!({"model_type": "ibert"}), &tensors), ("f16", &[]), |_, plan| {
        assert!(plan.expect("plans").misfits.is_empty());
    });
}

#[test]
fn an_unknown_family_keeps_the_size_of_its_vocabulary() {
    let tensors: [(&str, &[usize]); 3] = [
        ("model.embed_tokens.weight", &[17, 64]),
        ("model.layers.0.mlp.up_proj.weight", &[64, 64]),
        ("lm_head.weight", &[16, 64]),
    ];
    let config = json!({"model_type": "moshi", "vocab_size": 16});
    planned((&config, &tensors), ("int8-row", &[]), |source, plan| {
        let written = crate::config::config_json(source, &plan.expect("plans")).expect("a configuration");
        assert_eq!(written["vocab_size"], 16);
    });
}
