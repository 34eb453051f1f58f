//! qinspect as a person runs it, on the fixture.

mod common;

use common::{FIXTURE, json, printed, refuses};
use serde_json::Value;

/// What is printed, whose lines fit 100 columns, with the fixture's place left out.
fn view(args: &[&str]) -> String {
    let text = printed(args).replace(FIXTURE, "fixtures/tiny");
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{line}");
    }
    text
}

/// Writes the page and looks at it.
fn page(args: &[&str], plots: usize) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("page.html");
    printed(&[args, &["--html", file.to_str().expect("a plain name")]].concat());
    let page = std::fs::read_to_string(file).expect("written");
    // Each plot is drawn for wide and for narrow pages.
    assert!(page.matches("<svg").count() >= 2 * plots, "{}", page.matches("<svg").count());
    assert!(page.matches("<script").count() == 1 && !page.contains("src="));
}

#[test]
fn memory_of_a_model_and_of_a_number() {
    let args = ["memory", "--params", "13B", "--layers", "40", "--kv-heads", "40", "--head-dim", "128"];
    let found = json(&[&args[..], &["--scheme", "int4-g128", "--vram", "8"]].concat());
    assert_eq!(found["rows"][0]["fits"][0]["context_f16"], 337);
    insta::assert_snapshot!(view(&["memory", FIXTURE, "--vram", "0.5,1.6,8", "--scheme", "int8-row,nf4"]));
    page(&["memory", FIXTURE], 1);
    assert!(view(&["memory", FIXTURE]).contains("note: ggml-q4_k left out: its blocks don't divide the rows of 24"));
    assert!(printed(&[&args[..], &["--csv"]].concat()).starts_with("scheme,bits_per_parameter,weight_bytes,vram_gib"));
    refuses(&["memory"], 2, "--params");
    refuses(&["memory", FIXTURE, "--vram", "1e300"], 2, "--vram");
    assert!(printed(&["memory", FIXTURE, "--scheme", "all", "--csv"]).contains("\nint4-absmax,"));
    refuses(&["memory", "--params", "13G", "--layers", "1", "--kv-heads", "1", "--head-dim", "1"], 2, "13G");
    refuses(&["memory", "no/such/model"], 1, "no/such/model: cannot open");
    refuses(&["memory", FIXTURE, "--scheme", "int5"], 2, "int5");
    refuses(&[&args[..], &["--vram", "8,-1"]].concat(), 2, "--vram takes sizes above 0");
    refuses(&[&args[..], &["--vram", "-1"]].concat(), 2, "--vram takes sizes above 0");
    refuses(&[&args[..], &["--overhead", "-4"]].concat(), 2, "--overhead takes a size");
    refuses(&[&args[..], &["--context", "0"]].concat(), 2, "--ctx takes at least 1");
}

#[test]
fn tensors_of_a_model() {
    insta::assert_snapshot!(view(&["tensors", FIXTURE, "--metadata"]));
    assert!(view(&["tensors", FIXTURE, "--all"]).contains("model.layers.3.mlp.down_proj.weight"));
    let found = json(&["tensors", FIXTURE, "--metadata"]);
    assert_eq!((&found["parameters"], &found["architecture"]["layers"]), (&1_820_352.into(), &4.into()));
    assert_eq!(found["tensors"].as_array().map(Vec::len), Some(38));
    page(&["tensors", FIXTURE], 2);
    assert!(printed(&["tensors", FIXTURE, "--csv"]).starts_with("name,type,shape,bytes,scheme,stored_name,file"));
    refuses(&["tensors"], 2, "MODEL");
    refuses(&["tensors", FIXTURE, "--json", "--csv"], 2, "only one of");
}

