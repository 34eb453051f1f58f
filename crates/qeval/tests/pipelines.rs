//! qeval as a pipeline runs it: gates, provenance, standard input, completions.

mod common;

use assert_cmd::Command;
use common::model;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;
use tempfile::TempDir;

fn qeval(args: &[&str]) -> Output {
    Command::cargo_bin("qeval").expect("built").args(args).output().expect("runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

fn error(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

/// A model and an artifact of it that differs.
fn model_and_artifact(dir: &TempDir) -> (PathBuf, PathBuf) {
    let model = model(dir.path());
    let kept = dir.path().join("kept");
    let sweep = ["sweep", text(&model), "--scheme", "int4-absmax", "--ctx", "64", "--tokens", "200"];
    let out = qeval(&[&sweep[..], &["--keep", text(&kept), "--battery", "none", "--no-speed"]].concat());
    assert!(out.status.success(), "{}", error(&out));
    (model, kept.join("int4-absmax"))
}

#[test]
fn a_comparison_that_fails_a_gate_exits_with_3_and_names_the_row() {
    let dir = TempDir::new().expect("a folder");
    let (model, artifact) = model_and_artifact(&dir);
    let compare = |gates: &[&str]| {
        let fixed = ["compare", "--reference", text(&model), text(&artifact), "--ctx", "64", "--tokens", "200"];
        qeval(&[&fixed[..], &["--battery", "none", "--no-speed"], gates].concat())
    };
    let out = compare(&["--fail-if", "kl > 0", "--fail-if", "kl > 1000", "--fail-if", "size_bytes < 1KB"]);
    assert_eq!(out.status.code(), Some(3), "{}", error(&out));
    assert_eq!(error(&out).lines().count(), 1, "{}", error(&out));
    assert!(error(&out).starts_with("qeval: int4-absmax: kl is "), "{}", error(&out));
    assert!(!out.stdout.is_empty());

    let out = compare(&["--fail-if", "change.ci95.high > 1000%", "--max-kl", "100"]);
    assert_eq!(out.status.code(), Some(0), "{}", error(&out));
    let shown = String::from_utf8_lossy(&out.stdout).replace('\n', " ");
    assert!(shown.contains("Smallest artifact with a mean KL of at most 100 nats: int4-absmax ("), "{shown}");

    let out = compare(&["--max-kl", "0", "--max-size", "1GB"]);
    assert_eq!(out.status.code(), Some(3));
    assert_eq!(error(&out), "qeval: no artifact has a mean KL of at most 0 nats and at most 954 MiB of weights\n");

    // Said before any work.
    for (gate, what) in
        [("battery < 1", "no column 'battery'"), ("kl", "is no condition"), ("kl > x", "is no condition")]
    {
        let out = compare(&["--fail-if", gate]);
        assert_eq!(out.status.code(), Some(2), "{gate}");
        assert!(error(&out).contains(what) && out.stdout.is_empty(), "{}", error(&out));
    }
}

#[test]
fn results_name_the_command_and_what_they_were_made_from() {
    let dir = TempDir::new().expect("a folder");
    let (model, artifact) = model_and_artifact(&dir);
    let fixed = ["compare", "--reference", text(&model), text(&artifact), "--ctx", "64", "--tokens", "200"];
    let html = dir.path().join("page.html");
    let more = ["--battery", "none", "--no-speed", "--json", "--html", text(&html)];
    let run = || {
        let mut command = Command::cargo_bin("qeval").expect("built");
        command.args(fixed).args(more).arg("--overwrite").env("SOURCE_DATE_EPOCH", "1700000000");
        command.output().expect("runs").stdout
    };
    let first = run();
    assert_eq!(first, run(), "the same bytes at the same date");
    let json: Value = serde_json::from_slice(&first).expect("JSON");
    let keys: Vec<&String> = json.as_object().expect("an object").keys().take(4).collect();
    assert_eq!(keys, ["tool", "version", "command", "provenance"]);
    let provenance = &json["provenance"];
    assert_eq!((&json["command"], &provenance["date"]), (&"compare".into(), &"2023-11-14T22:13:20Z".into()));
    assert_eq!((&provenance["device"], &provenance["command"][1]), (&"cpu".into(), &"compare".into()));
    let inputs = provenance["inputs"].as_array().expect("inputs");
    let roles: Vec<&str> = inputs.iter().filter_map(|input| input["role"].as_str()).collect();
    assert_eq!(roles, ["text", "reference", "artifact"]);
    let hash = store::open(&model).expect("the model").blake3();
    assert_eq!(inputs[1]["blake3"], hash.as_str());
    assert!(std::fs::read_to_string(html).expect("written").contains(&hash));
}

#[test]
fn a_text_comes_from_standard_input_and_the_old_name_works() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let words = "the quick brown fox jumps over the lazy dog ".repeat(20);
    let file = common::text_file(dir.path(), "words.txt", &words);
    let perplexity = |args: &[&str]| {
        let mut command = Command::cargo_bin("qeval").expect("built");
        let out = command.args(["perplexity", text(&model), "--json"]).args(args).write_stdin(words.clone()).output();
        let out = out.expect("runs");
        assert!(out.status.success(), "{}", error(&out));
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")["corpora"][0]["perplexity"].clone()
    };
    let piped = perplexity(&["--text", "-"]);
    assert!(piped.is_object() || piped.is_number(), "{piped}");
    assert_eq!(piped, perplexity(&["--text", text(&file)]));
    assert_eq!(piped, perplexity(&["--corpus", text(&file)]));
}

#[test]
fn completions_and_the_man_page_know_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let out = qeval(&["completions", shell]);
        let script = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(out.status.success() && script.contains("fail-if") && script.contains("speculate"), "{shell}");
    }
    let out = qeval(&["man"]);
    let page = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && page.contains(".TH") && page.contains("margin"), "{page:.200}");
    assert_eq!(qeval(&["completions", "sh"]).status.code(), Some(2));
}

