//! One pass over the windows: every model's loss on each token, and its divergence from the
//! reference.

use crate::model::{Forward, LanguageModel, chunk_rows, chunks};
use crate::{Error, Result, Window};
use ndarray::{ArrayView2, Axis, parallel::prelude::*};
use progress::{Progress, Unit};
use rowmath::logits::{self, Row};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt;
use std::ops::Range;

/// Scores of one model on the scored tokens, in order.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Losses {
    /// Negative log-likelihood in nats.
    pub nll: Vec<f64>,
}

/// Scores of an artifact against the reference, token by token.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Divergences {
    /// Negative log-likelihood in nats.
    pub nll: Vec<f64>,
    /// The reference's, over the same entries of the vocabulary.
    pub reference: Vec<f64>,
    /// KL(reference || artifact) in nats, over the entries that both models have.
    pub kl: Vec<f64>,
    /// 1 where both models have the same largest logit, else 0.
    pub same_top: Vec<f64>,
    /// Set where the models' vocabularies are of different sizes.
    pub padding: Option<Padding>,
}

/// Entries of a vocabulary that only one of two models with the same tokenizer has. They are left
/// out of all comparisons, so that both models are scored over the same choice of tokens.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Padding {
    /// Entries of the reference.
    pub reference: usize,
    /// Entries of the artifact.
    pub artifact: usize,
    /// Probability that the model which has them gives to the entries left out, summed over tokens.
    pub outside: f64,
}

/// Position and kind of a value that broke off a model's scores.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Problem {
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corpus: Option<String>,
    /// The window, counted from 0.
    pub window: usize,
    /// The position in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// Description of the value.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in window {}", self.what, self.window)?;
        if let Some(position) = self.position {
            write!(f, " at position {position}")?;
        }
        self.corpus.as_ref().map_or(Ok(()), |c| write!(f, " of {c}"))
    }
}

/// Scores of a pass.
#[derive(Debug)]
pub struct Scores {
    /// The reference's.
    pub reference: Losses,
    /// The artifacts', in order; where one failed, why.
    pub artifacts: Vec<Result<Divergences, Problem>>,
}

/// Runs the reference and all artifacts over the windows: the reference once, whatever the
/// number of artifacts. Logits of a few positions are held at a time.
///
/// An artifact that computes NaN or Inf, or that can't be run, is left out from there on; the
/// others stand.
///
/// # Errors
/// When the reference can't be run; [`Error::Scores`] when it computes NaN or Inf.
pub fn score(
    reference: (&str, &dyn LanguageModel),
    artifacts: &[&dyn LanguageModel],
    windows: &[Window],
    progress: &dyn Progress,
) -> Result<Scores> {
    let (name, reference) = reference;
    let mut out = Scores { reference: Losses::default(), artifacts: vec![Ok(Divergences::default()); artifacts.len()] };
    let rows = chunk_rows(reference.vocab_size());
    let amount = windows.iter().map(|w| w.tokens.len() as u64).sum::<u64>() * (1 + artifacts.len() as u64);
    progress.start("scoring", Some(amount), Unit::Tokens);
    for (at, window) in windows.iter().enumerate() {
        progress.message(reference.name());
        let pass = reference.forward(&window.tokens)?;
        progress.advance(window.tokens.len() as u64);
        let mut passes = Vec::with_capacity(artifacts.len());
        for (model, scores) in artifacts.iter().zip(&mut out.artifacts) {
            progress.message(model.name());
            passes.push(start(*model, scores, window, at));
            progress.advance(window.tokens.len() as u64);
        }
        for range in chunks(window.predicting(), rows) {
            let chunk = Chunk { range: range.clone(), targets: &window.tokens[range.start + 1..range.end + 1] };
            let mut failure = None;
            pass.logits(range.clone(), &mut |logits| match chunk.known(logits) {
                Ok(known) => {
                    out.reference.nll.extend(known.iter().map(|k| k.nll));
                    chunk.artifacts(logits, &known, at, &mut passes, &mut out.artifacts);
                }
                Err(f) => failure = Some(f),
            })?;
            if let Some(failure) = failure {
                return Err(Error::Scores { model: name.into(), problem: failure.at(at, &range) });
            }
        }
    }
    progress.finish();
    Ok(out)
}

