//! Batches, caches, observers, generation, and what is refused.

mod common;

use common::{SIZE, config, flat, load, tokens, weights};
use runtime::{Error, KvType, Observer, Sampler, Transformer, cpu, generate};
use serde_json::json;

#[test]
fn batch_and_what_follows_never_change_a_state() {
    let model = load("qwen3", true);
    let (a, b) = (tokens(150, 1), tokens(150, 2));
    let both = flat(&model.hidden(&[&a, &b], None).expect("runs"));
    let n = 150 * SIZE.hidden;
    assert_eq!(flat(&model.hidden(&[&a], None).expect("runs")), both[..n]);
    assert_eq!(flat(&model.hidden(&[&b], None).expect("runs")), both[n..]);
    for prefix in [1, 2, 7, 64, 100] {
        let short = flat(&model.hidden(&[&b[..prefix]], None).expect("runs"));
        assert_eq!(short, both[n..n + prefix * SIZE.hidden]);
    }
    let hidden = model.hidden(&[&a, &b], None).expect("runs");
    let all = flat(&model.logits(&hidden).expect("runs"));
    let one = hidden.narrow(1, 149, 1).and_then(|t| t.narrow(0, 1, 1)).expect("inside");
    assert_eq!(flat(&model.logits(&one).expect("runs")), all[299 * SIZE.vocab..]);
}

#[test]
fn the_cache_continues_a_sequence() {
    for (model_type, tied) in [("llama", true), ("qwen2", false), ("qwen3", true)] {
        let model = load(model_type, tied);
        let (a, b) = (tokens(40, 3), tokens(40, 4));
        let whole = flat(&model.hidden(&[&a, &b], None).expect("runs"));
        let mut cache = model.new_cache(2, 40).expect("room");
        assert_eq!(cache.bytes(), KvType::F16.bytes_per_token(model.config()) * 40 * 2);
        let first = model.hidden(&[&a[..30], &b[..30]], Some(&mut cache)).expect("runs");
        assert_eq!((first.dims(), cache.len()), (&[2, 30, SIZE.hidden][..], 30));
        for i in 30..40 {
            let step = flat(&model.hidden(&[&a[i..i + 1], &b[i..i + 1]], Some(&mut cache)).expect("runs"));
            for (s, step) in step.chunks(SIZE.hidden).enumerate() {
                let want = &whole[(s * 40 + i) * SIZE.hidden..][..SIZE.hidden];
                // The cache holds f16.
                assert!(step.iter().zip(want).all(|(x, y)| (x - y).abs() < 1e-2), "{model_type} {i}");
            }
        }
        assert!(matches!(
            model.hidden(&[&[1], &[2]], Some(&mut cache)),
            Err(Error::CacheFull { capacity: 40, needed: 41 })
        ));
        assert!(matches!(model.hidden(&[&[1]], Some(&mut cache)), Err(Error::CacheShape(..))));
    }
}

#[test]
fn pieces_through_the_cache_are_equal_to_the_bit() {
    let model = load("llama", false);
    let t = tokens(90, 5);
    let mut at_once = model.new_cache(1, 90).expect("room");
    let whole = flat(&model.hidden(&[&t], Some(&mut at_once)).expect("runs"));
    let mut cache = model.new_cache(1, 101).expect("room");
    let (mut pieces, mut from) = (Vec::new(), 0);
    for n in [1, 50, 1, 2, 30, 6] {
        pieces.extend(flat(&model.hidden(&[&t[from..from + n]], Some(&mut cache)).expect("runs")));
        from += n;
    }
    assert_eq!(pieces, whole);
    // Rejected tokens are forgotten.
    cache.truncate(89);
    let again = flat(&model.hidden(&[&t[89..]], Some(&mut cache)).expect("runs"));
    assert_eq!(again, whole[89 * SIZE.hidden..]);
}

