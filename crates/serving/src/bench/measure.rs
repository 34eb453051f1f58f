//! Measures one model after the other.

use super::{
    Batch, Bench, Cache, DEFINITIONS, Decode, Gpu, Knee, Machine, Measured, Memory, Prefill, Setting, Time, VERSION,
    Work,
};
use crate::schedule::{DecodeCost, StepCosts};
use progress::{Progress, Unit};
use runtime::{Feed, Sequence, Transformer};
use scoring::load::Loaded;
use scoring::model::Continuation;
use scoring::text::any_tokens;
use scoring::{Error, Failed, Packed, Result};
use std::path::PathBuf;
use std::time::Instant;

/// Measures the machine, and models that `open` gives one at a time, so that only one is in
/// memory. Of several, one that can't be opened or run is among those that failed; the others stand.
///
/// # Errors
/// [`Error::Protocol`] for a setting that makes no sense or exceeds the context of the only model; when
/// that can't be opened or run.
pub fn bench(
    paths: &[PathBuf],
    open: &dyn Fn(&PathBuf) -> Result<Loaded>,
    setting: &Setting,
    gpu: Option<Gpu>,
    progress: &dyn Progress,
) -> Result<Bench> {
    setting.check()?;
    let each = setting.prompts.len() + setting.contexts.len() + setting.batches.len();
    progress.start("measuring", Some((paths.len() * each) as u64), Unit::Items);
    let machine = Machine::measure();
    let (mut models, mut failed) = (Vec::with_capacity(paths.len()), Vec::new());
    for path in paths {
        progress.message(&path.display().to_string());
        Memory::reset_peak();
        match open(path).and_then(|model| measured(&model, setting, (&machine, gpu.as_ref()), progress)) {
            Ok(measured) => models.push(measured),
            Err(e) if paths.len() == 1 => return Err(e),
            Err(e) => failed.push(Failed::new(path, &e)),
        }
    }
    progress.finish();
    Ok(Bench {
        version: VERSION,
        setting: setting.clone(),
        machine,
        gpu,
        warnings: models.iter().flat_map(Measured::warnings).collect(),
        models,
        failed,
        definitions: DEFINITIONS.map(str::to_string).into(),
    })
}

/// Tolerance for logits on a GPU, as a share of the largest.
const NEAR: f32 = 0.01;

/// A model that is measured, and the machine's ceilings.
struct Subject<'a> {
    name: String,
    packed: &'a Packed,
    setting: &'a Setting,
    machine: &'a Machine,
    gpu: Option<&'a Gpu>,
    step_bytes: f64,
    multiplied: f64,
    cache_bytes: f64,
    progress: &'a dyn Progress,
}

fn measured(
    loaded: &Loaded,
    setting: &Setting,
    (machine, gpu): (&Machine, Option<&Gpu>),
    progress: &dyn Progress,
) -> Result<Measured> {
    let (name, model) = (loaded.path.display().to_string(), loaded.model.transformer());
    let config = model.config();
    if setting.longest() > config.max_position {
        let (longest, most) = (setting.longest(), config.max_position);
        return Err(Error::Protocol(format!("{name}: sequences of {longest} tokens exceed its context of {most}")));
    }
    let weight_bytes = model.resident_weight_bytes() as u64;
    let step_bytes = weight_bytes - embedding_bytes(loaded);
    let multiplied = multiplied(model);
    let cache = cache(model, setting, &name)?;
    let subject = Subject {
        name: name.clone(),
        packed: &loaded.model,
        setting,
        machine,
        gpu,
        step_bytes: step_bytes as f64,
        multiplied: multiplied as f64,
        cache_bytes: cache.formula as f64,
        progress,
    };
    let prefill = setting.prompts.iter().map(|&n| subject.prefill(n)).collect::<Result<Vec<_>>>()?;
    let decode = setting.contexts.iter().map(|&n| subject.decode(n)).collect::<Result<Vec<_>>>()?;
    let batch = setting.batches.iter().map(|&n| subject.batch(n)).collect::<Result<Vec<_>>>()?;
    let longest = prefill.iter().max_by_key(|p| p.tokens);
    Ok(Measured {
        name,
        scheme: loaded.size.scheme.clone(),
        weight_bytes,
        step_bytes,
        multiplied,
        memory: Memory::now(),
        cache,
        knee: Knee::find(&prefill, &batch),
        step_costs: StepCosts {
            decode: batch.iter().map(|b| DecodeCost { batch: b.batch, ms: b.ms.median }).collect(),
            prompt_ms_per_token: longest.map_or(0.0, |p| p.ms.median / p.tokens as f64),
        },
        prefill,
        decode,
        batch,
    })
}

/// Weights of the linear layers, the output projection among them.
fn multiplied(model: &Transformer) -> u64 {
    let c = model.config();
    let (q, kv) = (c.heads * c.head_dim, 2 * c.kv_heads * c.head_dim);
    let block = c.hidden_size * (2 * q + kv + 3 * c.intermediate_size);
    (c.layers * block + c.vocab_size * c.hidden_size) as u64
}

/// Bytes of an embedding that is not the output projection: a step reads only rows of it.
fn embedding_bytes(loaded: &Loaded) -> u64 {
    let model = loaded.model.transformer();
    // On a GPU it is not among the weights there.
    if model.config().tie_word_embeddings || !model.device().is_cpu() {
        return 0;
    }
    let tensors = loaded.files.tensors.iter().filter(|(name, _)| name.starts_with("model.embed_tokens."));
    tensors.map(|(_, tensor)| tensor.data.len() as u64).sum()
}

