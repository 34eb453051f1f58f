//! `qinspect layers`.

use crate::args::LayersArgs;
use crate::memory::scheme;
use crate::texts;
use anyhow::{Result, bail};
use cli::text::{self, facts, notes, paragraphs};
use cli::{Findings, Outcome, Provenance, output};
use inspection::layers::{self, By, Divergence, Layers, Part, Request};
use inspection::{Error, place};
use observe::Calibration;
use progress::Progress;
use report::chart::{Axis, Bar, BarChart, Line, LinePlot};
use report::format;
use report::page::{Fact, Page, Section};
use report::spark::{Glyphs, bar};
use report::table::{Cell, Column, Table, Terminal, Tone};
use scoring::{Protocol, Style};
use serde_json::{Value, json};
use store::output::Form;

/// `qinspect layers`.
pub fn run(args: &LayersArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<_> =
        [&args.model].into_iter().chain(&args.text.text).chain(&args.calibration).map(|p| p.as_path()).collect();
    let more: Vec<_> = args.recipe.iter().map(|file| (file.as_path(), Form::Recipe)).collect();
    output::check_with(&args.output, &more, &inputs)?;
    if args.scheme == "all" {
        bail!(Error::Request("layers takes one scheme: --scheme int4-g64, for one".into()));
    }
    let cut = args.text.cut();
    let request = Request {
        scheme: scheme(&args.scheme)?,
        keep: scheme(&args.keep)?,
        by: args.by.into(),
        target_bpw: args.target_bpw,
        text: texts::text(&args.text)?,
        protocol: Protocol { style: Style::Plain, ctx: cut.ctx, stride: None, bos: cut.bos, tokens: Some(cut.tokens) },
        cache: args.cache.clone(),
        calibration: args.calibration.as_deref().map(Calibration::load).transpose().map_err(Error::from)?,
    };
    let found = layers::measure(&args.model, &request, progress)?;
    if let Some(recipe) = &args.recipe {
        store::output::write_file(
            recipe,
            Form::Recipe,
            args.output.overwrite.existing(),
            found.recipe.toml.as_bytes(),
        )?;
    }
    let provenance = Provenance::on("cpu")
        .model("model", &args.model)
        .bytes("text", &request.text.name, request.text.text.as_bytes())
        .files("calibration", &args.calibration);
    output::present(&View(found), &args.output, &provenance)
}

/// The findings of `qinspect layers`, to be shown.
struct View(Layers);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qinspect layers"
    }

    fn terminal(&self, form: &Terminal, _verbose: bool) -> Result<String> {
        let form = &text::readable(form);
        let mut parts = vec![facts(&about(&self.0), form.width), form.render(&ranked(&self.0, form.glyphs)?)];
        parts.push(format!(
            "A recipe of {} bits per weight:\n\n{}",
            format::fixed(self.0.recipe.bpw, 3),
            self.0.recipe.toml
        ));
        parts.extend(notes(&self.0.notes, form.width));
        Ok(paragraphs(&parts))
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let mut table = ranked(&self.0, Glyphs::Ascii)?;
        // Drawn for people, and nothing to a machine.
        if let Some(at) = table.columns.iter().position(|c| c.key == "bar") {
            table.columns.remove(at);
            table.rows.iter_mut().for_each(|row| drop(row.remove(at)));
        }
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        let mut ranking =
            Section::new("Ranking").chart(&bars(&self.0), "One part in the scheme at a time; 95% intervals.");
        if self.0.by == By::Block {
            ranking = ranking.chart(&by_block(&self.0), "The same in the model's order.");
        }
        let recipe = Section::new("Recipe")
            .prose("Saved as `recipe.toml`, it is converted by `qconvert MODEL --recipe recipe.toml -o FILE`.")
            .listing("recipe.toml", self.0.recipe.toml.clone());
        let sections = vec![
            ranking.table(Table { title: String::new(), ..ranked(&self.0, Glyphs::Unicode)? }),
            recipe,
            self.0
                .notes
                .iter()
                .cloned()
                .fold(Section::new("How it was measured").prose(self.0.rule.clone()), Section::prose),
        ];
        let facts = about(&self.0).into_iter().map(|(name, value)| Fact::new(name, value)).collect();
        Ok(Page {
            title: format!("Sensitivity of {} to {}", self.0.model, self.0.scheme),
            facts,
            sections,
            ..Page::default()
        })
    }
}

