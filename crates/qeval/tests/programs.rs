//! qeval as a person runs it, on a small model with random weights.

mod common;

use assert_cmd::Command;
use common::{model, text_file};
use serde_json::Value;
use std::path::Path;
use tempfile::TempDir;

fn qeval(args: &[&str]) -> std::process::Output {
    Command::cargo_bin("qeval").expect("built").args(args).env("COLUMNS", "120").output().expect("runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

/// One line on standard error that holds `what`, this exit code, and nothing printed.
fn refuses(args: &[&str], code: i32, what: &str) {
    let out = qeval(args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    assert!(out.stdout.is_empty() && err.contains(what) && err.trim_end().lines().count() == 1, "{args:?}: {err}");
}

fn json(args: &[&str]) -> Value {
    let out = qeval(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

#[test]
fn a_sweep_of_a_model() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let html = dir.path().join("page.html");
    let kept = dir.path().join("kept");
    let args =
        ["sweep", text(&model), "--scheme", "int8-row,nf4,int4-absmax", "--json", "--ctx", "64", "--tokens", "400"];
    let more = ["--html", text(&html), "--keep", text(&kept), "--battery", "none"];
    let out = json(&[&args[..], &more].concat());
    let rows = out["rows"].as_array().expect("rows");
    let schemes: Vec<&str> = rows.iter().filter_map(|r| r["scheme"].as_str()).collect();
    assert_eq!(schemes, ["f16", "int8-row", "nf4", "int4-absmax"]);
    let kl = |i: usize| rows[i].pointer("/kl/mean").and_then(Value::as_f64).expect("a number");
    assert!(kl(1) < kl(2) && kl(1) < kl(3), "{} {} {}", kl(1), kl(2), kl(3));
    assert!(rows.iter().all(|r| r["prefill_tokens_per_s"].as_f64().is_some_and(|s| s > 0.0)));
    assert!(rows[1]["resident_bytes"].as_u64() < rows[0]["resident_bytes"].as_u64());
    let bpw = rows[1]["bpw"].as_f64().expect("a number");
    assert!(bpw > 8.0 && bpw < 8.3, "{bpw}");
    let page = std::fs::read_to_string(html).expect("written");
    assert!(page.contains("<svg"));
    for loading in ["src=", "<script", "<link", "url(", "@import"] {
        assert!(!page.contains(loading), "{loading}");
    }

    // What was kept compares to the same numbers.
    let artifact = kept.join("nf4");
    let args = ["compare", "--reference", text(&model), text(&artifact), "--json", "--ctx", "64", "--tokens", "400"];
    let again = json(&[&args[..], &["--no-speed"]].concat());
    assert_eq!(again.pointer("/rows/1/kl"), rows[2].get("kl"));
    assert_eq!(again.pointer("/rows/1/perplexity"), rows[2].get("perplexity"));
    assert_eq!(again.pointer("/rows/1/weight_error"), rows[2].get("weight_error"));
}

#[test]
fn the_built_in_model_ranks_schemes_as_real_models_do() {
    let order = "int8-row,nf4,int4-g128,int4-row,int4-absmax";
    let out = json(&["sweep", "--scheme", order, "--no-speed", "--battery", "none", "--json"]);
    let rows = out["rows"].as_array().expect("rows");
    let schemes: Vec<&str> = rows[1..].iter().filter_map(|r| r["scheme"].as_str()).collect();
    assert_eq!(schemes.join(","), order);
    for pair in rows[1..].windows(2) {
        for interval in ["/kl/ci95", "/change/ci95"] {
            let end = |row: &Value, end: usize| row.pointer(interval).and_then(|i| i[end].as_f64()).expect("a number");
            let (high, low) = (end(&pair[0], 1), end(&pair[1], 0));
            assert!(
                high < low,
                "{interval}: {} ends at {high}, {} begins at {low}",
                pair[0]["scheme"],
                pair[1]["scheme"]
            );
        }
    }
    assert_eq!(rows[5]["verdict"], "destroyed");
}

#[test]
fn a_model_against_itself() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let args = ["compare", "--reference", text(&model), text(&model), "--no-speed", "--json", "--tokens", "300"];
    let out = json(&args);
    let row = &out["rows"][1];
    assert_eq!(row.pointer("/kl/mean"), Some(&0.0.into()));
    assert_eq!(row.pointer("/change/ratio"), Some(&1.0.into()));
    assert_eq!((row["verdict"].as_str(), row["same_top1"].as_f64()), (Some("indistinguishable"), Some(1.0)));
    assert_eq!(row.pointer("/agreement/agree"), row.pointer("/agreement/total"));
    assert_eq!(row.pointer("/weight_error/mean"), Some(&0.0.into()));
}

#[test]
fn perplexity_alone_is_that_of_the_comparison() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    for protocol in ["default", "llama.cpp"] {
        let common = ["--protocol", protocol, "--ctx", "128", "--json"];
        let alone = json(&[&["perplexity", text(&model)], &common[..]].concat());
        let compared =
            json(&[&["compare", "--reference", text(&model), text(&model), "--no-speed"], &common[..]].concat());
        assert_eq!(alone.pointer("/corpora/0/perplexity/value"), compared.pointer("/rows/0/perplexity/value"));
        assert_eq!(alone.pointer("/corpora/0/rule"), compared.pointer("/corpora/0/rule"));
    }
}

#[test]
fn faults_have_one_line_and_an_exit_code() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let m = text(&model);
    let empty = text_file(dir.path(), "empty.txt", "");
    let short = text_file(dir.path(), "short.txt", "x");
    refuses(&["perplexity", m, "--corpus", text(&empty)], 1, "empty.txt: the text is empty");
    refuses(&["perplexity", m, "--corpus", text(&short)], 1, "short.txt: the text has 1 token, too little to score");
    refuses(&["perplexity", m, "--corpus", "no/such.txt"], 1, "no/such.txt: cannot read");
    let llama = ["--corpus", text(&short), "--protocol", "llama.cpp"];
    refuses(&[&["perplexity", m], &llama[..]].concat(), 1, "needs at least 1024 tokens");
    refuses(&["perplexity", m, "--stride", "0"], 2, "a stride of 0");
    refuses(&["perplexity", m, "--device", "abacus"], 2, "'abacus'");
    refuses(&["perplexity", "no/such/model"], 1, "no/such/model: cannot open");
    refuses(&["sweep", m, "--scheme", "int5-row"], 2, "int5-row");
    refuses(&["compare", "--reference", m, m, "--json", "--csv"], 2, "only one of");
    let weights = model.join("model.safetensors");
    let onto = ["compare", "--reference", m, text(&weights), "--html", text(&weights)];
    refuses(&onto, 1, "output is the input");
    refuses(&["compare", "--reference", m, m, "--html", "no/such/folder/p.html"], 1, "no/such/folder");
}

#[test]
fn a_closed_pipe_is_success() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let bin = assert_cmd::cargo::cargo_bin("qeval");
    let script = format!("set -o pipefail; {} perplexity {} --tokens 100 | true", bin.display(), model.display());
    let out = std::process::Command::new("bash").args(["-c", &script]).output().expect("runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}
