//! `qinspect memory`.

use crate::args::MemoryArgs;
use anyhow::Result;
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::memory::{self, CacheShape, Fit, Memory, Request, Row};
use inspection::{Error, Result as InspectResult};
use report::chart::{Axis, Line, LinePlot};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Terminal, Tone};
use schemes::Scheme;
use serde_json::Value;

/// `qinspect memory`.
pub fn run(args: &MemoryArgs) -> Result<Outcome> {
    let inputs: Vec<_> = args.model.iter().map(|p| p.as_path()).collect();
    output::check(&args.output, &inputs)?;
    let request = Request {
        vram: args.vram.clone(),
        overhead: args.overhead,
        context: args.context,
        schemes: if args.scheme.is_empty() { memory::default_schemes() } else { schemes(&args.scheme)? },
    };
    let provenance = args.model.iter().fold(Provenance::default(), |all, path| all.header("model", path));
    output::present(&View(measure(args, &request)?), &args.output, &provenance)
}

fn measure(args: &MemoryArgs, request: &Request) -> InspectResult<Memory> {
    match (&args.model, &args.params) {
        (Some(path), _) => memory::of_model(path, request),
        (None, Some(params)) => {
            let number = |value: Option<u64>| value.unwrap_or(0);
            let cache = CacheShape {
                layers: number(args.layers),
                kv_heads: number(args.kv_heads),
                head_dim: number(args.head_dim),
            };
            memory::of_parameters(memory::parse_parameters(params)?, cache, request)
        }
        (None, None) => {
            Err(Error::Request("give a MODEL, or --params with --layers, --kv-heads and --head-dim".into()))
        }
    }
}

/// Schemes by name; `all` stands for those that it does elsewhere.
pub fn schemes(names: &[String]) -> InspectResult<Vec<Scheme>> {
    Scheme::named(names.iter().map(|name| name.trim())).map_err(|e| Error::Request(e.to_string()))
}

/// One scheme by name.
pub fn scheme(name: &str) -> InspectResult<Scheme> {
    name.trim().parse().map_err(|e: schemes::Error| Error::Request(e.to_string()))
}

/// The findings of `qinspect memory`, to be shown.
struct View(Memory);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect memory"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let about: Vec<(&str, String)> = self.about();
        let mut parts = vec![facts(&about, form.width), form.render(&self.contexts()?), form.render(&self.users()?)];
        parts.extend(notes(&self.0.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let columns = vec![
            Column::text("scheme", "Scheme"),
            Column::number("bits_per_parameter", "Bits"),
            Column::number("weight_bytes", "Weights"),
            Column::number("vram_gib", "VRAM"),
            Column::number("left_bytes", "Left"),
            Column::number("context_f16", "Context f16"),
            Column::number("context_int8", "Context int8"),
            Column::number("users_f16", "Users f16"),
            Column::number("users_int8", "Users int8"),
        ];
        let mut table = Table::new("What fits", columns);
        let count = |v: Option<u64>| v.map_or_else(Cell::absent, |v| Cell::value(v.to_string(), v));
        for (row, fit) in self.0.rows.iter().flat_map(|row| row.fits.iter().map(move |fit| (row, fit))) {
            let number = |v: f64| Cell::value(format::fixed(v, 3), v);
            table.push(vec![
                Cell::text(row.scheme.clone()),
                number(row.bits_per_parameter),
                number(row.weight_bytes.ceil()),
                number(fit.vram_gib),
                number(fit.left_bytes.floor()),
                count(fit.context_f16),
                count(fit.context_int8),
                count(fit.users_f16),
                count(fit.users_int8),
            ])?;
        }
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        let title = format!("What fits of {}", self.name());
        let plot = self.plot();
        let mut section = Section::new("Context and users")
            .table(self.contexts()?)
            .chart(&plot, "One user, F16 cache. A scheme has no line where its weights don't fit, or beside one of nearly their size.")
            .table(self.users()?);
        section = self.0.notes.iter().cloned().fold(section, Section::prose);
        let facts = self.about().into_iter().map(|(name, value)| Fact::new(name, value)).collect();
        Ok(Page { title, facts, sections: vec![section], ..Page::default() })
    }
}

impl View {
    fn name(&self) -> String {
        self.0.model.clone().unwrap_or_else(|| format!("a model of {} parameters", format::count(self.0.parameters)))
    }

