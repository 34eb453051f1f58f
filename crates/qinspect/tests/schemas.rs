//! What --json prints is what docs/schemas says, field by field.

#[path = "../../cli/tests/support/schema.rs"]
mod schema;

use schema::{FIXTURE, check};
use std::path::Path;

#[test]
fn every_command_prints_what_its_schema_says() {
    let dir = tempfile::tempdir().expect("a folder");
    let check = |command: &str, args: &[&str]| check(command, dir.path(), args);
    let artifact = dir.path().join("int4");
    let convert = [FIXTURE, "--scheme", "int4-row", "--to", "safetensors", "-o", "int4"];
    let source = store::open(Path::new(FIXTURE)).expect("opens");
    let source = conversion::Source::new(&source).expect("lists");
    let job = conversion::Job {
        scheme: convert[2].parse().expect("a scheme"),
        settings: conversion::Settings::new(conversion::Target::Safetensors),
        destination: artifact,
        existing: store::output::Existing::Refuse,
    };
    conversion::convert(&source, &[job], &progress::Silent).expect("converted");
    check("qinspect tensors", &["tensors", FIXTURE]);
    check("qinspect tensors", &["tensors", "int4"]);
    check("qinspect weights", &["weights", FIXTURE, "--all"]);
    check("qinspect activations", &["activations", FIXTURE, "--tokens", "64"]);
    let layers = ["layers", FIXTURE, "--scheme", "int4-g64", "--tokens", "80", "--ctx", "40"];
    check("qinspect layers", &layers);
    check("qinspect memory", &["memory", FIXTURE]);
    let number = ["memory", "--params", "7B", "--layers", "32", "--kv-heads", "8", "--head-dim", "128"];
    check("qinspect memory", &number);
    check("qinspect diff", &["diff", FIXTURE, "int4"]);
}
