//! What --json prints is what docs/schemas says, field by field.

#[path = "../../cli/tests/support/schema.rs"]
mod schema;

use schema::{FIXTURE, check};

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
