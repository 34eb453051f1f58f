//! What needs a GPU: `cargo test --features cuda -- --ignored gpu`.
#![cfg(feature = "cuda")]

mod common;

use common::{SIZE, config, flat, model, tokens, weights};
use runtime::selftest::{self, Checked};
use runtime::{ComputeType, Feed, KvType, Options, Transformer, cpu, device};
use serde_json::json;

fn none_failed(found: &[Checked]) {
    let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
    assert!(!found.is_empty() && failed.is_empty(), "{failed:#?}");
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_kernels_are_what_they_should_be() {
    let gpu = device("cuda", &Options::default()).expect("a GPU");
    none_failed(&selftest::kernels(&gpu, 1));
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_products_are_what_they_should_be() {
    let gpu = device("cuda", &Options::default()).expect("a GPU");
    for compute in [ComputeType::F32, ComputeType::F16, ComputeType::BF16] {
        none_failed(&selftest::products::products(&gpu, compute, 1));
    }
}

/// Logits of a prompt, then of single tokens, of two sequences that share blocks in a paged cache.
fn run(model: &Transformer, kv: KvType) -> Vec<f32> {
    let mut pool = model.new_pool(kv, 16, 40).expect("room");
    let (mut first, mut out) = (pool.sequence(), Vec::new());
    let prompt = tokens(70, 1);
    let hidden = model.step(&mut pool, &mut [Feed { sequence: &mut first, tokens: &prompt }]).expect("runs");
    out.extend(flat(&model.logits(&hidden).expect("runs")));
    // The copy writes into a block that both hold.
    let mut second = first.clone();
    for i in 0..20 {
        let (a, b) = (tokens(1, i), tokens(1 + i % 3, i + 7));
        let mut feeds = [Feed { sequence: &mut first, tokens: &a }, Feed { sequence: &mut second, tokens: &b }];
        let hidden = model.step(&mut pool, &mut feeds).expect("runs");
        out.extend(flat(&model.logits_at(&hidden, &[0, b.len() as u32]).expect("runs")));
    }
    out
}

#[test]
#[ignore = "needs a GPU"]
fn gpu_models_are_those_of_the_cpu() {
    let options = Options { compute: ComputeType::F32, ..Options::default() };
    let gpu = device("cuda", &options).expect("a GPU");
    for (family, tied) in [("llama", true), ("qwen2", false), ("qwen3", false)] {
        let files = model(config(family, SIZE, tied, json!({})), &weights(family, SIZE, tied), true);
        let [a, b] = [&cpu(), &gpu].map(|d| Transformer::load_with(&files, d, &options).expect("loads"));
        let prompts = [&tokens(40, 3)[..], &tokens(40, 4)[..]];
        let [x, y] = [&a, &b].map(|m| flat(&m.logits(&m.hidden(&prompts, None).expect("runs")).expect("runs")));
        near(&x, &y, 1e-4, family);
        near(&run(&a, KvType::F16), &run(&b, KvType::F16), 2e-3, family);
        near(&run(&a, KvType::Int8), &run(&b, KvType::Int8), 2e-2, family);
    }
}

fn near(a: &[f32], b: &[f32], tolerance: f32, what: &str) {
    let largest = a.iter().fold(0f32, |m, v| m.max(v.abs()));
    assert_eq!(a.len(), b.len());
    for (i, (a, b)) in a.iter().zip(b).enumerate() {
        assert!((a - b).abs() <= tolerance * largest, "{what}: {a} and {b} at {i}, of {largest}");
    }
}
