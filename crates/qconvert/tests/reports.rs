//! Reports of plans and finished conversions, and the moment at which a file appears.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use common::{SyntheticModel, write_model, write_model_with};
use conversion::{Job, Settings, Source, Target};
use place::{Place, listing};
use progress::{Progress, Unit};
use schemes::FloatType;
use serde_json::Value;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[test]
fn packed_weights_in_gguf_are_not_silent() {
    let place = Place::new();
    // 200 columns are no whole blocks of 32.
    write_model(&place.path("odd"), &SyntheticModel { intermediate: 200, ..SyntheticModel::default() });
    let args = ["odd", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf"];
    for dry in [&["--dry-run"][..], &[]] {
        let out = place.done(&[&args[..], dry].concat());
        for word in
            ["2 of the 14 quantized weights", "model.layers.0.mlp.down_proj.weight", "llama.cpp will not load the file"]
        {
            assert!(out.contains(word), "{word}: {out}");
        }
    }
    let out = place.done(&[&args[..], &["--layout", "packed", "--overwrite"]].concat());
    assert!(!out.contains("llama.cpp"), "asked for: {out}");
    let err = place.fails(1, &[&args[..], &["--layout", "ggml"]].concat());
    assert!(err.contains("down_proj") && err.contains("200"), "{err}");
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "gguf", "-o", "y.gguf"]);
    assert!(!out.contains("llama.cpp"), "{out}");
}

