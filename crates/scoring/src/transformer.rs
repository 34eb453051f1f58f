//! The runtime's transformer as a [`LanguageModel`].

use crate::cache::ModelCache;
use crate::load::Compute;
use crate::model::{Continuation, Forward, LanguageModel, argmax};
use crate::{Error, Result};
use candle_core::{DType, Tensor};
use ndarray::ArrayView2;
use rowmath::logits as row_logits;
use runtime::{KvCache, KvType, Transformer};
use std::ops::{ControlFlow, Range};

/// A model that multiplies from its packed weights. Where passes are kept, it takes from there what it has.
#[derive(Debug)]
pub struct Packed {
    computed: Computed,
    kept: Option<ModelCache>,
}

/// A model all of whose results are computed.
#[derive(Debug)]
struct Computed {
    name: String,
    model: Transformer,
    kv: Option<KvType>,
}

impl Packed {
    /// Loads a model; `name` is what errors call it.
    ///
    /// # Errors
    /// [`Error::Runtime`].
    pub fn load(name: impl Into<String>, model: &store::Model, compute: &Compute) -> Result<Self> {
        let name = name.into();
        let kept = compute.cache.as_ref().map(|cache| ModelCache::new(cache, model, compute));
        let model = Transformer::load_with(model, &compute.device, &compute.options)
            .map_err(|source| Error::Runtime { model: name.clone(), source })?;
        Ok(Packed { computed: Computed { name, model, kv: compute.kv }, kept })
    }

    /// The transformer.
    pub fn transformer(&self) -> &Transformer {
        &self.computed.model
    }

    /// Returns the type that the keys and values of a continued sequence are stored in.
    pub fn kv(&self) -> KvType {
        self.computed.kv.unwrap_or_default()
    }
}

impl LanguageModel for Packed {
    fn name(&self) -> &str {
        self.computed.name()
    }

    fn vocab_size(&self) -> usize {
        self.computed.vocab_size()
    }

    fn forward<'a>(&'a self, tokens: &[u32]) -> Result<Box<dyn Forward + 'a>> {
        let model = &self.computed;
        let Some(kept) = &self.kept else { return model.forward(tokens) };
        let width = model.model.config().hidden_size;
        if let Some(states) = kept.states(tokens, width) {
            let device = model.model.device();
            let hidden = Tensor::from_vec(states, (1, tokens.len(), width), device).map_err(|e| model.named(e))?;
            return Ok(Box::new(Run { of: model, hidden }));
        }
        let hidden = model.hidden(tokens)?;
        if hidden.dtype() == DType::F32 {
            let states = hidden.flatten_all().and_then(|h| h.to_vec1()).map_err(|e| model.named(e))?;
            kept.keep_states(tokens, &states);
        }
        Ok(Box::new(Run { of: model, hidden }))
    }

    fn greedy(&self, prompt: &[u32], limit: usize, token: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        let Some(kept) = &self.kept else { return self.computed.greedy(prompt, limit, token) };
        let known = kept.continuation(prompt).unwrap_or_default();
        for &next in known.iter().take(limit) {
            if token(next).is_break() {
                return Ok(());
            }
        }
        if known.len() >= limit {
            return Ok(());
        }
        // What was kept is too short: computed again, and handed on from where it ended.
        let mut written = Vec::with_capacity(limit);
        self.computed.greedy(prompt, limit, &mut |next| {
            written.push(next);
            if written.len() <= known.len() { ControlFlow::Continue(()) } else { token(next) }
        })?;
        kept.keep_continuation(prompt, &written);
        Ok(())
    }

    fn timed(&self) -> Option<&dyn LanguageModel> {
        Some(&self.computed)
    }
}

/// Hidden states of one sequence, `[1, n, hidden]`.
struct Run<'a> {
    of: &'a Computed,
    hidden: Tensor,
}

