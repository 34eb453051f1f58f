//! `qinspect activations`.

use crate::args::ActivationsArgs;
use crate::weights::{median, narrowed};
use crate::{activations_page, texts};
use anyhow::Result;
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::activations::{self, Activations, Int8, Large, Request, Seen};
use inspection::place;
use progress::Progress;
use report::format;
use report::page::Page;
use report::spark::{self, Glyphs, sparkline};
use report::table::{Cell, Column, Table, Terminal, Tone};
use runtime::Math;
use scoring::load::Compute;
use serde_json::{Value, json};
use store::output::Form;

/// `qinspect activations`.
pub fn run(args: &ActivationsArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<_> = [&args.model].into_iter().chain(&args.text.text).map(|p| p.as_path()).collect();
    let more: Vec<_> = args.save.iter().map(|file| (file.as_path(), Form::Calibration)).collect();
    output::check_with(&args.output, &more, &inputs)?;
    let request = Request {
        text: texts::text(&args.text)?,
        cut: args.text.cut(),
        top: args.top,
        without: args.without,
        compute: Compute::on(&args.compute.place.device, &args.compute.dtype, Math::Exact, None)?,
    };
    inspection::text::check(&request.cut)?;
    let mut found = activations::look(&args.model, &request, progress)?;
    if let Some(save) = &args.save {
        store::output::write_file(
            save,
            Form::Calibration,
            args.output.overwrite.existing(),
            &found.calibration.to_bytes()?,
        )?;
        let modules = found.calibration.modules().count();
        found.notes.push(format!(
            "{}: calibration of {modules} modules on {} tokens, for qconvert --calibration",
            save.display(),
            found.tokens
        ));
    }
    let provenance = Provenance::on(runtime::device_name(&request.compute.device)).model("model", &args.model).bytes(
        "text",
        &request.text.name,
        request.text.text.as_bytes(),
    );
    output::present(&View { found, inputs: args.inputs }, &args.output, &provenance)
}

/// Findings, and whether the terminal shows each layer's input.
struct View {
    found: Activations,
    inputs: bool,
}

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect activations"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let found = &self.found;
        let about = [
            ("Model", found.model.clone()),
            ("Text", format!("{}, {} tokens in {}", found.text, found.tokens, counted(found.sequences, "sequence"))),
        ];
        let mut parts =
            vec![facts(&about, form.width), form.render(&large(found)?), form.render(&int8(found, &found.residual)?)];
        parts.push(form.render(&persistent(found, form.glyphs)?));
        parts.push(octaves(found, form));
        parts.push(form.render(&by_kind(found)?));
        if self.inputs {
            parts.push(form.render(&int8(found, &found.inputs)?));
        }
        parts.extend(notes(&found.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.found)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let mut columns = vec![Column::text("place", "Place"), Column::number("block", "Block")];
        columns.extend(["max", "max_without_first", "median"].map(|key| Column::number(key, key)));
        let parts = ["dimension", "absmax", "sequence", "position", "carried_by"];
        columns.extend((1..=self.found.listed).map(|n| Column::number(format!("top{n}"), "").parts(&parts)));
        let codes = ["scale", "levels", "zeros"];
        let ways = ["tensor", "token", "channel", "without_top", "without_first"];
        columns.extend(ways.map(|key| Column::number(key, key).parts(&codes)));
        let mut table = Table::new("Activations", columns);
        for seen in self.found.residual.iter().chain(&self.found.inputs) {
            let mut cells = vec![Cell::text(seen.place.clone()), Cell::value("", json!(seen.block))];
            cells.extend([seen.max, seen.max_without_first, seen.median].map(|v| number(v.into())));
            cells.extend((0..self.found.listed).map(|at| Cell::value("", json!(seen.top.get(at)))));
            let Seen { tensor, token, channel, without_top, without_first, .. } = seen;
            cells.extend(
                [json!(tensor), json!(token), json!(channel), json!(without_top), json!(without_first)]
                    .map(|v| Cell::value("", v)),
            );
            table.push(cells)?;
        }
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        Ok(activations_page::page(&self.found)?)
    }
}

fn number(value: f64) -> Cell {
    Cell::value(magnitude(value), value)
}