#[test]
fn weights_of_a_model() {
    insta::assert_snapshot!(view(&["weights", FIXTURE]));
    let found = json(&["weights", FIXTURE]);
    let matrices = found["matrices"].as_array().expect("matrices");
    assert_eq!(matrices.len(), 29);
    let weights: u64 = matrices.iter().map(|m| m["rows"].as_u64().unwrap_or(0) * m["cols"].as_u64().unwrap_or(0)).sum();
    let counted: u64 = found["histogram"].as_array().expect("bins").iter().filter_map(Value::as_u64).sum();
    assert_eq!(weights, counted);
    let schemes = found["schemes"].as_array().expect("schemes");
    assert!(schemes.iter().all(|s| s["matrices"] == 28 && s["mean"].as_f64() <= s["worst"].as_f64()));
    page(&["weights", FIXTURE], 3);
    let csv = printed(&["weights", FIXTURE, "--csv", "--scheme", "int8-row"]);
    assert!(csv.starts_with("module,mean_abs,std,max,max_over_std,beyond,kurtosis,max_row,max_col,"));
    assert_eq!(csv.lines().count(), 30);
    refuses(&["weights", FIXTURE, "--sigma", "0"], 2, "--sigma");
    refuses(&["weights", FIXTURE, "--sigma", "-1"], 2, "--sigma takes a number above 0");
    refuses(&["weights", FIXTURE, "--scheme", "int8-outlier"], 2, "--calibration");
}

#[test]
fn activations_of_a_model() {
    let args = ["activations", FIXTURE, "--tokens", "96", "--ctx", "48"];
    insta::assert_snapshot!(view(&args));
    let found = json(&args);
    let residual = found["residual"].as_array().expect("blocks");
    assert_eq!((residual.len(), &found["tokens"], &found["sequences"]), (4, &96.into(), &2.into()));
    for seen in residual.iter().chain(found["inputs"].as_array().expect("inputs")) {
        let values: u64 =
            seen["octaves"].as_array().expect("octaves").iter().filter_map(|o| o["values"].as_u64()).sum();
        assert_eq!(Some(values + seen["zeros"].as_u64().unwrap_or(0)), seen["dimensions"].as_u64().map(|d| 96 * d));
    }
    assert_eq!(found["inputs"].as_array().map(Vec::len), Some(4 * 4 + 1));
    assert!(view(&[&args[..], &["--inputs"]].concat()).contains("layers.3.mlp.down_proj"));
    page(&args, 4);
    let csv = printed(&[&args[..], &["--csv", "--top", "1"]].concat());
    assert!(csv.starts_with("place,block,max,max_without_first,median,top1.dimension,"), "{csv}");
}

/// Converts the fixture.
fn convert(scheme: &str, to: conversion::Target, destination: &std::path::Path) {
    let model = store::open(FIXTURE.as_ref()).expect("opens");
    let source = conversion::Source::new(&model).expect("whole");
    let scheme = scheme.parse().expect("a scheme");
    let job = conversion::Job {
        scheme,
        settings: conversion::Settings::new(to),
        destination: destination.into(),
        existing: Default::default(),
    };
    conversion::convert(&source, &[job], &progress::Silent).expect("converts");
}

#[test]
fn tensors_checks_the_shapes_of_packed_layers() {
    let dir = tempfile::tempdir().expect("a folder");
    let folder = dir.path().join("artifact");
    convert("int4-g64", conversion::Target::Safetensors, &folder);
    let config = folder.join("config.json");
    let whole = std::fs::read_to_string(&config).expect("reads");
    let note = |from: &str, to: &str| {
        std::fs::write(&config, whole.replace(from, to)).expect("writes");
        json(&["tensors", folder.to_str().expect("plain")])["notes"].to_string()
    };
    let (layers, inner) = ("\"num_hidden_layers\": 4", "\"intermediate_size\": 512");
    assert!(whole.contains(layers) && whole.contains(inner) && note("", "") == "[]", "{whole}");
    let found = note(layers, &layers.replace('4', "5"));
    assert!(found.contains("is missing, with all of layer 4"), "{found}");
    let found = note(inner, &inner.replace("512", "513"));
    assert!(found.contains("gate_proj.weight: has shape [512, 192], the configuration says [513, 192]"), "{found}");
}

