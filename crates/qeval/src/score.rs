//! One pass over the windows: every model's loss on each token, and its divergence from the
//! reference.

use crate::kernels::{self, Row};
use crate::model::{Forward, LanguageModel, chunk_rows, chunks};
use crate::{Error, Result, Window};
use ndarray::{ArrayView2, Axis, parallel::prelude::*};
use serde::Serialize;
use std::fmt;
use std::ops::Range;
use store::{Progress, Unit};

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
    /// KL(reference || artifact) in nats, over the whole vocabulary.
    pub kl: Vec<f64>,
    /// How often both models have the same largest logit.
    pub same_top: usize,
}

/// Where a model's scores broke off, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub corpus: Option<String>,
    /// The window, counted from 0.
    pub window: usize,
    /// The position in it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<usize>,
    /// What was found.
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
/// When the reference can't be run or computes NaN or Inf.
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
        let pass = reference.forward(&window.tokens)?;
        progress.advance(window.tokens.len() as u64);
        let mut passes = Vec::with_capacity(artifacts.len());
        for (model, scores) in artifacts.iter().zip(&mut out.artifacts) {
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
                return Err(Error::Reference { model: name.into(), problem: failure.at(at, &range).to_string() });
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

/// What went wrong in a chunk.
enum Failure {
    /// NaN or Inf in a row.
    NotFinite(usize),
    /// Anything else.
    Other(String),
}

impl Failure {
    fn at(self, window: usize, range: &Range<usize>) -> Problem {
        let (position, what) = match self {
            Failure::NotFinite(row) => (Some(range.start + row), "NaN or Inf logits".to_string()),
            Failure::Other(what) => (None, what),
        };
        Problem { corpus: None, window, position, what }
    }
}

fn known(logits: &[f32], target: u32) -> Option<Known> {
    let row = kernels::row(logits)?;
    let logit = logits.get(target as usize)?;
    Some(Known { row, nll: row.log_sum_exp() - f64::from(*logit) })
}

/// A row as a slice; arrays of logits are row-major.
fn slice<'a>(row: &'a ndarray::ArrayView1<'_, f32>) -> &'a [f32] {
    row.as_slice().unwrap_or_default()
}

/// All rows, or the first one that has none.
fn first_failure<T>(rows: Vec<Option<T>>) -> Result<Vec<T>, Failure> {
    let mut out = Vec::with_capacity(rows.len());
    for (i, row) in rows.into_iter().enumerate() {
        out.push(row.ok_or(Failure::NotFinite(i))?);
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
        let rows: Vec<Option<(f64, f64, bool)>> = (logits.axis_iter(Axis(0)).into_par_iter())
            .zip(reference.axis_iter(Axis(0)).into_par_iter())
            .zip(known_rows.par_iter().zip(self.targets.par_iter()))
            .map(|((row, reference), (r, &target))| {
                let a = known(slice(&row), target)?;
                let kl = divergence(slice(&reference), &r.row, slice(&row), &a.row)?;
                Some((a.nll, kl, a.row.argmax == r.row.argmax))
            })
            .collect();
        for (nll, kl, same) in first_failure(rows)? {
            out.nll.push(nll);
            out.kl.push(kl);
            out.same_top += usize::from(same);
        }
        Ok(())
    }
}

/// KL over the entries that both vocabularies have: one may be padded. Over all of them when
/// they are equally large.
fn divergence(reference: &[f32], r: &Row, artifact: &[f32], a: &Row) -> Option<f64> {
    let common = reference.len().min(artifact.len());
    if reference.len() == artifact.len() {
        return Some(kernels::divergence(reference, r, artifact, a));
    }
    let (x, y) = (&reference[..common], &artifact[..common]);
    Some(kernels::divergence(x, &kernels::row(x)?, y, &kernels::row(y)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Protocol;
    use crate::model::testing::Bigram;
    use store::Silent;

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
            assert_eq!(a.same_top, a.kl.len());
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
        assert!(e.to_string().contains("window 1 at position 7"), "{e}");
    }

    #[test]
    fn padded_vocabularies_are_compared_over_what_they_share() {
        let small = Bigram::new(19, 0.1);
        let mut table = ndarray::Array2::from_elem((19, 24), -30.0);
        table.slice_mut(ndarray::s![.., ..19]).assign(&small.table);
        let padded = Bigram { table, broken_at: None };
        let scores = score(("r", &small), &[&padded], &windows(40, 19), &Silent).expect("runs");
        let kl = &scores.artifacts[0].as_ref().expect("finite").kl;
        assert!(kl.iter().all(|&kl| kl == 0.0));
    }
}
