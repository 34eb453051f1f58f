//! The comparison as a table.

use report::format;
use report::table::{Cell, Column, Table, Tone};
use scoring::compare::{Perplexities, Request};
use scoring::rows::{Change, Comparison, Kl, Measured, Row, TextScores};
use scoring::stats::Interval;
use scoring::verdict::Verdict;
use serde_json::json;
use std::fmt::Write;

/// The table, without notes.
pub fn table(comparison: &Comparison) -> Result<Table, report::Error> {
    let mut table =
        Table::new(format!("Compared with {}", comparison.reference), columns(&Measures::of_comparison(comparison)));
    for row in &comparison.rows {
        table.push(cells(row, comparison))?;
    }
    Ok(table)
}

/// The parts of a value with an interval in CSV.
const VALUE: &[&str] = &["value", "ci95.low", "ci95.high"];

/// The parts of an interval alone.
const BOUNDS: &[&str] = &["low", "high"];

/// Measures of a comparison, which decide the columns.
pub struct Measures<'a> {
    /// Names of the scored texts.
    corpora: Vec<&'a str>,
    /// Name of the battery.
    battery: Option<&'a str>,
    agreement: bool,
    choices: bool,
    speed: bool,
}

impl<'a> Measures<'a> {
    /// The measures of a finished comparison.
    fn of_comparison(comparison: &'a Comparison) -> Self {
        Measures {
            corpora: comparison.corpora.iter().map(|c| c.name.as_str()).collect(),
            battery: comparison.battery.as_deref(),
            agreement: comparison.agreement,
            choices: comparison.choices.is_some(),
            speed: comparison.speed,
        }
    }

    /// The measures that a request asks for.
    pub fn of_request(request: &'a Request) -> Self {
        Measures {
            corpora: request.corpora.iter().map(|c| c.name.as_str()).collect(),
            battery: request.battery.as_ref().map(|b| b.name.as_str()),
            agreement: request.agreement,
            choices: request.choices.is_some(),
            speed: request.speed,
        }
    }

    /// The keys of the table's columns.
    pub fn column_keys(&self) -> Vec<String> {
        columns(self).into_iter().map(|column| column.key).collect()
    }
}

/// The columns. They follow from the options alone, so that CSV has the same header in every run.
fn columns(measures: &Measures<'_>) -> Vec<Column> {
    let mut columns = vec![
        Column::text("scheme", "Scheme"),
        Column::text("artifact", "Artifact").machine_only(),
        Column::text("verdict", "Verdict"),
        Column::text("verdict_because", "Because").machine_only(),
        Column::number("tokens_to_settle", "Tokens to settle").machine_only(),
        Column::text("error", "Error").machine_only(),
        Column::number("size_bytes", "Size").help("Bytes of the files that hold weights."),
        Column::number("bpw", "bpw").help("Bits per quantized weight, codes and scales, as the scheme counts them."),
        Column::number("file_bpw", "Bits/weight\nin file").help("Bits on disk per weight of the whole model."),
        Column::number("resident_bytes", "Resident").help("Bytes of weights in memory, still packed."),
        Column::number("weight_error", "Weight\nerror").help("Relative error, mean over the quantized matrices."),
    ];
    for at in 0..measures.corpora.len() {
        columns.extend(text_columns(measures, at));
    }
    if measures.agreement {
        let parts = ["agree", "total", "ci95.low", "ci95.high"];
        columns.push(
            Column::number("agreement", "Agreement").help("Greedy tokens that are the reference's.").parts(&parts),
        );
    }
    if let Some(name) = measures.battery {
        let parts = ["right", "total", "ci95.low", "ci95.high"];
        columns.push(Column::number("battery", format!("Battery\n{name}")).parts(&parts));
        columns.push(Column::number("battery_p", "p").help("Exact McNemar test of the battery against the reference."));
    }
    if measures.choices {
        columns.push(Column::number("acc", "acc").parts(VALUE));
        columns.push(Column::number("acc_norm", "acc_norm").parts(VALUE));
    }
    if measures.speed {
        columns.push(Column::number("prefill_tokens_per_s", "Prefill").unit("tokens/s"));
        columns.push(Column::number("prefill_range", "").parts(BOUNDS).machine_only());
        columns.push(Column::number("decode_tokens_per_s", "Decode").unit("tokens/s"));
        columns.push(Column::number("decode_range", "").parts(BOUNDS).machine_only());
    }
    columns
}

/// The columns of one text. The first has the plain keys, whatever the number of texts.
fn text_columns(measures: &Measures<'_>, at: usize) -> [Column; 8] {
    let name = measures.corpora[at];
    let key = |k: &str| if at == 0 { k.to_string() } else { format!("{k}:{name}") };
    let header = |h: &str| if measures.corpora.len() > 1 { format!("{h}\n{name}") } else { h.to_string() };
    [
        Column::number(key("perplexity"), header("Perplexity")).help("exp(mean loss) and 95% interval.").parts(VALUE),
        Column::number(key("change"), header("Change")).help("Of perplexity, with the paired 95% interval.").parts(&[
            "ratio",
            "ci95.low",
            "ci95.high",
        ]),
        Column::number(key("bits_per_byte"), header("Bits\nper byte")).help("Loss over the bytes of scored tokens."),
        Column::number(key("bits_per_byte_ci95"), "").parts(BOUNDS).machine_only(),
        Column::number(key("kl"), header("KL mean")).unit("nats").parts(&["mean", "ci95.low", "ci95.high"]),
        Column::number(key("kl_p99"), header("KL p99")).unit("nats"),
        Column::number(key("same_top1"), header("Same\ntop 1")).help("Positions with the same most likely token."),
        Column::number(key("same_top1_ci95"), "").parts(BOUNDS).machine_only(),
    ]
}

