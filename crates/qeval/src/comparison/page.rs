//! The comparison as one self-contained page.

use super::legend;
use super::table::{self, tone};
use crate::models::file_name;
use report::chart::{Axis, Bar, BarChart, Better, Distribution, Histogram, Mark, Point, Ridge, Scale, Scatter};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table};
use scoring::rows::{Comparison, Row};
use scoring::stats::Interval;
use scoring::verdict;

/// Below this divergence, a token counts as not moved at all: arithmetic alone can do that.
const FLOOR: f64 = 1e-7;

/// Change of perplexity in percent beyond which a point is only named at the plot's edge.
const MOST_CHANGE: f64 = 100.0;

/// Keys of the columns that a choice is made by.
const DECIDING_COLUMNS: [&str; 8] =
    ["scheme", "verdict", "size_bytes", "change", "kl", "same_top1", "battery", "decode_tokens_per_s"];

/// Keys of the columns on sizes, for the first table of details.
const SIZE_COLUMNS: [&str; 6] = ["scheme", "bpw", "file_bpw", "resident_bytes", "weight_error", "perplexity"];

/// The page.
pub fn page(comparison: &Comparison) -> Result<Page, report::Error> {
    let all = table::table(comparison)?;
    // The first note is the page's lead.
    let rows = legend::notes(comparison)
        .into_iter()
        .skip(1)
        .fold(Section::new("The table").table(columns_of(&all, is_deciding)), Section::prose)
        .prose("The other columns are under \"Details\".");
    let mut size = Section::new("Quality and size");
    if let Some(text) = comparison.corpora.first() {
        let on = format!("On `{}`, against the reference, with paired 95% intervals", text.name);
        size = size
            .chart(
                &change_and_size(comparison),
                format!("{on}; the line joins what nothing beats in both directions. More than {MOST_CHANGE}% is drawn at the edge."),
            )
            .chart(&kl_and_size(comparison), format!("{on}."));
    }
    let mut sections = vec![rows, Section::new("The verdict").table(rule(comparison)?), size];
    let mut tokens = Section::new("Token by token");
    if let Some(chart) = divergence(comparison) {
        tokens = tokens.chart(
            &chart,
            format!("Share of tokens at each divergence from the reference; those below {FLOOR:e} are left out."),
        );
    }
    if comparison.agreement {
        tokens = tokens.chart(&agreement(comparison), "Intervals of 95%, clustered by prompt.");
    }
    sections.push(tokens);
    sections.push(
        Section::new("Details")
            .table(columns_of(&all, |key| SIZE_COLUMNS.contains(&key)))
            .table(columns_of(&all, |key| key == "scheme" || !(is_deciding(key) || SIZE_COLUMNS.contains(&key)))),
    );
    sections.push(comparison.methods.iter().cloned().fold(Section::new("How it was measured"), Section::prose));
    Ok(Page {
        title: format!("Quantized forms of {}", file_name(&comparison.reference)),
        lead: lead(comparison),
        facts: facts(comparison),
        sections,
        ..Page::default()
    })
}

fn lead(comparison: &Comparison) -> String {
    let count = comparison.rows.len().saturating_sub(1);
    let failed = comparison.rows.iter().filter(|row| row.error.is_some()).count();
    let failed = match failed {
        0 => String::new(),
        n => format!(" {n} could not be scored in full; the reasons are below the table."),
    };
    let smallest = legend::smallest(comparison);
    format!("{smallest}. {count} artifacts against one reference.{failed}")
}

/// The rule of the verdict.
fn rule(comparison: &Comparison) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("within", "Within the margin?"),
        Column::text("any", "Any difference?"),
        Column::text("verdict", "Verdict"),
    ];
    let mut table = Table::new("", columns);
    for row in verdict::rule_table(comparison.margin) {
        table.push(row.map(Cell::text).to_vec())?;
    }
    Ok(table)
}

fn facts(comparison: &Comparison) -> Vec<Fact> {
    let mut facts = vec![Fact::new("Reference", comparison.reference.clone())];
    if let Some(reference) = comparison.rows.first()
        && let (Some(bytes), Some(weights)) = (reference.size_bytes, reference.parameters)
    {
        facts.push(Fact::new("Size", format!("{} ({} weights)", format::bytes(bytes), format::count(weights))));
    }
    for corpus in &comparison.corpora {
        facts.push(Fact::new(
            corpus.name.clone(),
            format!("{} tokens scored", format::count(corpus.tokens_scored as u64)),
        ));
    }
    facts.push(Fact::new("Window", format!("{} positions", comparison.protocol.ctx)));
    facts
}

