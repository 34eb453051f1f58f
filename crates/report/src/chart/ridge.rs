//! Distributions, one above the other.

use super::Chart;
use super::axis::Axis;
use super::frame::{Sheet, x_axis};
use super::histogram::Histogram;
use super::svg::{Anchor, TEXT, polyline, shorten, text_width};
use crate::format;

/// Several distributions on one axis: a single one is a histogram.
///
/// All rows share one scale of density, unless [`Ridge::own_heights`] is set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ridge {
    /// Title of the plot.
    pub title: String,
    /// Axis of the distributed quantity.
    pub axis: Axis,
    /// The distributions, from top to bottom.
    pub series: Vec<Distribution>,
    /// Makes the peak of each row equally high, which shows the shape of a
    /// narrow and of a wide distribution alike.
    pub own_heights: bool,
}

/// A row of a [`Ridge`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Distribution {
    /// Name of the distribution, written before it.
    pub name: String,
    /// The counted values.
    pub histogram: Histogram,
    /// Values of note, such as the median.
    pub marks: Vec<Mark>,
}

/// A value of note in a distribution.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Mark {
    /// Name of the mark, such as `median`; the first of each name is explained below the plot.
    pub name: String,
    /// Value at which the mark is drawn.
    pub at: f64,
}

const ROW: f64 = 44.0;

/// A single distribution has the room of a plot.
const SINGLE: f64 = 200.0;

impl Chart for Ridge {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let has_data = |row: &Distribution| !row.histogram.densities(self.axis.scale).is_empty();
        if self.series.iter().any(has_data) {
            self.draw_rows(&mut sheet);
        } else {
            sheet.nothing();
        }
        let left_out: u64 = self.series.iter().map(|row| row.histogram.unplaced(self.axis.scale)).sum();
        sheet.note_left_out(usize::try_from(left_out).unwrap_or(usize::MAX), "value");
        for row in self.series.iter().take(40) {
            let marks: Vec<String> =
                row.marks.iter().map(|mark| format!("{} {}", mark.name, format::significant(mark.at, 3))).collect();
            let count = format::count(row.histogram.total());
            sheet.describe(format!("{}: {count} values; {}.", row.name, marks.join(", ")));
        }
        sheet.finish()
    }
}

impl Ridge {
    fn draw_rows(&self, sheet: &mut Sheet) {
        let scale = self.axis.scale;
        let densities: Vec<_> = self.series.iter().map(|row| row.histogram.densities(scale)).collect();
        let peak = |row: &[(f64, f64, f64)]| row.iter().map(|bin| bin.2).fold(0.0, f64::max);
        let highest = densities.iter().map(|row| peak(row)).fold(0.0, f64::max);
        let ends = densities.iter().flatten().filter(|bin| bin.2 > 0.0);
        let marks = self.series.iter().flat_map(|row| row.marks.iter().map(|mark| mark.at));
        let range = self.axis.range(ends.flat_map(|bin| [bin.0, bin.1]).chain(marks), 0.02);
        let names = self.series.iter().map(|row| text_width(&row.name, TEXT));
        let names = names.fold(0.0, f64::max).min(sheet.width * 0.36);
        let single = self.series.len() == 1;
        let (row_height, left) = if single { (SINGLE, 0.0) } else { (ROW, names + 10.0) };
        let top = sheet.y + 14.0;
        sheet.y = top + row_height * self.series.len() as f64;
        let map = x_axis(sheet, (&self.axis, range), (left, sheet.width - 8.0), top);
        for (index, (row, bins)) in self.series.iter().zip(&densities).enumerate() {
            let base = top + row_height * (index as f64 + 1.0);
            // A peak may reach a little into the row above.
            let reach = if single { row_height } else { row_height * 1.15 };
            let highest = if self.own_heights { peak(bins) } else { highest };
            let height = |density: f64| reach * density / highest.max(f64::MIN_POSITIVE);
            draw_row(sheet, (row, bins), (&map, base), height);
            if !single {
                let name = shorten(&row.name, TEXT, names + 1.0);
                sheet.svg.text("label", (names, base - 4.0), Anchor::End, &name);
            }
        }
        self.explain_marks(sheet);
    }