#[test]
fn a_cache_gives_the_same_rows_without_running_the_models_again() {
    let dir = TempDir::new().expect("a folder");
    let (model, artifact) = model_and_artifact(&dir);
    let cache = dir.path().join("cache");
    let compare = |more: &[&str]| {
        let fixed = ["compare", "--reference", text(&model), text(&artifact), "--ctx", "64", "--tokens", "200"];
        let out = qeval(&[&fixed[..], &["--no-speed", "--json"], more].concat());
        assert!(out.status.success(), "{}", error(&out));
        let found: Value = serde_json::from_slice(&out.stdout).expect("JSON");
        let kept: Vec<String> = found["notes"].as_array().expect("notes").iter().map(Value::to_string).collect();
        (found["rows"].clone(), kept.into_iter().find(|note| note.contains("forward passes")))
    };
    let option = format!("--cache={}", cache.display());
    let (plain, _) = compare(&[]);
    let (first, note) = compare(&[&option]);
    assert_eq!(first, plain);
    assert!(note.as_ref().is_some_and(|note| note.starts_with("\"0 of ")), "{note:?}");
    let (second, note) = compare(&[&option.replace("--cache", "--resume")]);
    assert_eq!(second, plain);
    let count =
        |note: &str| note.trim_start_matches('"').split(' ').step_by(2).take(2).map(str::to_owned).collect::<Vec<_>>();
    let counts = count(&note.expect("a note"));
    assert_eq!(counts[0], counts[1], "all were kept");
    // Somebody's folder is not taken for a cache.
    let out = qeval(&["perplexity", text(&model), &format!("--cache={}", model.display())]);
    assert_eq!(out.status.code(), Some(2), "{}", error(&out));
    assert!(error(&out).contains("holds other files"), "{}", error(&out));
}
