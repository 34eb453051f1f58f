//! One model's state during a comparison, and the row that comes of it.

use super::label::labels;
use super::{Entrant, Subject};
use crate::rows::{Row, TextScores};
use crate::score::Padding;
use crate::text::{Cut, difference};
use crate::verdict::{Margin, Verdict};
use crate::{Corpus, Result};
use std::iter::once;
use store::TrainedOn;

/// One model's state during a comparison.
pub(super) struct Contestant<'a> {
    pub(super) subject: &'a Subject<'a>,
    pub(super) row: Row,
    /// Remarks on the model for the notes below the table.
    remarks: Vec<String>,
}

impl<'a> Contestant<'a> {
    pub(super) fn new(subject: &'a Subject<'a>, reference: Option<&Subject<'_>>) -> Self {
        let differs = |r: &Subject<'_>| {
            if std::ptr::eq(r.encoder, subject.encoder) { None } else { difference(r.encoder, subject.encoder) }
        };
        let weights = subject.weight_error.as_ref();
        let row = Row {
            scheme: Some(subject.size.scheme.clone()),
            artifact: subject.artifact.clone(),
            is_reference: reference.is_none(),
            verdict: if reference.is_none() { Verdict::Reference } else { Verdict::Unscored },
            bpw: Some(subject.size.bpw),
            file_bpw: Some(subject.size.file_bpw),
            size_bytes: Some(subject.size.bytes),
            parameters: Some(subject.size.parameters),
            resident_bytes: Some(subject.resident_bytes),
            weight_error: weights.and_then(|w| w.as_ref().ok().cloned()),
            weights_not_comparable: weights.and_then(|w| w.as_ref().err().cloned()),
            not_comparable: reference.and_then(differs),
            ..Row::default()
        };
        Contestant { subject, row, remarks: subject.warnings.clone() }
    }

    /// Returns whether the model is scored token by token beside the reference.
    pub(super) fn is_paired(&self) -> bool {
        self.row.error.is_none() && self.row.not_comparable.is_none()
    }

    /// Runs a step, unless an earlier one has failed. What fails marks the row.
    pub(super) fn step<T>(&mut self, run: impl FnOnce(&Subject<'a>) -> Result<T>) -> Option<T> {
        if self.row.error.is_some() {
            return None;
        }
        run(self.subject).map_err(|e| self.row.error = Some(e.to_string())).ok()
    }

    /// Notes that windows are longer than what the model was trained for.
    pub(super) fn check_context(&mut self, longest: usize) {
        self.remarks.extend(beyond_training(self.subject, longest));
    }

    /// Notes texts that the model was trained on.
    pub(super) fn check_training(&mut self, corpora: &[Corpus]) -> Result<()> {
        if self.subject.trained_on == TrainedOn::default() {
            return Ok(());
        }
        for corpus in corpora {
            if self.subject.trained_on.holds(&self.subject.encoder.encode(&corpus.text)?.ids) {
                self.remarks.push(format!(
                    "contamination: this model, or the one that it was made from, was trained on {}; its scores there don't \
                     tell how it does on other texts",
                    corpus.name
                ));
                self.row.trained_on.push(corpus.name.clone());
            }
        }
        Ok(())
    }

    /// Notes that a part of a vocabulary was left out, in the mean over `tokens`.
    pub(super) fn note_padding(&mut self, padding: &Padding, tokens: usize) {
        let share = 100.0 * padding.outside / tokens as f64;
        let (own, theirs) = (padding.artifact, padding.reference);
        let whose = if own > theirs { "this model" } else { "the reference" };
        let remark = format!(
            "the vocabulary has {own} entries, the reference's {theirs}: perplexity, change, KL and same top 1 are over \
             the {} that both have; {whose} gives {share:.2}% of its probability to the others",
            own.min(theirs)
        );
        // Of several texts, the first is enough.
        if !self.remarks.iter().any(|r| r.starts_with("the vocabulary has ")) {
            self.remarks.push(remark);
        }
    }
}

/// A note where windows of `longest` positions go beyond what the model was trained for.
pub(super) fn beyond_training(subject: &Subject<'_>, longest: usize) -> Option<String> {
    let most = subject.max_position;
    (most > 0 && longest > most).then(|| {
        format!(
            "windows have {longest} positions, but the model was trained for {most} (max_position_embeddings): what \
             comes later is scored outside its range"
        )
    })
}

/// All rows in the order of the artifacts, each with its remarks.
pub(super) fn finish(
    first: Contestant<'_>,
    others: Vec<Contestant<'_>>,
    artifacts: &[Entrant<'_>],
    cuts: &[Cut],
    margin: Margin,
) -> (Vec<Row>, Vec<Vec<String>>) {
    let tokens = cuts.first().map_or(0, |cut| cut.windows.scored());
    let mut ready = others.into_iter().map(|c| (judged(c.row, tokens, margin), c.remarks));
    let rest = artifacts.iter().filter_map(|artifact| match artifact {
        Entrant::Ready(_) => ready.next(),
        Entrant::Failed { artifact, error } => Some((failed(artifact, error, cuts.len()), Vec::new())),
    });
    let (mut rows, remarks): (Vec<Row>, Vec<_>) =
        once((judged(first.row, tokens, margin), first.remarks)).chain(rest).unzip();
    let labels = labels(&rows);
    for (row, label) in rows.iter_mut().zip(labels) {
        row.label = label;
    }
    (rows, remarks)
}

/// The row of a model that couldn't be opened.
fn failed(artifact: &str, error: &str, texts: usize) -> Row {
    Row {
        artifact: artifact.into(),
        error: Some(error.into()),
        verdict: Verdict::Failed,
        corpora: vec![TextScores::default(); texts],
        ..Row::default()
    }
}

/// The row with the scores of the first text, of which `tokens` were scored, and the verdict.
fn judged(mut row: Row, tokens: usize, margin: Margin) -> Row {
    row.scores = row.corpora.first().cloned().unwrap_or_default();
    if row.is_reference {
        return row;
    }
    match row.scores.evidence(tokens) {
        Some(evidence) => {
            (row.verdict, row.verdict_because) = evidence.verdict(margin);
            row.tokens_to_settle = evidence.tokens_to_settle(margin);
        }
        None if row.error.is_some() => row.verdict = Verdict::Failed,
        None => {}
    }
    row
}
