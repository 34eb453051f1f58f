use crate::{Container, open, testing::*};
use serde_json::json;
use std::{fs, path::Path};
use tempfile::TempDir;

fn error(path: &Path) -> String {
    open(path).expect_err("refused").to_string()
}

/// A folder with an index and two shards.
fn sharded(map: &str, shards: &[(&str, &[Part])]) -> TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    let put = |name: &str, bytes: &[u8]| fs::write(dir.path().join(name), bytes).expect("write");
    put("config.json", config().to_string().as_bytes());
    put("model.safetensors.index.json", format!("{{\"metadata\":{{}},\"weight_map\":{map}}}").as_bytes());
    for (name, parts) in shards {
        put(name, &safetensors_bytes(parts, &[("format", "pt")]));
    }
    dir
}

#[test]
fn a_folder_opens_with_what_travels_along() {
    let dir = folder(&config(), &[embedding(), f32s("model.norm.weight", &[2], &[1.0, 2.5])], &[("format", "pt")]);
    for name in
        ["tokenizer.json", "LICENSE", "merges.txt", ".hidden", "pytorch_model.bin", "x.gguf", "a.index.json", "old.tmp"]
    {
        fs::write(dir.path().join(name), name).expect("write");
    }
    fs::create_dir(dir.path().join("onnx")).expect("mkdir");
    for path in [dir.path().to_path_buf(), dir.path().join("model.safetensors")] {
        let model = open(&path).expect("a model");
        assert_eq!(model.container, Container::Directory);
        assert_eq!(model.path, dir.path());
        let names: Vec<_> = model.side_files.iter().map(|f| f.name.as_str()).collect();
        assert_eq!(names, ["LICENSE", "merges.txt", "tokenizer.json"]);
        assert_eq!(model.side_file("LICENSE"), Some(&b"LICENSE"[..]));
        assert_eq!(model.dense("model.norm.weight").expect("floats"), Some(vec![1.0, 2.5]));
        assert_eq!(model.dense("model.nothing").expect("absent"), None);
        assert!(model.warnings.is_empty(), "{:?}", model.warnings);
        assert!(model.tokenizer().expect_err("no tokenizer").to_string().contains("tokenizer.json"));
    }
}

#[test]
fn a_tokenizer_that_its_crate_panics_on_is_malformed() {
    let dir = folder(&config(), &[embedding()], &[("format", "pt")]);
    let refused = |json: &str| {
        fs::write(dir.path().join("tokenizer.json"), json).expect("write");
        open(dir.path()).expect("a model").text_tokenizer().expect_err("refused").to_string()
    };
    for json in [
        r#"{"decoder": "ByteLevel"}"#,
        r#"{"decoder": {"type": "ByteLevel", "add_prefix_space": tr"#,
        "{\"decoder\": {\"type\": \"Byte\u{1}Level\"}}",
        r#"{"model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": [["a", "a"]]}}"#,
    ] {
        assert!(refused(json).contains("tokenizer.json"), "{json}: {}", refused(json));
    }
}

#[test]
fn a_bare_file_carries_its_files_in_the_metadata() {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("small.safetensors");
    fs::write(dir.path().join("config.json"), "{}").expect("write");
    let text = config().to_string();
    let metadata = [("qconvert.hf.config.json", text.as_str()), ("qconvert.hf.tokenizer.json", "{}")];
    fs::write(&path, safetensors_bytes(&[embedding()], &metadata)).expect("write");
    let model = open(&path).expect("a model");
    assert_eq!(model.container, Container::Safetensors);
    assert_eq!(model.config().expect("config").vocab_size, 4);
    assert_eq!(model.side_file("tokenizer.json"), Some(&b"{}"[..]));

    fs::write(&path, safetensors_bytes(&[embedding()], &[])).expect("write");
    fs::remove_file(dir.path().join("config.json")).expect("remove");
    let model = open(&path).expect("a model");
    assert!(model.config_json.is_none() && model.side_files.is_empty());
    assert!(model.config().expect_err("none").to_string().contains("no config.json"));

    fs::write(&path, safetensors_bytes(&[], &[("qconvert.hf.../evil", "x")])).expect("write");
    assert!(error(&path).contains("not a plain file name"));
}

