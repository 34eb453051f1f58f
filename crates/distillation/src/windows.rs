//! Documents into windows: what teacher and student see, and what is predicted.

use crate::random;
use crate::{Error, Result};
use rand::Rng;
use std::ops::Range;
use store::TrainedOn;

/// Stretches that a validation split is made of, at most.
const STRETCHES: usize = 8;

/// The tokens of a text, cut into windows that never cross from one document into another.
///
/// A window of n tokens has n - 1 predictions: each token but its first. Windows of a document overlap by one token,
/// so that every token but a document's first is predicted exactly once. Where windows begin with a
/// begin-of-sequence token they don't overlap, and every token of the document is predicted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// All that is seen, window after window; a token that ends a window and begins the next is there once.
    pub tokens: Vec<u32>,
    /// Range of each document's tokens.
    pub documents: Vec<Range<usize>>,
    /// Range of each window's tokens, in order.
    pub windows: Vec<Range<usize>>,
    /// The most tokens of a window.
    pub context: usize,
    /// Predictions before each window, and in all.
    starts: Vec<usize>,
}

/// Windows that are trained on, and windows that are held out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Windows to train on, in order.
    pub train: Vec<usize>,
    /// Windows that are never trained on, in order.
    pub validation: Vec<usize>,
}

impl Windows {
    /// Cuts tokenized documents into windows of `context` tokens; a document's last may be shorter. Each window
    /// begins with `bos` if there is one.
    ///
    /// # Errors
    /// [`Error::Recipe`] when the context is too short, [`Error::Text`] when a document has nothing to predict.
    pub fn new(documents: &[Vec<u32>], context: usize, bos: Option<u32>) -> Result<Self> {
        if context < 2 {
            return Err(Error::Recipe(format!(
                "a context of {context} tokens has nothing to predict; give at least 2"
            )));
        }
        let mut cut = Self { tokens: vec![], documents: vec![], windows: vec![], context, starts: vec![0] };
        for (index, document) in documents.iter().enumerate() {
            let begin = cut.tokens.len();
            match bos {
                Some(bos) => cut.begun(document, bos),
                None => cut.overlapping(document),
            }
            if cut.windows.last().is_none_or(|w| w.start < begin) {
                let what = format!("document {} has {} tokens, too few to predict one", index + 1, document.len());
                return Err(Error::Text(what));
            }
            cut.documents.push(begin..cut.tokens.len());
        }
        if cut.windows.is_empty() {
            return Err(Error::Text("there is none".into()));
        }
        Ok(cut)
    }

    /// Puts windows together from the fields of others; says what contradicts what.
    pub(crate) fn from_parts(
        tokens: Vec<u32>,
        documents: Vec<Range<usize>>,
        windows: Vec<Range<usize>>,
        context: usize,
    ) -> Result<Self, String> {
        let follow = |ranges: &[Range<usize>]| ranges.windows(2).all(|pair| pair[0].start < pair[1].start);
        if windows.is_empty() || !follow(&documents) || !follow(&windows) {
            return Err("its windows or documents are not in order".into());
        }
        let inside = |inner: &Range<usize>, outer: &Range<usize>| outer.start <= inner.start && inner.end <= outer.end;
        for window in &windows {
            // The last document that begins before the window does.
            let document = documents.partition_point(|d| d.start <= window.start).checked_sub(1).map(|i| &documents[i]);
            let fits = document.is_some_and(|d| inside(window, d) && inside(d, &(0..tokens.len())));
            if !fits || window.end < window.start + 2 || window.len() > context {
                return Err(format!("its window {window:?} suits neither its documents nor a context of {context}"));
            }
        }
        let mut cut = Self { tokens, documents, windows: vec![], context, starts: vec![0] };
        windows.into_iter().for_each(|window| cut.add(window));
        Ok(cut)
    }

    fn begun(&mut self, document: &[u32], bos: u32) {
        for part in document.chunks(self.context - 1) {
            let start = self.tokens.len();
            self.tokens.push(bos);
            self.tokens.extend_from_slice(part);
            self.add(start..self.tokens.len());
        }
    }

    fn overlapping(&mut self, document: &[u32]) {
        let begin = self.tokens.len();
        self.tokens.extend_from_slice(document);
        let end = self.tokens.len();
        for start in (begin..end.saturating_sub(1)).step_by(self.context - 1) {
            self.add(start..(start + self.context).min(end));
        }
    }

    fn add(&mut self, window: Range<usize>) {
        self.starts.push(self.predictions() + window.len() - 1);
        self.windows.push(window);
    }

    /// The documents, as scoring knows texts again. `begun`: whether windows begin with BOS.
    pub fn trained_on(&self, begun: bool) -> TrainedOn {
        let own = |document: &Range<usize>| -> Vec<u32> {
            let inside = self.windows.iter().filter(|w| document.start <= w.start && w.end <= document.end);
            match begun {
                true => inside.flat_map(|w| self.tokens[w.start + 1..w.end].to_vec()).collect(),
                false => self.tokens[document.clone()].to_vec(),
            }
        };
        let documents: Vec<Vec<u32>> = self.documents.iter().map(own).collect();
        TrainedOn::new(documents.iter().map(Vec::as_slice))
    }

    /// The tokens of a window. None of its predictions' inputs is the last, none of their targets the first.
    pub fn tokens_of(&self, window: usize) -> &[u32] {
        &self.tokens[self.windows[window].clone()]
    }

    /// Predictions of all windows.
    pub fn predictions(&self) -> usize {
        self.starts.last().copied().unwrap_or(0)
    }

