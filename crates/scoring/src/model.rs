//! The interface between scoring and a language model.

use crate::{Error, Result};
use ndarray::{ArrayView2, Axis};
use std::ops::{ControlFlow, Range};

/// A model that gives the logits of the next token.
pub trait LanguageModel {
    /// Name of the model in progress bars; may be empty.
    fn name(&self) -> &str {
        ""
    }

    /// Entries of a row of logits.
    fn vocab_size(&self) -> usize;

    /// Runs the tokens once; logits are then computed for the positions that are asked for.
    ///
    /// # Errors
    /// When the model can't run them.
    fn forward<'a>(&'a self, tokens: &[u32]) -> Result<Box<dyn Forward + 'a>>;

    /// Continues `prompt` greedily by up to `limit` tokens, and hands each to `token` until that
    /// breaks off.
    ///
    /// This default is [`continue_exactly`]; a model with a cache does better.
    ///
    /// # Errors
    /// When the model can't run the tokens, or its logits are not finite.
    fn greedy(&self, prompt: &[u32], limit: usize, token: &mut dyn FnMut(u32) -> ControlFlow<()>) -> Result<()> {
        continue_exactly(self, prompt, limit, token)
    }

    /// The same model with nothing taken from earlier runs, for measuring time; none where this is that model.
    fn timed(&self) -> Option<&dyn LanguageModel> {
        None
    }
}

/// Continues `prompt` greedily by running the whole sequence for each token: what a single pass
/// over the finished sequence would choose, too.
///
/// # Errors
/// As [`LanguageModel::greedy`].
pub fn continue_exactly<M: LanguageModel + ?Sized>(
    model: &M,
    prompt: &[u32],
    limit: usize,
    token: &mut dyn FnMut(u32) -> ControlFlow<()>,
) -> Result<()> {
    let mut tokens = prompt.to_vec();
    for _ in 0..limit {
        let last = tokens.len().checked_sub(1).ok_or_else(|| Error::Model("the prompt is empty".into()))?;
        let next = model.forward(&tokens)?.choices(last..last + 1)?;
        let next = *next.first().ok_or_else(|| Error::Model("there are no logits".into()))?;
        tokens.push(next);
        if token(next).is_break() {
            break;
        }
    }
    Ok(())
}

