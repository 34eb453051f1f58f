//! Tokens per second: reading a prompt, and writing.

use crate::model::LanguageModel;
use crate::stats::{Interval, quantile};
use crate::{Error, Result};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::ControlFlow;
use std::time::Instant;

/// Runs of each kind; the median counts.
pub const RUNS: usize = 3;

/// Tokens written in a run, after the first.
pub const WRITTEN: usize = 24;

/// Tokens of the prompt that writing begins from.
pub const PROMPT: usize = 16;

/// Tokens per second.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Speed {
    /// One pass over a window of tokens, with the logits of the last.
    pub prefill: Rate,
    /// Greedy decoding, one token after the other.
    pub decode: Rate,
}

/// A rate that was measured [`RUNS`] times.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Rate {
    /// The median.
    pub median: f64,
    /// The smallest and the largest.
    pub range: Interval,
}

impl Rate {
    fn from_values(mut values: Vec<f64>) -> Self {
        let mut at = |q| quantile(&mut values, q).unwrap_or(f64::NAN);
        Rate { median: at(0.5), range: Interval(at(0.0), at(1.0)) }
    }
}

/// Measures a model on `tokens` (one window of text).
///
/// # Errors
/// When the model fails.
pub fn measure(model: &dyn LanguageModel, tokens: &[u32]) -> Result<Speed> {
    let last = tokens.len().checked_sub(1).ok_or_else(|| Error::Model("there are no tokens to run".into()))?;
    let (mut prefill, mut decode) = (Vec::new(), Vec::new());
    for _ in 0..RUNS {
        let start = Instant::now();
        model.forward(tokens)?.logits(last..last + 1, &mut |_| ())?;
        prefill.push(tokens.len() as f64 / start.elapsed().as_secs_f64());
        decode.push(decoding(model, &tokens[..tokens.len().min(PROMPT)])?);
    }
    Ok(Speed { prefill: Rate::from_values(prefill), decode: Rate::from_values(decode) })
}

/// Tokens per second after the first token, which waits for the prompt.
fn decoding(model: &dyn LanguageModel, prompt: &[u32]) -> Result<f64> {
    let (mut begin, mut written, mut end) = (None, 0, None);
    model.greedy(prompt, WRITTEN + 1, &mut |_| {
        let now = Instant::now();
        if begin.is_none() {
            begin = Some(now);
        } else {
            written += 1;
        }
        end = Some(now);
        ControlFlow::Continue(())
    })?;
    match (begin, end) {
        (Some(begin), Some(end)) if written > 0 => Ok(f64::from(written) / (end - begin).as_secs_f64()),
        _ => Err(Error::Model("no token was written".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::Bigram;

    #[test]
    fn speeds_are_positive() {
        let speed = measure(&Bigram::new(50, 0.1), &[1, 2, 3]).expect("runs");
        for rate in [speed.prefill, speed.decode] {
            assert!(rate.range.0 > 0.0 && rate.range.holds(rate.median), "{rate:?}");
        }
        assert_eq!(Rate::from_values(vec![3.0, 1.0, 2.5]), Rate { median: 2.5, range: Interval(1.0, 3.0) });
        assert!(measure(&Bigram::new(50, 0.1), &[]).is_err());
    }
}