#[test]
fn differences_of_a_model_and_its_artifact() {
    let dir = tempfile::tempdir().expect("a folder");
    let (folder, gguf) = (dir.path().join("artifact"), dir.path().join("artifact.gguf"));
    convert("int4-g64", conversion::Target::Safetensors, &folder);
    convert("int4-g64", conversion::Target::Gguf, &gguf);
    let (folder, gguf) = (folder.to_str().expect("plain"), gguf.to_str().expect("plain"));
    let shown = view(&["diff", FIXTURE, folder]).replace(folder, "artifact");
    // What conversion writes beside the weights is not this program's.
    let (tables, changes) = shown.split_once("config.json: ").expect("is there");
    insta::assert_snapshot!(tables);
    assert!(changes.contains("+ quantization_config.quant_method: \"compressed-tensors\""), "{changes}");
    assert!(changes.contains("+ qconvert.scheme: int4-g64 (string)"), "{changes}");
    let found = json(&["diff", FIXTURE, folder]);
    let expected = json(&["weights", FIXTURE, "--scheme", "int4-g64"]);
    let (a, b) = (found["mean_error"].as_f64(), expected["schemes"][0]["mean"].as_f64());
    assert!(a.zip(b).is_some_and(|(a, b)| (a - b).abs() < 1e-7), "{a:?} {b:?}");
    let same = json(&["diff", folder, gguf]);
    assert_eq!(same["mean_error"], 0.0, "the containers decode to the same");
    page(&["diff", FIXTURE, folder], 2);
    assert!(view(&["diff", FIXTURE, FIXTURE]).contains("38 the same"));
    assert_eq!(printed(&["diff", FIXTURE, gguf, "--csv"]).lines().count(), 39);
    refuses(&["diff", FIXTURE], 2, "<B>");
}

#[test]
fn saved_statistics_are_what_conversion_takes() {
    let dir = tempfile::tempdir().expect("a folder");
    let at = |name: &str| dir.path().join(name).to_str().expect("plain").to_string();
    let saved = at("calibration.safetensors");
    let text = printed(&["activations", FIXTURE, "--tokens", "64", "--save", &saved]);
    assert!(text.contains("calibration of 29 modules on 64 tokens"), "{text}");
    let calibration = observe::Calibration::load(saved.as_ref()).expect("its own format");
    assert_eq!(calibration.module("model.layers.0.mlp.down_proj").map(<[f32]>::len), Some(512));
    let model = store::open(FIXTURE.as_ref()).expect("opens");
    let source = conversion::Source::new(&model).expect("whole");
    let mut settings = conversion::Settings::new(conversion::Target::Safetensors);
    settings.calibration = Some(calibration);
    let job = conversion::Job {
        scheme: schemes::Scheme::Int8Outlier,
        settings,
        destination: at("out").into(),
        existing: Default::default(),
    };
    conversion::convert(&source, &[job], &progress::Silent).expect("converts");
    let weights = json(&["weights", FIXTURE, "--scheme", "int8-outlier,int8-row", "--calibration", &saved]);
    assert_eq!(weights["schemes"].as_array().map(Vec::len), Some(2));
    refuses(&["activations", FIXTURE, "--save", &at("x"), "--html", &at("x")], 2, "two outputs");
    refuses(&["activations", FIXTURE, "--text", "no/such/text"], 1, "no/such/text: cannot read");
    refuses(&["activations", FIXTURE, "--tokens", "0"], 2, "--tokens");
    refuses(&["activations", FIXTURE, "--device", "gpu"], 2, "unknown device 'gpu'");
}

