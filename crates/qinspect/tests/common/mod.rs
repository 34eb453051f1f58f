//! The program as a person runs it. Each test file uses its own part of this.
#![allow(dead_code)]

use assert_cmd::Command;
use half::f16;
use serde_json::Value;
use std::path::Path;
use std::process::Output;

/// The small trained model of this repository.
pub const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");

/// Runs the program.
pub fn qinspect(args: &[&str]) -> Output {
    Command::cargo_bin("qinspect").expect("built").args(args).output().expect("runs")
}

/// Standard output of a run that succeeds.
pub fn printed(args: &[&str]) -> String {
    let out = qinspect(args);
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// JSON of a run that succeeds.
pub fn json(args: &[&str]) -> Value {
    let value: Value = serde_json::from_str(&printed(&[args, &["--json"]].concat())).expect("JSON");
    assert_eq!((&value["version"], &value["command"]), (&1.into(), &args[0].into()));
    value
}

/// One line on standard error that holds `what`, this exit code, and nothing printed.
pub fn refuses(args: &[&str], code: i32, what: &str) {
    let out = qinspect(args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    assert!(out.stdout.is_empty() && err.contains(what), "{args:?}: {err}");
}

/// A copy of the fixture that a test may change.
pub fn copy_of_fixture() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    for entry in std::fs::read_dir(FIXTURE).expect("the fixture") {
        let path = entry.expect("an entry").path();
        std::fs::copy(&path, dir.path().join(path.file_name().expect("a file"))).expect("copied");
    }
    dir
}

/// Changes weights of a copy in F16, by name, index and value.
pub fn change_weights(dir: &Path, mut change: impl FnMut(&str, usize, f16) -> f16) {
    let path = dir.join("model.safetensors");
    let mut bytes = std::fs::read(&path).expect("reads");
    let start = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
    let listed: Value = serde_json::from_slice(&bytes[8..start]).expect("JSON");
    for (name, info) in listed.as_object().expect("an object").iter().filter(|(name, _)| *name != "__metadata__") {
        let [from, to] = [0, 1].map(|i| start + info["data_offsets"][i].as_u64().expect("an offset") as usize);
        for (index, value) in bytes[from..to].chunks_exact_mut(2).enumerate() {
            let changed = change(name, index, f16::from_le_bytes([value[0], value[1]]));
            value.copy_from_slice(&changed.to_le_bytes());
        }
    }
    std::fs::write(&path, bytes).expect("writes");
}
