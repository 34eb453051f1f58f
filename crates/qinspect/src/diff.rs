//! `qinspect diff`.

use crate::args::DiffArgs;
use crate::tensors::shortened;
use crate::weights::narrowed;
use anyhow::Result;
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::diff::{self, Change, Compared, Diff, Status};
use inspection::place;
use progress::Progress;
use report::chart::{Axis, HeatMap, Line, LinePlot, Scale};
use report::format;
use report::page::{Fact, Page, Section};
use report::spark::{Glyphs, sparkline};
use report::table::{Cell, Column, Table, Terminal, Tone};
use serde_json::{Value, json};

/// Tensors that are listed where not all are.
const LISTED: usize = 10;

/// `qinspect diff`.
pub fn run(args: &DiffArgs, progress: &dyn Progress) -> Result<Outcome> {
    output::check(&args.output, &[&args.a, &args.b])?;
    let found = diff::compare(&args.a, &args.b, progress)?;
    let provenance = Provenance::default().model("a", &args.a).model("b", &args.b);
    let differs = args.exit_code && found.differs();
    let mut outcome = output::present(&View { found, each: args.all }, &args.output, &provenance)?;
    outcome.problems.extend(differs.then(|| format!("{} and {} differ", args.a.display(), args.b.display())));
    Ok(outcome)
}

/// Findings, and whether the terminal shows each tensor.
struct View {
    found: Diff,
    each: bool,
}

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect diff"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let found = &self.found;
        let mut parts = vec![facts(&about(found), form.width)];
        let mut listed: Vec<&Compared> =
            found.tensors.iter().filter(|t| self.each || t.status != Status::Same).collect();
        if found.count(Status::Changed) > 0 {
            parts.push(form.render(&by_kind(found, form.glyphs)?));
        }
        let mut title = "Each tensor".to_string();
        if !self.each {
            // What can't be compared comes before what differs most.
            listed.sort_by(|x, y| y.error.unwrap_or(f64::INFINITY).total_cmp(&x.error.unwrap_or(f64::INFINITY)));
            let all = listed.len();
            listed.truncate(LISTED);
            title = format!("The {} that differ most, of {all} (all of them: --all)", listed.len());
        }
        if !listed.is_empty() {
            parts.push(form.render(&tensors(&title, &listed)?));
        }
        parts.push(change_lines("config.json", &found.config, form.width));
        parts.push(change_lines("Metadata", &found.metadata, form.width));
        parts.extend(notes(&found.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.found)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        Ok(vec![tensors("Each tensor", &self.found.tensors.iter().collect::<Vec<_>>())?])
    }

    fn page(&self) -> Result<Page> {
        let found = &self.found;
        let all: Vec<&Compared> = found.tensors.iter().filter(|t| t.status != Status::Same).collect();
        let mut sections = Vec::new();
        if found.count(Status::Changed) > 0 {
            sections.push(
                Section::new("Where they differ")
                    .chart(&error_by_block(found), "Mean relative error over the tensors of a block that differ.")
                    .chart(&heat(found), "Relative error of each tensor.")
                    .table(by_kind(found, Glyphs::Unicode)?),
            );
        }
        sections.push(Section::new("Tensors that differ").table(tensors("", &all)?));
        sections.push(changes("config.json", &found.config)?);
        sections.push(changes("Metadata", &found.metadata)?);
        let facts = about(found).into_iter().map(|(name, value)| Fact::new(name, value)).collect();
        Ok(Page { title: format!("{} and {}", found.a, found.b), facts, sections, ..Page::default() })
    }
}

fn about(found: &Diff) -> Vec<(&'static str, String)> {
    let mut about = vec![("A", found.a.clone()), ("B", found.b.clone())];
    let words = [
        (Status::Same, "the same"),
        (Status::Changed, "changed"),
        (Status::Reshaped, "of another shape"),
        (Status::OnlyInA, "only in A"),
        (Status::OnlyInB, "only in B"),
        (Status::NotCompared, "not compared"),
    ];
    let counts = words.iter().map(|(status, word)| (found.count(*status), word)).filter(|(n, _)| *n > 0);
    about.push(("Tensors", counts.map(|(n, word)| format!("{n} {word}")).collect::<Vec<_>>().join(", ")));
    if let (Some(mean), Some(pooled)) = (found.mean_error, found.pooled_error) {
        let [mean, pooled] = [mean, pooled].map(|e| format::significant(e, 4));
        about.push(("Error", format!("{mean} mean over the blocks' matrices, {pooled} pooled over all tensors")));
    }
    about
}