    fn explain_marks(&self, sheet: &mut Sheet) {
        let mut names: Vec<(usize, &str)> = Vec::new();
        for row in &self.series {
            for (index, mark) in row.marks.iter().enumerate() {
                if !names.iter().any(|(_, name)| *name == mark.name) {
                    names.push((index, &mark.name));
                }
            }
        }
        let texts: Vec<String> = names.iter().map(|(index, name)| format!("{} {name}", mark_style(*index).1)).collect();
        if !texts.is_empty() {
            sheet.note(&format!("Marks: {}.", texts.join(", ")));
        }
    }
}

/// The class of a row's n-th mark, and what it looks like in words.
fn mark_style(index: usize) -> (&'static str, &'static str) {
    match index {
        0 => ("moment first", "solid line"),
        1 => ("moment second", "dashed line"),
        _ => ("moment third", "dotted line"),
    }
}

fn draw_row(
    sheet: &mut Sheet,
    (row, bins): (&Distribution, &[(f64, f64, f64)]),
    (map, base): (&super::axis::Mapping, f64),
    height: impl Fn(f64) -> f64,
) {
    let mut outline = Vec::new();
    for &(low, high, density) in bins {
        let y = base - height(density);
        outline.push((map.at(low), y));
        outline.push((map.at(high), y));
    }
    if let (Some(first), Some(last)) = (outline.first().copied(), outline.last().copied()) {
        let tip = format!("{}: {} values", row.name, format::count(row.histogram.total()));
        let mut closed = vec![(first.0, base)];
        closed.extend(outline);
        closed.push((last.0, base));
        sheet.svg.path("hill s1", &polyline(&closed), &tip);
    }
    let inside = |mark: &&Mark| mark.at.is_finite() && map.beyond(mark.at) == 0;
    for (index, mark) in row.marks.iter().enumerate().filter(|(_, mark)| inside(mark)) {
        let x = map.at(mark.at);
        let density = bins.iter().find(|bin| bin.0 <= mark.at && mark.at <= bin.1);
        let tall = density.map_or(0.0, |bin| height(bin.2)).max(14.0);
        sheet.svg.line(mark_style(index).0, (x, base), (x, base - tall));
    }
    sheet.svg.line("axis", (map.at_low(), base), (map.at_high(), base));
}

#[cfg(test)]
mod tests {
    use super::super::axis::Scale;
    use super::*;

    fn row(name: &str, center: f64) -> Distribution {
        let values: Vec<f64> = (0..200).map(|i| center * 10f64.powf((f64::from(i) - 100.0) / 80.0)).collect();
        Distribution {
            name: name.to_owned(),
            histogram: Histogram::from_values(&values, 12, Scale::Log),
            marks: vec![
                Mark { name: "median".to_owned(), at: center },
                Mark { name: "99th percentile".to_owned(), at: center * 15.0 },
            ],
        }
    }

    #[test]
    fn the_whole_plot() {
        let plot = Ridge {
            title: "KL divergence".to_owned(),
            axis: Axis::log("nats"),
            series: vec![row("int8-row", 1e-4), row("nf4", 1e-2)],
            own_heights: false,
        };
        insta::assert_snapshot!(plot.draw(super::super::WIDE).replace("><", ">\n<"));
    }

    #[test]
    fn a_single_series_has_no_names() {
        let plot = Ridge { axis: Axis::log("x"), series: vec![row("only", 1.0)], ..Ridge::default() };
        let svg = plot.draw(400.0);
        assert!(!svg.contains(">only</text>"), "{svg}");
    }

    #[test]
    fn linear_bins_on_a_log_axis_leave_out_what_has_no_place() {
        let histogram = Histogram::from_values(&[-1.0, 0.5, 1.0], 4, Scale::Linear);
        let series = vec![Distribution { histogram, ..Distribution::default() }];
        let plot = Ridge { axis: Axis::log("x"), series, ..Ridge::default() };
        assert!(plot.draw(400.0).contains("left out"));
        assert!(Ridge::default().draw(400.0).contains("No data"));
    }
}
