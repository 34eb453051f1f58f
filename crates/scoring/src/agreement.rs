//! Token agreement: how often an artifact, shown what the reference wrote, would have written
//! the same token.
//!
//! The reference continues 16 prompts by [`LENGTH`] tokens each, greedily, through any
//! end-of-sequence token. The artifact sees prompt and continuation in one pass. Trials of one
//! prompt hang together, so the interval goes by prompt: Wilson's with the trials divided by the
//! design effect, and Student's t for the number of prompts.

use crate::model::{LanguageModel, continue_exactly};
use crate::stats::{Interval, clustered};
use crate::{Bos, Encoder, Error, Result};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::ControlFlow;

/// Tokens that the reference writes for each prompt.
pub const LENGTH: usize = 9;

/// The prompts that the reference continues.
pub const PROMPTS: [&str; 16] = [
    "The capital of France is",
    "The capital of Japan is",
    "The largest planet in the solar system is",
    "Water is made of hydrogen and",
    "The chemical symbol for gold is",
    "The author of Romeo and Juliet is",
    "The first president of the United States was",
    "The speed of light is approximately",
    "The Earth orbits around the",
    "The opposite of hot is",
    "Two plus two equals",
    "The currency of the United Kingdom is the",
    "The tallest mountain in the world is",
    "Python is a programming",
    "The human heart pumps",
    "The Pacific Ocean is the largest",
];

/// The reference's continuation of one prompt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Prompt and continuation.
    pub tokens: Vec<u32>,
    /// Index of the continuation's first token.
    pub first: usize,
}

/// Lets the reference continue prompts.
///
/// # Errors
/// When the model or its tokenizer fails.
pub fn write(reference: &dyn LanguageModel, encoder: &Encoder, prompts: &[&str], bos: Bos) -> Result<Vec<Written>> {
    let one = |prompt: &&str| {
        let mut tokens = encoder.prompt(prompt, bos)?;
        let first = tokens.len();
        let mut more = Vec::with_capacity(LENGTH);
        continue_exactly(reference, &tokens, LENGTH, &mut |t| {
            more.push(t);
            ControlFlow::Continue(())
        })?;
        tokens.extend(more);
        Ok(Written { tokens, first })
    };
    prompts.iter().map(one).collect()
}

/// Counts, for each text, the tokens that an artifact would have chosen too, and all tokens of the continuation.
///
/// # Errors
/// When the model fails or computes NaN or Inf.
pub fn agree(artifact: &dyn LanguageModel, written: &[Written]) -> Result<Vec<(u64, u64)>> {
    let one = |w: &Written| {
        let from = w.first.checked_sub(1).ok_or_else(|| Error::Model("the prompt is empty".into()))?;
        let choices = artifact.forward(&w.tokens)?.choices(from..w.tokens.len() - 1)?;
        let same = choices.iter().zip(&w.tokens[w.first..]).filter(|(a, b)| a == b).count();
        Ok((same as u64, choices.len() as u64))
    };
    written.iter().map(one).collect()
}

/// The score over all prompts.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Score {
    /// Tokens that are the same.
    pub agree: u64,
    /// Tokens.
    pub total: u64,
    /// Wilson's interval of the share, with the trials divided by the design effect and Student's t.
    pub ci95: Option<Interval>,
    /// Variance over prompts, as a multiple of that of independent tokens.
    pub design_effect: f64,
}

impl Score {
    /// Counts.
    pub fn new(prompts: &[(u64, u64)]) -> Self {
        let part = |f: fn(&(u64, u64)) -> u64| -> Vec<f64> { prompts.iter().map(|p| f(p) as f64).collect() };
        let out = clustered(&part(|p| p.0), &part(|p| p.1));
        Score {
            agree: prompts.iter().map(|p| p.0).sum(),
            total: prompts.iter().map(|p| p.1).sum(),
            ci95: out.interval,
            design_effect: out.design_effect,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::Bigram;
    use crate::text::testing::encoder;

    #[test]
    fn a_model_agrees_with_itself() {
        let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
        let written = write(&model, &encoder, &PROMPTS, Bos::Auto).expect("runs");
        assert!(written.iter().all(|w| w.tokens.len() == w.first + LENGTH));
        let prompts = agree(&model, &written).expect("runs");
        let score = Score::new(&prompts);
        assert_eq!((score.agree, score.total, score.design_effect), (144, 144, 1.0));
        let other = agree(&Bigram::new(257, -0.3), &written).expect("runs");
        assert!(other.iter().map(|p| p.0).sum::<u64>() < 144);
    }

    #[test]
    fn an_artifact_is_shown_the_same_text() {
        // It differs on one token only: wherever the reference saw that one.
        let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
        let written = write(&model, &encoder, &["ab"], Bos::Auto).expect("runs");
        let mut other = model.clone();
        let seen = written[0].tokens[written[0].first - 1];
        other.table.row_mut(seen as usize).fill(0.0);
        other.table[[seen as usize, 255]] = 9.0;
        let times = written[0].tokens[written[0].first - 1..written[0].tokens.len() - 1].iter();
        let times = times.filter(|&&t| t == seen).count() as u64;
        assert_eq!(agree(&other, &written).expect("runs"), [(9 - times, 9)]);
    }
}