/// Losses of one model alone.
///
/// # Errors
/// When the model can't be run or computes NaN or Inf.
pub fn losses(model: (&str, &dyn LanguageModel), windows: &[Window], progress: &dyn Progress) -> Result<Losses> {
    Ok(score(model, &[], windows, progress)?.reference)
}

/// Runs an artifact over a window, unless it has failed before.
fn start<'a>(
    model: &'a dyn LanguageModel,
    scores: &mut Result<Divergences, Problem>,
    window: &Window,
    at: usize,
) -> Option<Box<dyn Forward + 'a>> {
    scores.as_ref().ok()?;
    match model.forward(&window.tokens) {
        Ok(pass) => Some(pass),
        Err(e) => {
            *scores = Err(Problem { corpus: None, window: at, position: None, what: format!("the model fails: {e}") });
            None
        }
    }
}

/// A row of logits with the loss of its target.
#[derive(Debug, Clone, Copy)]
struct Known {
    row: Row,
    nll: f64,
}

/// Faults of a row of logits that gives no score.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    NotFinite,
    /// The vocabulary lacks the token that came.
    NoEntry(u32),
}

/// Error within a chunk of positions.
enum Failure {
    /// In this row.
    Row(usize, Fault),
    /// Anything else.
    Other(String),
}

impl Failure {
    fn at(self, window: usize, range: &Range<usize>) -> Problem {
        let (position, what) = match self {
            Failure::Row(row, Fault::NotFinite) => (Some(range.start + row), "NaN or Inf logits".to_string()),
            Failure::Row(row, Fault::NoEntry(token)) => {
                (Some(range.start + row), format!("no logit for token {token}, which comes next,"))
            }
            Failure::Other(what) => (None, what),
        };
        Problem { corpus: None, window, position, what }
    }
}

fn known(logits: &[f32], target: u32) -> Result<Known, Fault> {
    let row = logits::row(logits).ok_or(Fault::NotFinite)?;
    let logit = logits.get(target as usize).ok_or(Fault::NoEntry(target))?;
    Ok(Known { row, nll: row.log_sum_exp() - f64::from(*logit) })
}

/// A row as a slice; arrays of logits are row-major.
fn slice<'a>(row: &'a ndarray::ArrayView1<'_, f32>) -> &'a [f32] {
    row.as_slice().unwrap_or_default()
}

/// All rows, or the first one that has none.
fn first_failure<T>(rows: Vec<Result<T, Fault>>) -> Result<Vec<T>, Failure> {
    let mut out = Vec::with_capacity(rows.len());
    for (i, row) in rows.into_iter().enumerate() {
        out.push(row.map_err(|fault| Failure::Row(i, fault))?);
    }
    Ok(out)
}

/// Positions that are scored together.
struct Chunk<'a> {
    range: Range<usize>,
    targets: &'a [u32],
}