/// The series of a plot by the width of codes.
fn series(row: &Row) -> usize {
    match row.bpw {
        Some(bits) if bits > 10.0 => 2,
        Some(bits) if bits > 6.0 => 0,
        _ => 1,
    }
}

/// The columns that a choice is made by: they fit a screen of 1280 pixels.
fn is_deciding(key: &str) -> bool {
    let plain = key.split_once(':').map_or(key, |(plain, _)| plain);
    DECIDING_COLUMNS.contains(&plain)
}

/// The table with the columns whose keys pass.
fn columns_of(table: &Table, passes: impl Fn(&str) -> bool) -> Table {
    Table { title: String::new(), ..table.with_columns(|column| passes(&column.key)) }
}

/// A plot over file size, which is what is saved. `y` gives value and interval of a row.
fn over_size(
    comparison: &Comparison,
    (title, axis): (&str, Axis),
    y: impl Fn(&Row) -> Option<(f64, Option<Interval>)>,
) -> Scatter {
    let point = |row: &Row| {
        let (value, ci95) = y(row)?;
        let mebibytes = row.size_bytes? as f64 / f64::from(1 << 20);
        let point = Point::new(row.label.clone(), mebibytes, value).series(series(row));
        Some(ci95.map_or(point.clone(), |Interval(low, high)| point.interval(low, high)))
    };
    Scatter {
        title: title.into(),
        x: Axis::linear("Size of the weight files in MiB"),
        y: axis,
        series: vec!["8 bits".into(), "4 bits".into(), "16 bits and more".into()],
        points: comparison.rows.iter().filter_map(point).collect(),
        front: Some(Better::Lower),
        guides: Vec::new(),
    }
}

fn change_and_size(comparison: &Comparison) -> Scatter {
    let percent = |ratio: f64| (ratio - 1.0) * 100.0;
    let change = |row: &Row| {
        let change = row.scores.change?;
        Some((percent(change.ratio), change.ci95.map(|Interval(low, high)| Interval(percent(low), percent(high)))))
    };
    let axis = Axis::linear("Change of perplexity in % (lower is better)");
    let is_beyond = |row: &Row| change(row).is_some_and(|(value, _)| value > MOST_CHANGE);
    // A destroyed scheme would squash all others.
    let axis = if comparison.rows.iter().any(is_beyond) { axis.to(MOST_CHANGE) } else { axis };
    over_size(comparison, ("Change of perplexity against file size", axis), change)
}

fn kl_and_size(comparison: &Comparison) -> Scatter {
    let axis = Axis::log("Mean KL divergence in nats, log scale (lower is better)");
    let kl = |row: &Row| row.scores.kl.filter(|kl| kl.mean > 0.0).map(|kl| (kl.mean, kl.ci95));
    over_size(comparison, ("KL divergence against file size", axis), kl)
}

fn divergence(comparison: &Comparison) -> Option<Ridge> {
    let of = |row: &Row| -> Vec<f64> { row.scores.divergences.iter().copied().filter(|&k| k >= FLOOR).collect() };
    let values: Vec<(&Row, Vec<f64>)> =
        comparison.rows.iter().map(|r| (r, of(r))).filter(|(_, v)| !v.is_empty()).collect();
    let ends = |f: fn(f64, f64) -> f64| values.iter().flat_map(|v| &v.1).copied().reduce(f);
    let range = (ends(f64::min)?, ends(f64::max)?);
    let series = values.iter().filter_map(|(row, values)| {
        let kl = row.scores.kl?;
        let mark = |name: &str, at: f64| Mark { name: name.into(), at };
        Some(Distribution {
            name: row.label.clone(),
            histogram: Histogram::within(values, 48, Scale::Log, range),
            marks: vec![mark("mean", kl.mean), mark("99th percentile", kl.p99)],
        })
    });
    Some(Ridge {
        title: "KL divergence from the reference, token by token".into(),
        axis: Axis::log("KL divergence in nats, log scale"),
        series: series.collect(),
        own_heights: true,
    })
}

fn agreement(comparison: &Comparison) -> BarChart {
    let total = comparison.rows.iter().find_map(|r| Some(r.agreement.as_ref()?.total)).unwrap_or(0);
    let bar = |row: &Row| {
        let a = row.agreement.as_ref()?;
        Some(Bar {
            label: row.label.clone(),
            value: a.agree as f64 / a.total as f64,
            interval: a.ci95.map(|i| (i.0, i.1)),
            text: format!("{}/{}", a.agree, a.total),
            tone: tone(row.verdict),
        })
    };
    BarChart {
        title: "Greedy tokens that agree with the reference".into(),
        axis: Axis::linear(format!("Share of {total} tokens")).from(0.0).to(1.0),
        bars: comparison.rows.iter().filter_map(bar).collect(),
        guide: None,
    }
}
