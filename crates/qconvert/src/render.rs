//! Plans and artifacts as tables.

use conversion::counted;
use conversion::{Errors, Made, Plan, Source};
use report::format;
use report::table::{Cell, Column, Table, Tone};
use schemars::JsonSchema;
use schemes::Scheme;
use schemes::measure::WeightError;
use serde::Serialize;
use std::fmt::Write;

/// Relative errors of weights, each the root of the sum of squared differences over that of squared values.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Summary {
    /// Mean over weights.
    pub mean: f64,
    /// The largest.
    pub worst: f64,
    /// Name of the weight with the largest.
    pub worst_weight: String,
    /// Of all values together.
    pub pooled: f64,
}

/// The errors in short; none where there are none.
pub fn summary(errors: &Errors) -> Option<Summary> {
    let (worst_weight, worst) = errors.iter().map(|(n, e)| (n, e.relative())).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut pooled = WeightError::default();
    errors.values().for_each(|e| pooled.merge(e));
    let mean = errors.values().map(WeightError::relative).sum::<f64>() / errors.len() as f64;
    Some(Summary { mean, worst, worst_weight: worst_weight.clone(), pooled: pooled.relative() })
}

fn layouts(plan: &Plan) -> String {
    plan.layouts().iter().map(|(l, n)| format!("{l} ({n})")).collect::<Vec<_>>().join(", ")
}

/// Errors that the table shows: of the quantized weights, or where there are none, of those that were rounded to
/// another float type.
fn shown_errors(made: &Made) -> &Errors {
    if made.losses.quantized.is_empty() { &made.losses.rounded } else { &made.losses.quantized }
}

/// The bits for each weight as stored, where they are not the scheme's own.
fn stored_bits(bits: Option<(f64, f64)>) -> Option<f64> {
    bits.filter(|(nominal, stored)| (nominal - stored).abs() > 5e-4).map(|b| b.1)
}

fn number(value: Option<f64>, digits: usize) -> Cell {
    value.map_or_else(Cell::absent, |v| Cell::value(format::fixed(v, digits), v))
}

fn bits_columns(stored: bool) -> Vec<Column> {
    let mut columns = vec![Column::number("bpw", "bits per weight")];
    if stored {
        columns.push(Column::number("stored_bpw", "as stored\nhere"));
    }
    columns
}

/// The artifacts made, for people.
pub fn made_table(source: &Source<'_>, made: &[Made]) -> String {
    let stored = made.iter().any(|m| stored_bits(m.plan.bits_per_weight(source)).is_some());
    let mut columns =
        vec![Column::text("scheme", "scheme"), Column::text("path", "artifact"), Column::number("bytes", "size")];
    columns.extend(bits_columns(stored));
    columns.extend([
        Column::number("error_mean", "rel. error\nmean"),
        Column::number("error_worst", "rel. error\nworst"),
        Column::text("layout", "layout (weights)"),
    ]);
    let mut table = Table::new("", columns);
    for m in made {
        let errors = summary(shown_errors(m));
        let bits = m.plan.bits_per_weight(source);
        let mut row = vec![
            Cell::text(m.plan.label.clone()),
            Cell::text(m.path.display().to_string()),
            Cell::value(format::bytes(m.bytes), m.bytes),
            number(bits.map(|b| b.0), 3),
        ];
        if stored {
            row.push(number(bits.map(|b| b.1), 3));
        }
        row.extend([
            number(errors.as_ref().map(|e| e.mean), 5),
            number(errors.as_ref().map(|e| e.worst), 5),
            Cell::text(layouts(&m.plan)),
        ]);
        table.rows.push(row);
        made_notes(&mut table, m, errors);
    }
    plan_notes(&mut table, made.iter().map(|m| &m.plan));
    if made.iter().any(|m| m.verified) {
        table.note("verified: every artifact was read again before it was put in place: weights decode bit for bit to what the definitions of their schemes make of the source, metadata and side files are what was to be written");
    }
    source.warnings.iter().for_each(|w| table.note(format!("warning: {w}")));
    terminal(&table)
}

fn made_notes(table: &mut Table, made: &Made, errors: Option<Summary>) {
    let label = &made.plan.label;
    if let Some(e) = errors {
        let of = if made.losses.quantized.is_empty() { " (rounding to another float type)" } else { "" };
        table.note(format!("{label}: worst error {} in {}{of}", format::fixed(e.worst, 5), e.worst_weight));
    }
    let clamped: u64 = made.losses.clamped.values().sum();
    if let Some((weight, most)) = made.losses.clamped.iter().max_by_key(|c| c.1) {
        let weights = made.losses.clamped.len();
        let weights = counted(weights, "weight");
        table.note(format!("{label}: {clamped} values clamped in {weights}, most in {weight} ({most})"));
    }
}

