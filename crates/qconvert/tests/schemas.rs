//! What --json prints is what docs/schemas says, field by field.

#[path = "../../cli/tests/support/schema.rs"]
mod schema;

use schema::{FIXTURE, check};

#[test]
fn every_result_is_what_its_schema_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |args: &[&str]| check("qconvert", dir.path(), &[&[FIXTURE][..], args].concat());
    check(&["--scheme", "int4-g64,nf4", "--to", "safetensors", "-o", "out", "--verify"]);
    check(&["--scheme", "q4_k_m", "--to", "gguf", "-o", "mixed.gguf"]);
    check(&["--to", "hf", "-o", "float"]);
    check(&["--scheme", "int8-row,nf4-dq", "--to", "safetensors", "--layout", "packed", "--dry-run"]);
}
