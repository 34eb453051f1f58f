//! Checkpoints that are not what they say: refused, or put right with a warning.

mod common;
mod place;

use place::{Place, Stored};
use serde_json::Value;

const UP: &str = "model.layers.1.mlp.up_proj.weight";

fn find<'a>(tensors: &'a mut [Stored], name: &str) -> &'a mut Stored {
    tensors.iter_mut().find(|t| t.name == name).expect("there")
}

#[test]
fn what_is_not_whole_is_refused() {
    type Change = fn(&mut Value, &mut Vec<Stored>);
    let cases: [(Change, &[&str]); 6] = [
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
fn more_layers_than_the_configuration_has_get_a_warning() {
    let place = Place::new();
    place.edit(|c, _| c["num_hidden_layers"] = 1.into());
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
    assert!(out.contains("9 weights of layers beyond") && out.contains("model.layers.1."), "{out}");
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
        assert!(out.contains("6 stored buffers") && out.contains("inv_freq"), "{out}");
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
