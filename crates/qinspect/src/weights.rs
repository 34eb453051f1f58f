//! `qinspect weights`.

use crate::args::WeightsArgs;
use crate::memory::schemes;
use crate::weights_page;
use anyhow::Result;
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::weights::{self, Matrix, Request, Weights};
use inspection::{Error, place};
use observe::Calibration;
use progress::Progress;
use report::format;
use report::page::Page;
use report::spark::{Glyphs, sparkline};
use report::table::{Cell, Column, Table, Terminal};
use serde_json::Value;

/// Matrices that are listed where not all are.
const LISTED: usize = 10;

/// `qinspect weights`.
pub fn run(args: &WeightsArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<_> = [&args.model].into_iter().chain(&args.calibration).map(|p| p.as_path()).collect();
    output::check(&args.output, &inputs)?;
    let calibration = args.calibration.as_deref().map(Calibration::load).transpose().map_err(Error::from)?;
    let schemes = match args.scheme.is_empty() || args.scheme == ["all"] {
        true => weights::default_schemes(calibration.is_some()),
        false => schemes(&args.scheme)?,
    };
    let request = Request { sigma: args.sigma, schemes, calibration };
    let found = weights::measure(&args.model, &request, progress)?;
    let provenance = Provenance::default().model("model", &args.model).files("calibration", &args.calibration);
    output::present(&View { found, each: args.all }, &args.output, &provenance)
}

/// Findings, and whether the terminal shows each matrix.
struct View {
    found: Weights,
    each: bool,
}

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect weights"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let found = &self.found;
        let weights: usize = found.matrices.iter().map(|m| m.rows * m.cols).sum();
        let about = [
            ("Model", found.model.clone()),
            ("Matrices", format!("{}, {} weights", found.matrices.len(), format::count(weights as u64))),
        ];
        let mut parts = vec![facts(&about, form.width), form.render(&kinds(found, form.glyphs)?)];
        let mut extreme: Vec<&Matrix> = found.matrices.iter().collect();
        if self.each {
            parts.push(form.render(&matrices("Each matrix", found, &extreme)?));
        } else {
            extreme.sort_by(|a, b| b.max_over_std.total_cmp(&a.max_over_std));
            extreme.truncate(LISTED);
            let title = format!("The {} matrices with the largest max/std (all of them: --all)", extreme.len());
            parts.push(form.render(&matrices(&title, found, &extreme)?));
        }
        parts.push(form.render(&losses(found)?));
        parts.push(form.render(&levels(found)?));
        parts.extend(notes(&found.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.found)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let all: Vec<&Matrix> = self.found.matrices.iter().collect();
        let mut table = matrices("Each matrix", &self.found, &all)?;
        let schemes = self.found.matrices.iter().find(|m| !m.losses.is_empty()).map_or(&[][..], |m| &m.losses);
        table.columns.extend(schemes.iter().map(|loss| Column::number(format!("error:{}", loss.scheme), "")));
        for (row, matrix) in table.rows.iter_mut().zip(&self.found.matrices) {
            let error = |at: usize| matrix.losses.get(at).and_then(|loss| loss.error);
            row.extend((0..schemes.len()).map(|at| error(at).map_or_else(Cell::absent, |e| number(e, 4))));
        }
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        Ok(weights_page::page(&self.found)?)
    }
}

fn number(value: f64, digits: usize) -> Cell {
    Cell::value(format::significant(value, digits), value)
}

fn count(value: u64) -> Cell {
    Cell::value(format::count(value), value)
}