impl Chunk<'_> {
    fn known(&self, logits: ArrayView2<'_, f32>) -> Result<Vec<Known>, Failure> {
        let rows = (logits.axis_iter(Axis(0)).into_par_iter())
            .zip(self.targets.par_iter())
            .map(|(row, &target)| known(slice(&row), target))
            .collect();
        first_failure(rows)
    }

    /// Scores all artifacts that still run.
    fn artifacts(
        &self,
        reference: ArrayView2<'_, f32>,
        known: &[Known],
        window: usize,
        passes: &mut [Option<Box<dyn Forward + '_>>],
        out: &mut [Result<Divergences, Problem>],
    ) {
        for (pass, scores) in passes.iter_mut().zip(out) {
            let (Some(run), Ok(scored)) = (pass.as_ref(), &mut *scores) else { continue };
            let mut found = Ok(());
            let ran =
                run.logits(self.range.clone(), &mut |logits| found = self.compare(reference, known, logits, scored));
            let failed = ran.map_err(|e| Failure::Other(format!("the model fails: {e}"))).and(found);
            if let Err(failure) = failed {
                *scores = Err(failure.at(window, &self.range));
                *pass = None;
            }
        }
    }

    /// Scores one artifact.
    fn compare(
        &self,
        reference: ArrayView2<'_, f32>,
        known_rows: &[Known],
        logits: ArrayView2<'_, f32>,
        out: &mut Divergences,
    ) -> Result<(), Failure> {
        if logits.nrows() != reference.nrows() {
            let what = format!("{} rows of logits for {} positions", logits.nrows(), self.range.len());
            return Err(Failure::Other(what));
        }
        let rows: Vec<Result<Pair, Fault>> = (logits.axis_iter(Axis(0)).into_par_iter())
            .zip(reference.axis_iter(Axis(0)).into_par_iter())
            .zip(known_rows.par_iter().zip(self.targets.par_iter()))
            .map(|((row, reference), (known, &target))| pair(slice(&reference), known, slice(&row), target))
            .collect();
        let (entries, own) = (reference.ncols(), logits.ncols());
        if entries != own && out.padding.is_none() {
            out.padding = Some(Padding { reference: entries, artifact: own, outside: 0.0 });
        }
        for pair in first_failure(rows)? {
            out.nll.push(pair.nll);
            out.reference.push(pair.reference);
            out.kl.push(pair.kl);
            out.same_top.push(if pair.same_top { 1.0 } else { 0.0 });
            if let Some(padding) = &mut out.padding {
                padding.outside += pair.outside;
            }
        }
        Ok(())
    }
}

/// Both models' scores at one position.
struct Pair {
    nll: f64,
    reference: f64,
    kl: f64,
    same_top: bool,
    outside: f64,
}

