use crate::gguf::{Plan, PlannedTensor, Value};
use crate::{Model, open, testing::*};
use schemes::GgmlType;
use std::fs;
use tempfile::TempDir;

/// A whole model of one block, in safetensors.
fn parts() -> Vec<Part> {
    let shapes: [(&str, &[usize]); 10] = [
        ("input_layernorm", &[8]),
        ("post_attention_layernorm", &[8]),
        ("self_attn.q_proj", &[8, 8]),
        ("self_attn.k_proj", &[4, 8]),
        ("self_attn.v_proj", &[4, 8]),
        ("self_attn.o_proj", &[8, 8]),
        ("mlp.gate_proj", &[16, 8]),
        ("mlp.up_proj", &[16, 8]),
        ("mlp.down_proj", &[8, 16]),
        ("self_attn.q_proj.bias", &[8]),
    ];
    let block = shapes.iter().map(|(name, shape)| {
        let name = if name.ends_with("bias") { name.to_string() } else { format!("{name}.weight") };
        f32s(&format!("model.layers.0.{name}"), shape, &vec![0.5; shape.iter().product()])
    });
    block.chain([embedding(), f32s("model.norm.weight", &[8], &[1.0; 8])]).collect()
}

/// A configuration that asks for the biases of [`parts`].
fn biased() -> serde_json::Value {
    config_with(serde_json::json!({"attention_bias": true}))
}

fn unused(more: &[Part]) -> (Vec<String>, Vec<String>) {
    let dir = folder(&biased(), &[&parts()[..], more].concat(), &[]);
    let model = open(dir.path()).expect("opens");
    let config = model.config().expect("a configuration");
    let names = model.unused(&config).into_iter().map(String::from).collect::<Vec<_>>();
    assert_eq!(model.check_unused(&config).is_err(), !names.is_empty());
    (names, model.warnings)
}

#[test]
fn what_a_model_has_no_use_for_is_refused_or_noted() {
    assert_eq!(unused(&[]), (vec![], vec![]));
    let one = |name: &str| f32s(name, &[1], &[1.0]);
    for name in [
        "model.layers.0.input_layernorm.bias",
        "model.layers.0.self_attn.sinks",
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.mlp.gate.weight",
        "model.layers.0.mlp.experts.0.gate_proj.weight",
        "model.layers.0.self_attn.q_proj.adapter.weight",
        "model.layers.1.input_layernorm.weight",
        "model.norm.bias",
        "score.weight",
        "rope_factors_long.weight",
    ] {
        assert_eq!(unused(&[one(name)]).0, [name]);
    }
    for (name, note) in [
        ("model.layers.0.self_attn.rotary_emb.inv_freq", "compute for themselves"),
        ("model.layers.0.self_attn.masked_bias", "compute for themselves"),
        ("model.layers.0.self_attn.k_scale", "rounding of keys and values"),
        ("mtp.layers.0.mlp.up_proj.weight", "multi-token prediction"),
        ("model.layers.0.mlp.up_proj.input_scale", "rounds activations"),
    ] {
        let (names, warnings) = unused(&[one(name)]);
        assert!(names.is_empty(), "{names:?}");
        assert!(matches!(&warnings[..], [w] if w.contains(note) && w.contains(name)), "{warnings:?}");
    }
    let dir = folder(&biased(), &[&parts()[..], &[one("a"), one("b")]].concat(), &[]);
    let model = open(dir.path()).expect("opens");
    let error = model.check_unused(&model.config().expect("fine")).expect_err("refused").to_string();
    assert!(error.contains("tensor a: no part of a llama model with 1 blocks uses it nor 1 more"), "{error}");
}

/// Writes the same model to GGUF, with further tensors: name, type, shape and bytes.
fn gguf(arch: &str, more: &[(&str, GgmlType, &[usize], Vec<u8>)]) -> (TempDir, Model) {
    let metadata: Vec<(String, Value)> = vec![
        ("general.architecture".into(), arch.into()),
        (format!("{arch}.block_count"), Value::U32(1)),
        (format!("{arch}.context_length"), Value::U32(64)),
        (format!("{arch}.embedding_length"), Value::U32(8)),
        (format!("{arch}.feed_forward_length"), Value::U32(16)),
        (format!("{arch}.attention.head_count"), Value::U32(2)),
        (format!("{arch}.attention.head_count_kv"), Value::U32(1)),
        (format!("{arch}.attention.layer_norm_rms_epsilon"), Value::F32(1e-5)),
    ];
    let mut all: Vec<(String, GgmlType, Vec<usize>, Vec<u8>)> = parts()
        .into_iter()
        .filter(|p| !more.iter().any(|m| Some(m.0) == crate::gguf::hf_to_gguf_name(&p.0).as_deref()))
        .map(|(name, dtype, shape, data)| {
            let name = crate::gguf::hf_to_gguf_name(&name).expect("a name");
            (name, dtype.ggml().expect("a type"), shape, data)
        })
        .collect();
    all.extend(more.iter().map(|(n, ty, shape, data)| (n.to_string(), *ty, shape.to_vec(), data.clone())));
    let planned: Vec<PlannedTensor> = all.iter().map(|(n, ty, shape, _)| PlannedTensor::new(n, *ty, shape)).collect();
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("model.gguf");
    let plan = Plan::new(&path, &metadata, &planned).expect("a plan");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 0);
    for (i, (_, _, _, data)) in all.iter().enumerate() {
        let at = plan.offset(i) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
    }
    fs::write(&path, bytes).expect("writes");
    let model = open(&path).expect("opens");
    (dir, model)
}