fn cells(row: &Row, comparison: &Comparison) -> Vec<Cell> {
    let number = |v: Option<f64>, digits: usize| optional(v, |v| Cell::value(format::fixed(v, digits), v));
    let bytes = |v: Option<u64>| optional(v, |v| Cell::value(format::bytes(v), v));
    let mut cells = vec![
        Cell::value(row.label.clone(), json!(row.scheme)),
        Cell::text(row.artifact.clone()),
        verdict(row),
        Cell::value("", json!(row.verdict_because)),
        Cell::value("", json!(row.tokens_to_settle)),
        Cell::value("", json!(row.error)),
        bytes(row.size_bytes),
        number(row.bpw, 3),
        number(row.file_bpw, 2),
        bytes(row.resident_bytes),
        number(row.weight_error.as_ref().map(|e| e.mean), 4),
    ];
    for scores in &row.corpora {
        cells.extend(text_cells(scores));
    }
    if comparison.agreement {
        cells.push(optional(row.agreement.as_ref(), |a| {
            let value = json!({"agree": a.agree, "total": a.total, "ci95": a.ci95});
            Cell::value(share(a.agree, a.total, a.ci95), value)
        }));
    }
    if comparison.battery.is_some() {
        cells.push(optional(row.battery.as_ref(), |b| {
            let value = json!({"right": b.right, "total": b.total, "ci95": b.ci95});
            Cell::value(share(b.right as u64, b.total as u64, b.ci95), value)
        }));
        cells.push(optional(row.battery.as_ref().and_then(|b| b.mcnemar_p), |p| {
            Cell::value(format::significant(p, 2), p)
        }));
    }
    if comparison.choices.is_some() {
        let choices = row.choices.as_ref();
        let accuracy = |value: f64, ci95: Option<Interval>| {
            let text = format!("{}{}", format::fixed(value, 3), ci95.map_or(String::new(), |i| bounds(i, 2)));
            Cell::value(text, json!({"value": value, "ci95": ci95}))
        };
        cells.push(optional(choices, |c| accuracy(c.acc, c.acc_ci95)));
        cells.push(optional(choices, |c| accuracy(c.acc_norm, c.acc_norm_ci95)));
    }
    if comparison.speed {
        cells.extend(speed_cells(row.prefill_tokens_per_s, row.prefill_range));
        cells.extend(speed_cells(row.decode_tokens_per_s, row.decode_range));
    }
    cells
}

/// A median with the larger of its distances to the slowest and the fastest run; and the range for
/// machines.
fn speed_cells(median: Option<f64>, range: Option<Interval>) -> [Cell; 2] {
    let text = |median: f64| {
        let spread = range.map_or(String::new(), |Interval(low, high)| {
            format!(" ±{}", format::percent((median - low).max(high - median) / median, 0))
        });
        format!("{}{spread}", format::significant(median, 3))
    };
    [optional(median, |v| Cell::value(text(v), v)), Cell::value("", json!(range))]
}

fn optional<T>(value: Option<T>, cell: impl FnOnce(T) -> Cell) -> Cell {
    value.map_or_else(Cell::absent, cell)
}

fn text_cells(scores: &TextScores) -> [Cell; 8] {
    [
        optional(scores.perplexity, perplexity_cell),
        optional(scores.change, change_cell),
        optional(scores.bits_per_byte, |b| Cell::value(format::fixed(b, 3), b)),
        Cell::value("", json!(scores.bits_per_byte_ci95)),
        optional(scores.kl, |k: Kl| {
            let text = format!("{}{}", format::significant(k.mean, 3), k.ci95.map_or(String::new(), |i| bounds(i, 2)));
            Cell::value(text, json!({"mean": k.mean, "ci95": k.ci95}))
        }),
        optional(scores.kl, |k: Kl| Cell::value(format::significant(k.p99, 3), k.p99)),
        optional(scores.same_top1, |s| Cell::value(format::percent(s, 1), s)),
        Cell::value("", json!(scores.same_top1_ci95)),
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

/// The verdict's tone.
pub fn tone(verdict: Verdict) -> Tone {
    match verdict {
        Verdict::Reference | Verdict::Inconclusive => Tone::Muted,
        Verdict::Same | Verdict::Equivalent => Tone::Good,
        Verdict::Different | Verdict::Unscored => Tone::Warning,
        Verdict::Destroyed | Verdict::Failed => Tone::Bad,
    }
}

/// The verdict; what decided is said where the word leaves it open.
fn verdict(row: &Row) -> Cell {
    let word = row.verdict.to_string();
    if row.error.is_some() {
        return Cell::value(format!("{word}, see notes"), word).tone(Tone::Bad);
    }
    let is_open = matches!(row.verdict, Verdict::Different | Verdict::Inconclusive);
    let text = match row.verdict_because {
        Some(because) if is_open => format!("{word} ({because})"),
        _ => word.clone(),
    };
    Cell::value(text, word).tone(tone(row.verdict))
}

/// The perplexity of one model in lines.
pub fn perplexity(scored: &Perplexities) -> String {
    let mut text = String::new();
    for corpus in &scored.corpora {
        // Writing to a string does not fail.
        let _ = writeln!(text, "perplexity    {}", perplexity_cell(corpus.perplexity).text);
        let interval = corpus.bits_per_byte_ci95.map_or(String::new(), |i| bounds(i, 3));
        let _ = writeln!(text, "bits per byte {}{interval}", format::fixed(corpus.bits_per_byte, 4));
        let _ = writeln!(text, "{}: {}", corpus.info.name, corpus.info.rule);
    }
    for method in &scored.methods {
        let _ = writeln!(text, "{method}");
    }
    for note in &scored.notes {
        let _ = writeln!(text, "note: {note}");
    }
    text
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
