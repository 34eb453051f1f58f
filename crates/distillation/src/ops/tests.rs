//! Each operation, in both forms, against candle-nn's, values and gradients, in f64.

use super::{Form, Operations};
use candle_core::{DType, Device, Result, Tensor, Var};

const THETA: f64 = 10_000.0;

fn variable(seed: u64, shape: &[usize]) -> Var {
    let count = shape.iter().product();
    let values = crate::random::normal(&mut crate::random::stream(seed, 99), count, 1.0);
    let tensor = Tensor::from_vec(values, shape, &Device::Cpu).and_then(|t| t.to_dtype(DType::F64));
    tensor.and_then(|t| Var::from_tensor(&t)).expect("a fresh tensor")
}

fn flat(tensor: &Tensor) -> Vec<f64> {
    tensor.flatten_all().and_then(|t| t.to_vec1()).expect("an f64 tensor")
}

/// The result, and the gradient of each variable under a fixed random weighting of the result.
fn trace(vars: &[&Var], run: impl Fn() -> Result<Tensor>) -> Vec<Vec<f64>> {
    let result = run().expect("forward");
    let weighting = variable(1000, result.dims());
    let total = (&result * weighting.as_detached_tensor()).and_then(|t| t.sum_all()).expect("a sum");
    let grads = total.backward().expect("backward");
    let mut all = vec![flat(&result)];
    all.extend(vars.iter().map(|v| flat(grads.get(v.as_tensor()).expect("a gradient"))));
    all
}

/// Of `tokens` tokens in a row and heads of `head_dim` dimensions.
fn operations(form: Form, tokens: usize, head_dim: usize) -> Operations {
    let like = variable(0, &[1]);
    Operations::new(form, tokens, head_dim, THETA, &like).expect("operations")
}

fn assert_same(
    vars: &[&Var],
    (tokens, head_dim): (usize, usize),
    ours: impl Fn(&Operations) -> Result<Tensor>,
    plain: impl Fn() -> Result<Tensor>,
) {
    let plain = trace(vars, plain);
    for form in [Form::Fused, Form::Composed] {
        let ops = operations(form, tokens, head_dim);
        let ours = trace(vars, || ours(&ops));
        for (which, (ours, plain)) in ours.iter().zip(&plain).enumerate() {
            assert_eq!(ours.len(), plain.len());
            for (o, p) in ours.iter().zip(plain) {
                assert!((o - p).abs() < 1e-9 * (1.0 + p.abs()), "{form:?}, part {which}: {o} against {p}");
            }
        }
    }
}

#[test]
fn rms_norm_is_the_plain_one() {
    let (x, w) = (variable(1, &[5, 12]), variable(2, &[12]));
    let eps = f64::from(1e-5f32);
    let plain = || candle_nn::ops::rms_norm_slow(&x, &w, 1e-5);
    assert_same(&[&x, &w], (5, 2), |ops| ops.rms_norm(&x, &w, eps), plain);
}

#[test]
fn causal_softmax_is_the_plain_one() {
    let (tokens, groups) = (6, 3);
    let x = variable(3, &[2, groups * tokens, tokens]);
    let hidden = |i: usize| if i % tokens > (i / tokens) % tokens { f64::NEG_INFINITY } else { 0.0 };
    let mask: Vec<f64> = (0..groups * tokens * tokens).map(hidden).collect();
    let mask = Tensor::from_vec(mask, (1, groups * tokens, tokens), &Device::Cpu).expect("a mask");
    let plain = || candle_nn::ops::softmax(&(x.as_tensor() * 0.3)?.broadcast_add(&mask)?, 2);
    assert_same(&[&x], (tokens, 2), |ops| ops.causal_softmax(&x, 0.3), plain);
}

#[test]
fn rotary_is_the_plain_one() {
    let (rows, tokens, heads, width) = (2, 5, 3, 8);
    let x = variable(4, &[rows * tokens, heads * width]);
    let angle = |i: usize| (i / 4) as f64 * THETA.powf(-((i % 4) as f64) / 4.0);
    let angles = Tensor::from_vec((0..tokens * 4).map(angle).collect(), (tokens, 4), &Device::Cpu).expect("angles");
    let (cos, sin) = (angles.cos().expect("cos"), angles.sin().expect("sin"));
    let plain = || {
        let x = x.reshape((rows, tokens, heads, width))?.transpose(1, 2)?;
        let turned = candle_nn::rotary_emb::rope_slow(&x.contiguous()?, &cos, &sin)?;
        turned.transpose(1, 2)?.reshape((rows * tokens, heads * width))
    };
    assert_same(&[&x], (tokens, width), |ops| ops.rotary(&x), plain);
}

#[test]
fn swiglu_is_the_plain_one() {
    let (gate, up) = (variable(5, &[4, 7]), variable(6, &[4, 7]));
    assert_same(&[&gate, &up], (4, 2), |ops| ops.swiglu(&gate, &up), || gate.silu()? * up.as_tensor());
}

#[test]
fn misfits_are_errors() {
    let x = variable(8, &[4, 6]);
    let scores = variable(8, &[1, 4, 6]);
    let narrow = variable(9, &[5]);
    for form in [Form::Fused, Form::Composed] {
        let ops = operations(form, 4, 4);
        let says = |result: Result<Tensor>, what: &str| {
            let error = result.expect_err("a misfit").to_string();
            assert!(error.contains(what), "{form:?}: {error}");
        };
        says(ops.rms_norm(&x, &narrow, 1e-5), "doesn't fit");
        says(ops.causal_softmax(&scores, 1.0), "multiple");
        says(ops.rotary(&x), "heads of 4");
        says(ops.swiglu(&x, &narrow), if form == Form::Fused { "differ" } else { "shape mismatch" });
    }
    let ops = operations(Form::Fused, 6, 4);
    let error = x.t().and_then(|t| ops.rotary(&t)).expect_err("strided").to_string();
    assert!(error.contains("contiguous"), "{error}");
}