#[test]
fn a_dry_run_calibrates_too() {
    let place = Place::new();
    std::fs::write(place.path("text"), "the text ".repeat(50)).expect("writes");
    // A conversion would end likewise: two of the schemes need a calibration.
    let (status, out, err) = place.run(&["model", "--scheme", "all", "--to", "gguf", "--dry-run"]);
    assert!(status == 2 && err.contains("int8-outlier needs activation statistics"), "{status} {err}");
    assert_eq!(out.matches("needs --calibration-text").count(), 2, "{out}");
    assert_eq!(out.matches("llama.cpp will not load").count(), 1, "one line for all: {out}");
    assert!(out.contains(">= ") && out.contains("known only after the calibration"), "{out}");
    let out = place.done(&[
        "model",
        "--scheme",
        "int8-outlier",
        "--to",
        "gguf",
        "--dry-run",
        "--calibration-text",
        "text",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let plan = &json["plans"][0];
    assert_eq!((&plan["sizes_are_least"], &plan["needs_calibration"]), (&false.into(), &false.into()), "{out}");
    let err = place.fails(1, &["model", "--scheme", "nf4", "--to", "gguf", "--dry-run", "--calibration-text", "none"]);
    assert!(err.contains("none"), "{err}");
    let out = place.done(&[
        "model",
        "--scheme",
        "int8-outlier",
        "--to",
        "gguf",
        "-o",
        "x.gguf",
        "--calibration-text",
        "text",
        "--calibration-tokens",
        "20",
    ]);
    assert!(out.contains("saw 20 tokens"), "{out}");
}

#[test]
fn clamped_values_and_rounding_are_reported() {
    let place = Place::new();
    let shape = SyntheticModel { float: FloatType::BF16, ..SyntheticModel::default() };
    write_model_with(&place.path("large"), &shape, |name, i| {
        if name.contains("1.mlp.up_proj") && i < 3 || name == "model.norm.weight" && i == 0 {
            1e5
        } else {
            0.01 + 1e-4 * (i % 100) as f32
        }
    });
    let args = ["large", "--scheme", "f16", "--to", "hf", "-o", "out"];
    let err = place.fails(1, &args);
    assert!(err.contains("overflow"), "{err}");
    let out = place.done(&[&args[..], &["--overflow", "clamp"]].concat());
    assert!(out.contains("4 values clamped in 2 weights, most in model.layers.1.mlp.up_proj.weight (3)"), "{out}");
    let out = place.done(&["model", "--scheme", "bf16", "--to", "hf", "-o", "rounded", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let artifact = &json["artifacts"][0];
    assert!(artifact["rounding_error"]["mean"].as_f64().is_some_and(|e| e > 1e-4 && e < 1e-2), "{out}");
    assert_eq!((&artifact["quantized_weights"], &artifact["relative_error"]), (&0.into(), &Value::Null), "{out}");
    let out = place.done(&["model", "--scheme", "f16", "--to", "hf", "-o", "same"]);
    assert!(!out.contains("worst error"), "nothing is lost: {out}");
}

#[test]
fn stored_bits_show_where_they_differ() {
    let place = Place::new();
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "gguf", "-o", "x.gguf"]);
    assert!(out.contains("as stored") && out.contains("8.500"), "{out}");
    assert!(!out.contains("already"), "{out}");
    let again = place.done(&["x.gguf", "--scheme", "int4-g32", "--to", "gguf", "-o", "y.gguf"]);
    assert!(again.contains("14 weights are quantized in the source already"), "{again}");
    let out = place.done(&["model", "--scheme", "int8-row", "--to", "hf", "--layout", "packed", "-o", "out"]);
    assert!(!out.contains("as stored"), "{out}");
}

#[test]
fn one_artifact_or_several_need_the_same_folder() {
    let place = Place::new();
    for (schemes, output) in [("int8-row", "none/x.gguf"), ("int8-row,nf4", "none/out")] {
        let err = place.fails(1, &["model", "--scheme", schemes, "--to", "gguf", "-o", output]);
        assert!(err.contains("none"), "{err}");
    }
    place.edit(|_, tensors| tensors[0].bytes[1] = 0x7C);
    let err = place.fails(1, &["model", "--scheme", "int8-row,nf4", "--to", "gguf", "-o", "out"]);
    assert!(err.contains("embed_tokens"), "{err}");
}

/// Damages a byte of what was written, when it is about to be verified.
struct Damage {
    folder: PathBuf,
    /// The file's name starts and ends so.
    name: (&'static str, &'static str),
    /// Where, from the end.
    back: u64,
}

impl Progress for Damage {
    fn start(&self, what: &str, _total: Option<u64>, _unit: Unit) {
        if what != "verifying" {
            return;
        }
        let mut files = listing(&self.folder);
        files.extend(files.clone().iter().filter(|p| p.is_dir()).flat_map(|p| listing(p)));
        let (start, end) = self.name;
        let matching = |p: &&PathBuf| {
            let name = p.file_name().unwrap_or_default().to_string_lossy().into_owned();
            name.starts_with(start) && name.ends_with(end) && p.is_file() && p.to_string_lossy().contains("/.out")
        };
        let path = files.iter().find(matching).expect("the temporary");
        let file = std::fs::File::options().read(true).write(true).open(path).expect("opens");
        let at = file.metadata().expect("there").len() - self.back;
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).expect("reads");
        file.write_all_at(&[byte[0] ^ 0x10], at).expect("writes");
    }

    fn advance(&self, _: u64) {}

    fn message(&self, _: &str) {}

    fn finish(&self) {}
}

fn convert(model: &Path, out: &Path, target: Target, progress: &dyn Progress) -> conversion::Result<()> {
    let model = store::open(model).expect("opens");
    let source = Source::new(&model)?;
    let mut settings = Settings::new(target);
    settings.verify = true;
    let job = Job {
        scheme: "int8-row".parse().expect("known"),
        settings,
        destination: out.into(),
        existing: store::output::Existing::Overwrite,
    };
    conversion::convert(&source, &[job], progress).map(drop)
}

#[test]
fn what_fails_verification_replaces_nothing() {
    let place = Place::new();
    let model = place.path("model");
    for (target, output, name, word) in [
        (Target::Gguf, "out.gguf", (".out", ".tmp"), ".weight"),
        (Target::Safetensors, "out", ("model", ".safetensors"), ".weight"),
        (Target::Safetensors, "out", ("tokenizer", ".json"), "tokenizer.json"),
        (Target::Safetensors, "out", ("config", ".json"), "config.json"),
    ] {
        let out = place.path(output);
        convert(&model, &out, target, &progress::Silent).expect("converts");
        let file = if target == Target::Gguf { out.clone() } else { out.join("config.json") };
        let old = std::fs::read(&file).expect("reads");
        let before = listing(place.dir.path());
        // Far enough from the end of the weights to be no padding.
        let damage = Damage { folder: place.dir.path().into(), name, back: if word == ".weight" { 2000 } else { 3 } };
        let e = convert(&model, &out, target, &damage).expect_err("damaged");
        assert!(matches!(e, conversion::Error::Unverified { .. }), "{e}");
        assert!(e.to_string().contains(word) && e.to_string().contains(output), "{e}");
        assert_eq!((std::fs::read(&file).expect("reads"), listing(place.dir.path())), (old, before));
    }
}