    fn about(&self) -> Vec<(&'static str, String)> {
        let CacheShape { layers, kv_heads, head_dim } = self.0.cache;
        let mut about = Vec::new();
        about.extend(self.0.model.iter().map(|model| ("Model", model.clone())));
        about.push(("Parameters", format::count(self.0.parameters)));
        about.push((
            "Cache",
            format!(
                "{} bytes a token in f16, {} in int8 (2 x {layers} layers x {kv_heads} heads x {head_dim} values)",
                format::count(self.0.cache_bytes_per_token_f16),
                format::count(self.0.cache_bytes_per_token_int8)
            ),
        ));
        about.push(("Overhead", format!("{} GiB", self.0.overhead_gib)));
        about.extend(self.0.trained_context.map(|n| ("Trained for", format!("{} tokens", format::count(n)))));
        about
    }

    /// Scheme, bits and bytes, and a cell for each device.
    fn by_device(&self, title: String, cell: impl Fn(&Fit) -> Cell) -> Result<Table, report::Error> {
        let mut columns = vec![
            Column::text("scheme", "Scheme"),
            Column::number("bits", "Bits"),
            Column::number("weights", "Weights"),
        ];
        let vram = self.0.rows.first().map_or(&[][..], |row| &row.fits);
        columns.extend(vram.iter().map(|fit| {
            let name = format!("{} GiB", fit.vram_gib);
            Column::number(name.clone(), name)
        }));
        let mut table = Table::new(title, columns);
        for row in &self.0.rows {
            let mut cells = vec![
                Cell::text(row.scheme.clone()),
                Cell::value(format::fixed(row.bits_per_parameter, 3), row.bits_per_parameter),
                Cell::value(format::bytes(row.weight_bytes as u64), row.weight_bytes),
            ];
            cells.extend(row.fits.iter().map(&cell));
            table.push(cells)?;
        }
        Ok(table)
    }

    fn contexts(&self) -> Result<Table, report::Error> {
        let title = "Tokens of context for one user, f16 / int8 cache".to_string();
        let mut table = self.by_device(title, |fit| pair(fit.context_f16, fit.context_int8))?;
        table.note(match self.0.model {
            Some(_) => {
                "The linear projections of the blocks are in the scheme, everything else is as stored. An int8 cache \
                 has a scale of 2 bytes for each key and value of a head."
            }
            None => {
                "Every parameter counts at the scheme's nominal bits. An int8 cache has a scale of 2 bytes for each \
                 key and value of a head."
            }
        });
        if let Some(trained) = self.0.trained_context {
            table.note(format!("Beyond {} tokens the model was not trained.", format::count(trained)));
        }
        Ok(table)
    }

    fn users(&self) -> Result<Table, report::Error> {
        let title = format!("Users at {} tokens each, f16 / int8 cache", format::count(self.0.context));
        self.by_device(title, |fit| pair(fit.users_f16, fit.users_int8))
    }

    /// Schemes whose weights differ by a sixth and more: the lines of others would lie on each other.
    fn distinct(&self) -> Vec<&Row> {
        let mut rows: Vec<&Row> = self.0.rows.iter().collect();
        rows.sort_by(|a, b| b.weight_bytes.total_cmp(&a.weight_bytes));
        rows.dedup_by(|next, kept| next.weight_bytes > kept.weight_bytes / 1.2);
        rows
    }

    fn plot(&self) -> LinePlot {
        let line = |row: &Row| Line {
            name: row.scheme.clone(),
            points: row
                .fits
                .iter()
                .filter_map(|fit| Some((fit.vram_gib, fit.context_f16.filter(|n| *n > 0)? as f64)))
                .collect(),
            band: Vec::new(),
        };
        LinePlot {
            title: "Context by memory".into(),
            x: Axis::linear("Memory, GiB"),
            y: Axis::log("Tokens, log scale"),
            lines: self.distinct().into_iter().map(line).filter(|line| !line.points.is_empty()).collect(),
            guides: Vec::new(),
        }
    }
}

fn pair(f16: Option<u64>, int8: Option<u64>) -> Cell {
    match (f16, int8) {
        (Some(f16), Some(int8)) => Cell::text(format!("{} / {}", format::count(f16), format::count(int8))),
        _ => Cell::text("does not fit").tone(Tone::Muted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_view_of_13_billion_parameters() {
        let request = Request {
            vram: vec![8.0, 16.0, 24.0, 80.0],
            overhead: 1.5,
            context: 4096,
            schemes: memory::default_schemes(),
        };
        let cache = CacheShape { layers: 40, kv_heads: 40, head_dim: 128 };
        let memory = memory::of_parameters(13_000_000_000, cache, &request).expect("sensible");
        let memory = View(memory);
        let view = memory.terminal(&Terminal { width: 100, ..Terminal::default() }, false).expect("drawn");
        assert!(view.lines().all(|line| line.chars().count() <= 100));
        insta::assert_snapshot!(view);
        assert!(memory.page().expect("laid out").render().expect("rendered").contains("<svg"));
        assert_eq!(memory.tables(false).expect("fits")[0].rows.len(), 13 * 4);
    }
}