/// Scores both models over the entries that both have. That is all of them, unless one model's
/// vocabulary is padded: then the larger row is cut, and its probabilities are those given that no
/// entry beyond is chosen.
fn pair(reference: &[f32], r: &Known, artifact: &[f32], target: u32) -> Result<Pair, Fault> {
    let common = reference.len().min(artifact.len());
    let a = known(artifact, target)?;
    let (x, y) = (&reference[..common], &artifact[..common]);
    let cut =
        |whole: &Known, part: &[f32]| if reference.len() == artifact.len() { Ok(*whole) } else { known(part, target) };
    let (part_r, part_a) = (cut(r, x)?, cut(&a, y)?);
    let outside = |whole: &Known, part: &Known| -(part.row.log_sum_exp() - whole.row.log_sum_exp()).exp_m1();
    Ok(Pair {
        nll: part_a.nll,
        reference: part_r.nll,
        kl: logits::divergence(x, &part_r.row, y, &part_a.row),
        same_top: part_a.row.argmax == part_r.row.argmax,
        outside: outside(r, &part_r).max(outside(&a, &part_a)).max(0.0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use crate::model::testing::Bigram;
    use progress::Silent;

    fn windows(n: u32, vocab: u32) -> Vec<Window> {
        let text: Vec<u32> = (0..n).map(|i| (i * i + 3 * i) % vocab).collect();
        Protocol { ctx: 16, ..Protocol::default() }.cut(&text, None).expect("long enough").windows
    }

    #[test]
    fn a_model_against_itself_diverges_nowhere() {
        let model = Bigram::new(37, 0.5);
        let scores = score(("m", &model), &[&model, &model], &windows(100, 37), &Silent).expect("runs");
        for artifact in &scores.artifacts {
            let a = artifact.as_ref().expect("finite");
            assert_eq!(a.nll, scores.reference.nll);
            assert!(a.same_top.iter().all(|&same| same == 1.0));
            assert_eq!((a.same_top.len(), a.padding), (a.kl.len(), None));
            assert!(a.kl.iter().all(|&kl| kl == 0.0));
        }
    }

    #[test]
    fn losses_and_divergences_of_a_bigram_model() {
        let (p, q) = (Bigram::new(23, 0.0), Bigram::new(23, 0.2));
        let windows = windows(60, 23);
        let scores = score(("p", &p), &[&q], &windows, &Silent).expect("runs");
        let log_softmax = |m: &Bigram, t: usize| -> Vec<f64> {
            let row: Vec<f64> = m.table.row(t).iter().map(|&x| f64::from(x)).collect();
            let lse = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            row.iter().map(|x| x - lse).collect()
        };
        let (mut nll, mut kl) = (Vec::new(), Vec::new());
        for w in &windows {
            for at in w.predicting() {
                let (lp, lq) = (log_softmax(&p, w.tokens[at] as usize), log_softmax(&q, w.tokens[at] as usize));
                nll.push(-lp[w.tokens[at + 1] as usize]);
                kl.push(lp.iter().zip(&lq).map(|(a, b)| a.exp() * (a - b)).sum::<f64>());
            }
        }
        let artifact = scores.artifacts[0].as_ref().expect("finite");
        let far = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| (x - y).abs()).fold(0.0, f64::max);
        assert_eq!(scores.reference.nll.len(), nll.len());
        assert!(far(&scores.reference.nll, &nll) < 1e-6);
        assert!(far(&artifact.kl, &kl) < 1e-6);
        assert_eq!(losses(("q", &q), &windows, &Silent).expect("runs").nll, artifact.nll);
    }

    #[test]
    fn a_broken_window_is_named_and_the_others_stand() {
        let reference = Bigram::new(19, 0.0);
        let broken = Bigram { broken_at: Some(7), ..Bigram::new(19, 0.1) };
        let mut windows = windows(64, 19);
        // The first window ends before the place that is broken.
        windows[0].tokens.truncate(5);
        windows[0].scored.end = 5;
        let scores = score(("r", &reference), &[&broken, &reference], &windows, &Silent).expect("runs");
        let problem = scores.artifacts[0].as_ref().expect_err("NaN");
        assert_eq!(problem.to_string(), "NaN or Inf logits in window 1 at position 7");
        assert_eq!(scores.artifacts[1].as_ref().expect("stands").nll, scores.reference.nll);
        let e = score(("r", &broken), &[&reference], &windows, &Silent).expect_err("nothing to compare with");
        assert_eq!(e.to_string(), "r: NaN or Inf logits in window 1 at position 7; there is no score");
    }

    #[test]
    fn padded_vocabularies_are_compared_over_what_they_share() {
        let small = Bigram::new(19, 0.1);
        // Entries of padding with logits of 0, as embeddings of zeros give them.
        let mut table = ndarray::Array2::zeros((19, 24));
        table.slice_mut(ndarray::s![.., ..19]).assign(&small.table);
        let padded = Bigram { table, broken_at: None };
        for (reference, artifact) in [(&small, &padded), (&padded, &small)] {
            let scores = score(("r", reference), &[artifact], &windows(40, 19), &Silent).expect("runs");
            let a = scores.artifacts[0].as_ref().expect("finite");
            assert!(a.kl.iter().chain(&a.same_top).all(|&v| v == 0.0 || v == 1.0));
            assert!(a.kl.iter().all(|&kl| kl == 0.0));
            assert_eq!(a.nll, a.reference, "the same denominator for both");
            let padding = a.padding.expect("the sizes differ");
            assert_eq!((padding.reference, padding.artifact), (reference.vocab_size(), artifact.vocab_size()));
            let mean = padding.outside / a.nll.len() as f64;
            assert!(mean > 0.01 && mean < 0.2, "{mean}");
        }
    }

    #[test]
    fn a_token_beyond_the_vocabulary_is_said_to_be_one() {
        let (large, small) = (Bigram::new(30, 0.1), Bigram::new(19, 0.1));
        let mut windows = windows(16, 19);
        let last = windows[0].tokens.len() - 1;
        windows[0].tokens[last] = 25;
        let scores = score(("r", &large), &[&small], &windows, &Silent).expect("runs");
        let problem = scores.artifacts[0].as_ref().expect_err("no such entry").to_string();
        assert_eq!(problem, "no logit for token 25, which comes next, in window 0 at position 14");
    }
}