/// Four digits, with separated thousands.
pub fn magnitude(value: f64) -> String {
    if (1e3..1e15).contains(&value.abs()) { format::count(value.round() as u64) } else { format::significant(value, 3) }
}

/// A number of things in words.
pub fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("one {what}") } else { format!("{n} {what}s") }
}

fn shown(large: &Large) -> Cell {
    Cell::text(format!("{}: {}", large.dimension, magnitude(large.absmax.into())))
}

/// The largest dimensions of the residual stream after each block.
pub fn large(found: &Activations) -> Result<Table, report::Error> {
    let mut columns = vec![Column::number("block", "Block")];
    let listed = found.listed.min(4);
    columns.extend((1..=listed).map(|n| {
        let name = if n == 1 { "Dimension:\nmax |x|".to_string() } else { format!("\n{n}.") };
        Column::number(format!("top{n}"), name)
    }));
    columns.extend([
        Column::text("carried_by", "First one\ncarried by"),
        Column::text("token", "at token"),
        Column::number("median", "Median\ndimension"),
        Column::number("without_first", "Max w/o\nfirst token"),
    ]);
    let mut table = Table::new("Residual stream after each block: the largest dimensions", columns);
    for seen in &found.residual {
        let Some(first) = seen.top.first() else { continue };
        let mut cells = vec![Cell::text(seen.block.map_or(String::new(), |b| b.to_string()))];
        cells.extend((0..listed).map(|at| seen.top.get(at).map_or_else(Cell::absent, shown)));
        let tone = if first.carried_by == "some tokens" { Tone::Normal } else { Tone::Warning };
        cells.extend([
            Cell::text(first.carried_by).tone(tone),
            Cell::text(format!("{} {}", first.position, token(&first.token))),
            number(seen.median.into()),
            number(seen.max_without_first.into()),
        ]);
        table.push(cells)?;
    }
    table.note(
        "Carried by the first token: elsewhere the dimension stays below a quarter of its maximum. By all tokens: at \
         least half of them reach a quarter.",
    );
    Ok(table)
}

/// A token in quotes, short.
fn token(text: &str) -> String {
    format!("'{}'", super::tensors::shortened(&text.replace(['\n', '\r'], "\\n"), 9))
}

/// INT8 codes of some places.
pub fn int8(found: &Activations, places: &[Seen]) -> Result<Table, report::Error> {
    let is_residual = places.first().is_none_or(|seen| seen.place == "residual");
    let columns = vec![
        if is_residual { Column::number("block", "Block") } else { Column::text("place", "Input of") },
        Column::number("scale", "One scale"),
        Column::number("tensor", "levels,\nzeros"),
        Column::number("token", "by token:\nlevels, zeros"),
        Column::number("channel", "by dimension:\nlevels, zeros"),
        Column::number("without_top", format!("without top {}:\nlevels, zeros", found.without)),
        Column::number("without_first", "without first:\nlevels, zeros"),
    ];
    let what = if is_residual { "Residual stream" } else { "Inputs of linear layers" };
    let mut table = Table::new(format!("{what}: INT8 levels in use, of 255, and values that become 0"), columns);
    for seen in places {
        let name = match seen.block {
            Some(block) if is_residual => block.to_string(),
            _ => place::short(&seen.place).to_string(),
        };
        table.push(vec![
            Cell::text(name),
            number(seen.tensor.scale.into()),
            codes(&seen.tensor),
            codes(&seen.token),
            codes(&seen.channel),
            codes(&seen.without_top),
            seen.without_first.as_ref().map_or_else(Cell::absent, codes),
        ])?;
    }
    table.note("Scales are absmax/127. Of many scales the median number of levels; a dimension has no more levels than tokens.");
    Ok(table)
}

fn codes(int8: &Int8) -> Cell {
    let levels = format::fixed(int8.levels, usize::from(int8.levels.fract() != 0.0));
    Cell::text(format!("{levels}, {:>5}", format::percent(int8.zeros, 1)))
}

