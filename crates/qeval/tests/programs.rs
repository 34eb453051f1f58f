//! qeval as a person runs it, on a small model with random weights.

mod common;

use assert_cmd::Command;
use common::{Shape, model, model_of, text_file};
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
    let args = [
        "sweep",
        text(&model),
        "--scheme",
        "int8-row,nf4,int4-absmax,ggml-q8_0",
        "--json",
        "--ctx",
        "64",
        "--tokens",
        "400",
    ];
    let more = ["--html", text(&html), "--keep", text(&kept), "--battery", "none"];
    let out = json(&[&args[..], &more].concat());
    let rows = out["rows"].as_array().expect("rows");
    let schemes: Vec<&str> = rows.iter().filter_map(|r| r["scheme"].as_str()).collect();
    assert_eq!(schemes, ["f16", "int8-row", "nf4", "int4-absmax", "ggml-q8_0"]);
    let kl = |i: usize| rows[i].pointer("/kl/mean").and_then(Value::as_f64).expect("a number");
    assert!(kl(1) < kl(2) && kl(1) < kl(3), "{} {} {}", kl(1), kl(2), kl(3));
    assert!(rows.iter().all(|r| r["prefill_tokens_per_s"].as_f64().is_some_and(|s| s > 0.0)));
    assert!(rows[1]["resident_bytes"].as_u64() < rows[0]["resident_bytes"].as_u64());
    let bpw = rows[1]["bpw"].as_f64().expect("a number");
    assert!(bpw > 8.0 && bpw < 8.3, "{bpw}");
    let page = std::fs::read_to_string(html).expect("written");
    assert!(page.contains("<svg"));
    for loading in ["src=", "<script ", "<link", "url(", "@import"] {
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
    let args = ["compare", "--reference", text(&model), text(&model), "--no-speed", "--json", "--tokens"];
    let short = json(&[&args[..], &["300", "--battery", "none"]].concat());
    let row = &short["rows"][1];
    assert_eq!((row["verdict"].as_str(), row["verdict_because"].as_str()), (Some("inconclusive"), Some("short_text")));
    assert_eq!((row["tokens_to_settle"].as_u64(), &short["smallest_within_margin"]), (Some(500), &Value::Null));
    let out = json(&[&args[..], &["600"]].concat());
    assert_eq!(out["smallest_within_margin"], text(&model));
    let row = &out["rows"][1];
    assert_eq!(row.pointer("/kl/mean"), Some(&0.0.into()));
    assert_eq!(row.pointer("/change/ratio"), Some(&1.0.into()));
    assert_eq!((row["verdict"].as_str(), row["same_top1"].as_f64()), (Some("same"), Some(1.0)));
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
    refuses(&["perplexity", m, "--corpus", text(&empty)], 1, "empty.txt: the text is empty or only white space");
    refuses(&["perplexity", m, "--corpus", text(&short)], 1, "short.txt: the text has 1 token, too little to score");
    refuses(&["perplexity", m, "--corpus", "no/such.txt"], 1, "no/such.txt: cannot read");
    let llama = ["--corpus", text(&short), "--protocol", "llama.cpp"];
    refuses(&[&["perplexity", m], &llama[..]].concat(), 1, "needs at least 1024 tokens");
    refuses(&["perplexity", m, "--stride", "0"], 2, "a stride of 0");
    refuses(&["perplexity", m, "--device", "abacus"], 2, "'abacus'");
    refuses(&["selftest", m, "--device", "cpu"], 2, "models are compared between the CPU and a GPU");
    refuses(&["selftest", "--tokens", "0", "--device", "cpu"], 2, "tokens");
    refuses(&["perplexity", "no/such/model"], 1, "no/such/model: cannot open");
    refuses(&["sweep", m, "--scheme", "int5-row"], 2, "int5-row");
    refuses(&["compare", "--reference", m, m, "--json", "--csv"], 2, "only one of");
    refuses(&["compare", "--reference", m, m, "--battery", "17"], 2, "the built-in ones are 16, facts and none");
    refuses(&["compare", "--reference", "no/such/model", m], 1, "no/such/model: cannot open");
    refuses(&["compare", "--reference", m, "no/such/model"], 1, "no/such/model: cannot open");
    let twice = ["--corpus", text(&short), "--corpus", text(&short), "--corpus", text(&short)];
    refuses(&[&["perplexity", m], &twice[..]].concat(), 2, "is given twice");
    let (inside, out) = (model.join("kept"), dir.path().join("out"));
    refuses(&["sweep", m, "--keep", text(&inside)], 1, "--keep needs a folder outside the model's");
    refuses(&["sweep", m, "--keep", m], 1, "output is the input");
    let json = format!("--json={}", out.display());
    refuses(&["compare", "--reference", m, m, &json, "--html", text(&out)], 2, "would both write");
    let json = format!("--json={}", short.display());
    refuses(&["compare", "--reference", m, m, "--corpus", text(&short), &json], 1, "output is the input");
    let weights = model.join("model.safetensors");
    let onto = ["compare", "--reference", m, text(&weights), "--html", text(&weights)];
    refuses(&onto, 1, "output is the input");
    refuses(&["compare", "--reference", m, m, "--html", "no/such/folder/p.html"], 1, "no/such/folder");
    let thesis = dir.path().join("thesis.html");
    std::fs::write(&thesis, "<!DOCTYPE html>").expect("written");
    let onto = ["compare", "--reference", m, m, "--html", text(&thesis)];
    refuses(&onto, 1, "thesis.html: exists already: choose another output, or give --overwrite");
    refuses(
        &[&onto[..], &["--overwrite"]].concat(),
        1,
        "thesis.html: is not an HTML page that one of these programs wrote",
    );
    assert_eq!(std::fs::read(&thesis).expect("kept"), b"<!DOCTYPE html>");
    let long = dir.path().join("n".repeat(256));
    refuses(&["compare", "--reference", m, m, "--html", text(&long)], 1, "the file name has 256 bytes");
    refuses(&["logits", m, "--ids", "1,2", "-o", text(&thesis)], 1, "thesis.html: exists already");
    let kept = dir.path().join("kept");
    std::fs::create_dir_all(kept.join("nf4")).expect("made");
    std::fs::write(kept.join("nf4/notes"), "mine").expect("written");
    let sweep = ["sweep", m, "--scheme", "nf4", "--keep", text(&kept)];
    refuses(&sweep, 1, "kept/nf4: is a folder that is not empty");
    refuses(&[&sweep[..], &["--overwrite"]].concat(), 1, "kept/nf4: is a folder without a model");
}