fn word(status: Status) -> Cell {
    match status {
        Status::Same => Cell::text("same").tone(Tone::Muted),
        Status::Changed => Cell::text("changed"),
        Status::Reshaped => Cell::text("reshaped").tone(Tone::Bad),
        Status::OnlyInA => Cell::text("only in A").tone(Tone::Warning),
        Status::OnlyInB => Cell::text("only in B").tone(Tone::Warning),
        Status::NotCompared => Cell::text("not compared").tone(Tone::Muted),
    }
}

fn tensors(title: &str, which: &[&Compared]) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("name", "Tensor"),
        Column::text("status", "Status"),
        Column::text("type_a", "A"),
        Column::text("type_b", "B"),
        Column::number("error", "Relative\nerror"),
        Column::number("max_error", "Largest\n|a - b|"),
        Column::text("max_at", "at row,\ncolumn").parts(&["row", "column"]),
        Column::text("shape_a", "").machine_only(),
        Column::text("shape_b", "").machine_only(),
    ];
    let mut table = Table::new(title, columns);
    let number = |value: Option<f64>| value.map_or_else(Cell::absent, |v| Cell::value(format::significant(v, 3), v));
    let shape = |shape: &Option<Vec<usize>>| {
        shape
            .as_ref()
            .map_or_else(Cell::absent, |s| Cell::text(s.iter().map(usize::to_string).collect::<Vec<_>>().join("x")))
    };
    for t in which {
        let at = |(row, col): (usize, usize)| Cell::value(format!("{row}, {col}"), json!({"row": row, "column": col}));
        table.push(vec![
            Cell::value(place::short(&t.name), t.name.clone()),
            word(t.status),
            type_cell(t, &t.type_a, &t.shape_a),
            type_cell(t, &t.type_b, &t.shape_b),
            number(t.error),
            number(t.max_error),
            t.max_at.map_or_else(Cell::absent, at),
            shape(&t.shape_a),
            shape(&t.shape_b),
        ])?;
    }
    Ok(table)
}

/// The type; where shapes differ with the shape.
fn type_cell(tensor: &Compared, ty: &Option<String>, shape: &Option<Vec<usize>>) -> Cell {
    match (ty, shape) {
        (Some(ty), Some(shape)) if tensor.status == Status::Reshaped => {
            let sides = shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
            Cell::value(format!("{ty} {sides}"), ty.clone())
        }
        (Some(ty), _) => Cell::text(ty.clone()),
        (None, _) => Cell::absent(),
    }
}

/// The kind of a tensor: the last part of its name, without `.weight`.
fn kind(tensor: &Compared) -> &str {
    place::kind(tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name))
}

/// The kinds of tensors that differ, in order of appearance.
fn kinds(found: &Diff) -> Vec<&str> {
    let mut kinds: Vec<&str> = Vec::new();
    for tensor in found.tensors.iter().filter(|t| t.status == Status::Changed) {
        if !kinds.contains(&kind(tensor)) {
            kinds.push(kind(tensor));
        }
    }
    kinds
}

fn by_kind(found: &Diff, glyphs: Glyphs) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("kind", "Kind"),
        Column::number("changed", "Changed"),
        Column::number("mean", "Mean\nerror"),
        Column::number("worst", "Worst"),
        Column::number("block", "in\nblock"),
        Column::text("by_block", "Error by block"),
    ];
    let mut table = Table::new("Relative error by kind", columns);
    for name in kinds(found) {
        let members = found.tensors.iter().filter(|t| kind(t) == name);
        let errors: Vec<f64> = members.clone().filter_map(|t| t.error).collect();
        let changed = members.clone().filter(|t| t.status == Status::Changed);
        let Some(worst) = changed.clone().max_by(|x, y| x.error.unwrap_or(0.0).total_cmp(&y.error.unwrap_or(0.0)))
        else {
            continue;
        };
        let number = |v: f64| Cell::value(format::significant(v, 4), v);
        table.push(vec![
            Cell::text(name),
            Cell::text(format!("{} of {}", changed.count(), errors.len())),
            number(errors.iter().sum::<f64>() / errors.len().max(1) as f64),
            worst.error.map_or_else(Cell::absent, number),
            worst.block.map_or_else(Cell::absent, |b| Cell::text(b.to_string())),
            Cell::text(if errors.len() > 1 { sparkline(&narrowed(&errors, 40), glyphs) } else { String::new() }),
        ])?;
    }
    Ok(table)
}