#[test]
fn sensitivity_of_blocks_and_a_recipe() {
    let dir = tempfile::tempdir().expect("a folder");
    let recipe = dir.path().join("mixed.toml");
    let args = ["layers", FIXTURE, "--scheme", "int4-g64", "--tokens", "128", "--ctx", "64"];
    insta::assert_snapshot!(view(&[&args[..], &["--target-bpw", "5.3"]].concat()));
    let with_recipe = [&args[..], &["--target-bpw", "6.2", "--recipe", recipe.to_str().expect("plain")]].concat();
    let found = json(&with_recipe);
    let parts = found["parts"].as_array().expect("parts");
    let kl: Vec<f64> = parts.iter().filter_map(|p| p["divergence"]["kl"].as_f64()).collect();
    assert!(kl.len() == 4 && kl.is_sorted_by(|a, b| a >= b) && kl[3] > 0.0, "{kl:?}");
    let [all, mixed] = ["/all/kl", "/recipe/divergence/kl"].map(|at| found.pointer(at).and_then(Value::as_f64));
    assert!(mixed.is_some() && mixed < all && all > Some(kl[0]), "{mixed:?} {all:?}");
    assert_eq!((&found["recipe"]["kept"], parts[1]["kept"].as_bool()), (&2.into(), Some(true)));

    // What was written is a recipe of that size.
    let text = std::fs::read_to_string(&recipe).expect("written");
    let parsed = conversion::Recipe::parse("mixed.toml", &text).expect("a recipe");
    let model = store::open(FIXTURE.as_ref()).expect("opens");
    let source = conversion::Source::new(&model).expect("whole");
    let mut settings = conversion::Settings::new(conversion::Target::Safetensors);
    let default = parsed.default.expect("named");
    settings.rules = conversion::Rules::new(&[], &[], Some(parsed)).expect("compiles");
    let plan = source.plan(default, &settings, &Default::default()).expect("fits");
    assert_eq!(plan.label, "int4-g64+int8-row");
    let bits = plan.bits_per_weight(&source).map(|(nominal, _)| nominal);
    assert!(bits.zip(found["recipe"]["bpw"].as_f64()).is_some_and(|(a, b)| (a - b).abs() < 1e-9), "{bits:?}");
    page(&args, 2);
}

#[test]
fn sensitivity_by_kind_and_what_is_refused() {
    let by_matrix = view(&["layers", FIXTURE, "--tokens", "64", "--by", "matrix", "--scheme", "int4-g64"]);
    let row = by_matrix.lines().find(|line| line.contains("layers.0.self_attn.q_proj  ")).expect("ranked");
    assert!(row.contains("int8-row") || row.contains("int4-g64"), "one table at 100 columns: {by_matrix}");
    let args = ["layers", FIXTURE, "--tokens", "64", "--by", "kind"];
    let found = json(&[&args[..], &["--scheme", "ggml-q4_0"]].concat());
    assert_eq!(found["parts"].as_array().map(Vec::len), Some(7));
    assert!(found["recipe"]["kept"].as_u64() >= Some(1), "without a target at least one is kept");
    let csv = printed(&[&args[..], &["--scheme", "nf4", "--csv"]].concat());
    assert!(csv.starts_with("part,kl.mean,kl.ci95.low,kl.ci95.high,share,"), "{csv}");
    refuses(&["layers", FIXTURE, "--scheme", "all"], 2, "one scheme");
    refuses(&["layers", FIXTURE], 2, "--scheme");
    refuses(&["layers", FIXTURE, "--scheme", "f16"], 2, "no quantization");
    refuses(&["layers", FIXTURE, "--scheme", "int8-outlier"], 2, "--calibration");
    refuses(&["layers", FIXTURE, "--scheme", "int4-g64", "--target-bpw", "4"], 2, "--target-bpw 4 is less");
    refuses(&["layers", FIXTURE, "--scheme", "int4-g64", "--ctx", "1"], 2, "context");
    refuses(&["layers", FIXTURE, "--scheme", "int8-row", "--keep", "nf4"], 2, "--keep nf4 takes no more bits");
    let dir = tempfile::tempdir().expect("a folder");
    let empty = dir.path().join("empty.txt");
    for text in ["", " \n\t"] {
        std::fs::write(&empty, text).expect("written");
        let empty = empty.to_str().expect("a plain name");
        for command in [&["activations", FIXTURE][..], &["layers", FIXTURE, "--scheme", "nf4"]] {
            refuses(&[command, &["--text", empty]].concat(), 1, "empty.txt: the text is empty");
        }
    }
}

#[test]
fn a_target_that_keeps_no_part_says_so() {
    let args = ["layers", FIXTURE, "--scheme", "int4-g64", "--tokens", "128", "--ctx", "64", "--target-bpw", "4.26"];
    let view = printed(&args).split_whitespace().collect::<Vec<_>>().join(" ");
    let said =
        "The recipe changes nothing: 4.260 bits per weight keep no part in more bits. The smallest step takes 5.205";
    assert!(view.contains(said), "{view}");
}