#[test]
fn reports_logits_and_traces_are_replaced_when_asked() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let at = |name: &str| dir.path().join(name);
    let (page, report, logits, trace) = (at("a.html"), at("a.json"), at("a.safetensors"), at("a.jsonl"));
    let json = format!("--json={}", report.display());
    let commands: [&[&str]; 3] = [
        &["schedule", "--html", text(&page), &json],
        &["logits", text(&model), "--ids", "1,2", "-o", text(&logits)],
        &["schedule", "--make-trace", text(&trace)],
    ];
    for command in commands {
        let run = |more: &[&str]| qeval(&[command, more].concat());
        assert!(run(&[]).status.success(), "{command:?}");
        let again = run(&[]);
        let said = String::from_utf8_lossy(&again.stderr).into_owned();
        assert!(again.status.code() == Some(1) && said.contains("exists already"), "{command:?}: {said}");
        let again = run(&["--overwrite"]);
        assert!(again.status.success(), "{command:?}: {}", String::from_utf8_lossy(&again.stderr));
    }
    let out = qeval(&["schedule", "--html", text(&report), "--overwrite"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("a.json: is a JSON report, and an HTML page would replace it: not replaced"), "{said}");
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

/// Output and exit code of a comparison whose rows may be marked.
fn compared(args: &[&str]) -> (Value, String, Option<i32>) {
    let out = qeval(&[args, &["--json", "--no-speed", "--tokens", "600", "--ctx", "64"]].concat());
    let err = String::from_utf8_lossy(&out.stderr).into_owned();
    (serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {err}")), err, out.status.code())
}

#[test]
fn what_cannot_be_opened_is_a_row_and_the_others_stand() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let junk = text_file(dir.path(), "junk.txt", "no model at all");
    let mute = model_of(dir.path(), "mute", Shape::default());
    std::fs::remove_file(mute.join("tokenizer.json")).expect("removed");
    let nan = model_of(dir.path(), "nan", Shape { nan: true, ..Shape::default() });
    let missing = dir.path().join("missing.gguf");
    let files = [&junk, &missing, &mute, &nan, &model].map(|p| text(p));
    let args = [&["compare", "--reference", text(&model)][..], &files].concat();
    let (out, err, code) = compared(&args);
    let rows = out["rows"].as_array().expect("rows");
    assert_eq!((rows.len(), code, err.trim_end().lines().count()), (6, Some(1), 4), "{err}");
    for (row, (path, what)) in
        rows[1..].iter().zip(files.iter().zip(["junk", "cannot open", "tokenizer", "NaN or Inf"]))
    {
        let error = row["error"].as_str().expect("marked");
        assert!(error.contains(what) && row["verdict"] == "failed" && row["artifact"] == **path, "{row:#}");
    }
    assert_eq!((rows[5]["verdict"].as_str(), rows[5]["error"].as_str()), (Some("same"), None));

    let table = |form: &[&str]| {
        let out = qeval(&[&args[..], form, &["--no-speed", "--tokens", "300", "--battery", "none"]].concat());
        assert_eq!(out.status.code(), Some(1));
        String::from_utf8_lossy(&out.stdout).into_owned()
    };
    for form in [&[][..], &["--csv"], &["--markdown"]] {
        let shown = table(form);
        assert!(shown.contains("junk.txt") && shown.contains("failed") && shown.contains("tokenizer.json"), "{shown}");
    }
    let page = dir.path().join("page.html");
    table(&["--html", text(&page)]);
    let page = std::fs::read_to_string(page).expect("written");
    let prose = page.split("<table").nth(1).expect("a table");
    assert!(prose.contains("failed, see notes") && page.contains("4 could not be scored in full"), "{prose}");
    assert!(page.contains("is neither a GGUF nor a safetensors file") && page.contains("cannot open"), "{prose}");
    // The reference itself is another matter.
    let out = qeval(&["compare", "--reference", text(&nan), text(&model)]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("nothing can be compared with it") && out.stdout.is_empty(), "{err}");
    let out = qeval(&["perplexity", text(&nan)]);
    let err = String::from_utf8_lossy(&out.stderr);
    assert!(err.contains("there is no score") && !err.contains("reference") && err.contains("prose.txt"), "{err}");
}

#[test]
fn models_of_other_shapes_are_compared() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let wide = model_of(dir.path(), "wide", Shape { inner: 128, ..Shape::default() });
    let padded = model_of(dir.path(), "padded", Shape { vocab: 320, ..Shape::default() });
    let other = model_of(dir.path(), "other", Shape { merges: true, vocab: 258, inner: 128, ..Shape::default() });
    let (out, err, code) =
        compared(&["compare", "--reference", text(&model), text(&wide), text(&padded), text(&other)]);
    assert_eq!(code, Some(0), "{err}");
    let [reference, wide, padded, other] = &out["rows"].as_array().expect("rows")[..] else { panic!("four rows") };
    let labels: Vec<&str> = [reference, wide, padded, other].iter().filter_map(|r| r["label"].as_str()).collect();
    assert_eq!(labels, ["f16 (reference)", "f16 (wide)", "f16 (padded)", "f16 (other)"]);

    let reason = |row: &Value| row["weights_not_comparable"].as_str().unwrap_or_default().to_string();
    assert!(wide["weight_error"].is_null() && reason(wide).contains("the reference's ["), "{}", reason(wide));
    assert!(wide.pointer("/kl/mean").is_some_and(Value::is_f64), "the same tokenizer: {wide:#}");

    assert_eq!(padded.pointer("/change/ratio"), Some(&1.0.into()));
    assert_eq!(padded.pointer("/kl/mean"), Some(&0.0.into()));
    let notes = out["notes"].to_string();
    assert!(notes.contains("f16 (padded): the vocabulary has 320 entries, the reference's 257"), "{notes}");

    assert!(other["kl"].is_null() && other["perplexity"].is_null() && other["weight_error"].is_null());
    assert!(other["bits_per_byte"].as_f64().is_some_and(|b| b > 1.0) && other["verdict"] == "unscored");
    assert!(other["not_comparable"].as_str().is_some_and(|n| n.contains("tokenizers differ")));
}

