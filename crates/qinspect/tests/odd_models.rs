//! Models that are not whole, not known, or odd on purpose.

mod common;

use common::{FIXTURE, change_weights, copy_of_fixture, json, printed, refuses};
use half::f16;
use serde_json::Value;

#[test]
fn a_matrix_that_is_not_finite_is_left_out_and_named() {
    let dir = copy_of_fixture();
    let broken = "model.layers.1.mlp.up_proj.weight";
    change_weights(dir.path(), |name, index, value| if name == broken && index == 0 { f16::NAN } else { value });
    let model = dir.path().to_str().expect("a plain name");
    let found = json(&["weights", model]);
    assert_eq!(found["matrices"].as_array().expect("a list").len(), 28);
    let notes = found["notes"].to_string();
    assert!(
        notes.contains(broken) && notes.contains("NaN at row 0, column 0") && notes.contains("left out"),
        "{notes}"
    );
    printed(&["tensors", model]);
    refuses(&["layers", model, "--scheme", "nf4", "--tokens", "32"], 1, broken);
    refuses(&["activations", model, "--tokens", "32"], 1, "the stream after block 1 is not finite");
}

#[test]
fn without_a_tokenizer_there_is_no_text_to_run_on() {
    let dir = copy_of_fixture();
    std::fs::remove_file(dir.path().join("tokenizer.json")).expect("was there");
    let model = dir.path().to_str().expect("a plain name");
    assert_eq!(json(&["tensors", model])["parameters"], 1_820_352);
    assert_eq!(json(&["weights", model])["matrices"].as_array().map(Vec::len), Some(29));
    assert_eq!(json(&["memory", model])["rows"][0]["scheme"], "as stored");
    printed(&["diff", FIXTURE, model]);
    refuses(&["activations", model], 1, "has no tokenizer.json");
    refuses(&["layers", model, "--scheme", "nf4"], 1, "has no tokenizer.json");
}

#[test]
fn of_an_unknown_architecture_only_the_files_are_known() {
    let dir = copy_of_fixture();
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("reads");
    std::fs::write(&config, text.replace("\"llama\"", "\"mamba9\"")).expect("writes");
    let model = dir.path().to_str().expect("a plain name");
    let tensors = json(&["tensors", model]);
    assert_eq!((&tensors["architecture"], tensors["tensors"].as_array().map(Vec::len)), (&Value::Null, Some(38)));
    assert_eq!(json(&["weights", model])["matrices"].as_array().map(Vec::len), Some(29));
    for command in [&["activations", model][..], &["layers", model, "--scheme", "nf4"], &["memory", model]] {
        refuses(command, 1, "model_type 'mamba9' is not supported; known are llama");
    }
}

#[test]
fn tensors_names_one_that_is_missing() {
    let dir = copy_of_fixture();
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).expect("reads");
    std::fs::write(&config, text.replace("\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5")).expect("writes");
    let found = json(&["tensors", dir.path().to_str().expect("a plain name")]);
    let note = found["notes"][0].as_str().unwrap_or_default();
    assert!(note.contains("model.layers.4.input_layernorm.weight: is missing"), "{found}");
}

#[test]
fn a_file_without_configuration_still_has_weights() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("lone.safetensors");
    std::fs::copy(format!("{FIXTURE}/model.safetensors"), &file).expect("copied");
    let model = file.to_str().expect("a plain name");
    assert_eq!(json(&["tensors", model])["tensors"].as_array().map(Vec::len), Some(38));
    assert_eq!(json(&["weights", model])["matrices"].as_array().map(Vec::len), Some(29));
    printed(&["diff", model, FIXTURE]);
    refuses(&["memory", model], 1, "has no config.json");
    refuses(&["activations", model], 1, "lone.safetensors: has no");
}

/// Outliers planted without changing the function: where one side is multiplied by a power of two,
/// the other is divided by it.
#[test]
fn planted_outliers_are_found_by_name() {
    const UP: f32 = 64.0;
    const DIMENSION: usize = 11;
    const CHANNEL: usize = 300;
    const HIDDEN: usize = 192;
    const INNER: usize = 512;
    let dir = copy_of_fixture();
    change_weights(dir.path(), |name, index, value| {
        let reads_norm = ["q_proj", "k_proj", "v_proj"].iter().any(|kind| name.contains(kind));
        let factor = match name {
            // The input of block 2's attention, in one dimension.
            "model.layers.2.input_layernorm.weight" if index == DIMENSION => UP,
            _ if name.starts_with("model.layers.2.") && reads_norm && index % HIDDEN == DIMENSION => 1.0 / UP,
            // One column of block 1's down_proj.
            "model.layers.1.mlp.down_proj.weight" if index % INNER == CHANNEL => UP,
            "model.layers.1.mlp.up_proj.weight" if index / HIDDEN == CHANNEL => 1.0 / UP,
            _ => return value,
        };
        f16::from_f32(value.to_f32() * factor)
    });
    let model = dir.path().to_str().expect("a plain name");

    let [before, after] = [FIXTURE, model].map(|model| json(&["activations", model, "--tokens", "64"]));
    let place = |found: &Value, name: &str| -> Value {
        let inputs = found["inputs"].as_array().expect("a list");
        inputs.iter().find(|input| input["place"] == name).expect("watched").clone()
    };
    let largest = |found: &Value| -> (String, u64) {
        let inputs = found["inputs"].as_array().expect("a list");
        let max = |input: &&Value| input["max"].as_f64().unwrap_or(0.0);
        let most = inputs.iter().max_by(|a, b| max(a).total_cmp(&max(b))).expect("not empty");
        (most["place"].as_str().expect("a name").into(), most["top"][0]["dimension"].as_u64().expect("a number"))
    };
    let attention = "model.layers.2.self_attn.q_proj";
    assert_eq!(largest(&after), (attention.into(), DIMENSION as u64));
    assert_ne!(largest(&before), largest(&after));
    let levels = |found: &Value| place(found, attention)["tensor"]["levels"].as_f64().expect("a number");
    assert!(levels(&after) < levels(&before) * 0.75, "{} {}", levels(&after), levels(&before));
    // What flows on is the same but for weights that F16 could not hold as exactly.
    let stream = |found: &Value| found["residual"][3]["max"].as_f64().expect("a number");
    assert!((stream(&after) / stream(&before) - 1.0).abs() < 1e-2, "{} {}", stream(&after), stream(&before));

    let weights = json(&["weights", model]);
    let matrices = weights["matrices"].as_array().expect("a list");
    let ratio = |matrix: &&Value| matrix["max_over_std"].as_f64().unwrap_or(0.0);
    let widest = matrices.iter().max_by(|a, b| ratio(a).total_cmp(&ratio(b))).expect("not empty");
    let named = [&widest["module"], &widest["max_col"], &widest["top_col"]];
    assert_eq!(named, [&Value::from("model.layers.1.mlp.down_proj"), &CHANNEL.into(), &CHANNEL.into()]);
}

#[test]
fn a_difference_is_an_exit_code_where_asked() {
    let other = copy_of_fixture();
    let path = other.path().to_str().expect("plain");
    let diff = |args: &[&str]| {
        let mut command = assert_cmd::Command::cargo_bin("qinspect").expect("built");
        command.args(["diff", FIXTURE, path]).args(args).output().expect("runs").status.code()
    };
    assert_eq!((diff(&[]), diff(&["--exit-code"])), (Some(0), Some(0)));
    change_weights(other.path(), |name, index, w| if name == "model.norm.weight" && index == 3 { -w } else { w });
    assert_eq!((diff(&[]), diff(&["--exit-code"])), (Some(0), Some(1)));
}
