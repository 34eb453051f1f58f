//! The paged cache: sequences of different lengths in one step, shared prefixes, drafts, int8.

mod common;

use common::{SIZE, Size, config, flat, load, model, tokens, weights};
use runtime::{Error, Feed, KvType, Options, Pool, Sequence, Transformer, cpu};
use serde_json::json;

const BOTH: [KvType; 2] = [KvType::F16, KvType::Int8];

fn step(model: &Transformer, pool: &mut Pool, parts: &mut [(&mut Sequence, &[u32])]) -> Result<Vec<f32>, Error> {
    let mut feeds: Vec<Feed<'_>> = parts.iter_mut().map(|(sequence, tokens)| Feed { sequence, tokens }).collect();
    Ok(flat(&model.step(pool, &mut feeds)?))
}

/// All states of a sequence, through a contiguous cache in one pass.
fn alone(model: &Transformer, ty: KvType, tokens: &[u32]) -> Vec<f32> {
    let mut cache = model.new_cache_of(ty, 1, tokens.len()).expect("room");
    flat(&model.hidden(&[tokens], Some(&mut cache)).expect("runs"))
}

#[test]
fn bytes_per_token_are_the_formula_and_what_is_allocated() {
    // Qwen2.5-0.5B, and the same with 14 key and value heads.
    let qwen = |kv_heads| {
        let size = Size { vocab: 151936, hidden: 896, inner: 4864, layers: 24, heads: 14, kv_heads, head_dim: 64 };
        model(config("qwen2", size, true, json!({})), &[], true).config().expect("a configuration")
    };
    assert_eq!(KvType::F16.bytes_per_token(&qwen(2)), 12_288);
    assert_eq!(KvType::F16.bytes_per_token(&qwen(14)), 86_016);
    assert_eq!(KvType::Int8.bytes_per_token(&qwen(2)), 2 * 24 * 2 * (64 + 2));
    let model = load("llama", true);
    for ty in BOTH {
        let per_token = ty.bytes_per_token(model.config());
        assert_eq!(model.new_cache_of(ty, 3, 41).expect("room").bytes(), 3 * 41 * per_token);
        assert_eq!(model.new_pool(ty, 16, 10).expect("room").bytes(), 160 * per_token);
    }
}

#[test]
fn sequences_of_different_lengths_share_a_step_and_change_nothing() {
    for ty in BOTH {
        let model = load("qwen3", true);
        let all = [tokens(100, 1), tokens(70, 2), tokens(33, 3)];
        let want: Vec<Vec<f32>> = all.iter().map(|t| alone(&model, ty, t)).collect();
        for block in [1, 16, 24, 64, 200] {
            let mut pool = model.new_pool(ty, block, 3 * 100usize.div_ceil(block)).expect("room");
            let mut sequences = [pool.sequence(), pool.sequence(), pool.sequence()];
            let mut got: [Vec<f32>; 3] = Default::default();
            // A prompt beside single tokens, and the other way around.
            for counts in [[60, 0, 1], [1, 1, 1], [1, 60, 1], [30, 1, 20], [8, 8, 10]] {
                let parts = sequences.iter_mut().zip(&all).zip(counts).filter(|(_, n)| *n > 0);
                let mut parts: Vec<_> = parts.map(|((s, t), n)| (s.len()..s.len() + n, s, t)).collect();
                let mut parts: Vec<_> = parts.iter_mut().map(|(at, s, t)| (&mut **s, &t[at.clone()])).collect();
                let states = step(&model, &mut pool, &mut parts).expect("runs");
                let mut rows = states.chunks_exact(SIZE.hidden);
                for (got, n) in got.iter_mut().zip(counts) {
                    got.extend(rows.by_ref().take(n).flatten());
                }
            }
            for (got, want) in got.iter().zip(&want) {
                assert!(*got == *want, "{ty:?}, blocks of {block}");
            }
        }
    }
}