fn change_lines(heading: &str, changes: &[Change], width: usize) -> String {
    if changes.is_empty() {
        return format!("{heading}: no difference");
    }
    let clean = |text: &str| format::printable(text).replace('\n', " ");
    let lines = changes.iter().map(|change| {
        let key = clean(&change.key);
        match (&change.a, &change.b) {
            (Some(a), Some(b)) => {
                let room = (width.saturating_sub(key.chars().count() + 8) / 2).max(12);
                let [a, b] = [a, b].map(|value| shortened(&clean(value), room));
                shortened(&format!("  {key}: {a} -> {b}"), width)
            }
            (None, Some(b)) => shortened(&format!("+ {key}: {}", clean(b)), width),
            (Some(a), None) => shortened(&format!("- {key}: {}", clean(a)), width),
            (None, None) => key,
        }
    });
    format!(
        "{heading}: {} different (+ only in B, - only in A)\n\n{}",
        changes.len(),
        lines.collect::<Vec<_>>().join("\n")
    )
}

/// Differences that are listed without being asked for; a GGUF's metadata have dozens.
const UNFOLDED: usize = 8;

/// A section on keys that differ: a long list is folded away.
fn changes(heading: &str, changes: &[Change]) -> Result<Section, report::Error> {
    let (section, table) = (Section::new(heading), change_table(changes)?);
    Ok(match changes.len() {
        0..=UNFOLDED => section.table(table),
        many => section.folded(format!("{many} keys differ"), table),
    })
}

fn change_table(changes: &[Change]) -> Result<Table, report::Error> {
    let columns = vec![Column::text("key", "Key"), Column::text("a", "A"), Column::text("b", "B")];
    let mut table = Table::new("", columns);
    let text = |value: &Option<String>| value.as_ref().map_or_else(Cell::absent, |v| Cell::text(shortened(v, 300)));
    for change in changes {
        table.push(vec![Cell::text(change.key.clone()), text(&change.a), text(&change.b)])?;
    }
    if changes.is_empty() {
        table.note("There is no difference.");
    }
    Ok(table)
}

fn blocks(found: &Diff) -> usize {
    found.tensors.iter().filter_map(|t| t.block).max().map_or(0, |last| last + 1)
}

fn error_by_block(found: &Diff) -> LinePlot {
    let points = (0..blocks(found)).map(|block| {
        let changed = found.tensors.iter().filter(|t| t.block == Some(block) && t.status == Status::Changed);
        let errors: Vec<f64> = changed.filter_map(|t| t.error).collect();
        let mean = if errors.is_empty() { f64::NAN } else { errors.iter().sum::<f64>() / errors.len() as f64 };
        (block as f64, mean)
    });
    LinePlot {
        title: "Error by block".into(),
        x: Axis::whole("Block"),
        y: Axis::linear("Relative error").from(0.0),
        lines: vec![Line { name: "error".into(), points: points.collect(), band: Vec::new() }],
        guides: Vec::new(),
    }
}

fn heat(found: &Diff) -> HeatMap {
    let kinds: Vec<&str> =
        kinds(found).into_iter().filter(|k| found.tensors.iter().any(|t| t.block.is_some() && kind(t) == *k)).collect();
    let value = |name: &str, block: usize| {
        let tensor = found.tensors.iter().find(|t| t.block == Some(block) && kind(t) == name);
        tensor.and_then(|t| t.error).filter(|e| *e > 0.0).unwrap_or(f64::NAN)
    };
    HeatMap {
        title: "Error by tensor".into(),
        label: "Relative error".into(),
        rows: kinds.iter().map(|k| k.to_string()).collect(),
        columns: (0..blocks(found)).map(|block| block.to_string()).collect(),
        columns_label: "Block".into(),
        values: kinds.iter().map(|k| (0..blocks(found)).map(|block| value(k, block)).collect()).collect(),
        scale: Scale::Linear,
    }
}
