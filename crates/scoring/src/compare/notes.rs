//! Sentences below the table: how the numbers are computed, and remarks on the models.

use super::Request;
use crate::rows::Row;
use crate::stats::{BLOCKS, Bootstrap, SHORTEST_BLOCK};
use crate::{agreement, battery, speed, verdict};

/// Note on names of special tokens in a text.
pub(super) const SPECIAL: &str = "The names of special tokens in a text are read as ordinary text.";

/// Collects the remarks on the models: each remark once, with all rows that it is true of. A remark that is true of the
/// reference is said of the reference alone, since artifacts repeat it.
pub(super) fn notes(rows: &[Row], remarks: &[Vec<String>]) -> Vec<String> {
    let mut seen: Vec<(&str, Vec<&str>)> = Vec::new();
    for (row, remarks) in rows.iter().zip(remarks) {
        let who = if row.is_reference { "reference" } else { row.label.as_str() };
        for remark in remarks {
            match seen.iter_mut().find(|s| s.0 == remark) {
                Some((_, names)) if names.contains(&"reference") || names.contains(&who) => {}
                Some((_, names)) => names.push(who),
                None => seen.push((remark, vec![who])),
            }
        }
    }
    seen.into_iter().map(|(remark, names)| format!("{}: {remark}", names.join(", "))).collect()
}

/// Describes how intervals of means over tokens are computed.
pub(super) fn blocks(bootstrap: &Bootstrap) -> String {
    format!(
        "{BLOCKS} blocks of neighbouring tokens (of at least {SHORTEST_BLOCK}), the further ends of Student's t and of \
         the studentized bootstrap ({} resamples, seed {})",
        bootstrap.resamples, bootstrap.seed
    )
}

/// Describes in sentences how scores, intervals and verdicts are computed.
pub(super) fn methods(request: &Request, bootstrap: &Bootstrap) -> Vec<String> {
    let mut out = vec![
        format!(
            "Intervals (95%) of perplexity, its change, KL and bits per byte: {}, the same blocks for all models. \
             Same top 1: Wilson, trials divided by the design effect of these blocks, t. Each interval stands alone: \
             of twenty, one misses its true value.",
            blocks(bootstrap)
        ),
        "KL: KL(reference || artifact) in nats over the vocabulary that both have; p99: 99th percentile over tokens."
            .into(),
        format!(
            "Agreement: the reference continues {} prompts by {} tokens greedily, through any end token; the artifact \
             sees the same text. Interval: Wilson, trials divided by the design effect of prompts, t.",
            agreement::PROMPTS.len(),
            agreement::LENGTH
        ),
        SPECIAL.into(),
        verdict::rule(request.margin),
    ];
    if let Some(battery) = &request.battery {
        out.push(format!(
            "Battery {}: greedy, up to {} tokens; right if the continuation (lower-cased, without leading punctuation \
             and article) starts with an accepted answer that ends at a word boundary. Wilson intervals; p: exact \
             McNemar test against the reference.",
            battery.name,
            battery::LIMIT
        ));
    }
    if request.choices.is_some() {
        out.push(
            "Choices: highest log-likelihood of the choice after its context; acc_norm divides it by the choice's \
             characters, leading spaces aside."
                .into(),
        );
    }
    if request.speed {
        out.push(format!(
            "Speed: median of {} runs, and the slowest and fastest; prefill is one pass over the first window, decode {} \
             tokens after a prompt of {}.",
            speed::RUNS,
            speed::WRITTEN,
            speed::PROMPT
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remark_is_made_once() {
        let row = |label: &str, is_reference| Row { label: label.into(), is_reference, ..Row::default() };
        let rows = [row("f16", true), row("nf4", false), row("int8-row", false)];
        let remarks = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let out = notes(&rows, &[remarks(&["of all"]), remarks(&["of all", "of two"]), remarks(&["of two", "of two"])]);
        assert_eq!(out, ["reference: of all", "nf4, int8-row: of two"]);
    }
}