#[test]
fn a_shared_prefix_is_held_once_and_copied_on_write() {
    let model = load("llama", true);
    let prefix = tokens(40, 4);
    for ty in BOTH {
        let mut pool = model.new_pool(ty, 16, 7).expect("room");
        let mut a = pool.sequence();
        step(&model, &mut pool, &mut [(&mut a, &prefix)]).expect("runs");
        assert_eq!((a.len(), a.blocks(), pool.free_blocks()), (40, 3, 4));
        let mut forks = [a.clone(), a.clone()];
        assert_eq!((pool.free_blocks(), pool.missing(&a, 1)), (4, 1));
        // Each writes into a copy of the last block; the one that is left alone keeps its own.
        let endings = [tokens(10, 5), tokens(9, 6), tokens(8, 7)];
        let [b, c] = &mut forks;
        let parts = &mut [(b, &endings[0][..]), (c, &endings[1][..]), (&mut a, &endings[2][..])];
        let states = step(&model, &mut pool, parts).expect("runs");
        assert_eq!(pool.free_blocks(), 7 - 2 - 3 - 2);
        let mut states = &states[..];
        for ending in &endings {
            let whole = alone(&model, ty, &[&prefix[..], ending].concat());
            let (now, later) = states.split_at(ending.len() * SIZE.hidden);
            assert_eq!(now, &whole[40 * SIZE.hidden..]);
            states = later;
        }
        drop(forks);
        assert_eq!(pool.free_blocks(), 7 - 3);
        a.truncate(16);
        assert_eq!((a.blocks(), pool.free_blocks()), (1, 6));
        drop(a);
        assert_eq!(pool.free_blocks(), 7);
    }
}

#[test]
fn rejected_tokens_leave_no_trace() {
    let model = load("llama", true);
    let (all, drafts) = (tokens(60, 8), tokens(30, 9));
    for ty in BOTH {
        let mut pool = model.new_pool(ty, 8, 12).expect("room");
        let mut s = pool.sequence();
        step(&model, &mut pool, &mut [(&mut s, &all[..20])]).expect("runs");
        let kept = s.clone();
        step(&model, &mut pool, &mut [(&mut s, &drafts)]).expect("runs");
        s.truncate(20);
        let states = step(&model, &mut pool, &mut [(&mut s, &all[20..])]).expect("runs");
        assert_eq!(states, &alone(&model, ty, &all)[20 * SIZE.hidden..]);
        // Into the middle of what another sequence holds.
        s.truncate(11);
        step(&model, &mut pool, &mut [(&mut s, &drafts[..4])]).expect("runs");
        let mut kept = kept;
        let states = step(&model, &mut pool, &mut [(&mut kept, &all[20..21])]).expect("runs");
        assert_eq!(states, &alone(&model, ty, &all)[20 * SIZE.hidden..21 * SIZE.hidden]);
    }
}

#[test]
fn an_exhausted_cache_is_named_and_changes_nothing() {
    let model = load("llama", true);
    let t = tokens(64, 10);
    let mut pool = model.new_pool(KvType::F16, 16, 3).expect("room");
    let (mut a, mut b) = (pool.sequence(), pool.sequence());
    step(&model, &mut pool, &mut [(&mut a, &t[..10])]).expect("runs");
    let e = step(&model, &mut pool, &mut [(&mut a, &t[10..30]), (&mut b, &t[..20])]).expect_err("four blocks");
    assert!(matches!(e, Error::CacheExhausted { blocks: 3, block_tokens: 16, missing: 1 }), "{e}");
    assert_eq!((a.len(), a.blocks(), b.blocks(), pool.free_blocks()), (10, 1, 0, 2));
    let e = step(&model, &mut pool, &mut [(&mut a, &t[..3]), (&mut b, &[97])]).expect_err("no such token");
    assert!(matches!(e, Error::Token { id: 97, .. }));
    assert!(matches!(step(&model, &mut pool, &mut [(&mut a, &[])]), Err(Error::Empty)));
    assert_eq!((a.len(), pool.free_blocks()), (10, 2));
    let states = step(&model, &mut pool, &mut [(&mut a, &t[10..48])]).expect("three blocks");
    assert_eq!(states, &alone(&model, KvType::F16, &t[..48])[10 * SIZE.hidden..]);

    let mut other = model.new_pool(KvType::F16, 16, 3).expect("room");
    assert!(matches!(step(&model, &mut other, &mut [(&mut a, &[1])]), Err(Error::ForeignSequence)));
    let size = Size { kv_heads: 3, ..SIZE };
    let store = common::model(config("llama", size, true, json!({})), &weights("llama", size, true), true);
    let stranger = Transformer::load(&store, &cpu()).expect("loads");
    assert!(matches!(step(&stranger, &mut other, &mut [(&mut b, &[1])]), Err(Error::CacheShape(..))));
    // More than there is now, though less than the machine has: the system would promise it.
    let available = runtime::memory::available().map_or(usize::MAX / 4, |bytes| bytes as usize);
    let beyond = (available + (1 << 30)) / (16 * KvType::F16.bytes_per_token(model.config()));
    assert!(matches!(model.new_pool(KvType::F16, 16, beyond), Err(Error::CacheMemory { .. })));
    for (block, blocks) in [(usize::MAX, 2), (1 << 30, 1 << 31), (1, usize::MAX)] {
        assert!(matches!(model.new_pool(KvType::F16, block, blocks), Err(Error::CacheMemory { .. })));
    }
}

