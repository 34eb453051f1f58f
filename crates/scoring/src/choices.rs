//! Multiple choice by log-likelihood, as lm-evaluation-harness scores it.
//!
//! Each choice is appended to its context; its score is the sum of the log-probabilities of its
//! tokens (`acc`), or that sum divided by the choice's length in characters (`acc_norm`; the space
//! that it begins with is the harness's delimiter and doesn't count). The boundary is the harness's:
//! spaces at the end of the context belong to the choice, the whole text is tokenized at once, and
//! the tokens beyond those of the context alone are the choice's.

use crate::battery::parse_lines;
use crate::model::{LanguageModel, chunk_rows, chunks};
use crate::stats::{Interval, mcnemar, wilson};
use crate::{Bos, Encoder, Error, Result};
use ndarray::Axis;
use progress::{Progress, Unit};
use rowmath::logits;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// A question with choices.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Item {
    /// Name of the item.
    pub id: String,
    /// Text before each choice.
    pub context: String,
    /// The choices, each with the space that it begins with.
    pub choices: Vec<String>,
    /// Index of the right choice, counted from 0.
    pub gold: usize,
}

/// Result of one item: right or not, by total and by length-normalized log-likelihood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Right {
    /// By the sum of log-probabilities.
    pub sum: bool,
    /// By that sum over the choice's characters.
    pub normalized: bool,
}

/// Reads JSON lines of items.
///
/// # Errors
/// Names the file and the line.
pub fn parse(path: &Path, text: &str) -> Result<Vec<Item>> {
    parse_lines(path, text, |item: &Item| {
        if item.choices.len() < 2 || item.choices.iter().any(|c| c.trim().is_empty()) {
            return Some("an item needs at least two choices that are not empty".into());
        }
        (item.gold >= item.choices.len())
            .then(|| format!("gold is {}, but there are {} choices, counted from 0", item.gold, item.choices.len()))
    })
}

/// Scores every item.
///
/// # Errors
/// When the model or its tokenizer fails, or logits are not finite.
pub fn answer(
    model: &dyn LanguageModel,
    encoder: &Encoder,
    items: &[Item],
    bos: Bos,
    progress: &dyn Progress,
) -> Result<Vec<Right>> {
    progress.start("choices", Some(items.len() as u64), Unit::Items);
    progress.message(model.name());
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        let (mut sums, mut normalized) = (Vec::new(), Vec::new());
        for choice in &item.choices {
            let sum = log_likelihood(model, encoder, &item.context, choice, bos)
                .map_err(|e| Error::Model(format!("item {}: {e}", item.id)))?;
            sums.push(sum);
            normalized.push(sum / characters(choice) as f64);
        }
        out.push(Right { sum: best(&sums) == item.gold, normalized: best(&normalized) == item.gold });
        progress.advance(1);
    }
    progress.finish();
    Ok(out)
}

/// Length of a choice as the harness counts it: characters, without the delimiter in front.
fn characters(choice: &str) -> usize {
    choice.trim_start().chars().count()
}

/// The first of the largest, as numpy's argmax.
fn best(values: &[f64]) -> usize {
    let mut best = 0;
    for (i, v) in values.iter().enumerate() {
        if *v > values[best] {
            best = i;
        }
    }
    best
}

/// Sum of the log-probabilities of a choice's tokens after its context.
///
/// # Errors
/// As [`answer`].
pub fn log_likelihood(
    model: &dyn LanguageModel,
    encoder: &Encoder,
    context: &str,
    choice: &str,
    bos: Bos,
) -> Result<f64> {
    let (tokens, first) = boundary(encoder, context, choice, bos)?;
    let run = model.forward(&tokens)?;
    let mut sum = Some(0.0);
    for range in chunks(first - 1..tokens.len() - 1, chunk_rows(model.vocab_size())) {
        run.logits(range.clone(), &mut |logits| {
            for (row, at) in logits.axis_iter(Axis(0)).zip(range.clone()) {
                let row = row.as_slice().unwrap_or_default();
                let one = logits::row(row)
                    .and_then(|r| Some(f64::from(*row.get(tokens[at + 1] as usize)?) - r.log_sum_exp()));
                sum = sum.and_then(|s| Some(s + one?));
            }
        })?;
    }
    sum.ok_or_else(|| Error::Model("logits are NaN or infinite".into()))
}

/// The tokens of context and choice, and where the choice's begin.
fn boundary(encoder: &Encoder, context: &str, choice: &str, bos: Bos) -> Result<(Vec<u32>, usize)> {
    let kept = context.trim_end();
    let moved = format!("{}{choice}", &context[kept.len()..]);
    let whole = encoder.prompt(&format!("{kept}{moved}"), bos)?;
    let first = encoder.prompt(kept, bos)?.len();
    // An empty context leaves nothing to predict the first token from.
    if first == 0 || first >= whole.len() {
        return Err(Error::Model("the context or the choice has no tokens of its own".into()));
    }
    Ok((whole, first))
}