#[test]
fn the_header_of_csv_is_that_of_the_options() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let junk = text_file(dir.path(), "junk.txt", "no model at all");
    let other = model_of(dir.path(), "other", Shape { merges: true, vocab: 258, ..Shape::default() });
    let header = |files: &[&Path], tokens: &str| {
        let files: Vec<&str> = files.iter().map(|f| text(f)).collect();
        let out =
            qeval(&[&["compare", "--reference", text(&model)], &files[..], &["--csv", "--tokens", tokens]].concat());
        String::from_utf8_lossy(&out.stdout).lines().next().map(str::to_string).expect("a header")
    };
    let full = header(&[&model, &other], "300");
    assert_eq!(header(&[&model], "20"), full, "too short for an interval");
    assert_eq!(header(&[&other, &junk], "300"), full, "nothing to compare with");
}

#[test]
fn windows_beyond_the_training_are_noted() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    for (ctx, noted) in [("512", false), ("600", true)] {
        let out = json(&["perplexity", text(&model), "--ctx", ctx, "--tokens", "1200", "--json"]);
        assert_eq!(out["notes"].to_string().contains("max_position_embeddings"), noted, "{}", out["notes"]);
    }
}

#[test]
fn a_sweep_that_is_stopped_leaves_nothing() {
    let dir = TempDir::new().expect("a folder");
    let mut sweep = std::process::Command::new(assert_cmd::cargo::cargo_bin("qeval"))
        .arg("sweep")
        .env("TMPDIR", dir.path())
        .stderr(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("runs");
    let made = || {
        let inside = |folder: std::fs::DirEntry| std::fs::read_dir(folder.path()).is_ok_and(|mut d| d.next().is_some());
        std::fs::read_dir(dir.path()).expect("there").flatten().any(inside)
    };
    while !made() && sweep.try_wait().expect("asked").is_none() {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = sweep.id().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().expect("runs").success());
    let out = sweep.wait_with_output().expect("ends");
    assert_eq!(out.status.code(), Some(130), "{}", String::from_utf8_lossy(&out.stderr));
    assert!(String::from_utf8_lossy(&out.stderr).contains("interrupted"));
    assert_eq!(std::fs::read_dir(dir.path()).expect("there").count(), 0);
}