impl Forward for Run<'_> {
    fn logits(&self, range: Range<usize>, see: &mut dyn FnMut(ArrayView2<'_, f32>)) -> Result<()> {
        let (rows, vocab) = (range.len(), self.of.vocab_size());
        let view = |values: &[f32]| ArrayView2::from_shape((rows, vocab), values).map(&mut *see);
        let seen = self.of.model.see_logits(&self.hidden, range, view).map_err(|e| self.of.named(e))?;
        seen.map_err(|e| Error::Model(format!("{}: {e}", self.of.name)))
    }
}

impl Computed {
    /// Hidden states of a pass, `[1, n, hidden]`.
    fn hidden(&self, tokens: &[u32]) -> Result<Tensor> {
        let cache = self.kv.map(|kv| self.model.new_cache_of(kv, 1, tokens.len())).transpose();
        let mut cache = cache.map_err(|e| self.named(e))?;
        self.model.hidden(&[tokens], cache.as_mut()).map_err(|e| self.named(e))
    }

    fn session(&self, kv: KvType, capacity: usize) -> Result<Session<'_>> {
        let cache = self.model.new_cache_of(kv, 1, capacity).map_err(|e| self.named(e))?;
        Ok(Session { of: self, cache })
    }

    fn named(&self, source: impl Into<runtime::Error>) -> Error {
        Error::Runtime { model: self.name.clone(), source: source.into() }
    }
}

impl LanguageModel for Computed {
    fn name(&self) -> &str {
        &self.name
    }

    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn forward<'a>(&'a self, tokens: &[u32]) -> Result<Box<dyn Forward + 'a>> {
        Ok(Box::new(Run { of: self, hidden: self.hidden(tokens)? }))
    }

    fn greedy(&self, prompt: &[u32], limit: usize, token: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        let mut session = self.session(self.kv.unwrap_or_default(), prompt.len() + limit)?;
        let mut next = argmax(&session.extend(prompt, 1)?)?;
        for made in 1..=limit {
            if token(next).is_break() || made == limit {
                break;
            }
            next = argmax(&session.extend(&[next], 1)?)?;
        }
        Ok(())
    }
}

impl Packed {
    /// A new sequence of at most `capacity` tokens.
    ///
    /// # Errors
    /// When its cache can't be allocated.
    pub fn session(&self, capacity: usize) -> Result<Session<'_>> {
        self.session_of(self.kv(), capacity)
    }

    /// [`Packed::session`] whose keys and values are stored as `kv`.
    ///
    /// # Errors
    /// As [`Packed::session`].
    pub fn session_of(&self, kv: KvType, capacity: usize) -> Result<Session<'_>> {
        self.computed.session(kv, capacity)
    }
}

/// A sequence that a model continues, with its KV cache.
#[derive(Debug)]
pub struct Session<'a> {
    of: &'a Computed,
    cache: KvCache,
}

impl Continuation for Session<'_> {
    fn len(&self) -> usize {
        self.cache.len()
    }

    fn extend(&mut self, tokens: &[u32], rows: usize) -> Result<Vec<f32>> {
        let model = &self.of.model;
        let hidden = model.hidden(&[tokens], Some(&mut self.cache)).map_err(|e| self.of.named(e))?;
        if rows == 0 {
            return Ok(Vec::new());
        }
        let last = hidden.narrow(1, tokens.len() - rows, rows).map_err(|e| self.of.named(e))?;
        let logits = model.logits(&last).map_err(|e| self.of.named(e))?;
        let logits = logits.flatten_all().and_then(|l| l.to_vec1::<f32>()).map_err(|e| self.of.named(e))?;
        if !row_logits::are_finite(&logits) {
            let row = logits.iter().position(|l| !l.is_finite()).unwrap_or(0) / model.config().vocab_size;
            let token = self.cache.len() - rows + row + 1;
            return Err(Error::Model(format!("{}: logits are NaN or infinite after token {token}", self.of.name)));
        }
        Ok(logits)
    }

    fn truncate(&mut self, len: usize) {
        self.cache.truncate(len);
    }
}