#[test]
fn shards_are_joined() {
    let (a, b) = (f32s("a", &[1], &[1.0]), f32s("b", &[1], &[2.0]));
    let dir =
        sharded(r#"{"b":"2.safetensors","a":"1.safetensors"}"#, &[("1.safetensors", &[a]), ("2.safetensors", &[b])]);
    let model = open(dir.path()).expect("a model");
    assert_eq!(model.tensors.keys().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(model.tensors["b"].file, dir.path().join("2.safetensors"));
    assert_eq!(model.dense("b").expect("floats"), Some(vec![2.0]));
    assert_eq!(model.metadata["format"], "pt");
}

#[test]
fn shards_and_index_must_agree() {
    let a = || f32s("a", &[1], &[1.0]);
    let b = || f32s("b", &[1], &[2.0]);
    let one: &[Part] = &[a()];
    let two: &[Part] = &[b()];
    let both: &[Part] = &[a(), b()];
    let right = r#"{"a":"1.safetensors","b":"2.safetensors"}"#;
    for (map, shards, want) in [
        (right, &[("1.safetensors", one)][..], "tensor b: its shard 2.safetensors is absent"),
        (r#"{"a":"1.safetensors","c":"1.safetensors"}"#, &[("1.safetensors", one)], "tensor c: is in no shard"),
        (
            r#"{"a":"2.safetensors","b":"1.safetensors"}"#,
            &[("1.safetensors", one), ("2.safetensors", two)],
            "but it lies in",
        ),
        (right, &[("1.safetensors", both), ("2.safetensors", two)], "tensor b: stands in two shards"),
        (r#"{"a":"../1.safetensors"}"#, &[], "outside of the folder, in '../1.safetensors'"),
        (r#"{"a":"/etc/passwd"}"#, &[], "outside of the folder"),
        (r#"{"a":"x/../../y"}"#, &[], "outside of the folder"),
        (r#"{"a":"1.safetensors","a":"2.safetensors"}"#, &[("1.safetensors", one)], "key a stands twice"),
        (r#"{"a":3}"#, &[], "key a: invalid type"),
        ("7", &[], "expected an object of strings"),
    ] {
        let dir = sharded(map, shards);
        let error = error(dir.path());
        assert!(error.contains(want) && error.contains("model.safetensors.index.json"), "{error} has no '{want}'");
    }
    let dir = sharded(r#"{"a":"1.safetensors"}"#, &[("1.safetensors", both)]);
    let model = open(dir.path()).expect("a model");
    assert!(model.warnings[0].contains("1 tensors of the shards are not in"), "{:?}", model.warnings);
}

#[test]
fn shards_of_different_conversions_are_refused() {
    let dir = sharded(r#"{"a":"1.safetensors","b":"2.safetensors"}"#, &[]);
    for (name, tensor, hash) in [("1.safetensors", "a", "x"), ("2.safetensors", "b", "y")] {
        let bytes =
            safetensors_bytes(&[f32s(tensor, &[1], &[0.0])], &[("qconvert.source_blake3", hash), ("format", hash)]);
        fs::write(dir.path().join(name), bytes).expect("write");
    }
    assert!(error(dir.path()).contains("2.safetensors: metadata qconvert.source_blake3 differs"));
}

#[test]
fn what_is_no_model_is_refused_with_the_way_out() {
    let dir = tempfile::tempdir().expect("temp dir");
    assert!(error(dir.path()).contains("no model directory"));
    assert!(error(&dir.path().join("none")).contains("cannot open"));
    for (name, bytes, want) in [
        ("x.gguf", &b"nothing"[..], "x.gguf"),
        ("m.bin", b"", "pickle"),
        ("m.pt", b"", "save_pretrained"),
        ("m", b"PK\x03\x04", "pickle"),
        ("text", b"hello, world", "neither a GGUF nor a safetensors file"),
        ("config.json", b"{}", "give the folder that holds it"),
        ("model-00001-of-00003.safetensors", b"", "one shard of 3"),
        ("short.safetensors", b"abc", "3 bytes are no safetensors file"),
        ("empty.safetensors", b"", "0 bytes are no safetensors file"),
    ] {
        let path = dir.path().join(name);
        fs::write(&path, bytes).expect("write");
        if name == "x.gguf" {
            assert!(error(dir.path()).contains(want));
            fs::remove_file(&path).expect("remove");
            continue;
        }
        let error = error(&path);
        assert!(error.contains(want) && error.contains(name), "{error} has no '{want}'");
    }
    assert!(error(dir.path()).contains("pickle"), "the folder holds .bin and .pt");

    let dir = folder(&json!([1]), &[embedding()], &[]);
    assert!(error(dir.path()).contains("config.json: is not a JSON object"));
    for (text, want) in [("{", "EOF"), ("\u{feff}{}", "byte order mark"), ("{} // x", "trailing characters")] {
        fs::write(dir.path().join("config.json"), text).expect("write");
        let error = error(dir.path());
        assert!(error.contains("config.json: ") && error.contains(want), "{error}");
    }
}

#[test]
fn a_variant_is_read_where_it_is_the_only_one() {
    let dir = folder(&config(), &[embedding()], &[]);
    let at = |name: &str| dir.path().join(name);
    fs::rename(at("model.safetensors"), at("model.fp16.safetensors")).expect("rename");
    fs::write(at("LICENSE"), "mine").expect("write");
    for path in [dir.path().to_path_buf(), at("model.fp16.safetensors")] {
        let model = open(&path).expect("a model");
        assert_eq!((model.container, model.path.as_path()), (Container::Directory, dir.path()));
        assert_eq!(model.config().expect("a configuration").vocab_size, 4);
        assert_eq!(model.side_file("LICENSE"), Some(&b"mine"[..]));
    }
    assert!(open(dir.path()).expect("a model").warnings[0].contains("model.fp16.safetensors is read"));
    fs::copy(at("model.fp16.safetensors"), at("model.bf16.safetensors")).expect("copy");
    let error = error(dir.path());
    assert!(error.contains("model.bf16.safetensors, model.fp16.safetensors") && error.contains("give one"), "{error}");
    assert!(open(&at("model.bf16.safetensors")).expect("a model").config().is_ok());
    for name in ["model.fp16.safetensors", "model.bf16.safetensors"] {
        fs::rename(at(name), at("model-00001-of-00001.safetensors")).expect("rename");
    }
    let index = r#"{"weight_map": {"model.embed_tokens.weight": "model-00001-of-00001.safetensors"}}"#;
    fs::write(at("model.safetensors.index.fp16.json"), index).expect("write");
    assert_eq!(open(dir.path()).expect("a model").tensors.len(), 1);
}

#[test]
fn folders_of_other_kinds_say_what_they_are() {
    let part = |name: &str| safetensors_bytes(&[f32s(name, &[1], &[1.0])], &[]);
    let adapter = part("base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight");
    let mistral = part("tok_embeddings.weight");
    type Files<'a> = &'a [(&'a str, &'a [u8])];
    let cases: [(Files<'_>, &str); 13] = [
        (
            &[
                ("adapter_config.json", b"{\"base_model_name_or_path\": \"org/base\"}"),
                ("adapter_model.safetensors", &adapter),
            ],
            "its base model is org/base",
        ),
        (&[("adapter_config.json", b"["), ("adapter_model.bin", b"")], "is a PEFT (LoRA) adapter"),
        (&[("config.json", b"{}"), ("adapter_model.safetensors", &adapter)], "to read adapter_model.safetensors"),
        (&[("model_index.json", b"{}")], "diffusers pipeline"),
        (&[("params.json", b"{}"), ("consolidated.safetensors", &mistral)], "Mistral's own format"),
        (&[("params.json", b"{}"), ("consolidated.00.pth", b"")], "convert_llama_weights_to_hf.py"),
        (&[("config.json", b"{}"), ("model.safetensors", &mistral)], "Mistral's own format"),
        (&[("config.json", b"{}"), ("model.safetensors", &adapter)], "is a PEFT (LoRA) adapter"),
        (&[("config.json", b"{}"), ("model-00001-of-00002.safetensors", &mistral)], "download it as well"),
        (&[("config.json", b"{}"), ("tf_model.h5", b"")], "tf_model.h5 (TensorFlow weights)"),
        (&[("config.json", b"{}"), ("training_args.bin", b"")], "holds config.json and no weights"),
        (
            &[("config.json", b"{}"), ("pytorch_model.bin", b""), ("training_args.bin", b"")],
            "pytorch_model.bin: is a PyTorch",
        ),
        (
            &[
                ("model.safetensors", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
                ("config.json", b"{}"),
            ],
            "run git lfs pull",
        ),
    ];
    for (files, want) in cases {
        let dir = tempfile::tempdir().expect("temp dir");
        files.iter().for_each(|(name, bytes)| fs::write(dir.path().join(name), bytes).expect("write"));
        let error = error(dir.path());
        assert!(error.contains(want) && !error.contains('\n'), "{error} has no '{want}'");
    }
    // The advice to give a file leads on, not back.
    let dir = tempfile::tempdir().expect("temp dir");
    fs::write(dir.path().join("config.json"), config().to_string()).expect("write");
    fs::write(dir.path().join("adapter_model.safetensors"), &adapter).expect("write");
    assert!(error(&dir.path().join("adapter_model.safetensors")).contains("merge it into its base model"));
    fs::write(dir.path().join("consolidated.safetensors"), &mistral).expect("write");
    assert!(error(&dir.path().join("consolidated.safetensors")).contains("Mistral's own format"));
    fs::remove_file(dir.path().join("config.json")).expect("remove");
    let bare = open(&dir.path().join("consolidated.safetensors")).expect("a file of tensors");
    assert!(bare.config().expect_err("refused").to_string().contains("Mistral's own format"));

    let both = folder(&config(), &[embedding()], &[]);
    fs::write(both.path().join("adapter_config.json"), "{}").expect("write");
    let merged = open(both.path()).expect("a merged model keeps the file");
    assert!(merged.warnings[0].contains("adapter_config.json is not used"), "{:?}", merged.warnings);
    fs::write(both.path().join("adapter_model.safetensors"), &adapter).expect("write");
    assert!(error(both.path()).contains("a model and a PEFT adapter"));
}

#[test]
fn a_folder_too_high_names_those_below() {
    let dir = tempfile::tempdir().expect("temp dir");
    for below in ["checkpoint-10", "checkpoint-20", "snapshots/0a1b", "logs"] {
        fs::create_dir_all(dir.path().join(below)).expect("mkdir");
        let name = if below == "logs" { "events.txt" } else { "model.safetensors" };
        fs::write(dir.path().join(below).join(name), "").expect("write");
    }
    let error = error(dir.path());
    assert!(error.contains("give the folder of one: checkpoint-10, checkpoint-20, snapshots/0a1b"), "{error}");
}

#[test]
fn plain_names_only() {
    for name in ["", ".", "..", "/", "a/b", "../x", "a/", "/etc", "a\\b", "a\0", "a/."] {
        assert!(!super::is_plain_name(name), "{name}");
    }
    assert!(super::is_plain_name("tokenizer.json") && super::is_plain_name("..x"));
}
