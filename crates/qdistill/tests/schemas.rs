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
fn every_command_prints_what_its_schema_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |command: &str, args: &[&str]| check(command, dir.path(), args);
    let prose = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/prose.txt");
    check("qdistill show", &["show", "--teacher", FIXTURE, "The sky is"]);
    let text = ["--text", prose, "--tokens", "600", "--ctx", "64"];
    check(
        "qdistill label",
        &[&["label", "--teacher", FIXTURE, "--labels", "topk:8", "-o", "a.labels"][..], &text].concat(),
    );
    let short = ["--steps", "4", "--batch", "2", "--warmup", "1", "--validate-every", "2"];
    let train = ["train", "--teacher", FIXTURE, "--labels", "a.labels", "--student", "layers:0", "-o", "student"];
    check("qdistill train", &[&train[..], &short, &["--html", "page.html"]].concat());
    let page = std::fs::read_to_string(dir.path().join("page.html")).expect("a page");
    assert!(page.contains("Training of a student") && page.contains("<svg"));
    check("qdistill selftest", &["selftest"]);
}
