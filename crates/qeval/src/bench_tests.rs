//! Tests of what `qeval bench` shows.

use super::*;
use serving::bench::{Batch, DEFINITIONS, Decode, Knee, Machine, Memory, Prefill, Product, VERSION};
use serving::schedule::StepCosts;

fn time(ms: f64) -> Time {
    Time::from_values(vec![0.9 * ms, ms, 1.2 * ms])
}

fn model(name: &str, equal: bool, allocated: usize) -> Measured {
    let batch = |batch: usize, ms: f64| Batch {
        batch,
        ms: time(ms),
        tokens_per_s: 1e3 * batch as f64 / ms,
        bandwidth_share: 0.81,
        work: Work::Cpu { f32_share: 0.012, int16_share: 0.007 },
    };
    let work = Work::Cpu { f32_share: 0.91, int16_share: 0.46 };
    let prefill = Prefill { tokens: 512, ms: time(820.0), tokens_per_s: 624.4, work };
    let decode = Decode { context: 128, ms: time(9.5), bandwidth_share: 0.79, without_cache_ms: time(230.0), equal };
    Measured {
        name: name.into(),
        scheme: "int8-row".into(),
        weight_bytes: 163_000_000,
        step_bytes: 163_000_000,
        multiplied: 134_000_000,
        memory: Some(Memory { resident: 190_000_000, peak: 260_000_000, anonymous: 30_000_000 }),
        cache: Cache { formula: 23_040, allocated },
        prefill: vec![prefill],
        decode: vec![decode],
        batch: vec![batch(1, 9.4), batch(32, 51.0)],
        knee: Knee { expected: Some(5.87), measured: None },
        step_costs: StepCosts { decode: Vec::new(), prompt_ms_per_token: 1.6 },
    }
}

fn found(models: Vec<Measured>) -> Bench {
    Bench {
        version: VERSION,
        setting: Setting {
            prompts: vec![512],
            contexts: vec![128],
            batches: vec![1, 32],
            batch_context: 64,
            tokens: 16,
            repeats: 3,
            kv: runtime::KvType::F16,
            engine_math: "exact".into(),
        },
        machine: Machine {
            threads: 2,
            instruction_set: "avx2",
            read_bytes_per_s: 2.2e10,
            f32_flop_per_s: 1.65e11,
            int16_op_per_s: 3.3e11,
        },
        gpu: None,
        warnings: models.iter().flat_map(Measured::warnings).collect(),
        models,
        failed: Vec::new(),
        definitions: DEFINITIONS.map(str::to_string).into(),
    }
}

#[test]
fn what_a_terminal_shows() {
    let form = report::table::Terminal { width: 120, ..Default::default() };
    let mut found = found(vec![model("art/a.gguf", true, 23_040)]);
    found.failed = vec![Failed { model: "no/such".into(), error: "no/such: cannot open".into() }];
    let found = View(found);
    let tables = found.tables(false).expect("fits");
    insta::assert_snapshot!(tables.iter().map(|t| form.render(t)).collect::<Vec<_>>().join("\n"));
    assert_eq!(found.problems(), ["no/such: cannot open"]);
}

#[test]
fn what_a_terminal_shows_of_a_gpu() {
    let form = report::table::Terminal { width: 120, ..Default::default() };
    let mut found = found(vec![model("art/a.gguf", true, 23_040)]);
    let product = |what: &str, tokens, seconds, bandwidth_share, matrix_share| Product {
        what: what.into(),
        tokens,
        seconds,
        bytes: 134_217_728,
        bandwidth_share,
        matrix_share,
    };
    found.gpu = Some(Gpu {
        device: "cuda:0, some GPU".into(),
        dtype: "f16".into(),
        copied_bytes_per_s: 4.2e12,
        flop_per_s: 6.5e14,
        shape: (16_384, 8192),
        products: vec![product("int8-row", 1, 4.1e-5, 0.78, 0.01), product("f16", 512, 3.1e-4, 0.2, 0.68)],
    });
    let work = Work::Gpu { matrix_share: 0.61 };
    found.models[0].prefill[0].work = work;
    found.models[0].batch.iter_mut().for_each(|b| b.work = work);
    let found = View(found);
    let tables = found.tables(false).expect("fits");
    insta::assert_snapshot!(tables.iter().map(|t| form.render(t)).collect::<Vec<_>>().join("\n"));
}

#[test]
fn figures_that_cannot_be_have_a_warning() {
    let mut found = found(vec![model("a.gguf", true, 23_040)]);
    assert_eq!(found.models[0].warnings(), [""; 0]);
    found.models[0].decode[0].bandwidth_share = 7.19;
    found.models[0].batch[0].work = Work::Cpu { f32_share: 2.5, int16_share: 0.1 };
    found.models[0].batch[1].work = Work::Gpu { matrix_share: 1.3 };
    found.models[0].prefill[0].ms = Time::from_values(vec![800.0, 820.0, 1886.0]);
    let busy = |what: &str| format!("a.gguf: {what}: something else kept the machine busy");
    let warnings = [
        busy("719% of the bandwidth that was measured") + ", or the weights lie in the processor's caches",
        busy("250% of the f32 peak that was measured") + ", or this is no release build",
        busy("130% of the matrix rate that was measured"),
        "a.gguf: unreliable: runs varied by 130%; rerun on an idle machine".into(),
    ];
    assert_eq!(found.models[0].warnings(), warnings);
    found.warnings = warnings.into();
    assert!(prefill(&found).expect("fits").warnings[0].starts_with("a.gguf: 719%"));
}

#[test]
fn what_must_be_equal_and_is_not_is_a_problem() {
    let found = View(found(vec![model("a", false, 23_040), model("b", true, 46_080)]));
    assert_eq!(
        found.problems(),
        ["b: 23040 bytes of cache a token by formula, 46080 allocated", "a: the cache changes the logits"]
    );
}