fn cache(model: &Transformer, setting: &Setting, name: &str) -> Result<Cache> {
    let runs = |source| Error::Runtime { model: name.into(), source };
    let tokens = setting.longest();
    let allocated = model.new_cache_of(setting.kv, 1, tokens).map_err(runs)?.bytes();
    Ok(Cache { formula: setting.kv.bytes_per_token(model.config()), allocated: allocated / tokens })
}

impl Subject<'_> {
    fn tokens(&self, n: usize, seed: usize) -> Vec<u32> {
        any_tokens(n, seed, self.packed.transformer().config().vocab_size)
    }

    fn runs<T>(&self, result: runtime::Result<T>) -> Result<T> {
        result.map_err(|source| Error::Runtime { model: self.name.clone(), source })
    }

    /// Milliseconds of `run`, which is run once before it counts.
    fn time(&self, mut run: impl FnMut() -> Result<()>) -> Result<Time> {
        let device = self.packed.transformer().device();
        let mut run = || {
            run()?;
            self.runs(device.synchronize().map_err(Into::into))
        };
        run()?;
        let mut values = Vec::with_capacity(self.setting.repeats);
        for _ in 0..self.setting.repeats {
            let start = Instant::now();
            run()?;
            values.push(1e3 * start.elapsed().as_secs_f64());
        }
        Ok(Time::from_values(values))
    }

    /// Shares of the peaks that `tokens` tokens in `ms` come to.
    fn work(&self, tokens: usize, ms: f64) -> Work {
        let rate = 2.0 * self.multiplied * tokens as f64 / (ms / 1e3);
        match self.gpu {
            Some(gpu) => Work::Gpu { matrix_share: rate / gpu.flop_per_s },
            None => Work::Cpu {
                f32_share: rate / self.machine.f32_flop_per_s,
                int16_share: rate / self.machine.int16_op_per_s,
            },
        }
    }

    fn bandwidth_share(&self, cached: usize, ms: f64) -> f64 {
        let bytes = self.step_bytes + self.cache_bytes * cached as f64;
        let peak = self.gpu.map_or(self.machine.read_bytes_per_s, |gpu| gpu.copied_bytes_per_s);
        bytes / (ms / 1e3) / peak
    }

    fn prefill(&self, n: usize) -> Result<Prefill> {
        let prompt = self.tokens(n, 0);
        let mut session = self.packed.session(n)?;
        let ms = self.time(|| {
            session.truncate(0);
            session.extend(&prompt, 1).map(drop)
        })?;
        self.progress.advance(1);
        Ok(Prefill { tokens: n, ms, tokens_per_s: 1e3 * n as f64 / ms.median, work: self.work(n, ms.median) })
    }

    fn decode(&self, context: usize) -> Result<Decode> {
        let (prompt, next) = (self.tokens(context, 0), self.tokens(self.setting.tokens, 1));
        let mut session = self.packed.session(context + next.len())?;
        session.extend(&prompt, 0)?;
        let total = self.time(|| {
            session.truncate(context);
            next.iter().try_for_each(|token| session.extend(&[*token], 1).map(drop))
        })?;
        let each = |ms: f64| ms / next.len() as f64;
        let ms = Time { median: each(total.median), range: total.range.map(each) };
        session.truncate(context);
        let with = session.extend(&next[..1], 1)?;
        let whole: Vec<u32> = prompt.iter().chain(&next[..1]).copied().collect();
        let mut without = Vec::new();
        let mut again = self.packed.session(whole.len())?;
        let without_cache_ms = self.time(|| {
            again.truncate(0);
            without = again.extend(&whole, 1)?;
            Ok(())
        })?;
        let largest = with.iter().fold(0f32, |m, v| m.max(v.abs()));
        let same = |a: f32, b: f32| match self.gpu {
            Some(_) => (a - b).abs() <= NEAR * largest,
            None => a.to_bits() == b.to_bits(),
        };
        let equal = with.iter().zip(&without).all(|(a, b)| same(*a, *b)) && with.len() == without.len();
        self.progress.advance(1);
        Ok(Decode { context, ms, bandwidth_share: self.bandwidth_share(context, ms.median), without_cache_ms, equal })
    }

    fn batch(&self, batch: usize) -> Result<Batch> {
        let (model, context) = (self.packed.transformer(), self.setting.batch_context);
        let mut pool = self.runs(model.new_pool(self.setting.kv, context + 1, batch))?;
        let mut sequences: Vec<Sequence> = (0..batch).map(|_| pool.sequence()).collect();
        for (i, sequence) in sequences.iter_mut().enumerate() {
            let tokens = self.tokens(context, i);
            self.runs(model.step(&mut pool, &mut [Feed { sequence, tokens: &tokens }]))?;
        }
        let next = self.tokens(batch, batch);
        let rows: Vec<u32> = (0u32..).take(batch).collect();
        let ms = self.time(|| {
            sequences.iter_mut().for_each(|s| s.truncate(context));
            let feeds = sequences.iter_mut().zip(next.chunks(1));
            let mut feeds: Vec<Feed<'_>> = feeds.map(|(sequence, tokens)| Feed { sequence, tokens }).collect();
            let hidden = self.runs(model.step(&mut pool, &mut feeds))?;
            self.runs(model.logits_at(&hidden, &rows)).map(drop)
        })?;
        self.progress.advance(1);
        Ok(Batch {
            batch,
            ms,
            tokens_per_s: 1e3 * batch as f64 / ms.median,
            bandwidth_share: self.bandwidth_share(batch * context, ms.median),
            work: self.work(batch, ms.median),
        })
    }
}
