//! Notes below the table.

use report::format;
use scoring::rows::{Comparison, Row, smallest_within};
use scoring::verdict::{Because, FEWEST_TOKENS, Verdict};
use scoring::{speed, verdict};

/// Above this relative error of a matrix, it is named.
const LARGE_ERROR: f64 = 0.5;

/// Notes on the numbers: the choice of an artifact, the cut of the texts, and problems of rows.
pub fn notes(comparison: &Comparison) -> Vec<String> {
    let headline = std::iter::once(format!("{}.", smallest(comparison))).chain(smallest_within_limits(comparison));
    let corpora = comparison.corpora.iter().map(|corpus| {
        format!("{}: {} ({} bytes).", corpus.name, corpus.rule, format::count(corpus.bytes_scored as u64))
    });
    let rows = comparison
        .rows
        .iter()
        .flat_map(|row| [of_row(row), unsettled(row, comparison), elsewhere(row, comparison)].concat());
    headline.chain(corpora).chain(rows).chain(comparison.notes.iter().cloned()).collect()
}

/// Notes on later texts on which the verdict, which goes by the first text, would be another.
fn elsewhere(row: &Row, comparison: &Comparison) -> Vec<String> {
    let later = comparison.corpora.iter().zip(&row.corpora).skip(1);
    later
        .filter_map(|(corpus, scores)| {
            let evidence = scores.evidence(corpus.tokens_scored).filter(|_| !row.is_reference)?;
            let (verdict, _) = evidence.verdict(comparison.margin);
            (verdict != row.verdict).then(|| format!("{}: {verdict} on {}.", row.label, corpus.name))
        })
        .collect()
}

/// The smallest artifact within the margin, as a sentence without its end.
pub fn smallest(comparison: &Comparison) -> String {
    let margin = comparison.margin;
    match smallest_within(&comparison.rows) {
        Some(row) => {
            let size = row.size_bytes.map_or_else(|| "no size".into(), format::bytes);
            let bits = format::or_absent(row.file_bpw, |bits| format::fixed(bits, 2));
            format!(
                "Smallest artifact shown to lie within {margin} of the reference's perplexity: {} ({size}, {bits} bits per \
                 weight of the whole model)",
                row.label
            )
        }
        None => format!("No artifact is shown to lie within {margin} of the reference's perplexity"),
    }
}

/// The smallest artifact within the limits that the user set, as a sentence; none without limits.
pub fn smallest_within_limits(comparison: &Comparison) -> Option<String> {
    let limits = &comparison.limits;
    if limits.is_empty() {
        return None;
    }
    Some(match limits.smallest(&comparison.rows) {
        Some(row) => {
            let size = row.size_bytes.map_or_else(|| "no size".into(), format::bytes);
            format!("Smallest artifact with {limits}: {} ({size}).", row.label)
        }
        None => format!("No artifact has {limits}."),
    })
}

/// Number of tokens that would settle an inconclusive verdict, as a note.
fn unsettled(row: &Row, comparison: &Comparison) -> Vec<String> {
    let scored = comparison.corpora.first().map_or(0, |c| c.tokens_scored as u64);
    let what = match (row.verdict, row.verdict_because, row.tokens_to_settle) {
        (Verdict::Inconclusive, Some(Because::ShortText), tokens) => {
            let needed = tokens.unwrap_or(FEWEST_TOKENS as u64);
            format!("{scored} tokens settle nothing: score at least {}", format::count(needed))
        }
        (Verdict::Inconclusive, _, Some(tokens)) => {
            format!("about {} tokens would settle it ({} were scored)", format::count(tokens), format::count(scored))
        }
        (Verdict::Inconclusive, _, None) => {
            format!(
                "its difference lies so near the margin of {} that no reasonable number of tokens would settle it",
                comparison.margin
            )
        }
        _ => return Vec::new(),
    };
    vec![format!("{}: inconclusive: {what}.", row.label)]
}

/// Notes on one row.
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
    let mut how = format!("95% intervals: paired, by blocks of tokens, seed {}.", comparison.seed);
    if comparison.battery.is_some() {
        how.push_str(" p: McNemar's exact test against the reference.");
    }
    if comparison.speed {
        how.push_str(&format!(" Speed: median of {} runs, ± the farthest of them.", speed::RUNS));
    }
    vec![format!("{how} {} All rules: --verbose, or the README of qeval.", verdict::legend(comparison.margin))]
}
