//! The serving commands as a person runs them, on small models.

mod common;

use assert_cmd::Command;
use common::{Shape, model, model_of, text_file};
use serde_json::Value;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn qeval(args: &[&str]) -> std::process::Output {
    Command::cargo_bin("qeval").expect("built").args(args).env("COLUMNS", "120").output().expect("runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

fn stdout(args: &[&str]) -> String {
    let out = qeval(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&stdout(args)).expect("JSON")
}

/// One line on standard error that holds `what`, this exit code, and nothing printed.
fn refuses(args: &[&str], code: i32, what: &str) {
    let out = qeval(args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    assert!(out.stdout.is_empty() && err.contains(what) && err.trim_end().lines().count() == 1, "{args:?}: {err}");
}

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tiny")
}

#[test]
fn a_schedule_in_every_form() {
    let dir = TempDir::new().expect("a folder");
    let html = dir.path().join("page.html");
    let out = json(&["schedule", "--json", "--html", text(&html)]);
    assert_eq!(out.pointer("/shape/output_tokens"), Some(&1874.into()));
    assert!(std::fs::read_to_string(&html).expect("written").contains("slot 8"));
    let csv = stdout(&["schedule", "--csv"]);
    assert_eq!(csv.lines().count(), 5);
    // The same input, the same bytes.
    assert_eq!(stdout(&["schedule", "--json"]), stdout(&["schedule", "--json"]));
    let seconds = json(&["schedule", "--step-ms", "1=8,8=16", "--prompt-ms", "0.5", "--json"]);
    assert_eq!(seconds["unit"], "seconds");
}

#[test]
fn a_trace_of_ones_own() {
    let dir = TempDir::new().expect("a folder");
    let made = dir.path().join("trace.jsonl");
    stdout(&["schedule", "--make-trace", text(&made), "--seed", "5", "--gap", "3"]);
    let out = json(&["schedule", text(&made), "--slots", "4", "--json"]);
    assert_eq!(out.pointer("/shape/requests"), Some(&64.into()));
    let trace = |name: &str, line: &str| text_file(dir.path(), name, line);
    let negative = trace("a", r#"{"arrival_step": -1, "prompt": 1, "output": 1}"#);
    refuses(&["schedule", "--device", "abacus"], 2, "'abacus'");
    refuses(&["schedule", "/dev/zero"], 1, "/dev/zero: is a device, not a file");
    refuses(&["schedule", text(&negative)], 1, "a:1: an arrival of -1");
    refuses(&["schedule", text(&trace("b", ""))], 1, "there are no items");
    let seconds = trace("c", r#"{"arrival_s": 1, "prompt": 1, "output": 1}"#);
    refuses(&["schedule", text(&seconds)], 2, "say how long steps take");
    refuses(&["schedule", "--slots", "0"], 2, "0 slots");
    refuses(&["schedule", "--make-trace", text(&made), "--gap", "NaN"], 2, "a gap of NaN");
    refuses(&["schedule", "no/such.jsonl"], 1, "no/such.jsonl: cannot read");
    refuses(&["schedule", "--costs", text(&seconds)], 1, "has no step_costs");
    refuses(&["schedule", text(&made), "--html", text(&made)], 1, "output is the input");
}

#[test]
fn a_text_is_streamed_whole() {
    let model = fixture();
    let args = ["generate", text(&model), "--prompt", "The capital of France is", "--max-tokens", "12"];
    let streamed = stdout(&args);
    let out = json(&[&args[..], &["--json"]].concat());
    let written = &out["models"][0];
    assert_eq!(Some(streamed.trim_end_matches('\n')), written["text"].as_str());
    assert_eq!(written.pointer("/settings/temperature"), Some(&0.0.into()));
    assert_eq!(written["tokens"].as_array().map(Vec::len), Some(12));
    // Sampled: the seed decides.
    let sampled = |seed: &str| stdout(&[&args[..], &["--temperature", "1.5", "--seed", seed]].concat());
    assert_eq!(sampled("1"), sampled("1"));
    assert_ne!(sampled("1"), sampled("2"));
}

#[test]
fn keys_without_effect_are_noted_on_standard_error() {
    let dir = tempfile::tempdir().expect("temp dir");
    let model = common::model(dir.path());
    let config = std::fs::read_to_string(model.join("config.json")).expect("read");
    let capped = config.replacen('{', "{\"final_logit_softcapping\": 30.0, ", 1);
    common::text_file(&model, "config.json", &capped);
    let logits = dir.path().join("logits.safetensors");
    for args in [
        &["generate", text(&model), "--prompt", "x", "--max-tokens", "1"][..],
        &["logits", text(&model), "--ids", "1,2", "-o", text(&logits)],
    ] {
        let out = qeval(args);
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{said}");
        assert!(
            said.contains("note: config.json: final_logit_softcapping of model_type llama has no effect"),
            "{said}"
        );
    }
}

#[test]
fn several_models_write_one_after_the_other() {
    let dir = TempDir::new().expect("a folder");
    let (a, b) = (model(dir.path()), model_of(dir.path(), "other", Shape { inner: 128, ..Shape::default() }));
    let args = ["generate", text(&a), text(&b), "--prompt", "x", "--max-tokens", "3"];
    let out = stdout(&args);
    let heading = |path: &Path| out.find(&format!("== {} ==\n", path.display())).expect("there");
    assert!(heading(&a) < heading(&b));
    let junk = text_file(dir.path(), "junk.txt", "no model");
    let out = qeval(&["generate", text(&junk), text(&a), "--prompt", "x", "--max-tokens", "3"]);
    assert_eq!((out.status.code(), out.stdout.is_empty()), (Some(1), false));
    assert!(String::from_utf8_lossy(&out.stderr).contains("junk.txt"));
}

#[test]
fn chat_uses_the_template() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let args = ["generate", text(&model), "--chat", "--prompt", "hi", "--max-tokens", "2", "--json"];
    refuses(&args, 1, "has no chat template");
    let config = r#"{"chat_template": "{% for m in messages %}{{ m.role }}: {{ m.content }}<end>{% endfor %}"}"#;
    text_file(&model, "tokenizer_config.json", config);
    // 'user: hi' in bytes, and the special token as one.
    assert_eq!(json(&args).pointer("/models/0/prompt_tokens"), Some(&9.into()));
    let system = json(&[&args[..], &["--system", "be"]].concat());
    assert_eq!(system.pointer("/models/0/prompt_tokens"), Some(&20.into()));
}

#[test]
fn generation_faults_have_one_line() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let base = ["generate", text(&model), "--prompt", "x"];
    let refuses = |more: &[&str], code, what: &str| refuses(&[&base[..], more].concat(), code, what);
    refuses(&["--max-tokens", "512"], 2, "exceed its context of 512");
    refuses(&["--max-tokens", "18446744073709551615"], 2, "exceed its context");
    refuses(&["--temperature=-1"], 2, "temperature");
    refuses(&["--top-p", "0"], 2, "top_p");
    refuses(&["--stop", ""], 2, "stop");
    text_file(&model, "generation_config.json", r#"{"temperature": "hot"}"#);
    refuses(&[], 1, "generation_config.json: ");
}

#[test]
fn a_reader_that_has_gone_is_success() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let bin = assert_cmd::cargo::cargo_bin("qeval");
    let command = format!("{} generate {} --prompt x --max-tokens 300", bin.display(), model.display());
    let script = format!("set -o pipefail; {command} | head -c 1 >/dev/null");
    let out = std::process::Command::new("bash").args(["-c", &script]).output().expect("runs");
    assert!(out.status.success() && out.stderr.is_empty(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn speculation_gives_the_targets_own_text() {
    let dir = TempDir::new().expect("a folder");
    let target = model(dir.path());
    let draft = model_of(dir.path(), "draft", Shape { inner: 64, ..Shape::default() });
    let args = ["speculate", "--target", text(&target), "--draft", text(&target), text(&draft)];
    let few = ["--gamma", "1,3", "--tokens", "9", "--prompt", "one", "--prompt", "two", "--json"];
    let out = json(&[&args[..], &few].concat());
    let runs = |draft: usize| out["drafts"][draft]["runs"].as_array().expect("runs").clone();
    for run in runs(0).iter().chain(&runs(1)) {
        assert_eq!(run["equal"], true, "{run}");
    }
    let said = out.pointer("/setting/kv").zip(out.pointer("/setting/engine_math"));
    assert_eq!(said, Some((&"f16".into(), &"exact".into())));
    // What is predicted follows from what is measured, by the formula.
    for (draft, run) in [(0, &runs(0)[1]), (1, &runs(1)[1])] {
        let at = |value: &Value| value.as_f64().expect("a number");
        let (a, c) = (at(&out["drafts"][draft]["agreement"]), at(&out["drafts"][draft]["cost"]));
        let predicted = (1.0 + a + a * a + a * a * a) / (3.0 * c + 1.0);
        assert!((at(&run["predicted"]) / predicted - 1.0).abs() < 1e-9, "{run}");
    }
    // A model drafting for itself is always right.
    assert_eq!((out["drafts"][0]["agreement"].as_f64(), runs(0)[0]["acceptance"].as_f64()), (Some(1.0), Some(1.0)));
    assert_eq!(runs(0)[0]["tokens_per_pass"].as_f64(), Some(9.0 / 5.0));
    let sampled = json(&[&args[..], &few, &["--temperature", "0.8", "--kv", "int8"]].concat());
    assert_eq!(sampled.pointer("/setting/kv"), Some(&"int8".into()));
    let first = &sampled["drafts"][0];
    assert!(first["agreement"].as_f64().is_some_and(|a| (a - 1.0).abs() < 1e-9), "{first}");
    assert_eq!(
        (first.pointer("/runs/0/acceptance"), first.pointer("/runs/0/equal")),
        (Some(&1.0.into()), Some(&Value::Null))
    );
}

#[test]
fn speculation_faults_have_one_line() {
    let dir = TempDir::new().expect("a folder");
    let target = model(dir.path());
    let other = model_of(dir.path(), "other", Shape { vocab: 258, merges: true, ..Shape::default() });
    let base = ["speculate", "--target", text(&target), "--draft"];
    let refuses = |more: &[&str], code, what: &str| refuses(&[&base[..], more].concat(), code, what);
    refuses(&[text(&other)], 1, "the tokenizers differ");
    refuses(&["no/such"], 1, "no/such: cannot open");
    refuses(&[text(&target), "--tokens", "1"], 2, "too few to speculate");
    refuses(&[text(&target), "--tokens", "600"], 2, "exceed the context of 512");
    refuses(&[text(&target), "--temperature=-1"], 2, "temperature = -1 is out of range");
    refuses(&[text(&target), "--temperature", "-1"], 2, "temperature = -1 is out of range");
    refuses(&[text(&target), "--prompt", ""], 2, "no tokens");
}

#[test]
fn a_bench_of_a_model() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let few = ["--prompts", "4,32", "--contexts", "8", "--batches", "1,2,4", "--tokens", "2", "--repeats", "2"];
    for (kv, bytes) in [("f16", 2 * 2 * 2 * 16 * 2), ("int8", 2 * 2 * 2 * (16 + 2))] {
        let html = dir.path().join("page.html");
        let more = ["--kv", kv, "--engine-math", "llama.cpp", "--html", text(&html), "--overwrite"];
        let args = [&["bench", text(&model), "--json"], &more[..], &few[..]].concat();
        let out = json(&args);
        let m = &out["models"][0];
        let allocated = m.pointer("/cache/allocated").and_then(Value::as_u64);
        assert_eq!((m.pointer("/cache/formula").and_then(Value::as_u64), allocated), (Some(bytes), Some(bytes)));
        assert_eq!(m.pointer("/decode/0/equal"), Some(&true.into()));
        assert_eq!(m["batch"].as_array().map(Vec::len), Some(3));
        assert_eq!(out.pointer("/setting/engine_math"), Some(&"llama.cpp".into()));
        assert_eq!((&out["failed"], out["warnings"].is_array()), (&Value::Array(Vec::new()), true));
        assert!(m.pointer("/prefill/1/tokens_per_s").and_then(Value::as_f64).is_some_and(|v| v > 0.0));
        for ceiling in ["read_bytes_per_s", "f32_flop_per_s", "int16_op_per_s"] {
            assert!(out["machine"][ceiling].as_f64().is_some_and(|v| v > 1e6), "{ceiling}");
        }
        assert!(std::fs::read_to_string(&html).expect("written").contains("Throughput by batch"));
        // What it measured is what a schedule can go by.
        let costs = text_file(dir.path(), "costs.json", &out.to_string());
        let schedule = json(&["schedule", "--costs", text(&costs), "--json"]);
        assert_eq!(schedule["unit"], "seconds");
    }
    let refuses = |more: &[&str], code, what: &str| refuses(&[&["bench", text(&model)], more].concat(), code, what);
    refuses(&["--prompts", "513"], 2, "exceed its context of 512");
    refuses(&["--batches", "4,1"], 2, "batches must rise");
    refuses(&["--repeats", "0"], 2, "--repeats must be between 1");
    refuses(&["--products", "--device", "cpu"], 2, "--products are a GPU's");
}

#[test]
fn a_trace_through_a_model_is_the_simulation() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let lines = [(0, 9, 5), (0, 3, 12), (1, 40, 2), (2, 1, 1), (2, 7, 9), (30, 5, 4)];
    let line = |(at, prompt, output)| format!(r#"{{"arrival_step": {at}, "prompt": {prompt}, "output": {output}}}"#);
    let trace = text_file(dir.path(), "t.jsonl", &lines.map(line).join("\n"));
    for kv in ["f16", "int8"] {
        let args = ["schedule", text(&trace), "--slots", "2", "--chunk", "16", "--through", text(&model), "--kv", kv];
        let out = json(&[&args[..], &["--json"]].concat());
        assert_eq!(out.pointer("/through/equal_alone"), Some(&true.into()));
        // The same admissions, tokens and ends, step by step.
        assert_eq!(out.pointer("/through/contest"), out.get("as_they_come"));
        // One table, with the simulation's two ways of arriving and the model's.
        let csv = stdout(&[&args[..], &["--csv"]].concat());
        assert_eq!((csv.lines().count(), csv.matches("throughput_gain").count()), (7, 1), "{csv}");
        assert!(csv.lines().nth(5).is_some_and(|l| l.contains(text(&model)) && l.contains(",steps,")), "{csv}");
        let words = stdout(&args).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("Every request got the tokens that it gets alone"), "{words}");
    }
    let long = text_file(dir.path(), "long.jsonl", r#"{"arrival_step": 0, "prompt": 500, "output": 13}"#);
    refuses(&["schedule", text(&long), "--through", text(&model)], 2, "exceeds its context of 512");
}

#[test]
fn a_model_that_fails_leaves_the_others_standing() {
    let dir = TempDir::new().expect("a folder");
    let (junk, model) = (text_file(dir.path(), "junk.txt", "no model"), model(dir.path()));
    let nan = model_of(dir.path(), "nan", Shape { nan: true, ..Shape::default() });
    let three = [text(&junk), text(&model), text(&nan)];
    let bench = ["--prompts", "4", "--contexts", "3", "--batches", "1", "--tokens", "2", "--repeats", "1"];
    let speculate =
        ["speculate", "--gamma", "1", "--tokens", "3", "--prompt", "x", "--target", text(&model), "--draft"];
    let generate = ["generate", "--prompt", "x", "--max-tokens", "2"];
    let file = dir.path().join("found.json");
    let to_file = format!("--json={}", file.display());
    for (list, command, more) in [
        ("models", [&["bench", "--csv", &to_file], &bench[..], &three].concat(), ",failed,"),
        ("drafts", [&speculate[..], &three, &[&to_file, "--overwrite"]].concat(), "✗ failed"),
        ("models", [&generate[..], &three, &["--json"]].concat(), ""),
    ] {
        let out = qeval(&command);
        let (shown, err) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        assert_eq!((out.status.code(), err.lines().count()), (Some(1), 2), "{err}");
        let json = if more.is_empty() { shown.to_string() } else { std::fs::read_to_string(&file).expect("written") };
        let found: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(found[list].as_array().map(Vec::len), Some(1), "{found}");
        for (i, what) in ["junk.txt", "nan: logits are NaN or infinite after token "].iter().enumerate() {
            let error = found["failed"][i]["error"].as_str().expect("a reason");
            assert!(error.contains(what) && err.contains(what) && shown.contains(what), "{error}: {err}: {shown}");
        }
        assert!(more.is_empty() || shown.matches(more).count() == 2, "{shown}");
    }
    // Where none is left, there is only the reason.
    let reason = "nan: logits are NaN or infinite after token";
    refuses(&[&["bench", text(&nan), text(&junk)], &bench[..]].concat(), 1, "no model is left: ");
    refuses(&[&speculate[..], &[text(&nan)]].concat(), 1, reason);
    refuses(&["speculate", "--target", text(&nan), "--draft", text(&model)], 1, reason);
    refuses(&[&generate[..], &[text(&nan)]].concat(), 1, reason);
    refuses(&["schedule", "--through", text(&nan)], 1, "nan: logits are NaN: no token can be chosen");
}

#[test]
fn scores_through_an_int8_cache() {
    let dir = TempDir::new().expect("a folder");
    let model = model(dir.path());
    let kl = |kv: &[&str]| {
        let args = ["compare", "--reference", text(&model), text(&model), "--no-speed", "--json", "--tokens", "300"];
        let out = json(&[&args[..], kv].concat());
        let note = out["notes"].to_string().contains("(--kv)");
        (out.pointer("/rows/1/kl/mean").and_then(Value::as_f64).expect("a number"), note)
    };
    let (none, f16, int8) = (kl(&[]), kl(&["--kv", "f16"]), kl(&["--kv", "int8"]));
    assert_eq!(none, (0.0, false));
    assert!(f16.0 < int8.0 && int8.0 > 0.0 && int8.0 < 0.1 && f16.1 && int8.1, "{f16:?} {int8:?}");
    let perplexity = json(&["perplexity", text(&model), "--tokens", "300", "--kv", "int8", "--json"]);
    assert!(perplexity["notes"].to_string().contains("int8 cache"));
}