#[test]
fn eight_bit_keys_and_values_are_near() {
    let model = load("llama", true);
    let t = tokens(80, 11);
    let [f16, int8] = BOTH.map(|ty| alone(&model, ty, &t));
    let size = f16.iter().map(|v| v * v).sum::<f32>();
    let error = f16.iter().zip(&int8).map(|(a, b)| (a - b).powi(2)).sum::<f32>();
    // Codes of 7 bits and sign: errors of about 1/127/sqrt(12) of the largest of a head.
    assert!(error > 0.0 && (error / size).sqrt() < 2e-2, "{}", (error / size).sqrt());
}

#[test]
fn one_scale_for_a_sequence_is_its_own_in_a_step() {
    // What depends on a whole call sees each sequence for itself.
    let all = weights("llama", SIZE, true);
    let mut store = model(config("llama", SIZE, true, json!({})), &all, true);
    let name = "model.layers.0.mlp.down_proj.weight";
    let codes = |rows: usize, cols: usize| store::Tensor {
        dtype: store::DType::I8,
        shape: vec![rows, cols],
        data: store::Bytes::from((0..rows * cols).map(|i| (i * 37 % 255) as u8).collect::<Vec<_>>()),
        order: schemes::RowOrder::Natural,
        file: "memory".into(),
        stored_name: format!("{name}.codes"),
    };
    store.tensors.shift_remove(name);
    store.tensors.insert(format!("{name}.codes"), codes(SIZE.hidden, SIZE.inner));
    let mut scales = codes(SIZE.hidden, 1);
    (scales.dtype, scales.stored_name) = (store::DType::F16, format!("{name}.scales"));
    scales.data = store::Bytes::from([0x00u8, 0x14].repeat(SIZE.hidden));
    store.tensors.insert(format!("{name}.scales"), scales);
    let entry = json!({ name: {
        "scheme": "w8a8-tensor", "shape": [SIZE.hidden, SIZE.inner], "kind": "int", "packing": "i8", "group": 0,
        "activation": "int8-tensor",
    } });
    store.metadata.insert("qconvert.tensors".into(), entry.to_string());
    let model = Transformer::load_with(&store, &cpu(), &Options::default()).expect("loads");
    let (a, b) = (tokens(30, 12), tokens(5, 13));
    let mut pool = model.new_pool(KvType::F16, 16, 8).expect("room");
    let (mut s, mut t) = (pool.sequence(), pool.sequence());
    let both = step(&model, &mut pool, &mut [(&mut s, &a), (&mut t, &b)]).expect("runs");
    let (first, second) = both.split_at(30 * SIZE.hidden);
    assert_eq!(first, alone(&model, KvType::F16, &a));
    assert_eq!(second, alone(&model, KvType::F16, &b));
}
