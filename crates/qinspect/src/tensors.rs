//! `qinspect tensors`.

use crate::args::TensorsArgs;
use anyhow::Result;
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::metadata::Entry;
use inspection::tensors::{self, Architecture, TensorInfo, Tensors, Total, alike};
use report::chart::{Axis, Bar, BarChart};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Terminal};
use serde_json::{Value, json};

/// `qinspect tensors`.
pub fn run(args: &TensorsArgs) -> Result<Outcome> {
    output::check(&args.output, &[&args.model])?;
    let found = tensors::look(&args.model, args.metadata)?;
    let provenance = Provenance::default().header("model", &args.model);
    output::present(&View { found, each: args.all }, &args.output, &provenance)
}

/// Findings, and whether the terminal shows each tensor.
struct View {
    found: Tensors,
    each: bool,
}

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect tensors"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let found = &self.found;
        let mut parts = vec![facts(&about(found), form.width)];
        parts.push(form.render(&if self.each { each(found)? } else { grouped(found)? }));
        parts.push(form.render(&totals("By type in the file", "Type", "Tensors", &found.types)?));
        parts.push(form.render(&totals("Linear layers and embedding by scheme", "Scheme", "Layers", &found.schemes)?));
        if let Some(entries) = &found.metadata {
            parts.push(metadata_lines(entries, form.width));
        }
        parts.extend(notes(&found.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.found)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        Ok(vec![each(&self.found)?])
    }

    fn page(&self) -> Result<Page> {
        let found = &self.found;
        let mut sections = vec![
            Section::new("Where the bytes are")
                .chart(&plot("Bytes by type", &found.types), "All tensors of the files.")
                .chart(&plot("Bytes by scheme", &found.schemes), "Linear layers and embedding, codes and scales.")
                .table(totals("By type in the file", "Type", "Tensors", &found.types)?)
                .table(totals("By scheme", "Scheme", "Layers", &found.schemes)?),
            Section::new("Tensors").table(grouped(found)?),
        ];
        if let Some(entries) = &found.metadata {
            sections.push(Section::new("Metadata").table(metadata_table(entries)?));
        }
        if !found.notes.is_empty() {
            sections.push(found.notes.iter().cloned().fold(Section::new("Notes"), Section::prose));
        }
        let facts = about(found).into_iter().map(|(name, value)| Fact::new(name, value)).collect();
        Ok(Page { title: format!("What is in {}", found.model), facts, sections, ..Page::default() })
    }
}

/// One row for each tensor.
fn each(found: &Tensors) -> Result<Table> {
    let mut columns = columns("Tensor");
    columns.push(Column::text("stored_name", "Stored name").machine_only());
    columns.push(Column::text("file", "File").machine_only());
    let mut table = Table::new("Tensors", columns);
    for tensor in &found.tensors {
        let mut cells = cells(&tensor.name, tensor, tensor.bytes);
        cells.extend([Cell::text(tensor.stored_name.clone()), Cell::text(tensor.file.clone())]);
        table.push(cells)?;
    }
    Ok(table)
}

fn about(found: &Tensors) -> Vec<(&'static str, String)> {
    let mut about = vec![("Model", format!("{} ({})", found.model, found.container))];
    if let Some(a) = &found.architecture {
        let Architecture { layers, hidden_size, intermediate_size, heads, kv_heads, head_dim, .. } = a;
        about.push(("Architecture", a.name.clone()));
        about.push((
            "Shape",
            format!(
                "{layers} layers, hidden {hidden_size}, mlp {intermediate_size}, heads {heads}/{kv_heads} x {head_dim}"
            ),
        ));
        let tied = if a.tied { ", tied" } else { "" };
        about.push(("Vocabulary", format!("{}{tied}", format::count(a.vocab_size as u64))));
        about.push(("Trained for", format!("{} tokens", format::count(a.max_position as u64))));
        about.push(("Cache", format!("{} bytes a token in f16", format::count(a.cache_bytes_per_token as u64))));
    }
    about.push(("Parameters", format::count(found.parameters)));
    about.push(("Tensors", format!("{}, {}", format::count(found.tensors.len() as u64), format::bytes(found.bytes))));
    about
}

fn columns(first: &str) -> Vec<Column> {
    vec![
        Column::text("name", first),
        Column::text("type", "Type"),
        Column::number("shape", "Shape"),
        Column::number("bytes", "Bytes"),
        Column::text("scheme", "Scheme"),
    ]
}

fn cells(name: &str, tensor: &TensorInfo, bytes: u64) -> Vec<Cell> {
    let shape = tensor.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
    vec![
        Cell::text(name),
        Cell::text(tensor.dtype.clone()),
        Cell::text(shape),
        Cell::value(format::bytes(bytes), bytes),
        tensor.scheme.clone().map_or_else(Cell::absent, Cell::text),
    ]
}

/// The tensors of all blocks in one row.
fn grouped(found: &Tensors) -> Result<Table, report::Error> {
    let mut columns = columns("Tensor");
    columns.insert(1, Column::number("count", "Count"));
    let mut table = Table::new("", columns);
    for group in alike(&found.tensors) {
        let mut cells = cells(&group.name, group.first, group.bytes);
        cells.insert(1, Cell::value(group.count.to_string(), group.count as u64));
        table.push(cells)?;
    }
    Ok(table)
}

fn totals(title: &str, first: &str, counted: &str, totals: &[Total]) -> Result<Table, report::Error> {
    let columns = vec![
        Column::text("name", first),
        Column::number("count", counted),
        Column::number("elements", "Elements"),
        Column::number("bytes", "Bytes"),
        Column::number("bits", "Bits\neach"),
    ];
    let mut table = Table::new(title, columns);
    for total in totals {
        table.push(vec![
            Cell::text(total.name.clone()),
            Cell::value(format::count(total.count as u64), total.count as u64),
            Cell::value(format::count(total.elements), total.elements),
            Cell::value(format::bytes(total.bytes), total.bytes),
            Cell::value(format::fixed(total.bits, 3), total.bits),
        ])?;
    }
    Ok(table)
}

fn plot(title: &str, totals: &[Total]) -> BarChart {
    let bar = |total: &Total| Bar {
        label: total.name.clone(),
        value: total.bytes as f64 / f64::from(1 << 20),
        text: format::bytes(total.bytes),
        ..Bar::default()
    };
    BarChart {
        title: title.into(),
        axis: Axis::linear("MiB"),
        bars: totals.iter().map(bar).collect(),
        ..BarChart::default()
    }
}

/// Keys and values, cut at the terminal's width.
fn metadata_lines(entries: &[Entry], width: usize) -> String {
    if entries.is_empty() {
        return "The files have no metadata.".into();
    }
    let lines = entries.iter().map(|entry| {
        let value = entry.shown().replace('\n', " ");
        shortened(&format::printable(&format!("{} ({}): {value}", entry.key, entry.kind)), width)
    });
    format!("Metadata\n\n{}", lines.collect::<Vec<_>>().join("\n"))
}

fn metadata_table(entries: &[Entry]) -> Result<Table, report::Error> {
    let columns = vec![Column::text("key", "Key"), Column::text("type", "Type"), Column::text("value", "Value")];
    let mut table = Table::new("", columns);
    for entry in entries {
        let value = Cell::value(shortened(&entry.shown(), 400), json!(entry.value));
        table.push(vec![Cell::text(entry.key.clone()), Cell::text(entry.kind.clone()), value])?;
    }
    Ok(table)
}

/// The text, or its beginning and `...`.
pub fn shortened(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    let kept: String = text.chars().take(width.saturating_sub(3)).collect();
    format!("{kept}...")
}
