//! The page of `qinspect weights`.

use crate::weights::{levels, losses, median};
use inspection::place;
use inspection::weights::{Matrix, Weights};
use report::chart::{Axis, HeatMap, Line, LinePlot, Scale};
use report::format;
use report::page::{Fact, Page, Section};

/// Schemes that the plot of errors by block shows.
const PLOTTED: [&str; 5] = ["int8-row", "int4-row", "int4-g128", "nf4", "int4-absmax"];

/// The page.
pub fn page(found: &Weights) -> Result<Page, report::Error> {
    let weights: usize = found.matrices.iter().map(|m| m.rows * m.cols).sum();
    let beyond: u64 = found.matrices.iter().map(|m| m.beyond).sum();
    let spread = Section::new("How the weights are spread")
        .chart(
            &tails(found),
            "All matrices, each in its own standard deviations, and a normal distribution beside them. The ends hold all that is beyond.",
        )
        .chart(&heat(found), "The largest weight of each matrix in standard deviations: what one scale must span.");
    let mut lost = Section::new("What schemes lose").table(losses(found)?);
    lost = lost.chart(&by_block(found), "Mean relative error over the matrices of a block.").table(levels(found)?);
    let mut sections = vec![spread, lost];
    if !found.notes.is_empty() {
        sections.push(found.notes.iter().cloned().fold(Section::new("Notes"), Section::prose));
    }
    Ok(Page {
        title: format!("Weights of {}", found.model),
        lead: format!(
            "{} of {} weights are further than {} standard deviations from their matrix's mean; of normally distributed \
             ones it would be one in {}.",
            format::count(beyond),
            format::count(weights as u64),
            found.sigma,
            format::significant(1.0 / beyond_normal(found.sigma), 2)
        ),
        facts: vec![
            Fact::new("Model", found.model.clone()),
            Fact::new("Matrices", format::count(found.matrices.len() as u64)),
            Fact::new("Weights", format::count(weights as u64)),
        ],
        sections,
        ..Page::default()
    })
}

/// The share of a normal distribution beyond so many standard deviations, by its continued fraction.
fn beyond_normal(sigma: f64) -> f64 {
    let fraction = (1..=60).rev().fold(sigma, |rest, k| sigma + f64::from(k) / rest);
    2.0 * density(sigma) / fraction
}

fn density(x: f64) -> f64 {
    (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt()
}

/// The share of weights by distance from the mean, on a log axis that shows the tails.
fn tails(found: &Weights) -> LinePlot {
    let total = found.histogram.iter().sum::<u64>().max(1) as f64;
    let bins = || found.histogram_edges.windows(2).map(|edge| ((edge[0] + edge[1]) / 2.0, edge[1] - edge[0]));
    let points = bins().zip(&found.histogram).map(|((x, _), &n)| (x, n as f64 / total));
    let smallest = 0.5 / total;
    let normal = bins().map(|(x, width)| (x, density(x) * width)).filter(|(_, y)| *y >= smallest);
    LinePlot {
        title: "Weights by distance from the mean".into(),
        x: Axis::linear("Standard deviations"),
        y: Axis::log("Share of weights in a quarter deviation"),
        lines: vec![
            Line { name: "weights".into(), points: points.filter(|(_, y)| *y > 0.0).collect(), band: Vec::new() },
            Line { name: "normal".into(), points: normal.collect(), band: Vec::new() },
        ],
        guides: Vec::new(),
    }
}

/// max/std of each kind in each block.
fn heat(found: &Weights) -> HeatMap {
    let in_blocks: Vec<&Matrix> = found.matrices.iter().filter(|m| m.block.is_some()).collect();
    let blocks = in_blocks.iter().filter_map(|m| m.block).max().map_or(0, |last| last + 1);
    let kinds = place::kinds(in_blocks.iter().map(|m| m.module.as_str()));
    let value = |kind: &str, block: usize| {
        in_blocks.iter().find(|m| m.kind == kind && m.block == Some(block)).map_or(f64::NAN, |m| m.max_over_std)
    };
    HeatMap {
        title: "Largest weight by matrix".into(),
        label: "max/std".into(),
        rows: kinds.iter().map(|kind| kind.to_string()).collect(),
        columns: (0..blocks).map(|block| block.to_string()).collect(),
        columns_label: "Block".into(),
        values: kinds.iter().map(|kind| (0..blocks).map(|block| value(kind, block)).collect()).collect(),
        scale: Scale::Log,
    }
}

/// The mean error of a few schemes, by block.
fn by_block(found: &Weights) -> LinePlot {
    let blocks = found.matrices.iter().filter_map(|m| m.block).max().map_or(0, |last| last + 1);
    let shown = found
        .schemes
        .iter()
        .map(|s| s.scheme.as_str())
        .filter(|name| PLOTTED.contains(name) || found.schemes.len() <= PLOTTED.len());
    let point = |scheme: &str, block: usize| {
        let members = found.matrices.iter().filter(|m| m.block == Some(block));
        let errors: Vec<f64> =
            members.flat_map(|m| &m.losses).filter(|l| l.scheme == scheme).filter_map(|l| l.error).collect();
        (
            block as f64,
            if errors.is_empty() {
                median(std::iter::empty())
            } else {
                errors.iter().sum::<f64>() / errors.len() as f64
            },
        )
    };
    LinePlot {
        title: "Error by block".into(),
        x: Axis::whole("Block"),
        y: Axis::log("Relative error, log scale"),
        lines: shown
            .map(|name| Line {
                name: name.into(),
                points: (0..blocks).map(|block| point(name, block)).collect(),
                band: Vec::new(),
            })
            .collect(),
        guides: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_normal_distribution_beyond_a_threshold() {
        assert!((beyond_normal(6.0) / 1.973_175_4e-9 - 1.0).abs() < 1e-6);
        assert!((beyond_normal(2.0) / 0.045_500_26 - 1.0).abs() < 1e-4);
    }
}
