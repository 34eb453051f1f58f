//! The comparison as a table.

use crate::compare::Perplexities;
use crate::rows::{Change, Comparison, Kl, Measured, Row, TextScores};
use crate::stats::Interval;
use crate::verdict::Verdict;
use report::format;
use report::table::{Cell, Column, Table, Tone};
use serde_json::json;
use std::fmt::Write;

/// The table with its notes.
pub fn table(comparison: &Comparison) -> Result<Table, report::Error> {
    let mut table = Table::new(format!("Compared with {}", comparison.reference), columns(comparison));
    for row in &comparison.rows {
        table.push(cells(row, comparison))?;
    }
    for corpus in &comparison.corpora {
        table.note(format!("{}: {} ({} bytes).", corpus.name, corpus.rule, format::count(corpus.bytes_scored as u64)));
    }
    comparison.methods.iter().for_each(|m| table.note(m.clone()));
    let worst = |row: &Row| row.weight_error.as_ref().map(|e| (e.worst, e.worst_module.clone()));
    for row in &comparison.rows {
        if let Some((error, module)) = worst(row).filter(|w| w.0 > 0.5) {
            table.note(format!("{}: relative error {} in {module}.", row.scheme, format::fixed(error, 3)));
        }
        if let Some(problem) = &row.problem {
            table.note(format!("{}: {problem}.", row.scheme));
        }
        if let Some(reason) = &row.not_comparable {
            table.note(format!("{}: no perplexity and no KL, only bits per byte: {reason}.", row.scheme));
        }
    }
    comparison.notes.iter().for_each(|n| table.note(n.clone()));
    Ok(table)
}

fn columns(comparison: &Comparison) -> Vec<Column> {
    let mut columns = vec![
        Column::text("scheme", "Scheme"),
        Column::text("verdict", "Verdict"),
        Column::number("size_bytes", "Size").help("Bytes of the files that hold weights."),
        Column::number("bpw", "bpw").help("Bits per quantized weight, codes and scales, as the scheme counts them."),
        Column::number("file_bpw", "bpw\nof file").help("Bits on disk per weight of the whole model."),
        Column::number("resident_bytes", "Resident").help("Bytes of weights in memory, still packed."),
        Column::number("weight_error", "Weight\nerror").help("Relative error, mean over the quantized matrices."),
    ];
    let several = comparison.corpora.len() > 1;
    for corpus in &comparison.corpora {
        // The first has the plain keys, whatever the number of texts.
        let first = corpus.name == comparison.corpora[0].name;
        let key = |k: &str| if first { k.to_string() } else { format!("{k}:{}", corpus.name) };
        let header = |h: &str| if several { format!("{h}\n{}", corpus.name) } else { h.to_string() };
        columns.extend([
            Column::number(key("perplexity"), header("Perplexity")).help("exp(mean loss) and 95% interval."),
            Column::number(key("change"), header("Change")).help("Of perplexity, with the paired 95% interval."),
            Column::number(key("bits_per_byte"), header("Bits\nper byte"))
                .help("Loss over the bytes of scored tokens."),
            Column::number(key("kl"), header("KL mean")).unit("nats"),
            Column::number(key("kl_p99"), header("KL p99")).unit("nats"),
            Column::number(key("same_top1"), header("Same\ntop 1")).help("Positions with the same most likely token."),
        ]);
    }
    columns.push(Column::number("agreement", "Agreement").help("Greedy tokens that are the reference's."));
    if comparison.rows.iter().any(|r| r.battery.is_some()) {
        let name = comparison.battery.as_deref().unwrap_or_default();
        columns.push(Column::number("battery", format!("Battery\n{name}")));
        columns.push(Column::number("battery_p", "p").help("Exact McNemar test of the battery against the reference."));
    }
    if comparison.rows.iter().any(|r| r.choices.is_some()) {
        columns.push(Column::number("acc", "acc"));
        columns.push(Column::number("acc_norm", "acc_norm"));
    }
    if comparison.rows.iter().any(|r| r.prefill_tokens_per_s.is_some()) {
        columns.push(Column::number("prefill_tokens_per_s", "Prefill").unit("tokens/s"));
        columns.push(Column::number("decode_tokens_per_s", "Decode").unit("tokens/s"));
    }
    columns
}