/// Table of the kinds of matrices.
fn kinds(found: &Weights, glyphs: Glyphs) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("kind", "Kind"),
        Column::number("count", "Count"),
        Column::number("std", "std\nmedian"),
        Column::number("max_over_std", "max/std\nlargest"),
        Column::number("block", "in\nblock"),
        Column::number("beyond", format!("beyond\n{} sigma", found.sigma)),
        Column::number("kurtosis", "excess kurt.\nmedian"),
        Column::text("by_block", "max/std by block"),
    ];
    let mut table = Table::new("By kind", columns);
    for kind in place::kinds(found.matrices.iter().map(|m| m.module.as_str())) {
        let members: Vec<&Matrix> = found.matrices.iter().filter(|m| m.kind == kind).collect();
        let Some(worst) = members.iter().max_by(|a, b| a.max_over_std.total_cmp(&b.max_over_std)) else { continue };
        let ratios: Vec<f64> = members.iter().map(|m| m.max_over_std).collect();
        table.push(vec![
            Cell::text(kind),
            count(members.len() as u64),
            number(median(members.iter().map(|m| m.std)), 3),
            number(worst.max_over_std, 3),
            worst.block.map_or_else(Cell::absent, |b| count(b as u64)),
            count(members.iter().map(|m| m.beyond).sum()),
            number(median(members.iter().map(|m| m.kurtosis)), 3),
            Cell::text(if members.len() > 1 { sparkline(&narrowed(&ratios, 30), glyphs) } else { String::new() }),
        ])?;
    }
    Ok(table)
}

/// At most `width` values: the largest of each run.
pub fn narrowed(values: &[f64], width: usize) -> Vec<f64> {
    let run = values.len().div_ceil(width.max(1)).max(1);
    values.chunks(run).map(|part| part.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect()
}

/// The median; the mean of both in the middle.
pub fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        n => (values[(n - 1) / 2] + values[n / 2]) / 2.0,
    }
}

/// Some matrices, one a row.
fn matrices(title: &str, found: &Weights, which: &[&Matrix]) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("module", "Matrix"),
        Column::number("mean_abs", "mean |w|"),
        Column::number("std", "std"),
        Column::number("max", "max"),
        Column::number("max_over_std", "max/std"),
        Column::number("beyond", format!("beyond\n{} sigma", found.sigma)),
        Column::number("kurtosis", "excess\nkurtosis"),
        Column::number("max_row", "max in\nrow"),
        Column::number("max_col", "max in\ncolumn"),
        Column::number("top_row", "").machine_only(),
        Column::number("top_row_beyond", "").machine_only(),
        Column::number("top_col", "").machine_only(),
        Column::number("top_col_beyond", "").machine_only(),
        Column::number("rows", "").machine_only(),
        Column::number("cols", "").machine_only(),
    ];
    let mut table = Table::new(title, columns);
    let index = |i: Option<usize>| i.map_or_else(Cell::absent, |i| Cell::value(i.to_string(), i as u64));
    for m in which {
        table.push(vec![
            Cell::value(place::short(&m.module), m.module.clone()),
            number(m.mean_abs, 4),
            number(m.std, 4),
            number(m.max, 4),
            number(m.max_over_std, 3),
            count(m.beyond),
            number(m.kurtosis, 3),
            index(Some(m.max_row)),
            index(Some(m.max_col)),
            index(m.top_row),
            count(m.top_row_beyond),
            index(m.top_col),
            count(m.top_col_beyond),
            index(Some(m.rows)),
            index(Some(m.cols)),
        ])?;
    }
    table.note(crowded(which, found.sigma));
    table.notes.retain(|note| !note.is_empty());
    Ok(table)
}

/// Names the row or column that has most of the outliers, where one has many.
fn crowded(which: &[&Matrix], sigma: f64) -> String {
    let lines = which.iter().filter_map(|m| {
        let share = |n: u64| n as f64 / m.beyond.max(1) as f64;
        let (line, at, n) = if m.top_col_beyond > m.top_row_beyond {
            ("column", m.top_col?, m.top_col_beyond)
        } else {
            ("row", m.top_row?, m.top_row_beyond)
        };
        let tells = m.beyond >= 20 && share(n) >= 0.25;
        tells.then(|| format!("{} {line} {at} ({})", place::short(&m.module), format::percent(share(n), 0)))
    });
    let lines: Vec<String> = lines.take(4).collect();
    if lines.is_empty() {
        return String::new();
    }
    format!("A large part of the weights beyond {sigma} sigma lies in one line: {}.", lines.join(", "))
}

