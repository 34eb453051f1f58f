//! A dry run exits as the conversion would, with the same first line of its error.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use common::{SyntheticModel, write_model, write_model_with};
use place::{Place, listing};
use schemes::{FloatType, GgmlType, Scheme};

/// A model of bf16 weights, one of which is `value`.
fn with_value(place: &Place, name: &str, value: f32) {
    let shape = SyntheticModel { float: FloatType::BF16, ..SyntheticModel::default() };
    write_model_with(&place.path(name), &shape, |tensor, i| match (tensor, i) {
        ("model.layers.1.mlp.up_proj.weight", 5) => value,
        _ => ((i * 37 + tensor.len()) % 101) as f32 / 101.0 - 0.5,
    });
}

#[test]
fn a_dry_run_exits_as_the_conversion_would() {
    let place = Place::new();
    std::fs::write(place.path("text"), "the text ".repeat(50)).expect("writes");
    std::fs::write(place.path("empty"), "").expect("writes");
    std::fs::write(place.path("keep.toml"), "default = \"int8-outlier\"\n").expect("writes");
    std::fs::write(place.path("bad.toml"), "default = \"int5\"\n").expect("writes");
    with_value(&place, "nan", f32::NAN);
    with_value(&place, "large", 1e6);
    with_value(&place, "huge", 3e38);
    write_model(&place.path("odd"), &SyntheticModel { intermediate: 200, ..SyntheticModel::default() });
    write_model(&place.path("part"), &SyntheticModel::default());
    let weights = place.path("part/model.safetensors");
    let bytes = std::fs::read(&weights).expect("reads");
    std::fs::write(&weights, &bytes[..bytes.len() - 100]).expect("writes");
    write_model(&place.path("plain"), &SyntheticModel::default());
    let outlier = "--scheme int8-outlier --to gguf -o x.gguf";
    let lines = [
        // Statistics of activations.
        format!("model {outlier}"),
        format!("model {outlier} --calibration-text text"),
        format!("model {outlier} --calibration-text text --calibration-tokens 0"),
        format!("model {outlier} --calibration-text empty"),
        format!("model {outlier} --calibration-text missing"),
        format!("model {outlier} --calibration missing"),
        format!("plain {outlier} --calibration-text text"),
        "model --recipe keep.toml --to safetensors -o out".into(),
        "model --scheme all --to gguf -o out".into(),
        "model --scheme all --to gguf -o out --calibration-text text".into(),
        // Shapes, layouts, recipes.
        "model --scheme int4-g128 --to safetensors -o out".into(),
        "model --scheme int8-row,int4-g128 --to safetensors -o out".into(),
        "model --scheme int8-outlier,int4-g128 --to safetensors -o out".into(),
        "odd --scheme int8-row --to gguf --layout ggml -o x.gguf".into(),
        "odd --scheme ggml-q4_k --to gguf -o x.gguf".into(),
        "model --scheme ggml-q8_0 --to safetensors -o out".into(),
        "model --scheme int8-row --to gguf --layout bitsandbytes -o x.gguf".into(),
        "model --recipe bad.toml --to gguf -o x.gguf".into(),
        "model --scheme int8-row --to gguf -o x.gguf --include lm_haed".into(),
        "model --scheme int5-row --to gguf -o x.gguf".into(),
        // Destinations.
        "model --scheme int8-row --to gguf -o missing/x.gguf".into(),
        "model --scheme int8-row,nf4 --to gguf -o missing/out".into(),
        "model --scheme int8-row --to safetensors -o model".into(),
        "model --scheme int8-row --to gguf -o model/model.safetensors".into(),
        "model --scheme int8-row --to gguf -o dir/".into(),
        "model --scheme int8-row --to safetensors -o text".into(),
        "model --scheme int8-row --to gguf -o model".into(),
        // Devices.
        "model --scheme int8-row --to gguf -o x.gguf --device gpu".into(),
        "model --scheme int8-row --to gguf -o x.gguf --device cuda:77".into(),
        // What only reading the weights shows.
        "part --scheme int8-row --to safetensors -o out".into(),
        "nowhere --scheme int8-row --to safetensors -o out".into(),
        "nan --scheme int8-row --to safetensors -o out".into(),
        "nan --scheme f32 --to gguf -o x.gguf".into(),
        "nan --scheme bf16 --to safetensors -o out".into(),
        "large --scheme f16 --to safetensors -o out".into(),
        "large --scheme f16 --to safetensors -o out --overflow clamp".into(),
        "large --scheme bf16,f16 --to safetensors -o out".into(),
        "large --scheme int8-row --to gguf --layout ggml -o x.gguf".into(),
        "huge --scheme int8-row --to safetensors --layout packed -o out".into(),
        "huge --scheme nf4 --to safetensors -o out".into(),
        "model --scheme int8-row --to safetensors -o out".into(),
        "model --scheme nf4-dq,f16 --to gguf -o out".into(),
    ];
    let before = listing(place.dir.path());
    let mut codes = std::collections::BTreeMap::new();
    for line in &lines {
        let args: Vec<&str> = line.split(' ').collect();
        let first = |err: &str| err.lines().next().unwrap_or_default().to_string();
        let (dry_code, _, dry) = place.run(&[&args[..], &["--dry-run"]].concat());
        assert_eq!(listing(place.dir.path()), before, "{line}: a dry run leaves nothing behind");
        let (code, _, err) = place.run(&args);
        assert_eq!((dry_code, first(&dry)), (code, first(&err)), "{line}");
        *codes.entry(code).or_insert(0) += 1;
        for made in ["out", "x.gguf", "dir"].map(|name| place.path(name)) {
            let _ = std::fs::remove_dir_all(&made);
            let _ = std::fs::remove_file(&made);
        }
    }
    assert!(codes[&0] >= 5 && codes[&1] >= 15 && codes[&2] >= 8, "{codes:?}");
}