fn cells(row: &Row, comparison: &Comparison) -> Vec<Cell> {
    let number = |v: Option<f64>, digits: usize| optional(v, |v| Cell::value(format::fixed(v, digits), v));
    let mut cells = vec![
        Cell::text(row.scheme.clone()),
        verdict(row),
        Cell::value(format::bytes(row.size_bytes), row.size_bytes),
        number(Some(row.bpw), 3),
        number(Some(row.file_bpw), 2),
        Cell::value(format::bytes(row.resident_bytes), row.resident_bytes),
        number(row.weight_error.as_ref().map(|e| e.mean), 4),
    ];
    for scores in &row.corpora {
        cells.extend(text_cells(scores));
    }
    cells.push(optional(row.agreement.as_ref(), |a| {
        let value = json!({"agree": a.agree, "total": a.total, "ci95": a.ci95});
        Cell::value(share(a.agree, a.total, a.ci95), value)
    }));
    if comparison.rows.iter().any(|r| r.battery.is_some()) {
        cells.push(optional(row.battery.as_ref(), |b| {
            let value = json!({"right": b.right, "total": b.total, "ci95": b.ci95});
            Cell::value(share(b.right as u64, b.total as u64, b.ci95), value)
        }));
        cells.push(optional(row.battery.as_ref().and_then(|b| b.mcnemar_p), |p| {
            Cell::value(format::significant(p, 2), p)
        }));
    }
    if comparison.rows.iter().any(|r| r.choices.is_some()) {
        let choices = row.choices.as_ref();
        let accuracy = |value: f64, ci95: Option<Interval>| {
            let text = format!("{}{}", format::fixed(value, 3), ci95.map_or(String::new(), |i| bounds(i, 2)));
            Cell::value(text, json!({"value": value, "ci95": ci95}))
        };
        cells.push(optional(choices, |c| accuracy(c.acc, c.acc_ci95)));
        cells.push(optional(choices, |c| accuracy(c.acc_norm, c.acc_norm_ci95)));
    }
    if comparison.rows.iter().any(|r| r.prefill_tokens_per_s.is_some()) {
        let speed = |v: Option<f64>| optional(v, |v| Cell::value(format::significant(v, 3), v));
        cells.extend([speed(row.prefill_tokens_per_s), speed(row.decode_tokens_per_s)]);
    }
    cells
}

fn optional<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or_else(Cell::absent, cell)
}

fn text_cells(scores: &TextScores) -> [Cell; 6] {
    [
        optional(scores.perplexity, perplexity_cell),
        optional(scores.change, change_cell),
        optional(scores.bits_per_byte, |b| Cell::value(format::fixed(b, 3), b)),
        optional(scores.kl, |k: Kl| {
            let text = format!("{}{}", format::significant(k.mean, 3), k.ci95.map_or(String::new(), |i| bounds(i, 2)));
            Cell::value(text, json!({"mean": k.mean, "ci95": k.ci95}))
        }),
        optional(scores.kl, |k: Kl| Cell::value(format::significant(k.p99, 3), k.p99)),
        optional(scores.same_top1, |s| Cell::value(format::percent(s, 1), s)),
    ]
}

fn perplexity_cell(p: Measured) -> Cell {
    let text = match p.ci95 {
        Some(Interval(low, high)) => format::interval(p.value, low, high, 4),
        None => format::significant(p.value, 4),
    };
    Cell::value(text, json!({"value": p.value, "ci95": p.ci95}))
}

/// The change in percent; as a multiple where percents would be unreadable.
fn change_cell(change: Change) -> Cell {
    let percent = |ratio: f64| 100.0 * (ratio - 1.0);
    let text = match change.ci95 {
        Some(Interval(low, high)) if high < 10.0 => {
            format!("{} %", format::signed_interval(percent(change.ratio), percent(low), percent(high), 2))
        }
        Some(Interval(low, high)) => format!("x {}", format::interval(change.ratio, low, high, 2)),
        None => format!("{} %", format::signed(percent(change.ratio), 2)),
    };
    Cell::value(text, json!({"ratio": change.ratio, "ci95": change.ci95}))
}

fn bounds(interval: Interval, digits: usize) -> String {
    format!(" {}", format::bounds(interval.0, interval.1, digits))
}

/// A count with its interval in percent.
fn share(part: u64, total: u64, ci95: Option<Interval>) -> String {
    let percent = |v: f64| format::fixed(100.0 * v, 0);
    let interval = ci95.map_or(String::new(), |i| format!(" [{}, {}] %", percent(i.0), percent(i.1)));
    format!("{part}/{total}{interval}")
}

/// The verdict with its tone.
pub fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Reference => Tone::Muted,
        Verdict::Indistinguishable => Tone::Good,
        Verdict::Measurable => Tone::Normal,
        Verdict::Worse | Verdict::Unscored => Tone::Warning,
        Verdict::Destroyed => Tone::Bad,
    }
}

fn verdict(row: &Row) -> Cell {
    if row.problem.is_some() {
        return Cell::value(format!("{}, see notes", row.verdict), row.verdict.to_string()).tone(Tone::Bad);
    }
    Cell::text(row.verdict.to_string()).tone(tone(row.verdict))
}

