//! What stands below the table.

use crate::rows::{Comparison, Row};
use crate::{speed, verdict};
use report::format;

/// Above this relative error of a matrix, it is named.
const LARGE_ERROR: f64 = 0.5;

/// What a reader must know of these numbers: how the texts were cut, and what is amiss with rows.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let corpora = comparison.corpora.iter().map(|corpus| {
        format!("{}: {} ({} bytes).", corpus.name, corpus.rule, format::count(corpus.bytes_scored as u64))
    });
    let rows = comparison.rows.iter().flat_map(|row| [of_row(row), elsewhere(row, comparison)].concat());
    corpora.chain(rows).chain(comparison.notes.iter().cloned()).collect()
}

/// Where the verdict, which goes by the first text, would be another on a later one.
fn elsewhere(row: &Row, comparison: &Comparison) -> Vec<String> {
    let later = comparison.corpora.iter().zip(&row.corpora).skip(1);
    later
        .filter_map(|(corpus, scores)| {
            let (verdict, _) = scores.evidence().filter(|_| !row.is_reference)?.verdict();
            (verdict != row.verdict).then(|| format!("{}: {verdict} on {}.", row.label, corpus.name))
        })
        .collect()
}

/// What is to be said of one row.
fn of_row(row: &Row) -> Vec<String> {
    let mut out = Vec::new();
    if let Some(error) = &row.error {
        out.push(format!("{}: {error}.", row.label));
    }
    if let Some(reason) = &row.not_comparable {
        out.push(format!("{}: no perplexity and no KL, only bits per byte: {reason}.", row.label));
    }
    if let Some(reason) = &row.weights_not_comparable {
        out.push(format!("{}: no weight error: {reason}.", row.label));
    }
    if let Some(e) = row.weight_error.as_ref().filter(|e| e.worst > LARGE_ERROR) {
        out.push(format!("{}: relative error {} in {}.", row.label, format::fixed(e.worst, 3), e.worst_module));
    }
    out
}

/// The rules in short.
pub fn short(comparison: &Comparison) -> Vec<String> {
    let mut how = format!("95% intervals: paired block bootstrap, seed {}.", comparison.seed);
    if comparison.battery.is_some() {
        how.push_str(" p: McNemar's exact test against the reference.");
    }
    if comparison.speed {
        how.push_str(&format!(" Speed: median of {} runs, ± the farthest of them.", speed::RUNS));
    }
    vec![format!("{how} {} All rules: --verbose, or the README of qeval.", verdict::LEGEND)]
}