#[test]
fn what_stops_a_plan_is_said_beside_it() {
    let place = Place::new();
    let (code, out, err) = place.run(&["model", "--scheme", "all", "--to", "gguf", "--dry-run"]);
    assert_eq!((code, out.matches("needs --calibration-text").count()), (2, 2), "{out}");
    assert_eq!(out.matches("llama.cpp will not load").count(), 1, "one line for all: {out}");
    assert!(out.contains(">= ") && err.contains("int8-outlier needs activation statistics"), "{out} {err}");
    // Without a destination, none is looked at.
    let (code, out, err) = place.run(&["model", "--scheme", "int8-row,nf4", "--to", "safetensors", "--dry-run"]);
    assert_eq!((code, err.as_str()), (0, ""), "{out}");
}

/// Every scheme that has a name of its own.
fn every_scheme() -> Vec<String> {
    let ggml = GgmlType::all().filter(|t| t.is_encodable()).map(Scheme::Ggml);
    let floats = [FloatType::F16, FloatType::BF16, FloatType::F32].map(Scheme::Float);
    let mut names: Vec<String> = Scheme::all().into_iter().chain(floats).chain(ggml).map(|s| s.to_string()).collect();
    names.push("all".into());
    names
}

/// Runs a line dry and in earnest, expects the same exit code and error, and gives the code.
fn compare_runs(place: &Place, args: &[&str]) -> i32 {
    let first = |err: &str| err.lines().next().unwrap_or_default().to_string();
    let (dry_code, _, dry) = place.run(&[args, &["--dry-run"]].concat());
    let output = place.path(args.last().expect("a destination"));
    assert!(!output.exists(), "{args:?}: a dry run leaves nothing behind");
    let (code, _, err) = place.run(args);
    assert_eq!((dry_code, first(&dry)), (code, first(&err)), "{args:?}");
    assert_eq!(code == 0, output.exists(), "{args:?}");
    let _ = std::fs::remove_dir_all(&output);
    let _ = std::fs::remove_file(&output);
    code
}

/// Lines that are run side by side, each with a destination of its own: how many exit with each code.
fn count_codes(place: &Place, lines: &[Vec<String>]) -> [usize; 3] {
    let half = lines.len().div_ceil(2).max(1);
    let run = |part: &[Vec<String>]| {
        let mut codes = [0; 3];
        for line in part {
            let args: Vec<&str> = line.iter().map(String::as_str).collect();
            codes[compare_runs(place, &args) as usize] += 1;
        }
        codes
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = lines.chunks(half).map(|part| scope.spawn(move || run(part))).collect();
        threads
            .into_iter()
            .map(|t| t.join().expect("no assertion fails"))
            .fold([0; 3], |a, b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]])
    })
}

/// A command line whose destination has the number of the line in its name.
fn line(at: usize, args: &str) -> Vec<String> {
    args.split(' ').map(String::from).chain(["-o".into(), format!("out{at}")]).collect()
}

#[test]
fn every_scheme_and_container_of_the_fixture_with_and_without_calibration() {
    let place = Place::new();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/calibration.txt");
    let mut lines = Vec::new();
    for scheme in every_scheme() {
        for to in ["gguf", "safetensors", "hf"] {
            for calibration in ["", &format!(" --calibration-text {text} --calibration-tokens 64")] {
                let at = lines.len();
                lines.push(line(at, &format!("{fixture} --scheme {scheme} --to {to}{calibration}")));
            }
        }
    }
    let codes = count_codes(&place, &lines);
    assert!(codes[0] > 60 && codes[1] > 10 && codes[2] >= 9, "{codes:?}");
}

#[test]
fn every_scheme_and_layout() {
    let place = Place::new();
    let mut lines = Vec::new();
    for scheme in every_scheme() {
        for to in ["gguf", "safetensors"] {
            for how in [
                "--layout packed",
                "--layout ggml",
                "--layout compressed-tensors",
                "--layout bitsandbytes",
                "--emulate f16",
            ] {
                let at = lines.len();
                lines.push(line(at, &format!("model --scheme {scheme} --to {to} {how}")));
            }
        }
    }
    let codes = count_codes(&place, &lines);
    assert!(codes[0] > 30 && codes[1] > 30 && codes[2] >= 9, "{codes:?}");
}