/// The score over all items.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Score {
    /// Share right by the sum of log-probabilities.
    pub acc: f64,
    /// Wilson's interval of `acc`.
    pub acc_ci95: Option<Interval>,
    /// Share right by that sum over characters.
    pub acc_norm: f64,
    /// Wilson's interval of `acc_norm`.
    pub acc_norm_ci95: Option<Interval>,
    /// Items.
    pub total: usize,
    /// Exact McNemar test of `acc` against the reference; none for the reference.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mcnemar_p: Option<f64>,
}

impl Score {
    /// Counts; `reference` holds the reference's outcomes on the same items.
    pub fn new(right: &[Right], reference: Option<&[Right]>) -> Self {
        let total = right.len();
        let share = |count: usize| (count as f64 / total as f64, wilson(count as f64, total as f64));
        let (acc, acc_ci95) = share(right.iter().filter(|r| r.sum).count());
        let (acc_norm, acc_norm_ci95) = share(right.iter().filter(|r| r.normalized).count());
        let mcnemar_p = reference.map(|reference| {
            let only = |a: bool| right.iter().zip(reference).filter(|(x, r)| x.sum == a && r.sum != a).count() as u64;
            mcnemar(only(true), only(false))
        });
        Score { acc, acc_ci95, acc_norm, acc_norm_ci95, total, mcnemar_p }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::testing::Bigram;
    use crate::text::testing::{encoder, tokenizer};

    #[test]
    fn spaces_at_the_end_of_the_context_go_to_the_choice() {
        let encoder = encoder(false);
        let (tokens, first) = boundary(&encoder, "ab ", "cd", Bos::Auto).expect("tokens");
        assert_eq!((tokens.len(), first), (5, 2));
        let (tokens, first) = boundary(&encoder, "ab", " cd", Bos::Auto).expect("tokens");
        assert_eq!((tokens.len(), first), (5, 2));
        // A merge over the boundary belongs to the context, as in the harness.
        let merging = Encoder::new("m", tokenizer(&[("b", "c")], false), None).expect("encodes");
        let (tokens, first) = boundary(&merging, "ab", "cd", Bos::Auto).expect("tokens");
        assert_eq!((tokens.len(), first), (3, 2));
        assert!(boundary(&encoder, " ", "cd", Bos::Auto).is_err());
    }

    #[test]
    fn the_log_likelihood_of_a_bigram_model() {
        let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
        let sum = log_likelihood(&model, &encoder, "ab", " c", Bos::Auto).expect("runs");
        let ids = encoder.encode("ab c").expect("encodes").ids;
        let log_p = |from: u32, to: u32| {
            let row = model.table.row(from as usize);
            let lse = row.iter().map(|&x| f64::from(x).exp()).sum::<f64>().ln();
            f64::from(row[to as usize]) - lse
        };
        assert!((sum - log_p(ids[1], ids[2]) - log_p(ids[2], ids[3])).abs() < 1e-6);
    }

    #[test]
    fn both_accuracies() {
        let right = |sum, normalized| Right { sum, normalized };
        let score =
            Score::new(&[right(true, false), right(true, true)], Some(&[right(false, true), right(true, true)]));
        assert_eq!((score.acc, score.acc_norm, score.total), (1.0, 0.5, 2));
        assert!(score.mcnemar_p.is_some_and(|p| (p - 1.0).abs() < 1e-12));
        assert_eq!(best(&[-3.0, -1.0, -1.0]), 1);
    }

    #[test]
    fn faults_are_named() {
        let line = |gold: usize| format!(r#"{{"id": "a", "context": "c", "choices": [" x", " y"], "gold": {gold}}}"#);
        assert!(parse(Path::new("c"), &line(1)).is_ok());
        let e = parse(Path::new("c.jsonl"), &line(2)).expect_err("no such choice").to_string();
        assert_eq!(e, "c.jsonl:1: gold is 2, but there are 2 choices, counted from 0");
    }

    #[test]
    fn lengths_are_those_of_the_harness() {
        assert_eq!([" Rome", "Rome", " S\u{e3}o Paulo", "\n x"].map(characters), [4, 4, 9, 1]);
    }

    #[test]
    fn items_are_answered() {
        let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
        let item = |gold| Item { id: "i".into(), context: "q".into(), choices: vec![" a".into(), " b".into()], gold };
        let out = answer(&model, &encoder, &[item(0), item(1)], Bos::Auto, &progress::Silent).expect("runs");
        assert_ne!(out[0].sum, out[1].sum, "one of them is right");
    }
}