/// A run of a model over some tokens.
pub trait Forward {
    /// Hands the logits of positions `range` to `see`, once: the row of position `i` predicts
    /// token `i + 1`. The array is in row-major order.
    ///
    /// # Errors
    /// When the model can't compute them.
    fn logits(&self, range: Range<usize>, see: &mut dyn FnMut(ArrayView2<'_, f32>)) -> Result<()>;

    /// The most likely next token at each of these positions.
    ///
    /// # Errors
    /// When the model can't compute the logits, or they are not finite.
    fn choices(&self, range: Range<usize>) -> Result<Vec<u32>> {
        let mut out = Ok(Vec::new());
        self.logits(range, &mut |logits| {
            out = logits.axis_iter(Axis(0)).map(|row| argmax(row.as_slice().unwrap_or_default())).collect();
        })?;
        out
    }
}

/// A sequence that a model continues through a cache.
pub trait Continuation {
    /// Tokens held.
    fn len(&self) -> usize;

    /// Returns whether the sequence has no tokens.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Runs more tokens, at least one; the logits `[rows, vocabulary]` that follow each of the
    /// last `rows` of them.
    ///
    /// # Errors
    /// When the model can't run them, or the logits are not finite; names the model.
    fn extend(&mut self, tokens: &[u32], rows: usize) -> Result<Vec<f32>>;

    /// Forgets the tokens from `len` on.
    fn truncate(&mut self, len: usize);
}

/// The first of the largest logits.
///
/// # Errors
/// [`Error::Model`] when one is NaN or infinite.
pub fn argmax(logits: &[f32]) -> Result<u32> {
    let row = rowmath::logits::row(logits).ok_or_else(|| Error::Model("logits are NaN or infinite".into()))?;
    u32::try_from(row.argmax).map_err(|_| Error::Model("the vocabulary is too large".into()))
}

/// Positions whose logits are held at a time, so that one array stays below about 96 MiB.
pub fn chunk_rows(vocab_size: usize) -> usize {
    ((96 << 20) / (4 * vocab_size.max(1))).max(1)
}

/// Cuts `range` into runs of at most `rows` positions.
pub(crate) fn chunks(range: Range<usize>, rows: usize) -> impl Iterator<Item = Range<usize>> {
    let (rows, end) = (rows.max(1), range.end);
    range.step_by(rows).map(move |start| start..(start + rows).min(end))
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! Small models with logits that are known.

    use super::*;
    use ndarray::Array2;

    /// A bigram model: the logits depend on the last token alone.
    #[derive(Debug, Clone)]
    pub struct Bigram {
        /// `[token, next]`.
        pub table: Array2<f32>,
        /// A logit is NaN at this position of every run that is at least so long.
        pub broken_at: Option<usize>,
    }

    impl Bigram {
        /// Logits from a pseudorandom formula; `strength` moves them.
        pub fn new(vocab: usize, strength: f32) -> Self {
            let table = Array2::from_shape_fn((vocab, vocab), |(i, j)| {
                let hash = (i * 2_654_435_761 + j * 40_503 + i * j * 97) % 1009;
                let base = (hash as f32 / 1009.0) * 4.0;
                base + strength * (((i + 3 * j) % 7) as f32 - 3.0)
            });
            Bigram { table, broken_at: None }
        }
    }

    struct Run<'a>(&'a Bigram, Vec<u32>);

    impl Forward for Run<'_> {
        fn logits(&self, range: Range<usize>, see: &mut dyn FnMut(ArrayView2<'_, f32>)) -> Result<()> {
            let mut out = Array2::zeros((range.len(), self.0.vocab_size()));
            for (mut row, at) in out.rows_mut().into_iter().zip(range) {
                row.assign(&self.0.table.row(self.1[at] as usize));
                if self.0.broken_at == Some(at) {
                    row[1] = f32::NAN;
                }
            }
            see(out.view());
            Ok(())
        }
    }

    /// A sequence that a [`Bigram`] continues.
    #[derive(Debug)]
    pub struct Continued<'a>(pub &'a Bigram, pub Vec<u32>);

    impl Continuation for Continued<'_> {
        fn len(&self) -> usize {
            self.1.len()
        }

        fn extend(&mut self, tokens: &[u32], rows: usize) -> Result<Vec<f32>> {
            self.1.extend(tokens);
            let last = &self.1[self.1.len() - rows..];
            Ok(last.iter().flat_map(|&t| self.0.table.row(t as usize).to_vec()).collect())
        }

        fn truncate(&mut self, len: usize) {
            self.1.truncate(len);
        }
    }

    impl LanguageModel for Bigram {
        fn vocab_size(&self) -> usize {
            self.table.ncols()
        }

        fn forward<'a>(&'a self, tokens: &[u32]) -> Result<Box<dyn Forward + 'a>> {
            Ok(Box::new(Run(self, tokens.to_vec())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_the_range() {
        assert_eq!(chunks(3..10, 3).collect::<Vec<_>>(), [3..6, 6..9, 9..10]);
        assert_eq!(chunks(3..3, 3).count(), 0);
        assert_eq!(chunk_rows(49_152), 512);
        assert_eq!(chunk_rows(1 << 40), 1);
    }

    #[test]
    fn greedy_follows_the_largest_logit() {
        let model = testing::Bigram::new(11, 0.3);
        let mut out = Vec::new();
        let stop_at_four = &mut |t| {
            out.push(t);
            if out.len() == 4 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        model.greedy(&[2], 9, stop_at_four).expect("runs");
        assert_eq!(out.len(), 4);
        let first = argmax(model.table.row(2).as_slice().expect("row-major")).expect("finite");
        assert_eq!(out[0], first);
        assert!(model.greedy(&[], 1, &mut |_| ControlFlow::Continue(())).is_err());
    }
}
