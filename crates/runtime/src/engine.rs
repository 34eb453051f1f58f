//! Many requests through one model: batching over a paged cache.

use crate::{Error, Feed, Pool, Result, Sampler, Sequence, Transformer};
use std::collections::VecDeque;

/// A prompt to continue.
#[derive(Debug, Clone)]
pub struct Request {
    /// Sequence that the prompt continues, such as instructions that many requests share; see [`Engine::prefill`].
    pub prefix: Option<Sequence>,
    /// Tokens of the prompt; at least one.
    pub prompt: Vec<u32>,
    /// Tokens to make at most; at least one.
    pub max_new: usize,
    /// Tokens that end it and are not among those made.
    pub stop: Vec<u32>,
    /// Chooses them. It knows the prompt, and of a prefix only what it was told.
    pub sampler: Sampler,
}

/// When waiting requests are admitted, in the order of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Policy {
    /// Before each step, into the slots that are free.
    Continuous,
    /// Together, when all that were admitted before have finished.
    Static,
}

/// Policy by which requests share steps.
#[derive(Debug, Clone, Copy)]
pub struct Batching {
    /// When requests are admitted.
    pub policy: Policy,
    /// Requests that run at a time, at most.
    pub slots: usize,
    /// Tokens of prompts that one step runs at most; a longer prompt takes several steps.
    ///
    /// Layers that quantize their input with one scale for the whole call (`w8a8-tensor`) see
    /// each such piece as a call.
    pub prompt_tokens: usize,
}

/// A request's number, in the order of arrival.
pub type RequestId = u64;

/// Results of one step.
#[derive(Debug, Clone, Default)]
pub struct Step {
    /// Requests that were admitted.
    pub admitted: Vec<RequestId>,
    /// Tokens of prompts that were run.
    pub prompt_tokens: usize,
    /// Tokens that were run to make the next.
    pub decode_tokens: usize,
    /// Requests that held a slot.
    pub running: usize,
    /// The tokens made.
    pub made: Vec<(RequestId, u32)>,
    /// Requests that finished; their blocks are free again.
    pub finished: Vec<RequestId>,
}

/// An admitted request.
#[derive(Debug)]
struct Slot {
    id: RequestId,
    request: Request,
    sequence: Sequence,
    /// Tokens of the prompt that were run.
    read: usize,
    /// Tokens made, and the last of them.
    made: usize,
    last: Option<u32>,
}

impl Slot {
    /// Number of tokens that a step runs, of which at most `prompt` come from the prompt.
    fn next(&self, prompt: usize) -> usize {
        if self.last.is_some() { 1 } else { prompt.min(self.request.prompt.len() - self.read) }
    }

    /// Tokens that may still be run; the last one made never is.
    fn remaining(&self) -> usize {
        let first = usize::from(self.last.is_none());
        self.request.prompt.len() - self.read + self.request.max_new - self.made - first
    }
}

/// Runs requests together, as many as there are slots and blocks for.
///
/// Scheduler of requests over one model and one cache. A request gets the tokens that it would get alone, where the
/// model [is batch-invariant](Transformer::is_batch_invariant).
#[derive(Debug)]
pub struct Engine<'a> {
    model: &'a Transformer,
    pool: Pool,
    batching: Batching,
    waiting: VecDeque<Slot>,
    running: Vec<Slot>,
    submitted: RequestId,
}

impl<'a> Engine<'a> {
    /// Over a pool of the model's. There is at least one slot, and a step runs at least one token
    /// of a prompt.
    pub fn new(model: &'a Transformer, pool: Pool, batching: Batching) -> Self {
        let (slots, prompt_tokens) = (batching.slots.max(1), batching.prompt_tokens.max(1));
        let batching = Batching { slots, prompt_tokens, ..batching };
        Engine { model, pool, batching, waiting: VecDeque::new(), running: Vec::new(), submitted: 0 }
    }