/// The notes of several plans, one line for those that say the same.
fn plan_notes<'a>(table: &mut Table, plans: impl Iterator<Item = &'a Plan>) {
    let mut lines: Vec<(&str, Vec<&str>)> = Vec::new();
    for plan in plans {
        for note in &plan.notes {
            match lines.iter_mut().find(|l| l.0 == note) {
                Some(line) => line.1.push(&plan.label),
                None => lines.push((note, vec![&plan.label])),
            }
        }
    }
    for (note, labels) in lines {
        table.note(format!("{}: {note}", labels.join(", ")));
    }
}

/// A plan to show.
pub struct Dry<'a> {
    /// The plan; without statistics as if no column were an outlier.
    pub plan: &'a Plan,
    /// True if it was made without the statistics of activations that it needs.
    pub uncalibrated: bool,
    /// True if it needs such statistics, and none are given.
    pub needs_calibration: bool,
}

impl Dry<'_> {
    /// Returns whether columns that a calibration would find make the artifact larger than planned.
    pub fn is_least(&self) -> bool {
        self.uncalibrated && self.plan.weights.iter().any(|w| w.scheme == Some(Scheme::Int8Outlier))
    }

    fn fits(&self) -> Cell {
        match (self.plan.misfits.len(), self.needs_calibration) {
            (0, true) => Cell::text("needs --calibration-text").tone(Tone::Warning),
            (0, _) => Cell::text("yes"),
            (n, _) => Cell::text(format!("no: {n} weights don't")).tone(Tone::Bad),
        }
    }
}

/// Plans as a table.
pub fn plans_table(source: &Source<'_>, rows: &[Dry<'_>]) -> String {
    let stored = rows.iter().any(|r| stored_bits(r.plan.bits_per_weight(source)).is_some());
    let mut columns = vec![
        Column::text("scheme", "scheme"),
        Column::number("quantized", "quantized"),
        Column::number("kept", "kept"),
        Column::number("bytes", "tensor data"),
    ];
    columns.extend(bits_columns(stored));
    columns.extend([Column::text("layout", "layout (weights)"), Column::text("fits", "fits")]);
    let mut table = Table::new("Dry run: nothing is written", columns);
    for row in rows {
        let plan = row.plan;
        let quantized = plan.weights.iter().filter(|w| w.scheme.is_some()).count();
        let least = if row.is_least() { ">= " } else { "" };
        let bits = plan.bits_per_weight(source);
        let at_least =
            |v: Option<f64>| v.map_or_else(Cell::absent, |v| Cell::value(format!("{least}{}", format::fixed(v, 3)), v));
        let mut cells = vec![
            Cell::text(plan.label.clone()),
            Cell::value(quantized.to_string(), quantized),
            Cell::value((plan.weights.len() - quantized).to_string(), plan.weights.len() - quantized),
            Cell::value(format!("{least}{}", format::bytes(plan.data_bytes())), plan.data_bytes()),
            at_least(bits.map(|b| b.0)),
        ];
        if stored {
            cells.push(at_least(bits.map(|b| b.1)));
        }
        cells.extend([Cell::text(layouts(plan)), row.fits()]);
        table.rows.push(cells);
    }
    plan_notes(&mut table, rows.iter().map(|r| r.plan));
    if rows.iter().any(Dry::is_least) {
        table.note(">=: which columns stay f16 is known only after the calibration");
    }
    source.warnings.iter().for_each(|w| table.note(format!("warning: {w}")));
    let mut text = terminal(&table);
    // All weights of a scheme that was asked about alone; of several, one line each.
    let most = if rows.len() == 1 { usize::MAX } else { 1 };
    for plan in rows.iter().map(|r| r.plan) {
        for m in plan.misfits.iter().take(most) {
            let more = match plan.misfits.len() {
                n if n > most => format!(" (and {} more)", n - most),
                _ => String::new(),
            };
            let _ = writeln!(text, "{}: {} {:?}: {}; {}{more}", plan.label, m.weight, m.shape, m.why, m.instead);
        }
    }
    if let Some(row) = rows.first() {
        kept(source, row.plan, &mut text);
    }
    text
}

/// Lists what stays, one line for each kind of tensor.
fn kept(source: &Source<'_>, plan: &Plan, text: &mut String) {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for w in plan.weights.iter().filter(|w| w.scheme.is_none()) {
        let name: String = source.weights[w.index]
            .name
            .split('.')
            .map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { "N" } else { p })
            .collect::<Vec<_>>()
            .join(".");
        let dtype = w.laid.tensors.first().map_or_else(String::new, |t| t.dtype.to_string());
        let line = format!("{name} ({dtype})");
        match kinds.iter_mut().find(|k| k.0 == line) {
            Some(kind) => kind.1 += 1,
            None => kinds.push((line, 1)),
        }
    }
    if !kinds.is_empty() {
        let _ = writeln!(text, "Not quantized under {}:", plan.label);
        for (line, count) in kinds {
            let _ = writeln!(text, "  {count:>4} x {line}");
        }
    }
}

fn terminal(table: &Table) -> String {
    report::stdout_form().render(table)
}
