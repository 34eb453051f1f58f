//! What --json prints is what docs/schemas says, field by field.

#[path = "../../cli/tests/support/schema.rs"]
mod schema;

use schema::{FIXTURE, check};

#[test]
fn every_command_prints_what_its_schema_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |command: &str, args: &[&str]| check(command, dir.path(), args);
    let short = ["--ctx", "64", "--tokens", "150"];
    let choices = dir.path().join("choices.jsonl");
    let item = r#"{"id": "a", "context": "The sky is", "choices": [" blue", " a"], "gold": 0}"#;
    std::fs::write(&choices, item).expect("written");
    let sweep = ["sweep", FIXTURE, "--scheme", "int8-row,ggml-q8_0", "--keep", "kept", "--choices", "choices.jsonl"];
    check("qeval compare", &[&sweep[..], &short].concat());
    let compare = ["compare", "--reference", FIXTURE, "kept/int8-row", "--fail-if", "kl > 9", "--max-kl", "1"];
    check("qeval compare", &[&compare[..], &short, &["--battery", "none", "--no-speed"]].concat());
    check("qeval perplexity", &[&["perplexity", FIXTURE][..], &short].concat());
    check("qeval generate", &["generate", FIXTURE, "--prompt", "The sky", "--max-tokens", "4"]);
    check("qeval schedule", &["schedule"]);
    check("qeval schedule", &["schedule", "--through", FIXTURE]);
    check("qeval selftest", &["selftest", "--device", "cpu"]);
    let small = ["--prompts", "8", "--contexts", "8", "--batches", "1,2", "--tokens", "2", "--repeats", "1"];
    check("qeval bench", &[&["bench", FIXTURE][..], &small].concat());
    let speculate = ["speculate", "--target", FIXTURE, "--draft", "kept/int8-row", "--gamma", "1,2", "--tokens", "4"];
    check("qeval speculate", &speculate);
}