    /// The cache.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Returns whether all requests have finished.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_empty()
    }

    /// Requests that hold a slot.
    pub fn running(&self) -> usize {
        self.running.len()
    }

    /// Reads tokens that requests begin with: [`Request::prefix`].
    ///
    /// # Errors
    /// As [`Transformer::step`].
    pub fn prefill(&mut self, tokens: &[u32]) -> Result<Sequence> {
        let mut sequence = self.pool.sequence();
        self.model.step(&mut self.pool, &mut [Feed { sequence: &mut sequence, tokens }])?;
        Ok(sequence)
    }

    /// Queues a request.
    ///
    /// # Errors
    /// [`Error::Empty`] for an empty prompt, [`Error::Token`], [`Error::Sampling`] where no token is
    /// to be made, and [`Error::CacheExhausted`] where the whole cache is too small for it.
    pub fn submit(&mut self, mut request: Request) -> Result<RequestId> {
        self.model.check(&[&request.prompt])?;
        if request.max_new == 0 {
            return Err(Error::Sampling { name: "max_new", value: 0.0, expected: "at least 1" });
        }
        request.sampler.read(&request.prompt);
        let sequence = request.prefix.take().unwrap_or_else(|| self.pool.sequence());
        let slot = Slot { id: self.submitted, request, sequence, read: 0, made: 0, last: None };
        let tokens = slot.sequence.len() + slot.remaining();
        let (blocks, block_tokens) = (self.pool.blocks(), self.pool.block_tokens());
        if let Some(missing) = tokens.div_ceil(block_tokens).checked_sub(blocks + 1) {
            return Err(Error::CacheExhausted { blocks, block_tokens, missing: missing + 1 });
        }
        self.waiting.push_back(slot);
        self.submitted += 1;
        Ok(self.submitted - 1)
    }

    /// Admits what there is room for, runs one step, and retires what has finished.
    ///
    /// # Errors
    /// As [`Transformer::step`] and [`Sampler::sample`], after which the engine can't go on; and
    /// [`Error::CacheExhausted`] where nothing runs and sequences that others hold leave no room
    /// for the next request.
    pub fn step(&mut self) -> Result<Step> {
        let mut step = Step { admitted: self.admit()?, ..Step::default() };
        step.running = self.running.len();
        let counts = self.share();
        for (slot, n) in self.running.iter().zip(&counts) {
            let tokens = if slot.last.is_some() { &mut step.decode_tokens } else { &mut step.prompt_tokens };
            *tokens += n;
        }
        let logits = self.run(&counts)?;
        let mut logits = logits.chunks_exact(self.model.config().vocab_size);
        for (slot, n) in self.running.iter_mut().zip(counts) {
            slot.read += if slot.last.is_some() { 0 } else { n };
            if slot.read < slot.request.prompt.len() {
                continue;
            }
            let token = slot.request.sampler.sample(logits.next().unwrap_or_default())?;
            let stopped = slot.request.stop.contains(&token);
            if !stopped {
                step.made.push((slot.id, token));
                (slot.made, slot.last) = (slot.made + 1, Some(token));
            }
            if stopped || slot.made == slot.request.max_new {
                step.finished.push(slot.id);
            }
        }
        self.running.retain(|slot| !step.finished.contains(&slot.id));
        Ok(step)
    }

    /// Number of tokens of each slot in the next step.
    fn share(&self) -> Vec<usize> {
        let mut left = self.batching.prompt_tokens;
        let count = |slot: &Slot| {
            let n = slot.next(left);
            left -= if slot.last.is_some() { 0 } else { n };
            n
        };
        self.running.iter().map(count).collect()
    }

    /// Runs the next tokens of the slots; logits `[slots, vocab]` of those that have then read
    /// their prompts.
    fn run(&mut self, counts: &[usize]) -> Result<Vec<f32>> {
        let (mut feeds, mut wanted, mut rows) = (Vec::new(), Vec::new(), 0);
        for (slot, &n) in self.running.iter_mut().zip(counts).filter(|(_, n)| **n > 0) {
            rows += n as u32;
            if slot.last.is_some() || slot.read + n == slot.request.prompt.len() {
                wanted.push(rows - 1);
            }
            let Slot { sequence, last, request, read, .. } = slot;
            let tokens = match last {
                Some(token) => std::slice::from_ref(token),
                None => &request.prompt[*read..*read + n],
            };
            feeds.push(Feed { sequence, tokens });
        }
        if feeds.is_empty() {
            return Ok(Vec::new());
        }
        let hidden = self.model.step(&mut self.pool, &mut feeds)?;
        if wanted.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.model.logits_at(&hidden, &wanted)?.flatten_all()?.to_vec1()?)
    }

    /// Admits waiting requests, in order, while there are slots, and blocks for all that those
    /// admitted may still ask for.
    fn admit(&mut self) -> Result<Vec<RequestId>> {
        let mut admitted = Vec::new();
        if self.batching.policy == Policy::Static && !self.running.is_empty() {
            return Ok(admitted);
        }
        let missing = |slot: &Slot| self.pool.missing(&slot.sequence, slot.remaining());
        let mut promised: usize = self.running.iter().map(missing).sum();
        let free = self.pool.free_blocks();
        while self.running.len() < self.batching.slots {
            let Some(slot) = self.waiting.front() else { break };
            promised += missing(slot);
            if promised > free {
                if self.running.is_empty() {
                    let (blocks, block_tokens) = (self.pool.blocks(), self.pool.block_tokens());
                    return Err(Error::CacheExhausted { blocks, block_tokens, missing: promised - free });
                }
                break;
            }
            admitted.push(slot.id);
            self.running.extend(self.waiting.pop_front());
        }
        Ok(admitted)
    }
}
