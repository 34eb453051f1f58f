//! Checkpoints that are not what they say: refused, or put right with a warning.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use common::{SyntheticModel, write_model_with};
use conversion::Source;
use place::{Place, Stored};
use schemes::FloatType;
use serde_json::Value;

const UP: &str = "model.layers.1.mlp.up_proj.weight";

fn find<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors.iter_mut().find(|t| t.name == name).expect("there")
}

#[test]
fn what_is_not_whole_is_refused() {
    type Change = fn(&mut Value, &mut Vec<Stored>);
    let cases: [(Change, &[&str]); 7] = [
        (
            |c, _| c["attention_bias"] = true.into(),
            &["model.layers.0.self_attn.q_proj.bias", "missing; expected shape [192]"],
        ),
        (|_, t| t.retain(|t| t.name != UP), &[UP, "missing; expected shape [320, 192]"]),
        (|_, t| find(t, UP).shape = vec![160, 384], &[UP, "[160, 384]", "[320, 192]", "model.safetensors"]),
        (|c, _| c["num_hidden_layers"] = 3.into(), &["model.layers.2.input_layernorm.weight", "missing", "3 layers"]),
        (|c, _| c["tie_word_embeddings"] = false.into(), &["lm_head.weight", "missing", "tie"]),
        (|_, t| t.retain(|t| t.name != "model.norm.weight"), &["model.norm.weight", "missing"]),
        (|_, t| t.retain(|t| t.name != "model.embed_tokens.weight"), &["model.embed_tokens.weight", "missing"]),
    ];
    for (change, words) in cases {
        let place = Place::new();
        place.edit(change);
        for args in
            [&["--to", "gguf", "-o", "x.gguf"][..], &["--to", "safetensors", "-o", "out"], &["--to", "hf", "--dry-run"]]
        {
            let err = place.fails(1, &[&["model", "--scheme", "int8-row"], args].concat());
            for word in words {
                assert!(err.contains(word), "{word}: {err}");
            }
            assert_eq!(
                err.matches("missing").count(),
                usize::from(words.iter().any(|w| w.contains("missing"))),
                "said once: {err}"
            );
        }
        // A bare file has no configuration to go by.
        std::fs::rename(place.path("model/model.safetensors"), place.path("bare.safetensors")).expect("moves");
        let out = place.done(&["bare.safetensors", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
        assert!(out.contains("no config.json") && out.contains("no tokenizer"), "{out}");
    }
}

#[test]
fn a_scale_that_ggml_blocks_cannot_hold_is_refused() {
    let place = Place::new();
    let shape = SyntheticModel { float: FloatType::F32, ..Default::default() };
    // Scales of 375,000 (q4_0) and 97,000 (q5_1); f16 ends at 65,504, and int8-row needs 24,000.
    write_model_with(&place.path("wide"), &shape, |name, i| if name == UP && i == 7 { -3e6 } else { 0.1 });
    for scheme in ["ggml-q4_0", "ggml-q5_1", "int8-row"] {
        let args = ["wide", "--scheme", scheme, "--to", "gguf", "--layout", "ggml", "-o", "x.gguf"];
        if scheme == "int8-row" {
            place.done(&args);
        } else {
            let err = place.fails(1, &args);
            assert!(err.contains("its scales need f32") && err.contains(UP), "{err}");
        }
    }
}

#[test]
fn more_layers_than_the_configuration_has_get_a_warning() {
    let place = Place::new();
    place.edit(|c, _| c["num_hidden_layers"] = 1.into());
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
    assert!(out.contains("9 weights of layers beyond") && out.contains("model.layers.1."), "{out}");
}

#[test]
fn tensors_that_llama_cpp_has_no_place_for_are_refused_in_gguf() {
    let place = Place::new();
    place.edit(|_, tensors| {
        let bytes = vec![0; 2 * tensors[0].shape[0]];
        let shape = vec![tensors[0].shape[0]];
        tensors.push(Stored { name: "lm_head.bias".into(), dtype: "F16".into(), shape, bytes });
    });
    let err = place.fails(2, &["model", "--scheme", "f16", "--to", "gguf", "-o", "out.gguf"]);
    assert!(err.contains("the first is lm_head.bias") && err.contains("--to safetensors"), "{err}");
    place.done(&["model", "--scheme", "f16", "--to", "safetensors", "-o", "out"]);

    let place = Place::new();
    place.edit(|c, _| c["num_hidden_layers"] = 1.into());
    let err = place.fails(2, &["model", "--scheme", "int8-row", "--to", "gguf", "-o", "out.gguf"]);
    assert!(err.contains("9 tensors") && err.contains("model.layers.1."), "{err}");
}

#[test]
fn biases_that_transformers_ignores_get_a_warning() {
    let place = Place::new();
    let bias = |part: &str, len| Stored {
        name: format!("model.layers.0.self_attn.{part}.bias"),
        dtype: "F16".into(),
        shape: vec![len],
        bytes: vec![0; 2 * len],
    };
    place.edit(|_, tensors| tensors.extend([bias("q_proj", 192), bias("v_proj", 64)]));
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
    assert!(out.contains("2 stored bias vectors") && out.contains("model.layers.0.self_attn.q_proj.bias"), "{out}");
}

#[test]
fn the_written_configuration_is_that_of_the_tensors() {
    let place = Place::new();
    place.edit(|config, tensors| {
        config["vocab_size"] = 300.into();
        let mut head = tensors[0].clone();
        head.name = "lm_head.weight".into();
        head.bytes[..2].copy_from_slice(&[0, 0x3C]);
        tensors.push(head);
    });
    let out = place.done(&["model", "--scheme", "int4-g32", "--to", "safetensors", "-o", "out", "--verify"]);
    assert!(out.contains("a different lm_head is stored") && out.contains("300 vocabulary entries"), "{out}");
    let text = std::fs::read(place.path("out/config.json")).expect("reads");
    let config: Value = serde_json::from_slice(&text).expect("JSON");
    assert_eq!((&config["tie_word_embeddings"], &config["vocab_size"]), (&false.into(), &288.into()));
    let again = place.done(&["out", "--to", "hf", "-o", "back"]);
    assert!(!again.contains("different lm_head") && !again.contains("vocabulary entries"), "{again}");
}

#[test]
fn tokens_without_a_row_are_counted() {
    let place = Place::new();
    place.edit(|config, tensors| {
        config["vocab_size"] = 250.into();
        let embedding = find(tensors, "model.embed_tokens.weight");
        embedding.shape[0] = 250;
        embedding.bytes.truncate(250 * 192 * 2);
    });
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
    assert!(out.contains("10 ids of the tokenizer without a row") && out.contains("the first is 250"), "{out}");
    for dry in [&["--dry-run"][..], &[]] {
        let err = place.fails(1, &[&["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf"], dry].concat());
        assert!(err.contains("250"), "{err}");
    }
}

#[test]
fn a_missing_tokenizer_is_said() {
    let place = Place::new();
    std::fs::remove_file(place.path("model/tokenizer.json")).expect("removes");
    for args in [["--to", "gguf", "-o", "x.gguf"], ["--to", "safetensors", "-o", "out"]] {
        let out = place.done(&[&["model", "--scheme", "int8-row"], &args[..]].concat());
        assert!(out.contains("no tokenizer"), "{out}");
    }
}

#[test]
fn known_buffers_are_left_out() {
    let place = Place::new();
    place.edit(|_, tensors| {
        for layer in 0..2 {
            for (name, shape) in
                [("rotary_emb.inv_freq", vec![16]), ("masked_bias", vec![1]), ("bias", vec![1, 1, 4, 4])]
            {
                let bytes = vec![0; 2 * shape.iter().product::<usize>()];
                let name = format!("model.layers.{layer}.self_attn.{name}");
                tensors.push(Stored { name, dtype: "F16".into(), shape, bytes });
            }
        }
    });
    for (to, output) in [("gguf", "x.gguf"), ("safetensors", "out")] {
        let out = place.done(&["model", "--scheme", "int8-row", "--to", to, "-o", output, "--verify"]);
        assert!(out.contains("6 stored tensors that loaders compute") && out.contains("inv_freq"), "{out}");
        let made = store::open(&place.path(output)).expect("opens");
        assert!(!made.tensors.keys().any(|name| name.contains("inv_freq") || name.contains("bias")));
    }
}

#[test]
fn nothing_that_is_not_finite_passes() {
    // Copied, rounded, and of one dimension; in a type that is kept and in one that is not.
    for (name, at, place_said) in [
        (UP, 192 * 3 + 5, "row 3, column 5"),
        ("model.embed_tokens.weight", 192 * 287 + 191, "row 287, column 191"),
        ("model.norm.weight", 7, "index 7"),
        ("model.layers.0.self_attn.q_proj.weight", 192 * 17, "row 17, column 0"),
    ] {
        for (bits, value) in [([0xFF, 0x7F], "NaN"), ([0x00, 0xFC], "-inf")] {
            let place = Place::new();
            place.edit(|_, tensors| find(tensors, name).bytes[2 * at..2 * at + 2].copy_from_slice(&bits));
            for args in [
                ["--scheme", "f16", "--to", "hf", "-o", "out"],
                ["--scheme", "bf16", "--to", "hf", "-o", "out"],
                ["--scheme", "f16", "--to", "gguf", "-o", "x.gguf"],
                ["--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf"],
                ["--scheme", "nf4-dq", "--to", "safetensors", "-o", "out"],
            ] {
                let err = place.fails(1, &[&["model"], &args[..]].concat());
                assert!(err.contains(name) && err.contains(place_said) && err.contains(value), "{args:?}: {err}");
            }
        }
    }
}

#[test]
fn gptq_checkpoints_are_dequantized() {
    let place = Place::new();
    let mut wanted = Vec::new();
    place.edit(|config, tensors| {
        config["quantization_config"] =
            serde_json::json!({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true, "desc_act": false});
        let at = tensors.iter().position(|t| t.name == UP).expect("there");
        let Stored { shape, .. } = tensors.remove(at);
        let (rows, cols) = (shape[0], shape[1]);
        // Codes 0 to 15 around a zero point of 8, which GPTQ stores less one; a scale of 1/16.
        let code = |row: usize, col: usize| ((row * 7 + col * 3) % 16) as u32;
        let words = (0..cols / 8)
            .flat_map(|w| (0..rows).map(move |r| (0..8).fold(0, |x, i| x | code(r, 8 * w + i) << (4 * i))));
        let module = UP.strip_suffix(".weight").expect("a weight");
        let mut add = |name: &str, dtype: &str, shape: Vec<usize>, bytes: Vec<u8>| {
            tensors.push(Stored { name: format!("{module}.{name}"), dtype: dtype.into(), shape, bytes });
        };
        add("qweight", "I32", vec![cols / 8, rows], words.flat_map(|w: u32| w.to_le_bytes()).collect());
        add("qzeros", "I32", vec![cols / 32, rows / 8], [0x77; 4].repeat(cols / 32 * rows / 8));
        add("scales", "F16", vec![cols / 32, rows], [0x00, 0x2C].repeat(cols / 32 * rows));
        let groups = (0..cols as u32).flat_map(|c| (c / 32).to_le_bytes());
        add("g_idx", "I32", vec![cols], groups.collect());
        wanted = (0..rows * cols).map(|i| (code(i / cols, i % cols) as f32 - 8.0) / 16.0).collect();
    });
    for (scheme, to, output) in [("f16", "hf", "out"), ("f16", "gguf", "x.gguf"), ("int8-row", "safetensors", "ct")] {
        place.done(&["model", "--scheme", scheme, "--to", to, "-o", output, "--verify"]);
        let made = store::open(&place.path(output)).expect("opens");
        let module = UP.strip_suffix(".weight").expect("a weight");
        let values = made.linear(module).expect("there").matrix.decode_all();
        let far = values.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(far <= if scheme == "f16" { 0.0 } else { 0.003 }, "{output}: {far}");
        assert!(!made.tensors.keys().any(|name| name.contains("qzeros") || name.contains("g_idx")));
    }
}

#[test]
fn biases_of_zeros_that_nobody_asks_for_are_left_out() {
    // As GPTQ's quantizers write them.
    let dir = tempfile::tempdir().expect("a folder");
    let shape = SyntheticModel { attention_bias: true, ..SyntheticModel::default() };
    write_model_with(dir.path(), &shape, |name, i| if name.ends_with(".bias") { 0.0 } else { (i % 7) as f32 / 64.0 });
    let path = dir.path().join("config.json");
    let text = std::fs::read_to_string(&path).expect("written");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    config["attention_bias"] = false.into();
    std::fs::write(&path, config.to_string()).expect("writes");
    let model = store::open(dir.path()).expect("opens");
    let source = Source::new(&model).expect("whole");
    assert!(source.weights.iter().all(|w| !w.name.ends_with(".bias")));
    assert!(source.warnings.iter().any(|w| w.contains("8 stored bias vectors of zeros")), "{:?}", source.warnings);
}
