//! Spans in lanes over time.

use super::Chart;
use super::axis::Axis;
use super::frame::{Sheet, x_axis};
use super::svg::{Anchor, Area, TEXT, series_class, shorten, text_width};

/// Spans on lanes over a common axis. Neighbouring spans of a lane differ in colour and are
/// separated by a gap, so that colour is never alone.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Timeline {
    /// Title of the plot.
    pub title: String,
    /// Time.
    pub axis: Axis,
    /// The lanes, from top to bottom.
    pub lanes: Vec<Lane>,
}

/// A lane of a [`Timeline`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Lane {
    /// Name of the lane.
    pub name: String,
    /// Spans in the lane, in order.
    pub spans: Vec<Span>,
}

/// A stretch of time in a [`Lane`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Span {
    /// Tooltip of the span.
    pub label: String,
    /// When it begins.
    pub from: f64,
    /// When it ends.
    pub to: f64,
}

const ROW: f64 = 16.0;

/// Colours that neighbours alternate between.
const COLOURS: usize = 2;

impl Chart for Timeline {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let spans = || self.lanes.iter().flat_map(|lane| &lane.spans);
        let left_out = spans().filter(|span| !self.holds(span)).count();
        if left_out == spans().count() {
            sheet.nothing();
        } else {
            self.draw_lanes(&mut sheet);
        }
        sheet.note_left_out(left_out, "span");
        for lane in self.lanes.iter().take(60) {
            sheet.describe(format!("{}: {} spans.", lane.name, lane.spans.len()));
        }
        sheet.finish()
    }
}

impl Timeline {
    fn holds(&self, span: &Span) -> bool {
        self.axis.scale.holds(span.from) && self.axis.scale.holds(span.to)
    }

    fn draw_lanes(&self, sheet: &mut Sheet) {
        let names = self.lanes.iter().map(|lane| text_width(&lane.name, TEXT)).fold(0.0, f64::max);
        let names = names.min(sheet.width * 0.3);
        let top = sheet.y + 4.0;
        sheet.y = top + ROW * self.lanes.len() as f64;
        let ends = self.lanes.iter().flat_map(|lane| &lane.spans).flat_map(|span| [span.from, span.to]);
        let range = self.axis.range(ends, 0.0);
        let map = x_axis(sheet, (&self.axis, range), (names + 8.0, sheet.width - 4.0), top);
        for (index, lane) in self.lanes.iter().enumerate() {
            let y = top + ROW * index as f64;
            let name = shorten(&lane.name, TEXT, names + 1.0);
            sheet.svg.text("label", (names, y + ROW - 4.0), Anchor::End, &name);
            for (at, span) in lane.spans.iter().enumerate().filter(|(_, span)| self.holds(span)) {
                let (from, to) = (map.at(span.from), map.at(span.to));
                // The gap to the next one must not swallow a short span.
                let area = Area::new(from, y + 2.0, to.max(from + 1.5) - 1.0, y + ROW - 2.0);
                sheet.svg.rect(&format!("span {}", series_class(at % COLOURS)), area, &span.label);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> Timeline {
        let span = |label: &str, from, to| Span { label: label.to_owned(), from, to };
        Timeline {
            title: "Two slots".to_owned(),
            axis: Axis::linear("Step"),
            lanes: vec![
                Lane { name: "slot 1".to_owned(), spans: vec![span("a & b", 0.0, 10.0), span("c", 10.0, 12.0)] },
                Lane { name: "slot 2".to_owned(), spans: vec![span("d", 3.0, 3.0)] },
            ],
        }
    }

    #[test]
    fn the_whole_plot() {
        insta::assert_snapshot!(timeline().draw(super::super::WIDE).replace("><", ">\n<"));
    }

    #[test]
    fn what_has_no_place_is_counted() {
        let mut plot = timeline();
        plot.lanes[0].spans[0].to = f64::INFINITY;
        assert!(plot.draw(400.0).contains("1 span left out"));
        plot.lanes.clear();
        assert!(plot.draw(400.0).contains("No data"));
    }
}