    /// Range of this window's predictions among all of them.
    pub fn predictions_of(&self, window: usize) -> Range<usize> {
        self.starts[window]..self.starts[window + 1]
    }

    /// Holds out `share` of the windows, at least one: a few whole stretches, so that most of what is held out has no
    /// trained text beside it. The same seed holds out the same.
    ///
    /// # Errors
    /// [`Error::Text`] when the share is not between 0 and 1, or leaves nothing to train on.
    pub fn split(&self, share: f64, seed: u64) -> Result<Split> {
        if !(0.0..1.0).contains(&share) {
            return Err(Error::Text(format!("a validation share of {share} isn't at least 0 and below 1")));
        }
        let all = self.windows.len();
        let held = if share == 0.0 { 0 } else { ((all as f64 * share).round() as usize).max(1) };
        if held >= all {
            let what = format!("{all} windows leave nothing to train on beside a validation share of {share}");
            return Err(Error::Text(format!("{what}; give more text or a shorter context")));
        }
        let mut out = vec![false; all];
        let stretches = held.min(STRETCHES);
        let mut rng = random::stream(seed, random::VALIDATION);
        let part = |of: usize, i: usize| of * i / stretches;
        for i in 0..stretches {
            // Each has a share of the other windows around it, and lies somewhere among them.
            let (before, others) = (part(all - held, i), part(all - held, i + 1));
            let start = part(held, i) + before + rng.random_range(0..=others - before);
            out[start..start + part(held, i + 1) - part(held, i)].fill(true);
        }
        let (validation, train) = (0..all).partition(|&w| out[w]);
        Ok(Split { train, validation })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn windows_stay_inside_documents_and_predict_every_token_once() {
        let cut = Windows::new(&[(0..10).collect(), (10..13).collect()], 4, None).expect("long enough");
        assert_eq!(cut.windows, [0..4, 3..7, 6..10, 10..13]);
        assert_eq!(cut.documents, [0..10, 10..13]);
        assert_eq!(cut.predictions(), 9 + 2);
        assert_eq!(cut.predictions_of(3), 9..11);
        assert_eq!(cut.tokens_of(1), [3, 4, 5, 6]);
    }

    #[test]
    fn a_begin_token_makes_the_first_predictable() {
        let cut = Windows::new(&[vec![1, 2, 3], vec![4]], 3, Some(9)).expect("long enough");
        assert_eq!(cut.tokens, [9, 1, 2, 9, 3, 9, 4]);
        assert_eq!(cut.windows, [0..3, 3..5, 5..7]);
        assert_eq!(cut.predictions(), 4);
    }

    #[test]
    fn what_has_nothing_to_predict_is_named() {
        let says = |documents: &[Vec<u32>], context| {
            Windows::new(documents, context, None).expect_err("nothing to predict").to_string()
        };
        assert!(says(&[vec![1, 2], vec![3]], 4).contains("document 2 has 1 tokens"));
        assert!(says(&[vec![1, 2]], 1).contains("context of 1"));
        assert!(says(&[], 4).contains("there is none"));
        let one = Windows::new(&[vec![1, 2]], 4, None).expect("two tokens");
        assert!(one.split(0.1, 0).expect_err("one window").to_string().contains("nothing to train on"));
        assert!(one.split(1.0, 0).is_err() && one.split(f64::NAN, 0).is_err());
    }

    #[test]
    fn documents_are_known_again_with_and_without_begin_tokens() {
        let documents = [(0..10).collect::<Vec<u32>>(), (20..23).collect()];
        for bos in [None, Some(99)] {
            let cut = Windows::new(&documents, 4, bos).expect("long enough");
            let known = cut.trained_on(bos.is_some());
            assert_eq!(known, TrainedOn::new(documents.iter().map(Vec::as_slice)));
        }
    }

    proptest! {
        #[test]
        fn each_token_is_predicted_once(lengths in prop::collection::vec(2usize..40, 1..6), context in 2usize..9) {
            let mut next = 0;
            let documents: Vec<Vec<u32>> =
                lengths.iter().map(|&n| (0..n).map(|_| { next += 1; next }).collect()).collect();
            let cut = Windows::new(&documents, context, None).expect("two tokens each");
            let predicted: Vec<u32> = (0..cut.windows.len()).flat_map(|w| cut.tokens_of(w)[1..].to_vec()).collect();
            let expected: Vec<u32> = documents.iter().flat_map(|d| d[1..].to_vec()).collect();
            prop_assert_eq!(predicted, expected);
            prop_assert!(cut.windows.iter().all(|w| w.len() <= context && cut.documents.iter().any(|d| d.start <= w.start && w.end <= d.end)));
        }

        #[test]
        fn a_split_holds_out_its_share(windows in 2usize..300, share in 0.0f64..0.4, seed in 0u64..20) {
            let cut = Windows::new(&[(0..=windows as u32).collect()], 2, None).expect("long enough");
            let split = cut.split(share, seed).expect("something is left");
            prop_assert_eq!(&split, &cut.split(share, seed).expect("the same"));
            let wanted = if share == 0.0 { 0 } else { ((windows as f64 * share).round() as usize).max(1) };
            prop_assert_eq!(split.validation.len(), wanted);
            let mut all = [split.train, split.validation.clone()].concat();
            all.sort_unstable();
            prop_assert_eq!(all, (0..windows).collect::<Vec<_>>());
            let stretches = split.validation.windows(2).filter(|w| w[1] != w[0] + 1).count();
            prop_assert!(stretches < STRETCHES);
        }
    }
}
