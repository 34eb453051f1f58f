//! The program as a person runs it: results on stdout, one clear line and an exit code on failure.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use common::{SyntheticModel, write_model};
use place::{Place, listing};

#[test]
fn converts_verifies_and_reports() {
    let place = Place::new();
    let (code, out, err) =
        place.run(&["model", "--scheme", "int8-row,int4-g32,nf4", "--to", "gguf", "-o", "out", "--verify"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
    assert!(out.contains("int4-g32") && out.contains("verified") && out.contains("ggml (14)"), "{out}");
    assert_eq!(listing(&place.path("out")).len(), 3);
    let (code, out, _) = place.run(&["model", "--scheme", "int4-g64", "--to", "safetensors", "-o", "ct", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!((code, json["artifacts"][0]["quantized_weights"].as_u64()), (0, Some(14)));
    assert!(json["artifacts"][0]["relative_error"]["mean"].as_f64().is_some_and(|e| e > 0.05 && e < 0.2), "{out}");
    for side in ["config.json", "tokenizer.json", "model.safetensors"] {
        assert!(place.path("ct").join(side).is_file(), "{side}");
    }
}

#[test]
fn dry_run_says_what_does_not_fit_and_writes_nothing() {
    let place = Place::new();
    let before = listing(place.dir.path());
    let (code, out, _) = place.run(&["model", "--scheme", "int4-g128,int8-row", "--to", "safetensors", "--dry-run"]);
    assert_eq!((code, listing(place.dir.path())), (1, before), "as the conversion");
    assert!(
        out.contains("self_attn.q_proj") && out.contains("192") && out.contains("int4-g64") && out.contains("packed"),
        "{out}"
    );
    assert_eq!(out.matches("int4-g128: model.").count(), 1, "one line a scheme: {out}");
    let (code, out, _) = place.run(&["model", "--scheme", "int4-g128", "--to", "safetensors", "--dry-run"]);
    assert_eq!((code, out.matches("int4-g128: model.").count()), (1, 14), "{out}");
    let (code, ..) = place.run(&["model", "--scheme", "int8-row", "--to", "safetensors", "--dry-run"]);
    assert_eq!(code, 0);
}

#[test]
fn wrong_usage_exits_with_2() {
    let place = Place::new();
    for (args, word) in [
        (vec!["model", "--scheme", "int5-row", "--to", "gguf", "-o", "x.gguf"], "int5-row"),
        (vec!["model", "--scheme", "int8-row", "--to", "gguf"], "--output"),
        (vec!["model", "--scheme", "int8-outlier", "--to", "gguf", "-o", "x.gguf"], "--calibration-text"),
        (vec!["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf", "--include", "lm_haed"], "lm_haed"),
        (vec!["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf", "--layout", "what"], "what"),
        (vec!["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf", "--verify", "--device", "gpu"], "'gpu'"),
        (vec!["model", "--scheme", "int8-row", "--to", "gguf", "--dry-run", "--device", "gpu"], "'gpu'"),
    ] {
        let err = place.fails(2, &args);
        assert!(err.contains(word), "{args:?}: {err}");
    }
}

#[test]
fn failures_are_one_line_that_names_the_file() {
    let place = Place::new();
    let weights = std::fs::read(place.path("model/model.safetensors")).expect("reads");
    let err = place.fails(1, &["nowhere", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf"]);
    assert!(err.contains("nowhere"), "{err}");
    assert_eq!(err.matches("No such file").count(), 1, "a cause is said once: {err}");
    let err = place.fails(1, &["model", "--scheme", "int8-row", "--to", "gguf", "-o", "missing/x.gguf"]);
    assert!(err.contains("missing"), "{err}");
    let err = place.fails(1, &["model", "--scheme", "int4-g128", "--to", "safetensors", "-o", "out"]);
    assert!(err.contains("q_proj") && err.contains("128"), "{err}");
    for cut in [0, 4, 9, 1000, weights.len() - 1] {
        std::fs::write(place.path("cut.safetensors"), &weights[..cut]).expect("writes");
        let err = place.fails(1, &["cut.safetensors", "--scheme", "int8-row", "--to", "safetensors", "-o", "out"]);
        assert!(err.contains("cut.safetensors"), "{cut}: {err}");
    }
}

#[test]
fn output_onto_input_is_refused() {
    let place = Place::new();
    let (code, ..) = place.run(&["model", "--scheme", "f16", "--to", "gguf", "-o", "m.gguf"]);
    assert_eq!(code, 0);
    std::fs::hard_link(place.path("m.gguf"), place.path("hard.gguf")).expect("links");
    std::os::unix::fs::symlink("m.gguf", place.path("soft.gguf")).expect("links");
    let before = std::fs::read(place.path("m.gguf")).expect("reads");
    for out in ["m.gguf", "./m.gguf", "hard.gguf", "soft.gguf"] {
        let err = place.fails(1, &["m.gguf", "--scheme", "int8-row", "--to", "gguf", "-o", out]);
        assert!(err.contains("is the input"), "{err}");
    }
    for out in ["model", "model/", "."] {
        place.fails(1, &["model", "--scheme", "int8-row", "--to", "safetensors", "--layout", "packed", "-o", out]);
    }
    assert_eq!(std::fs::read(place.path("m.gguf")).expect("reads"), before);
}

#[test]
fn shards_and_an_older_artifact_are_replaced_whole() {
    let place = Place::new();
    for size in ["100KB", "10MB"] {
        let args = ["model", "--scheme", "f16", "--to", "hf", "-o", "out", "--max-shard-size", size, "--verify"];
        place.done(&[&args[..], &["--overwrite"]].concat());
        let shards =
            listing(&place.path("out")).iter().filter(|p| p.extension().is_some_and(|e| e == "safetensors")).count();
        assert_eq!(shards > 1, size == "100KB", "{shards} shards of {size}");
        assert_eq!(place.path("out/model.safetensors.index.json").exists(), size == "100KB");
    }
}

/// Files that one of these programs did not write, or that somebody edited since, are there afterwards as they were.
#[test]
fn only_what_was_written_here_is_replaced() {
    let place = Place::new();
    let folder = |more: &[&'static str]| [&["model", "--scheme", "int8-row", "--to", "safetensors"], more].concat();
    let file = |more: &[&'static str]| [&["model", "--scheme", "int8-row", "--to", "gguf"], more].concat();
    let write = |name: &str, text: &str| std::fs::write(place.path(name), text).expect("writes");
    let read = |name: &str| std::fs::read_to_string(place.path(name)).expect("reads");
    place.done(&folder(&["-o", "out"]));
    write("out/README.md", "my notes");
    std::fs::create_dir(place.path("out/plots")).expect("makes");
    write("out/plots/a.svg", "mine");
    let err = place.fails(1, &folder(&["-o", "out"]));
    assert!(err.contains("out: is a folder that is not empty: choose another output, or give --overwrite"), "{err}");
    let err = place.fails(1, &folder(&["-o", "out", "--dry-run"]));
    assert!(err.contains("give --overwrite"), "a dry run ends as the conversion would: {err}");
    let args = ["model", "--scheme", "int4-g32", "--to", "safetensors", "-o", "out", "--overwrite", "--verify"];
    place.done(&args);
    assert_eq!((read("out/README.md"), read("out/plots/a.svg")), ("my notes".into(), "mine".into()));
    assert_eq!(store::open(&place.path("out")).expect("opens").metadata["qconvert.scheme"], "int4-g32");
    let config = read("out/config.json") + "\n";
    write("out/config.json", &config);
    let err = place.fails(1, &args);
    assert!(err.contains("out/config.json: was not written by one of these programs, or was edited since"), "{err}");
    assert_eq!(read("out/config.json"), config);

    write("thesis.gguf", "my thesis");
    for (more, what) in
        [(&[][..], "exists already"), (&["--overwrite"], "is not a GGUF file that one of these programs")]
    {
        let err = place.fails(1, &[&file(&["-o", "thesis.gguf"])[..], more].concat());
        assert!(err.contains("thesis.gguf") && err.contains(what), "{err}");
        assert_eq!(read("thesis.gguf"), "my thesis");
    }
    place.done(&file(&["-o", "x.gguf"]));
    assert!(place.fails(1, &file(&["-o", "x.gguf"])).contains("x.gguf: exists already"));
    place.done(&file(&["-o", "x.gguf", "--overwrite"]));

    // A model that somebody else wrote, the input, and the shell's own folder.
    write_model(&place.path("theirs"), &SyntheticModel::default());
    let err = place.fails(1, &folder(&["-o", "theirs", "--overwrite"]));
    assert!(err.contains("theirs: is a folder without a model that one of these programs wrote"), "{err}");
    let err = place.fails(1, &folder(&["-o", "model", "--overwrite"]));
    assert!(err.contains("model: output is the input"), "{err}");
    std::fs::create_dir(place.path("empty")).expect("makes");
    let output = assert_cmd::Command::new(env!("CARGO_BIN_EXE_qconvert"))
        .args(["../model", "--scheme", "int8-row", "--to", "safetensors", "-o", ".", "--overwrite"])
        .current_dir(place.path("empty"))
        .output()
        .expect("runs");
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && err.contains("is the current folder, or holds it: never replaced"),
        "{err}"
    );
}

#[test]
fn names_that_the_disk_cannot_hold_are_refused_before_any_work() {
    let place = Place::new();
    std::fs::write(place.path("text"), "the text ".repeat(50)).expect("writes");
    let long = "n".repeat(256);
    for (to, schemes) in [("gguf", "int8-outlier"), ("safetensors", "int8-row"), ("gguf", "int8-row,nf4")] {
        let args = ["model", "--scheme", schemes, "--to", to, "-o", &long, "--calibration-text", "text"];
        let err = place.fails(1, &args);
        assert!(err.contains("the file name has 256 bytes, the file system holds 255: choose a shorter one"), "{err}");
    }
}
