//! The page of `qinspect activations`.

use crate::activations::{by_kind, counted, extreme, int8, large, magnitude};
use inspection::activations::{Activations, Int8, Seen};
use report::chart::{Axis, Distribution, HeatMap, Histogram, Line, LinePlot, Ridge, Scale};
use report::page::{Fact, Page, Section};

/// Distributions that are drawn.
const DRAWN: usize = 8;

/// Dimensions in the heat map.
const DIMENSIONS: usize = 12;

/// The page.
pub fn page(found: &Activations) -> Result<Page, report::Error> {
    let mut sections = vec![
        Section::new("Large dimensions")
            .chart(&maxima(found), "Largest |x| of the residual stream after each block.")
            .chart(&heat(found), "Largest |x| of the dimensions that stay among the largest.")
            .table(large(found)?),
        Section::new("How the values are spread")
            .chart(&octaves(found), "Each row is one block's residual stream; equal heights."),
        Section::new("What is left of INT8")
            .chart(&levels(found), "Different codes in use after each block; of many scales the median.")
            .table(int8(found, &found.residual)?),
        Section::new("Inputs of linear layers").table(by_kind(found)?).table(int8(found, &found.inputs)?),
    ];
    if !found.notes.is_empty() {
        sections.push(found.notes.iter().cloned().fold(Section::new("Notes"), Section::prose));
    }
    Ok(Page {
        title: format!("Activations of {}", found.model),
        lead: lead(found),
        facts: vec![
            Fact::new("Model", found.model.clone()),
            Fact::new("Text", found.text.clone()),
            Fact::new("Tokens", format!("{} in {}", found.tokens, counted(found.sequences, "sequence"))),
        ],
        sections,
        ..Page::default()
    })
}

fn lead(found: &Activations) -> String {
    let Some((seen, first)) = extreme(found).and_then(|seen| Some((seen, seen.top.first()?))) else {
        return String::new();
    };
    format!(
        "Dimension {} reaches {} after block {}, {} times the median dimension, carried by {}. One INT8 scale for all of \
         it uses {} of 255 levels; without the {} largest dimensions {}.",
        first.dimension,
        magnitude(first.absmax.into()),
        seen.block.unwrap_or(0),
        magnitude(f64::from(first.absmax / seen.median)),
        first.carried_by,
        seen.tensor.levels,
        found.without,
        seen.without_top.levels
    )
}

/// A line over the blocks.
fn by_block(found: &Activations, name: &str, value: impl Fn(&Seen) -> f64) -> Line {
    let points = found.residual.iter().enumerate().map(|(block, seen)| (block as f64, value(seen)));
    Line { name: name.into(), points: points.collect(), band: Vec::new() }
}

fn maxima(found: &Activations) -> LinePlot {
    LinePlot {
        title: "Largest values by block".into(),
        x: Axis::whole("Block"),
        y: Axis::log("|x|, log scale"),
        lines: vec![
            by_block(found, "largest", |s| s.max.into()),
            by_block(found, "without first token", |s| s.max_without_first.into()),
            by_block(found, "median dimension", |s| s.median.into()),
        ],
        guides: Vec::new(),
    }
}

fn levels(found: &Activations) -> LinePlot {
    let of = |int8: &Int8| int8.levels;
    LinePlot {
        title: "INT8 levels in use".into(),
        x: Axis::whole("Block"),
        y: Axis::linear("Levels").from(0.0).to(255.0),
        lines: vec![
            by_block(found, "one scale", |s| of(&s.tensor)),
            by_block(found, &format!("without top {}", found.without), |s| of(&s.without_top)),
            by_block(found, "without first token", |s| s.without_first.as_ref().map_or(f64::NAN, of)),
            by_block(found, "by token", |s| of(&s.token)),
        ],
        guides: Vec::new(),
    }
}

/// The dimensions that stay large, by block.
fn heat(found: &Activations) -> HeatMap {
    let shown = found.persistent.iter().take(DIMENSIONS);
    HeatMap {
        title: "Channel maxima by block".into(),
        label: "Largest |x|, log scale".into(),
        rows: shown.clone().map(|p| format!("dimension {}", p.dimension)).collect(),
        columns: (0..found.residual.len()).map(|block| block.to_string()).collect(),
        columns_label: "Block".into(),
        values: shown.map(|p| p.absmax.iter().map(|&v| f64::from(v)).collect()).collect(),
        scale: Scale::Log,
    }
}

/// Octaves of a few blocks, evenly chosen.
fn octaves(found: &Activations) -> Ridge {
    let step = found.residual.len().div_ceil(DRAWN).max(1);
    let series = found.residual.iter().step_by(step).map(|seen| Distribution {
        name: format!("block {}", seen.block.unwrap_or(0)),
        histogram: Histogram {
            edges: match (seen.octaves.first(), seen.octaves.last()) {
                (Some(first), Some(last)) => {
                    (first.exponent..=last.exponent + 1).map(|e| f64::from(e).exp2()).collect()
                }
                _ => Vec::new(),
            },
            counts: seen.octaves.iter().map(|octave| octave.values).collect(),
            left_out: 0,
        },
        marks: Vec::new(),
    });
    Ridge {
        title: "Values by octave".into(),
        axis: Axis::log("|x|, log scale"),
        series: series.collect(),
        own_heights: true,
    }
}