/// The schemes by what they lose.
pub fn losses(found: &Weights) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("scheme", "Scheme"),
        Column::number("bpw", "bpw"),
        Column::number("mean", "Mean"),
        Column::number("worst", "Worst"),
        Column::text("worst_in", "in"),
        Column::number("pooled", "Pooled"),
    ];
    let count = found.schemes.iter().map(|s| s.matrices).max().unwrap_or(0);
    let mut table = Table::new(format!("Relative error |W - decoded| / |W| over {count} matrices"), columns);
    for loss in &found.schemes {
        let error = |e: f64| Cell::value(format::fixed(e, 5), e);
        let missing = if loss.matrices < count { format!(" ({} matrices)", loss.matrices) } else { String::new() };
        table.push(vec![
            Cell::value(format!("{}{missing}", loss.scheme), loss.scheme.clone()),
            Cell::value(format::fixed(loss.bpw, 3), loss.bpw),
            error(loss.mean),
            error(loss.worst),
            Cell::value(place::short(&loss.worst_in), loss.worst_in.clone()),
            error(loss.pooled),
        ])?;
    }
    table
        .note("w8a8-* lose of the weights what int8-row loses. Types on whose grid a source already lies look better.");
    Ok(table)
}

/// Table of the effects of block length and of the placement of levels.
pub fn levels(found: &Weights) -> Result<Table, report::Error> {
    let columns = vec![
        Column::number("block", "Block"),
        Column::number("bpw", "bpw"),
        Column::number("int4", "int4\n15 even levels"),
        Column::number("nf4", "nf4\n16 normal levels"),
        Column::number("change", "Change by\nthe levels"),
    ];
    let mut table = Table::new("Block length and level placement: mean relative error", columns);
    for row in &found.levels {
        let change = row.nf4 / row.int4 - 1.0;
        table.push(vec![
            Cell::value(row.block.to_string(), row.block as u64),
            Cell::value(format::fixed(row.bpw, 3), row.bpw),
            Cell::value(format::fixed(row.int4, 5), row.int4),
            Cell::value(format::fixed(row.nf4, 5), row.nf4),
            Cell::value(format::signed_percent(change, 1), change),
        ])?;
    }
    if let Some(sentence) = two_causes(found) {
        table.note(sentence);
    }
    Ok(table)
}

/// The gain of nf4 over int4-g128, taken apart.
fn two_causes(found: &Weights) -> Option<String> {
    let at = |block: usize| found.levels.iter().find(|l| l.block == block);
    let (long, short) = (at(128)?, at(64)?);
    let change = |from: f64, to: f64| format::signed_percent(to / from - 1.0, 1);
    let same = found.levels.iter().filter(|l| l.int4 <= short.nf4).max_by_key(|l| l.block);
    let needs = match same {
        Some(l) => format!("int4 gets there with blocks of {} ({} bpw)", l.block, format::fixed(l.bpw, 2)),
        None => "int4 does not get there with blocks of 16".into(),
    };
    Some(format!(
        "From int4-g128 to nf4 (blocks of 64) the error changes by {}: {} by the shorter block, and {} of what is left \
         by the levels. {needs}.",
        change(long.int4, short.nf4),
        change(long.int4, short.int4),
        change(short.int4, short.nf4),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_narrowed_values() {
        assert_eq!(median([3.0, 1.0, 2.0].into_iter()), 2.0);
        assert_eq!(median([4.0, 1.0].into_iter()), 2.5);
        assert!(median(std::iter::empty()).is_nan());
        assert_eq!(narrowed(&[1.0, 5.0, 2.0, 3.0, 4.0], 3), [5.0, 3.0, 4.0]);
        assert_eq!(narrowed(&[1.0], 32), [1.0]);
    }
}
