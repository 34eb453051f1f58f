//! A trace through a real model: the runtime's engine, step by step.

use super::simulate::{Run, Served};
use super::trace::{Request, Trace, Unit};
use super::{Contest, Figures, Setting};
use progress::Progress;
use progress::Unit as Counted;
use runtime::{Batching, Engine, Policy, Sampler};
use schemars::JsonSchema;
use scoring::model::LanguageModel;
use scoring::text::any_tokens;
use scoring::{Error, Packed, Result};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use std::ops::ControlFlow;
use std::time::Instant;

/// Tokens of a block of the paged cache.
const BLOCK: usize = 64;

/// Results of replaying a trace through a model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Through {
    /// The model.
    pub model: String,
    /// The figures, in the unit of the trace: for arrivals in steps every step counts as one, for
    /// those in seconds as long as it took.
    pub contest: Contest,
    /// Unit of the times.
    pub unit: Unit,
    /// Seconds that the steps of static batching took.
    pub static_seconds: f64,
    /// Seconds that the steps of continuous batching took.
    pub continuous_seconds: f64,
    /// True if every request got the tokens that it gets alone, under both policies.
    pub equal_alone: bool,
    /// True if requests must get these tokens. On a GPU they need not: the order of sums depends on what runs beside a
    /// token.
    pub batch_invariant: bool,
}

/// Runs a trace, with pseudorandom prompts and greedily, through `model` under both policies, and
/// each request alone.
///
/// # Errors
/// [`Error::Protocol`] where a request exceeds the model's context; when the model fails.
pub fn through(
    name: &str,
    model: &Packed,
    trace: &Trace,
    setting: &Setting,
    progress: &dyn Progress,
) -> Result<Through> {
    let config = model.transformer().config();
    let longest = trace.requests.iter().map(|r| r.prompt as usize + r.output as usize).max().unwrap_or(0);
    if longest > config.max_position {
        let most = config.max_position;
        return Err(Error::Protocol(format!("{name}: a request of {longest} tokens exceeds its context of {most}")));
    }
    let runs = |source| Error::Runtime { model: name.into(), source };
    progress.start("serving", Some(3 * trace.shape().output_tokens), Counted::Tokens);
    let prompt = |(i, r): (usize, &Request)| any_tokens(r.prompt as usize, i, config.vocab_size);
    let prompts: Vec<Vec<u32>> = trace.requests.iter().enumerate().map(prompt).collect();
    let serve = |policy| {
        let pool = model.transformer().new_pool(model.kv(), BLOCK, setting.slots * longest.div_ceil(BLOCK))?;
        let batching = Batching { policy, slots: setting.slots, prompt_tokens: setting.chunk as usize };
        let engine = Engine::new(model.transformer(), pool, batching);
        Serving::new(trace, &prompts, engine, setting.slots).run(progress)
    };
    let fixed = serve(Policy::Static).map_err(runs)?;
    let continuous = serve(Policy::Continuous).map_err(runs)?;
    let mut equal = fixed.tokens == continuous.tokens;
    for ((prompt, request), tokens) in prompts.iter().zip(&trace.requests).zip(&continuous.tokens) {
        let mut alone = Vec::with_capacity(tokens.len());
        model.greedy(prompt, request.output as usize, &mut |token| {
            alone.push(token);
            ControlFlow::Continue(())
        })?;
        equal &= alone == *tokens;
        progress.advance(tokens.len() as u64);
    }
    progress.finish();
    let total = trace.shape().output_tokens;
    let (static_seconds, continuous_seconds) = (fixed.seconds, continuous.seconds);
    let figures = |done: Done| Figures::from_run(done.run, total, setting.slots);
    Ok(Through {
        model: name.into(),
        contest: Contest::between(figures(fixed), figures(continuous)),
        unit: trace.unit,
        static_seconds,
        continuous_seconds,
        equal_alone: equal,
        batch_invariant: model.transformer().is_batch_invariant(),
    })
}

/// Results of one run through the engine.
struct Done {
    run: Run,
    tokens: Vec<Vec<u32>>,
    seconds: f64,
}

/// A trace on its way through an engine.
struct Serving<'a> {
    trace: &'a Trace,
    prompts: &'a [Vec<u32>],
    engine: Engine<'a>,
    /// The next request to arrive.
    next: usize,
    free: BTreeSet<usize>,
    served: Vec<Served>,
    tokens: Vec<Vec<u32>>,
    /// Requests by the engine's numbers.
    index: HashMap<runtime::RequestId, usize>,
}

impl<'a> Serving<'a> {
    fn new(trace: &'a Trace, prompts: &'a [Vec<u32>], engine: Engine<'a>, slots: usize) -> Self {
        let served =
            |r: &Request| Served { arrival: r.arrival, slot: 0, admitted: 0.0, first_token: 0.0, finished: 0.0 };
        Serving {
            trace,
            prompts,
            engine,
            next: 0,
            free: (0..slots).collect(),
            served: trace.requests.iter().map(served).collect(),
            tokens: vec![Vec::new(); prompts.len()],
            index: HashMap::new(),
        }
    }

    /// Steps until every request is served. Time is counted, not waited for: an idle machine goes
    /// on to the next arrival at once.
    fn run(mut self, progress: &dyn Progress) -> runtime::Result<Done> {
        let (mut now, mut steps, mut seconds) = (0.0, 0, 0.0);
        loop {
            if self.engine.is_idle() {
                let Some(request) = self.trace.requests.get(self.next) else { break };
                now = request.arrival.max(now);
            }
            self.arrive(now)?;
            let start = Instant::now();
            let step = self.engine.step()?;
            let took = start.elapsed().as_secs_f64();
            let before = now;
            seconds += took;
            steps += 1;
            now += if self.trace.unit == Unit::Steps { 1.0 } else { took };
            self.record(&step, before, now);
            progress.advance(step.made.len() as u64);
        }
        Ok(Done { run: Run { served: self.served, steps }, tokens: self.tokens, seconds })
    }

    /// Hands over what has arrived.
    fn arrive(&mut self, now: f64) -> runtime::Result<()> {
        while let Some(request) = self.trace.requests.get(self.next).filter(|r| r.arrival <= now) {
            let id = self.engine.submit(runtime::Request {
                prefix: None,
                prompt: self.prompts[self.next].clone(),
                max_new: request.output as usize,
                stop: Vec::new(),
                sampler: Sampler::greedy(),
            })?;
            self.index.insert(id, self.next);
            self.next += 1;
        }
        Ok(())
    }

    fn record(&mut self, step: &runtime::Step, before: f64, now: f64) {
        for id in &step.admitted {
            let served = &mut self.served[self.index[id]];
            (served.slot, served.admitted) = (self.free.pop_first().unwrap_or(0), before);
        }
        for (id, token) in &step.made {
            let index = self.index[id];
            if self.tokens[index].is_empty() {
                self.served[index].first_token = now;
            }
            self.tokens[index].push(*token);
        }
        for id in &step.finished {
            let served = &mut self.served[self.index[id]];
            served.finished = now;
            self.free.insert(served.slot);
        }
    }
}
