//! The course of a training: its log as curves, and as a page.

use anyhow::Result;
use distillation::data::read_text;
use distillation::metrics;
use distillation::train::{Step, Validation};
use report::chart::{self, Axis, Chart as _, Line, LinePlot, WIDE};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Tone};
use std::path::Path;
use store::output::provenance::{PLOT_FILE, PLOT_MARK};

/// Steps and validations of a training, as its metrics have them.
pub struct Log {
    steps: Vec<Step>,
    validations: Vec<Validation>,
}

impl Log {
    /// Reads the metrics in a student's folder.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn read(folder: &Path) -> Result<Self> {
        let text = read_text(&folder.join(metrics::FILE))?;
        Ok(Self {
            steps: text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
            validations: text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect(),
        })
    }

    /// Draws `loss.svg` into the student's folder.
    ///
    /// # Errors
    /// When the file can't be written.
    pub fn write_plot(&self, folder: &Path) -> Result<()> {
        let svg = chart::standalone(&self.cross_entropy().draw(WIDE), PLOT_MARK);
        Ok(store::output::write_own_file(&folder.join(PLOT_FILE), svg.as_bytes())?)
    }

    fn cross_entropy(&self) -> LinePlot {
        curves(
            "Cross-entropy against the text",
            self.steps.iter().map(|s| (s.step, Some(s.cross_entropy))),
            self.validations.iter().map(|v| (v.step, Some(v.loss))),
        )
    }

    fn divergence(&self, name: &str) -> LinePlot {
        curves(name, self.steps.iter().map(|s| (s.step, s.divergence)), self.validations.iter().map(|v| (v.step, v.kl)))
    }
}

/// A plot of training and validation in nats by step.
fn curves(
    title: &str,
    training: impl Iterator<Item = (usize, Option<f64>)>,
    validation: impl Iterator<Item = (usize, Option<f64>)>,
) -> LinePlot {
    fn line(name: &str, points: impl Iterator<Item = (usize, Option<f64>)>) -> Line {
        let points = points.filter_map(|(step, value)| Some((step as f64, value?))).collect();
        Line { name: name.into(), points, band: vec![] }
    }
    LinePlot {
        title: title.into(),
        x: Axis::linear("Step"),
        y: Axis::linear("nats a token"),
        lines: vec![line("training", training), line("validation", validation)],
        guides: vec![],
    }
}

/// The page of a training. `kl_name` says what the validations' `kl` is.
pub fn page(facts: &[Fact], kl_name: &str, log: &Log) -> Result<Page, report::Error> {
    let has_teacher = log.validations.iter().any(|v| v.kl.is_some());
    let mut curves = Section::new("Curves").chart(&log.cross_entropy(), "Training: the mean of each batch.");
    if has_teacher {
        curves = curves.chart(&log.divergence(kl_name), "The soft loss.");
    }
    Ok(Page {
        title: "Training of a student".into(),
        lead: "The folder holds the model of the best validation.".into(),
        facts: facts.to_vec(),
        sections: vec![curves, Section::new("Validations").table(validations(kl_name, log)?)],
        ..Page::default()
    })
}

fn validations(kl_name: &str, log: &Log) -> Result<Table, report::Error> {
    let columns = vec![
        Column::number("step", "Step"),
        Column::number("objective", "Objective").help("What the training minimizes, over the text that is held out."),
        Column::number("loss", "Loss").unit("nats").help("Mean cross-entropy against the text that is held out."),
        Column::number("perplexity", "Perplexity"),
        Column::number("kl", "KL").unit("nats").help(format!("Mean {kl_name}.")),
        Column::text("best", ""),
    ];
    let mut table = Table::new("", columns);
    let number = |value: f64| Cell::value(format::significant(value, 5), value);
    let best = log.validations.iter().rposition(|v| v.best);
    for (at, v) in log.validations.iter().enumerate() {
        table.push(vec![
            Cell::value(v.step.to_string(), v.step),
            number(v.objective),
            number(v.loss),
            number(v.perplexity),
            v.kl.map_or_else(Cell::absent, number),
            if best == Some(at) { Cell::text("best").tone(Tone::Good) } else { Cell::text("") },
        ])?;
    }
    Ok(table)
}
