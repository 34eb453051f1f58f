//! Products with packed weights against candle's f32 product of the same shape.

#[path = "../tests/common/mod.rs"]
mod common;

use candle_core::{Device, Tensor};
use common::{Size, config, model, random, weights};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use runtime::{Transformer, cpu};
use serde_json::json;

/// A model whose output projection has the shape `[rows, cols]`.
fn projection(rows: usize, cols: usize, half: bool) -> Transformer {
    let size = Size { vocab: rows, hidden: cols, inner: 16, layers: 1, heads: 1, kv_heads: 1, head_dim: 16 };
    let store = model(config("llama", size, true, json!({})), &weights("llama", size, true), half);
    Transformer::load(&store, &cpu()).expect("loads")
}

fn products(c: &mut Criterion) {
    for (tokens, cols, rows) in
        [(512, 576, 1536), (512, 896, 4864), (512, 1536, 576), (512, 4864, 896), (1, 576, 49152)]
    {
        let mut group = c.benchmark_group(format!("{tokens}x{cols}x{rows}"));
        group.throughput(Throughput::Elements(2 * (tokens * cols * rows) as u64));
        let x = Tensor::from_vec(random(tokens * cols, 1), (tokens, cols), &Device::Cpu).expect("fits");
        let w = Tensor::from_vec(random(rows * cols, 2), (rows, cols), &Device::Cpu).expect("fits");
        let w = w.t().expect("a matrix");
        group.bench_function("candle f32", |b| b.iter(|| x.matmul(&w).expect("fits")));
        for (name, half) in [("f32", false), ("f16", true)] {
            let model = projection(rows, cols, half);
            group.bench_function(name, |b| b.iter(|| model.logits(&x).expect("fits")));
        }
        group.finish();
    }
}

criterion_group!(benches, products);
criterion_main!(benches);
