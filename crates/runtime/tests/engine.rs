//! Batched requests get what they would get alone.

mod common;

use common::{load, tokens};
use runtime::{Batching, Engine, Error, KvType, Policy, Request, RequestId, Sampler, Sampling, Step, generate};
use std::collections::BTreeMap;

/// Mixed lengths; every second samples.
fn requests() -> Vec<Request> {
    let request = |i: usize| Request {
        prefix: None,
        prompt: tokens(1 + i * 23 % 50, i),
        max_new: 1 + i * 13 % 29,
        stop: if i.is_multiple_of(3) { (0..12).collect() } else { vec![] },
        sampler: match i % 2 {
            0 => Sampler::greedy(),
            _ => Sampler::new(
                i as u64,
                Sampling { temperature: 2.0, top_k: Some(40), top_p: 0.95, min_p: 0.01, repetition_penalty: 1.2 },
            )
            .expect("in range"),
        },
    };
    (0..11).map(request).collect()
}

fn batching(policy: Policy, slots: usize, prompt_tokens: usize) -> Batching {
    Batching { policy, slots, prompt_tokens }
}

/// Runs to the end, handing `request` in one a step; the tokens of each, and the steps.
fn run(engine: &mut Engine<'_>, requests: &[Request]) -> (BTreeMap<RequestId, Vec<u32>>, Vec<Step>) {
    let (mut made, mut steps) = (BTreeMap::<_, Vec<u32>>::new(), Vec::new());
    let mut arriving = requests.iter();
    loop {
        if let Some(request) = arriving.next() {
            made.insert(engine.submit(request.clone()).expect("fits"), Vec::new());
        } else if engine.is_idle() {
            return (made, steps);
        }
        let step = engine.step().expect("runs");
        for (id, token) in &step.made {
            made.entry(*id).or_default().push(*token);
        }
        steps.push(step);
    }
}

#[test]
fn outputs_equal_single_request_decoding() {
    let (model, requests) = (load("qwen3", true), requests());
    let alone: Vec<Vec<u32>> = requests
        .iter()
        .map(|r| generate(&model, &r.prompt, r.max_new, &mut r.sampler.clone(), &r.stop).expect("runs"))
        .collect();
    assert!(alone.iter().zip(&requests).any(|(t, r)| t.len() < r.max_new), "one is stopped");
    for policy in [Policy::Continuous, Policy::Static] {
        for (slots, prompt_tokens, block, blocks) in [(4, 16, 16, 40), (1, 100, 64, 2), (20, 7, 1, 200), (3, 1, 8, 12)]
        {
            let pool = model.new_pool(KvType::F16, block, blocks).expect("room");
            let mut engine = Engine::new(&model, pool, batching(policy, slots, prompt_tokens));
            let (made, steps) = run(&mut engine, &requests);
            assert_eq!(made.into_values().collect::<Vec<_>>(), alone, "{policy:?} {slots} {prompt_tokens} {block}");
            assert_eq!(engine.pool().free_blocks(), blocks);
            assert!(steps.iter().all(|s| s.running <= slots && s.prompt_tokens <= prompt_tokens));
            let admitted: Vec<RequestId> = steps.iter().flat_map(|s| s.admitted.clone()).collect();
            assert!(admitted.is_sorted() && admitted.len() == requests.len());
        }
    }
}

#[test]
fn static_batches_begin_when_the_last_has_ended() {
    let (model, requests) = (load("qwen3", true), requests());
    let steps = |policy| {
        let pool = model.new_pool(KvType::F16, 16, 40).expect("room");
        run(&mut Engine::new(&model, pool, batching(policy, 4, 64)), &requests).1
    };
    let (continuous, fixed) = (steps(Policy::Continuous), steps(Policy::Static));
    let mut running = 0;
    for step in &fixed {
        assert!(step.admitted.is_empty() || running == 0);
        running = step.running - step.finished.len();
    }
    assert!(continuous.len() < fixed.len(), "{} {}", continuous.len(), fixed.len());
}

#[test]
fn requests_share_a_prefix() {
    let model = load("qwen3", true);
    let prefix: Vec<u32> = (0..40).collect();
    let mut engine =
        Engine::new(&model, model.new_pool(KvType::F16, 16, 20).expect("room"), batching(Policy::Continuous, 4, 64));
    let shared = engine.prefill(&prefix).expect("runs");
    let mut requests = requests();
    for request in &mut requests {
        request.prefix = Some(shared.clone());
        request.sampler.read(&prefix);
    }
    let (made, _) = run(&mut engine, &requests);
    for (request, made) in requests.iter().zip(made.values()) {
        let prompt = [&prefix[..], &request.prompt].concat();
        let alone = generate(&model, &prompt, request.max_new, &mut request.sampler.clone(), &request.stop);
        assert_eq!(*made, alone.expect("runs"));
    }
    drop((requests, shared));
    assert_eq!(engine.pool().free_blocks(), 20);
}

#[test]
fn what_can_never_run_is_refused() {
    let model = load("qwen3", true);
    let pool = model.new_pool(KvType::F16, 16, 3).expect("room");
    let mut engine = Engine::new(&model, pool, batching(Policy::Continuous, 2, 8));
    let request = |prompt: &[u32], max_new| Request {
        prefix: None,
        prompt: prompt.to_vec(),
        max_new,
        stop: vec![],
        sampler: Sampler::greedy(),
    };
    assert!(matches!(engine.submit(request(&[], 1)), Err(Error::Empty)));
    assert!(matches!(engine.submit(request(&[97], 1)), Err(Error::Token { .. })));
    assert!(matches!(engine.submit(request(&[1], 0)), Err(Error::Sampling { .. })));
    let e = engine.submit(request(&[1; 10], 40)).expect_err("49 tokens");
    assert!(matches!(e, Error::CacheExhausted { blocks: 3, missing: 1, .. }), "{e}");
    assert!(engine.is_idle());
    engine.submit(request(&[1; 10], 39)).expect("48 tokens");
    // Blocks that are held elsewhere.
    let held = engine.prefill(&[5; 20]).expect("runs");
    assert!(matches!(engine.step(), Err(Error::CacheExhausted { missing: 2, .. })));
    drop(held);
    while !engine.is_idle() {
        engine.step().expect("runs");
    }
    assert_eq!(engine.pool().free_blocks(), 3);
}