/// The perplexity of one model in lines.
pub fn perplexity(scored: &Perplexities) -> String {
    let mut text = String::new();
    for corpus in &scored.corpora {
        // Writing to a string does not fail.
        let _ = writeln!(text, "perplexity    {}", perplexity_cell(corpus.perplexity).text);
        let _ = writeln!(text, "bits per byte {}", format::fixed(corpus.bits_per_byte, 4));
        let _ = writeln!(text, "{}: {}", corpus.info.name, corpus.info.rule);
    }
    let _ = writeln!(text, "{}", scored.method);
    for note in &scored.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{agreement, battery, size};

    fn scores(ppl: f64, ratio: Option<f64>) -> TextScores {
        let around = |v: f64, share: f64| Some(Interval(v * (1.0 - share), v * (1.0 + share)));
        TextScores {
            perplexity: Some(Measured { value: ppl, ci95: around(ppl, 0.08) }),
            change: ratio.map(|ratio| Change { ratio, ci95: around(ratio, 0.004) }),
            bits_per_byte: Some(ppl.log2() / 4.1),
            kl: ratio.map(|r| Kl {
                mean: r.ln().abs(),
                ci95: around(r.ln().abs(), 0.1),
                median: 0.001,
                p99: r.ln().abs() * 9.0,
            }),
            same_top1: ratio.map(|r| 1.0 / r.max(1.0)),
            divergences: vec![0.001, 0.01, 0.1],
        }
    }

    fn row(scheme: &str, bpw: f64, ppl: f64, ratio: Option<f64>, verdict: Verdict) -> Row {
        Row {
            scheme: scheme.into(),
            artifact: format!("{scheme}.gguf"),
            is_reference: ratio.is_none(),
            scores: scores(ppl, ratio),
            corpora: vec![scores(ppl, ratio)],
            agreement: ratio.map(|_| agreement::Score {
                agree: 141,
                total: 144,
                ci95: Some(Interval(0.94, 0.993)),
                ci95_bootstrap: None,
                ci95_independent: None,
                design_effect: 1.2,
            }),
            battery: Some(battery::Score {
                right: 12,
                total: 16,
                ci95: Some(Interval(0.505, 0.898)),
                mcnemar_p: ratio.map(|_| 0.625),
            }),
            choices: None,
            bpw,
            file_bpw: bpw + 1.2,
            size_bytes: (bpw * 2e7) as u64,
            parameters: 134_515_008,
            resident_bytes: (bpw * 1.9e7) as u64,
            weight_error: ratio.map(|r| size::Errors {
                mean: 0.4 * r.ln().abs(),
                worst: 0.985_39,
                worst_module: "model.layers.27.mlp.gate_proj".into(),
                pooled: 0.3,
                matrices: 210,
            }),
            prefill_tokens_per_s: Some(461.2),
            decode_tokens_per_s: Some(66.04),
            verdict,
            problem: None,
            not_comparable: None,
        }
    }

    pub(crate) fn sample() -> Comparison {
        let mut broken = row("w8a8-tensor", 8.023, 0.0, None, Verdict::Unscored);
        broken.is_reference = false;
        broken.corpora = vec![TextScores::default()];
        broken.scores = TextScores::default();
        broken.problem = Some("NaN or Inf logits in window 3 at position 17 of prose.txt".into());
        Comparison {
            version: 1,
            tool: "qeval 0.0.0".into(),
            reference: "models/smollm2".into(),
            protocol: crate::Protocol::default(),
            corpora: vec![crate::rows::CorpusInfo {
                name: "prose.txt".into(),
                rule: "all 4965 tokens: 4955 tokens scored".into(),
                tokens_scored: 4955,
                bytes_scored: 23_871,
            }],
            battery: Some("16".into()),
            seed: 0,
            methods: vec!["How it was done.".into()],
            notes: vec!["reference: a note".into()],
            rows: vec![
                row("f16", 16.0, 57.619, None, Verdict::Reference),
                row("int8-row", 8.023, 57.47, Some(0.9974), Verdict::Indistinguishable),
                row("int4-g128", 4.135, 105.7, Some(1.834), Verdict::Worse),
                row("int4-absmax", 4.0, 4.5e6, Some(78_100.0), Verdict::Destroyed),
                broken,
            ],
        }
    }

    #[test]
    fn the_terminal_table() {
        let form = report::table::Terminal { width: 100, ..Default::default() };
        insta::assert_snapshot!(form.render(&table(&sample()).expect("fits")));
    }

    #[test]
    fn the_other_forms() {
        let table = table(&sample()).expect("fits");
        let csv = table.to_csv();
        let header = csv.lines().next().unwrap_or_default();
        for key in ["scheme", "perplexity.value", "perplexity.ci95.low", "change.ratio", "kl.mean", "agreement.agree"] {
            assert!(header.split(',').any(|k| k == key), "{key} in {header}");
        }
        assert_eq!(csv.lines().count(), 6);
        assert!(table.to_markdown().contains("| int4-absmax |"));
    }

    #[test]
    fn every_text_has_its_columns() {
        let mut comparison = sample();
        let mut second = comparison.corpora[0].clone();
        second.name = "book.txt".into();
        comparison.corpora.push(second);
        for row in &mut comparison.rows {
            row.corpora.push(TextScores::default());
        }
        let table = table(&comparison).expect("fits");
        assert!(table.columns.iter().any(|c| c.key == "perplexity:book.txt" && c.header == "Perplexity\nbook.txt"));
        assert!(super::super::page::page(&comparison).expect("fits").render().is_ok());
    }
}