/// Dimensions that stay large.
pub fn persistent(found: &Activations, glyphs: Glyphs) -> Result<Table, report::Error> {
    let columns = vec![
        Column::number("dimension", "Dimension"),
        Column::number("blocks", "Blocks"),
        Column::text("range", "from .. to"),
        Column::number("absmax", "Largest"),
        Column::text("by_block", "log of max |x| by block"),
    ];
    let title = format!("Dimensions among the {} largest after several blocks", found.listed);
    let mut table = Table::new(title, columns);
    for p in found.persistent.iter().take(12) {
        let logs: Vec<f64> = p.absmax.iter().map(|v| f64::from(v.max(1e-9)).log10()).collect();
        table.push(vec![
            Cell::text(p.dimension.to_string()),
            Cell::text(format!("{} of {}", p.blocks, found.residual.len())),
            Cell::text(format!("{} .. {}", p.first_block, p.last_block)),
            number(p.absmax.iter().copied().fold(0.0, f32::max).into()),
            Cell::text(sparkline(&narrowed(&logs, 40), glyphs)),
        ])?;
    }
    Ok(table)
}

/// The block whose residual stream has the largest value.
pub fn extreme(found: &Activations) -> Option<&Seen> {
    found.residual.iter().max_by(|a, b| a.max.total_cmp(&b.max))
}

/// Octaves that are shown one by one, the largest value's first. Under one INT8 scale all that is more than eight below
/// becomes 0, and values that small are what cancelling sums left: another order of summation moves them.
const OCTAVES: usize = 12;

/// The octaves of the block with the largest value.
fn octaves(found: &Activations, form: &Terminal) -> String {
    let Some(seen) = extreme(found) else { return String::new() };
    let kept = seen.octaves.len().saturating_sub(OCTAVES);
    let below: u64 = seen.octaves[..kept].iter().map(|o| o.values).sum::<u64>() + seen.zeros;
    let mut lines: Vec<spark::Line> = Vec::new();
    if below > 0 {
        lines.push(line("below".into(), below));
    }
    lines.extend(seen.octaves[kept..].iter().map(|o| line(format!("2^{}", o.exponent), o.values)));
    let block = seen.block.unwrap_or(0);
    let title = format!("Values by octave after block {block}, where the largest value is (bars on a log scale)");
    format!("{title}\n\n{}", spark::bars(&lines, form.width.min(80), form.glyphs))
}

fn line(label: String, values: u64) -> spark::Line {
    spark::Line { label, value: (values as f64 + 1.0).log10(), text: format::count(values) }
}

/// The inputs of linear layers by kind.
pub fn by_kind(found: &Activations) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("kind", "Input of"),
        Column::number("max", "Largest"),
        Column::number("block", "in\nblock"),
        Column::number("dimension", "Dimension"),
        Column::text("carried_by", "carried by"),
        Column::number("median", "Median\ndimension"),
        Column::number("tensor", "Levels,\none scale"),
        Column::number("token", "by\ntoken"),
        Column::number("without_top", format!("without\ntop {}", found.without)),
    ];
    let mut table =
        Table::new("Inputs of linear layers by kind: the largest value, and medians over the blocks", columns);
    let mut kinds: Vec<&str> = Vec::new();
    for seen in &found.inputs {
        if !kinds.contains(&seen.kind.as_str()) {
            kinds.push(&seen.kind);
        }
    }
    for kind in kinds {
        let members: Vec<&Seen> = found.inputs.iter().filter(|s| s.kind == kind).collect();
        let Some(worst) = members.iter().max_by(|a, b| a.max.total_cmp(&b.max)) else { continue };
        let Some(first) = worst.top.first() else { continue };
        let middle = |value: fn(&Seen) -> f64| {
            let value = median(members.iter().map(|s| value(s)));
            Cell::value(format::significant(value, 3), value)
        };
        table.push(vec![
            Cell::text(kind),
            number(worst.max.into()),
            worst.block.map_or_else(Cell::absent, |b| Cell::text(b.to_string())),
            Cell::text(first.dimension.to_string()),
            Cell::text(first.carried_by),
            middle(|s| s.median.into()),
            middle(|s| s.tensor.levels),
            middle(|s| s.token.levels),
            middle(|s| s.without_top.levels),
        ])?;
    }
    Ok(table)
}
