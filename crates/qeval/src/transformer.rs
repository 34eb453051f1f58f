//! The runtime's transformer as a [`LanguageModel`].

use crate::load::Compute;
use crate::model::{Forward, LanguageModel, argmax};
use crate::{Error, Result};
use candle_core::Tensor;
use ndarray::ArrayView2;
use runtime::{Options, Transformer};
use std::ops::{ControlFlow, Range};

/// A model that multiplies from its packed weights.
#[derive(Debug)]
pub struct Packed {
    name: String,
    model: Transformer,
}

impl Packed {
    /// Loads a model; `name` is what errors call it.
    ///
    /// # Errors
    /// [`Error::Runtime`].
    pub fn load(name: impl Into<String>, model: &store::Model, compute: &Compute) -> Result<Self> {
        let name = name.into();
        let options = Options { math: compute.math };
        let model = Transformer::load_with(model, &compute.device, &options)
            .map_err(|source| Error::Runtime { model: name.clone(), source })?;
        Ok(Packed { name, model })
    }

    /// The transformer.
    pub fn transformer(&self) -> &Transformer {
        &self.model
    }

    fn named(&self, source: impl Into<runtime::Error>) -> Error {
        Error::Runtime { model: self.name.clone(), source: source.into() }
    }
}

/// Hidden states of one sequence, `[1, n, hidden]`.
struct Run<'a> {
    of: &'a Packed,
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

impl LanguageModel for Packed {
    fn vocab_size(&self) -> usize {
        self.model.config().vocab_size
    }

    fn forward<'a>(&'a self, tokens: &[u32]) -> Result<Box<dyn Forward + 'a>> {
        let hidden = self.model.hidden(&[tokens], None).map_err(|e| self.named(e))?;
        Ok(Box::new(Run { of: self, hidden }))
    }

    fn greedy(&self, prompt: &[u32], limit: usize, token: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        let mut cache = self.model.new_cache(1, prompt.len() + limit).map_err(|e| self.named(e))?;
        let mut hidden = self.model.hidden(&[prompt], Some(&mut cache)).map_err(|e| self.named(e))?;
        for made in 1..=limit {
            let next = self.next(&hidden)?;
            if token(next).is_break() || made == limit {
                break;
            }
            hidden = self.model.hidden(&[&[next]], Some(&mut cache)).map_err(|e| self.named(e))?;
        }
        Ok(())
    }
}

impl Packed {
    /// The most likely token after the last hidden state.
    fn next(&self, hidden: &Tensor) -> Result<u32> {
        let last = hidden.dim(1).and_then(|n| hidden.narrow(1, n - 1, 1)).map_err(|e| self.named(e))?;
        let logits = self.model.logits(&last).map_err(|e| self.named(e))?;
        let row = logits.flatten_all().and_then(|l| l.to_vec1::<f32>()).map_err(|e| self.named(e))?;
        argmax(&row).map_err(|e| Error::Model(format!("{}: {e}", self.name)))
    }
}
