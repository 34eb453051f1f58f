//! What --json prints is what docs/schemas says, field by field.

#[path = "../../cli/tests/support/schema.rs"]
mod schema;

use assert_cmd::Command;
use std::path::Path;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");

/// Runs a command in `folder` and checks its JSON against the schema named after `command`.
fn check(command: &str, folder: &Path, args: &[&str]) {
    let program = command.split(' ').next().unwrap_or_default();
    let out = Command::cargo_bin(program).expect("built").current_dir(folder).args(args).arg("--json").output();
    let out = out.expect("runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    schema::assert_valid(command, &out.stdout);
}

#[test]
fn every_result_is_what_its_schema_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |args: &[&str]| check("qconvert", dir.path(), &[&[FIXTURE][..], args].concat());
    check(&["--scheme", "int4-g64,nf4", "--to", "safetensors", "-o", "out", "--verify"]);
    check(&["--scheme", "q4_k_m", "--to", "gguf", "-o", "mixed.gguf"]);
    check(&["--to", "hf", "-o", "float"]);
    check(&["--scheme", "int8-row,nf4-dq", "--to", "safetensors", "--layout", "packed", "--dry-run"]);
}
