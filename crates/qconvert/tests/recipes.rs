//! Recipes, and what one directory or container can't hold together.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use place::Place;
use serde_json::Value;

const MIXED: &str = "default = \"int8-row\"\n[[rule]]\nmatch = \"*.mlp.*\"\nscheme = \"nf4\"\n";

fn with_recipe(text: &str) -> Place {
    let place = Place::new();
    std::fs::write(place.path("a.toml"), text).expect("writes");
    place
}

#[test]
fn a_default_and_a_scheme_are_one_too_many() {
    let place = with_recipe("default = \"int8-row\"");
    let err = place.fails(2, &["model", "--recipe", "a.toml", "--scheme", "nf4", "--to", "gguf", "-o", "x.gguf"]);
    assert!(err.contains("a.toml") && err.contains("int8-row") && err.contains("--scheme nf4"), "{err}");
    for to in ["gguf", "hf"] {
        let out = place.done(&["model", "--recipe", "a.toml", "--to", to, "--dry-run", "--json"]);
        let json: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(json["plans"][0]["schemes"]["int8-row"], 14, "the default holds with --to {to}: {out}");
    }
}

#[test]
fn a_mixed_artifact_says_what_it_holds() {
    let place = with_recipe(&MIXED[MIXED.find("[[").expect("a rule")..]);
    let out = place.done(&[
        "model",
        "--recipe",
        "a.toml",
        "--scheme",
        "int8-row,int4-g32,nf4",
        "--to",
        "gguf",
        "-o",
        "out",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    for (i, label) in ["int8-row+nf4", "int4-g32+nf4", "nf4"].into_iter().enumerate() {
        let artifact = &json["artifacts"][i];
        assert_eq!(
            (artifact["scheme"].as_str(), artifact["path"].as_str()),
            (Some(label), Some(&*format!("out/{label}.gguf")))
        );
        let made = store::open(&place.path(&format!("out/{label}.gguf"))).expect("opens");
        let said = |key: &str| made.metadata.get(key).map(String::as_str);
        assert_eq!((said("qconvert.scheme"), said("qconvert.recipe")), (Some(label), Some("a.toml")));
    }
    assert_eq!(json["artifacts"][0]["schemes"], serde_json::json!({"int8-row": 8, "nf4": 6}));
    let (code, out, _) =
        place.run(&["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf", "--exclude", "*.0.mlp.*"]);
    assert!(code == 0 && out.contains("int8-row+f16"), "{out}");
}

#[test]
fn one_directory_has_one_method() {
    let place = with_recipe(MIXED);
    for dry in [&[][..], &["--dry-run"]] {
        let args = ["model", "--recipe", "a.toml", "--to", "safetensors", "-o", "out"];
        let err = place.fails(1, &[&args[..], dry].concat());
        for word in ["compressed-tensors", "bitsandbytes", "--layout packed", "q_proj", "gate_proj"] {
            assert!(err.contains(word), "{word}: {err}");
        }
    }
    place.done(&["model", "--recipe", "a.toml", "--to", "safetensors", "--layout", "packed", "-o", "out", "--verify"]);
    std::fs::write(place.path("a.toml"), MIXED.replace("int8-row", "nf4-dq")).expect("writes");
    let err = place.fails(1, &["model", "--recipe", "a.toml", "--to", "safetensors", "-o", "two"]);
    assert!(err.contains("bitsandbytes (nf4-dq)") && err.contains("bitsandbytes (nf4)"), "{err}");
}

#[test]
fn a_layout_has_its_containers() {
    let place = Place::new();
    for (to, layout) in
        [("gguf", "compressed-tensors"), ("gguf", "bitsandbytes"), ("safetensors", "ggml"), ("hf", "ggml")]
    {
        for dry in [&[][..], &["--dry-run"]] {
            let args = ["model", "--scheme", "int8-row", "--to", to, "--layout", layout, "-o", "out"];
            let err = place.fails(2, &[&args[..], dry].concat());
            assert!(err.contains(layout) && err.contains("packed"), "{err}");
        }
    }
}

#[test]
fn linear_modules_only() {
    let place = Place::new();
    let embedding = ["model", "--include", "model.embed_tokens", "--to", "safetensors", "-o", "out"];
    for scheme in ["int8-row", "nf4"] {
        let err = place.fails(1, &[&embedding[..], &["--scheme", scheme]].concat());
        assert!(err.contains("model.embed_tokens.weight") && err.contains("--layout packed"), "{err}");
    }
    place.done(&[&embedding[..], &["--scheme", "nf4", "--layout", "packed", "--verify"]].concat());
    // A tied head is the embedding.
    let head = ["model", "--include", "lm_head", "--scheme", "int8-row"];
    let err = place.fails(1, &[&head[..], &["--to", "safetensors", "-o", "tied"]].concat());
    assert!(err.contains("lm_head is tied") && err.contains("--to gguf"), "{err}");
    for to in [&["--to", "gguf", "-o", "a.gguf"][..], &["--to", "safetensors", "--layout", "packed", "-o", "a"]] {
        let out = place.done(&[&head[..], to, &["--verify"]].concat());
        assert!(out.contains("(15)") && out.contains("lm_head is tied to model.embed_tokens"), "{out}");
    }
    // An untied head is a Linear module.
    place.edit(|config, tensors| {
        config["tie_word_embeddings"] = false.into();
        let mut head = tensors[0].clone();
        assert_eq!(head.name, "model.embed_tokens.weight");
        head.name = "lm_head.weight".into();
        tensors.push(head);
    });
    place.done(&["model", "--include", "lm_head", "--scheme", "int8-row", "--to", "safetensors", "-o", "head"]);
    place.edit(|config, _| config["tie_word_embeddings"] = true.into());
    let err = place.fails(1, &["model", "--include", "lm_head", "--scheme", "int8-row", "--to", "hf", "-o", "tied"]);
    assert!(err.contains("lm_head.weight") && err.contains("tied"), "{err}");
}

#[test]
fn patterns_that_do_nothing_are_mistakes() {
    let place = Place::new();
    let err = place.fails(2, &["model", "--include", "model.norm", "--scheme", "nf4", "--to", "gguf", "-o", "x.gguf"]);
    assert!(err.contains("model.norm") && err.contains("can't be quantized"), "{err}");
    let err = place.fails(2, &["model", "--scheme", "int8-row,int8-row", "--to", "gguf", "-o", "x"]);
    assert!(err.contains("twice"), "{err}");
    let err = place.fails(2, &["model", "--scheme", "int8-row", "--to", "gguf", "-o", "new/"]);
    assert!(err.contains("new/model.gguf"), "{err}");
}