fn one() -> Vec<u8> {
    1f32.to_le_bytes().to_vec()
}

#[test]
fn tensors_of_gguf_that_llama_cpp_refuses() {
    for name in [
        "blk.0.attn_sinks.weight",
        "blk.0.ffn_gate_exps.weight",
        "blk.0.attn_q.lora_a",
        "blk.0.attn_sub_norm.weight",
        "rope_factors_long.weight",
        "blk.1.attn_norm.weight",
        "output_norm.bias",
    ] {
        let (_dir, model) = gguf("llama", &[(name, GgmlType::F32, &[1], one())]);
        assert_eq!(model.unused(&model.config().expect("fine")), [name]);
    }
    let factors: Vec<u8> = [1f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let freqs = [("rope_freqs.weight", GgmlType::F32, &[2usize][..], factors)];
    let (_dir, model) = gguf("llama", &freqs);
    let config = model.config().expect("fine");
    assert_eq!(config.rope_scaling, crate::RopeScaling::Factors(vec![1.0, 2.0]));
    assert!(model.unused(&config).is_empty());
    let (_dir, model) = gguf("qwen2", &freqs);
    let error = model.config().expect_err("refused").to_string();
    assert!(error.contains("rope_freqs.weight: rotary factors of a Qwen2 model are not supported"), "{error}");
}

#[test]
fn the_second_scale_of_nvfp4_is_applied() {
    // One block of 64 weights: four scales of 1 (0x38 in unsigned E4M3), codes 2 and 3 (1 and 1.5).
    let mut block = vec![0x38u8; 4];
    block.extend([0x32; 32]);
    let down = |scale: f32| {
        let blocks = block.repeat(8);
        let shape: &[usize] = &[8, 64];
        let scale = scale.to_le_bytes().to_vec();
        let (_dir, model) = gguf(
            "llama",
            &[
                ("blk.0.ffn_down.weight", GgmlType::NVFP4, shape, blocks),
                ("blk.0.ffn_down.scale", GgmlType::F32, &[1], scale),
                ("blk.0.ffn_down.input_scale", GgmlType::F32, &[1], one()),
            ],
        );
        model.linear("model.layers.0.mlp.down_proj").map(|l| l.matrix.decode_all())
    };
    let (plain, scaled) = (down(1.0).expect("a layer"), down(0.25).expect("a layer"));
    assert!(plain.iter().any(|v| *v != 0.0));
    assert!(plain.iter().zip(&scaled).all(|(a, b)| a * 0.25 == *b));
    assert!(down(f32::NAN).expect_err("refused").to_string().contains("blk.0.ffn_down.scale"));
    // It multiplies any type, as llama.cpp has it.
    let (_dir, model) = gguf("llama", &[("blk.0.attn_q.scale", GgmlType::F32, &[1], 2f32.to_le_bytes().to_vec())]);
    let layer = model.linear("model.layers.0.self_attn.q_proj").expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [1.0; 64]);
}

#[test]
fn biases_that_no_loader_reads_are_refused() {
    let bias = |value: f32| value.to_le_bytes().repeat(8);
    let refused = |arch: &str, name: &str| {
        let (_dir, model) = gguf(arch, &[(name, GgmlType::F32, &[8], bias(0.5))]);
        model.config().err().map(|e| e.to_string())
    };
    for (arch, name, reads) in [
        ("llama", "blk.0.attn_output.bias", true),
        ("llama", "blk.0.ffn_down.bias", true),
        ("llama", "output.bias", false),
        ("llama", "token_embd.bias", false),
        ("qwen2", "blk.0.attn_output.bias", false),
        ("qwen2", "blk.0.ffn_down.bias", false),
        ("qwen3", "blk.0.attn_output.bias", false),
        ("qwen3", "blk.0.attn_k.bias", true),
    ] {
        let error = refused(arch, name);
        assert_eq!(error.is_none(), reads, "{arch} {name}: {error:?}");
        assert!(error.is_none_or(|e| e.contains(name) && e.contains("llama.cpp reads no such bias")));
    }
    // Zeros change nothing.
    let (_dir, model) = gguf("qwen2", &[("blk.0.attn_output.bias", GgmlType::F32, &[8], bias(0.0))]);
    assert!(model.config().is_ok());

    let head = [f32s("lm_head.weight", &[4, 8], &[1.0; 32]), f32s("lm_head.bias", &[4], &[1.0; 4])];
    let dir = folder(&biased(), &[&parts()[..], &head].concat(), &[]);
    let error = open(dir.path()).expect("opens").config().expect_err("refused").to_string();
    assert!(error.contains("lm_head.bias: transformers has no such bias"), "{error}");
}

#[test]
fn scales_outside_of_blocks_are_refused() {
    for name in ["token_embd.scale", "output_norm.scale"] {
        let (_dir, model) = gguf("llama", &[(name, GgmlType::F32, &[1], one())]);
        let config = model.config();
        assert!(config.is_err() || !model.unused(&config.expect("fine")).is_empty(), "{name}");
    }
}