fn about(found: &Layers) -> Vec<(&'static str, String)> {
    let kl = |divergence: &Option<Divergence>| match divergence {
        Some(d) => format!("KL {}, same top 1 {}", format::significant(d.kl, 3), format::percent(d.same_top1, 1)),
        None => "can't be scored".into(),
    };
    let sum: f64 = found.parts.iter().filter_map(|p| p.divergence).map(|d| d.kl).sum();
    vec![
        ("Model", found.model.clone()),
        ("Everything", format!("in {} ({} bpw): {}", found.scheme, format::fixed(found.bpw, 3), kl(&found.all))),
        ("One by one", format!("KL adds up to {}", format::significant(sum, 3))),
        (
            "Recipe",
            format!(
                "{} of {} parts in {} ({} bpw): {}",
                found.recipe.kept,
                found.parts.len(),
                found.keep,
                format::fixed(found.recipe.bpw, 3),
                kl(&found.recipe.divergence)
            ),
        ),
    ]
}

fn ranked(found: &Layers, glyphs: Glyphs) -> Result<Table, report::Error> {
    let what = match found.by {
        By::Block => "Block",
        By::Kind => "Kind",
        By::Matrix => "Matrix",
    };
    let columns = vec![
        Column::text("part", what),
        Column::number("kl", "KL mean").unit("nats").parts(&["mean", "ci95.low", "ci95.high"]),
        Column::text("bar", ""),
        Column::number("share", "Share of\nthe sum").machine_only(),
        Column::number("kl_per_bpw", "KL per\nadded bit"),
        Column::number("same_top1", "Same\ntop 1"),
        Column::text("kept", "Recipe"),
        Column::text("pattern", "").machine_only(),
        Column::number("weights", "").machine_only(),
    ];
    let title = format!("One {} at a time in {}, the most sensitive first", what.to_lowercase(), found.scheme);
    let mut table = Table::new(title, columns);
    let finite = || found.parts.iter().filter_map(|p| p.divergence).map(|d| d.kl);
    let (largest, sum) = (finite().fold(0.0, f64::max), finite().sum::<f64>());
    for part in &found.parts {
        let gain = part.kl_per_bpw.map_or(Cell::absent(), |gain| Cell::value(format::significant(gain, 3), gain));
        let [kl, drawn, share, top] = match part.divergence {
            Some(d) => {
                let share = if sum > 0.0 { d.kl / sum } else { 0.0 };
                [
                    kl_cell(&d),
                    Cell::value(bar(d.kl / largest.max(f64::MIN_POSITIVE), 12, glyphs).trim_end(), Value::Null),
                    Cell::value(format::percent(share, 1), share),
                    Cell::value(format::percent(d.same_top1, 1), d.same_top1),
                ]
            }
            None => [Cell::text("fails").tone(Tone::Bad), Cell::absent(), Cell::absent(), Cell::absent()],
        };
        let scheme = if part.kept { &found.keep } else { &found.scheme };
        let tone = if part.kept { Tone::Normal } else { Tone::Muted };
        table.push(vec![
            Cell::value(place::short(&part.name), part.name.clone()),
            kl,
            drawn,
            share,
            gain,
            top,
            Cell::text(scheme.clone()).tone(tone),
            Cell::text(part.pattern.clone()),
            Cell::value(part.weights.to_string(), part.weights as u64),
        ])?;
    }
    table.note(format!("{}: {}.", found.text, found.rule));
    table.note(format!(
        "KL per added bit: the part's KL over the bits per weight that {} would add to the whole model; a recipe takes the largest.",
        found.keep
    ));
    table.note(
        "With 95% intervals over blocks of neighbouring tokens. Parts whose intervals overlap may change places.",
    );
    Ok(table)
}

fn kl_cell(d: &Divergence) -> Cell {
    let interval = d.kl_ci95.map_or(String::new(), |i| format!(" {}", format::bounds(i.0, i.1, 2)));
    let value = json!({"mean": d.kl, "ci95": d.kl_ci95});
    Cell::value(format!("{}{interval}", format::significant(d.kl, 3)), value)
}

fn bars(found: &Layers) -> BarChart {
    let one = |part: &Part| {
        let d = part.divergence?;
        Some(Bar {
            label: place::short(&part.name).into(),
            value: d.kl,
            interval: d.kl_ci95.map(|i| (i.0, i.1)),
            text: format::significant(d.kl, 3),
            tone: Tone::Normal,
        })
    };
    BarChart {
        title: "KL divergence by part".into(),
        axis: Axis::linear("Mean KL, nats"),
        bars: found.parts.iter().filter_map(one).take(40).collect(),
        guide: None,
    }
}

fn by_block(found: &Layers) -> LinePlot {
    let mut points: Vec<(f64, Divergence)> =
        found.parts.iter().filter_map(|p| Some((p.block? as f64, p.divergence?))).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let band = points.iter().filter_map(|(x, d)| d.kl_ci95.map(|i| (*x, i.0, i.1)));
    LinePlot {
        title: "KL divergence by block".into(),
        x: Axis::whole("Block"),
        y: Axis::linear("Mean KL, nats").from(0.0),
        lines: vec![Line {
            name: found.scheme.clone(),
            points: points.iter().map(|(x, d)| (*x, d.kl)).collect(),
            band: band.collect(),
        }],
        guides: Vec::new(),
    }
}
