//! The comparison as one self-contained page.

use super::legend;
use super::table::{self, tone};
use crate::models::file_name;
use report::chart::{Axis, Bar, BarChart, Better, Distribution, Guide, Histogram, Mark, Point, Ridge, Scale, Scatter};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table};
use scoring::rows::{Comparison, Row};
use scoring::verdict;

/// Below this divergence, a token counts as not moved at all: arithmetic alone can do that.
const FLOOR: f64 = 1e-7;

/// Beyond this multiple of the reference's perplexity, a point is only named at the plot's edge.
const CROPPED: f64 = 3.0;

/// The page.
pub fn page(comparison: &Comparison) -> Result<Page, report::Error> {
    let shown = report::table::Table { title: String::new(), ..table::table(comparison)? };
    let mut size = Section::new("Quality and size");
    if let Some(text) = comparison.corpora.first() {
        size = size
            .chart(
                &front(comparison, Axis::log("Perplexity (lower is better), log scale")),
                format!(
                    "On `{}`, with 95% intervals; the line joins what nothing beats in both directions.",
                    text.name
                ),
            )
            .chart(&cropped(comparison), "The same points, the axis cut off where differences would be lost.");
    }
    let rows = legend::notes(comparison).into_iter().fold(Section::new("The table").table(shown), Section::prose);
    let mut sections = vec![rows, Section::new("The verdict").table(rule(comparison)?), size];
    let mut tokens = Section::new("Token by token");
    if let Some(chart) = divergence(comparison) {
        tokens = tokens.chart(
            &chart,
            format!("Share of tokens at each divergence from the reference; those below {FLOOR:e} are left out."),
        );
    }
    tokens = tokens.chart(&agreement(comparison), "Intervals of 95%, clustered by prompt.");
    sections.push(tokens);
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

fn front(comparison: &Comparison, y: Axis) -> Scatter {
    let point = |row: &Row| {
        let perplexity = row.scores.perplexity?;
        let point = Point::new(row.label.clone(), row.bpw?, perplexity.value).series(series(row));
        Some(match perplexity.ci95 {
            Some(i) => point.interval(i.0, i.1),
            None => point,
        })
    };
    let reference = comparison.rows.first().and_then(|r| r.scores.perplexity);
    Scatter {
        title: "Perplexity against bits per weight".into(),
        x: Axis::linear("Bits per quantized weight"),
        y,
        series: vec!["8 bits".into(), "4 bits".into(), "16 bits and more".into()],
        points: comparison.rows.iter().filter_map(point).collect(),
        front: Some(Better::Lower),
        guides: reference.map(|p| Guide { label: "reference".into(), at: p.value }).into_iter().collect(),
    }
}

fn cropped(comparison: &Comparison) -> Scatter {
    let axis = Axis::linear("Perplexity (lower is better)");
    let reference = comparison.rows.first().and_then(|r| r.scores.perplexity);
    match reference {
        Some(p) => front(comparison, axis.to(CROPPED * p.value)),
        None => front(comparison, axis),
    }
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
