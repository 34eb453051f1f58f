//! What needs a GPU: `cargo test --features cuda -- --ignored gpu`.
#![cfg(feature = "cuda")]

use assert_cmd::Command;
use distillation::selftest;
use runtime::selftest::Checked;
use runtime::{ComputeType, Options, device};
use serde_json::Value;
use std::path::Path;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
const PROSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/prose.txt");

#[test]
#[ignore = "needs a GPU"]
fn gpu_training_is_what_it_should_be() {
    let gpu = device("cuda", &Options { compute: ComputeType::F32, ..Options::default() }).expect("a GPU");
    for seed in [1, 2] {
        let found = selftest::run(&gpu, seed);
        let failed: Vec<&Checked> = found.iter().filter(|c| !c.passed()).collect();
        assert!(!found.is_empty() && failed.is_empty(), "{failed:#?}");
    }
}

/// Trains beside the teacher and gives the result.
fn train(folder: &Path, name: &str, device: &str) -> Value {
    let fixed = ["train", "--teacher", FIXTURE, "--text", PROSE, "--student", "layers:0,2", "--json"];
    let settings = ["--steps", "12", "--batch", "4", "--context", "64", "--warmup", "2", "--validate-every", "6"];
    let mut command = Command::cargo_bin("qdistill").expect("the program");
    let args = [&fixed[..], &settings, &["-o", name, "--device", device]].concat();
    let out = command.current_dir(folder).args(args).output().expect("it runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_students_are_those_of_the_cpu() {
    let folder = tempfile::tempdir().expect("a folder");
    let [cpu, gpu, again] =
        [("a", "cpu"), ("b", "cuda"), ("c", "cuda")].map(|(name, device)| train(folder.path(), name, device));
    for key in ["loss", "kl"] {
        let [cpu, gpu] = [&cpu, &gpu].map(|found| found["best"][key].as_f64().expect("a number"));
        assert!((cpu - gpu).abs() <= 1e-3 * cpu, "{key}: {cpu} and {gpu}");
    }
    assert_eq!(gpu["best"], again["best"]);
    let weights = |name: &str| std::fs::read(folder.path().join(name).join("model.safetensors")).expect("weights");
    assert!(weights("b") == weights("c"), "the same seed gives other bytes");
}