#[test]
fn greedy_generation_is_the_argmax_of_each_step() {
    let model = load("llama", true);
    let prompt = tokens(5, 6);
    let made = generate(&model, &prompt, 12, &mut Sampler::greedy(), &[]).expect("runs");
    assert_eq!(made.len(), 12);
    let mut all = prompt.clone();
    for &token in &made {
        let hidden = model.hidden(&[&all], None).expect("runs");
        let logits = flat(&model.logits(&hidden).expect("runs"));
        let last = &logits[(all.len() - 1) * SIZE.vocab..];
        let top = last.iter().fold(f32::MIN, |m, &v| m.max(v));
        // The cache's f16 may turn a near tie.
        assert!(last[token as usize] > top - 1e-2);
        all.push(token);
    }
    let stopped = generate(&model, &prompt, 12, &mut Sampler::greedy(), &made[3..4]).expect("runs");
    let until = made.iter().position(|t| *t == made[3]).expect("it is there");
    assert_eq!(stopped, made[..until]);
}

#[test]
fn what_cannot_be_run_is_named() {
    let model = load("llama", true);
    assert!(matches!(model.hidden(&[&[3, 97]], None), Err(Error::Token { id: 97, vocab: 97 })));
    assert!(matches!(model.hidden(&[&[3], &[3, 4]], None), Err(Error::Uneven(1, 2))));
    assert!(matches!(model.hidden(&[], None), Err(Error::Empty)));
    assert!(matches!(model.hidden(&[&[]], None), Err(Error::Empty)));
    assert!(generate(&model, &[], 1, &mut Sampler::greedy(), &[]).is_err());

    let mut some = weights("llama", SIZE, true);
    some.retain(|(name, ..)| name != "model.norm.weight");
    let e = Transformer::load(&common::model(config("llama", SIZE, true, json!({})), &some, true), &cpu());
    assert!(e.is_err_and(|e| e.to_string().contains("model.norm.weight")));
    let mut some = weights("llama", SIZE, true);
    some[2].1 = vec![48, 128];
    let e = Transformer::load(&common::model(config("llama", SIZE, true, json!({})), &some, true), &cpu());
    assert!(e.is_err_and(|e| e.to_string().contains("self_attn.q_proj")));
}

#[derive(Default)]
struct Seen {
    inputs: Vec<(String, usize, usize)>,
    residuals: Vec<usize>,
    last: Vec<f32>,
}

impl Observer for Seen {
    fn linear_input(&mut self, module: &str, rows: &[f32], cols: usize) {
        self.inputs.push((module.into(), rows.len() / cols, cols));
        if module == "lm_head" {
            self.last = rows.to_vec();
        }
    }
    fn residual(&mut self, layer: usize, rows: &[f32], cols: usize) {
        assert_eq!((rows.len(), cols), (9 * SIZE.hidden, SIZE.hidden));
        self.residuals.push(layer);
    }
}

#[test]
fn observers_see_every_layer_and_change_nothing() {
    let model = load("qwen2", false);
    let t = tokens(9, 7);
    let mut seen = Seen::default();
    let hidden = model.hidden_observed(&[&t], &mut seen).expect("runs");
    assert_eq!(flat(&hidden), flat(&model.hidden(&[&t], None).expect("runs")));
    assert_eq!(flat(&hidden), seen.last);
    assert_eq!(seen.residuals, [0, 1]);
    assert_eq!(seen.inputs.len(), 7 * SIZE.layers + 1);
    let find = |name: &str| seen.inputs.iter().find(|(n, ..)| n == name).map(|(_, rows, cols)| (*rows, *cols));
    assert_eq!(find("model.layers.1.mlp.down_proj"), Some((9, SIZE.inner)));
    assert_eq!(find("model.layers.0.self_attn.o_proj"), Some((9, 96)));
}

#[test]
fn weights_are_counted_as_they_are_held() {
    for (tied, half) in [(true, true), (false, false)] {
        let all = weights("llama", SIZE, tied);
        let store = common::model(config("llama", SIZE, tied, json!({})), &all, half);
        let matrices: usize = all.iter().filter(|(_, s, _)| s.len() == 2).map(|(_, _, v)| v.len()).sum();
        let norms: usize = all.iter().filter(|(_, s, _)| s.len() == 1).map(|(_, _, v)| v.len()).sum();
        let model = Transformer::load(&store, &cpu()).expect("loads");
        assert_eq!(model.resident_weight_bytes(), matrices * if half { 2 } else { 4 } + 4 * norms);
    }
}
