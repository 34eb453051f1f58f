//! Points in a plane, with labels, intervals and a Pareto front.

use super::Chart;
use super::axis::Axis;
use super::frame::{self, Guide, Key, Plane, Room, Sheet};
use super::label::{self, Obstacles, Wish};
use super::svg::{Anchor, Area, TEXT, polyline, text_width};
use crate::format;

/// Labelled points: cost on x, quality on y.
///
/// ```
/// use report::chart::{Axis, Better, Chart, Point, Scatter};
/// let plot = Scatter {
///     title: "Perplexity against size".to_owned(),
///     x: Axis::linear("Bits per weight"),
///     y: Axis::log("Perplexity"),
///     points: vec![Point::new("nf4", 4.25, 24.55), Point::new("int8-row", 8.02, 22.96)],
///     front: Some(Better::Lower),
///     ..Scatter::default()
/// };
/// assert!(plot.draw(640.0).starts_with("<svg"));
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Scatter {
    /// Title of the plot.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// Names of the series that points belong to; empty for a single one.
    pub series: Vec<String>,
    /// The points. Beyond 120 of them only those on the front are labelled.
    pub points: Vec<Point>,
    /// Draws the line of points that no other beats in both directions: less x
    /// is better, and y is better in this direction.
    pub front: Option<Better>,
    /// Values of y to compare with.
    pub guides: Vec<Guide>,
}

/// A point of a [`Scatter`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Point {
    /// Name of the point, written beside it.
    pub label: String,
    /// Value on the x axis.
    pub x: f64,
    /// Value on the y axis.
    pub y: f64,
    /// The interval of y, drawn as an error bar.
    pub interval: Option<(f64, f64)>,
    /// Index of the point's series in [`Scatter::series`].
    pub series: usize,
}

impl Point {
    /// A point without an interval, of the first series.
    pub fn new(label: impl Into<String>, x: f64, y: f64) -> Self {
        Self { label: label.into(), x, y, ..Self::default() }
    }

    /// Adds an interval of y.
    #[must_use]
    pub fn interval(mut self, low: f64, high: f64) -> Self {
        self.interval = Some((low, high));
        self
    }

    /// Moves the point to another series.
    #[must_use]
    pub fn series(mut self, series: usize) -> Self {
        self.series = series;
        self
    }

    fn describe(&self) -> String {
        let y = match self.interval {
            Some((low, high)) => format::interval(self.y, low, high, 4),
            None => format::significant(self.y, 4),
        };
        format!("{}: x {}, y {y}", self.label, format::significant(self.x, 4))
    }
}

/// Direction that is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// Less is better, as for perplexity.
    Lower,
    /// More is better, as for agreement.
    Higher,
}

/// Beyond this many points, only those on the front are labelled.
const MOST_LABELS: usize = 120;

impl Chart for Scatter {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let shown: Vec<&Point> =
            self.points.iter().filter(|point| self.x.scale.holds(point.x) && self.y.scale.holds(point.y)).collect();
        self.draw_legend(&mut sheet);
        if shown.is_empty() {
            sheet.nothing();
        } else {
            self.draw_plane(&mut sheet, &shown);
        }
        sheet.note_left_out(self.points.len() - shown.len(), "point");
        for point in shown.iter().take(40) {
            sheet.describe(format!("{}.", point.describe()));
        }
        sheet.finish()
    }
}

impl Scatter {
    fn draw_legend(&self, sheet: &mut Sheet) {
        let mut entries: Vec<_> =
            self.series.iter().enumerate().map(|(index, name)| (index, Key::Marker, name.as_str())).collect();
        if self.front.is_some() {
            if entries.is_empty() {
                entries.push((0, Key::Marker, "on the Pareto front"));
            }
            entries.push((0, Key::Hollow, "another is smaller and better"));
        }
        sheet.legend(&entries);
    }

    fn draw_plane(&self, sheet: &mut Sheet, shown: &[&Point]) {
        let ends = |point: &&Point| {
            let (low, high) = point.interval.unwrap_or((point.y, point.y));
            [point.y, low, high]
        };
        let guides = self.guides.iter().map(|guide| guide.at);
        let x_range = self.x.range(shown.iter().map(|point| point.x), 0.07);
        let y_range = self.y.range(shown.iter().flat_map(ends).chain(guides), 0.08);
        let height = (sheet.width * 0.6).clamp(240.0, 400.0);
        let room = Room { height, right: 12.0 };
        let plane = Plane::new(sheet, (&self.x, x_range), (&self.y, y_range), room);
        let mut obstacles = Obstacles::default();
        frame::draw_guides(sheet, &plane, &self.guides, &mut obstacles);
        let on_front = self.draw_front(sheet, &plane, shown, &mut obstacles);
        for (point, on_front) in shown.iter().zip(&on_front) {
            draw_point(sheet, &plane, point, *on_front, &mut obstacles);
        }
        frame::name_guides(sheet, &plane, &self.guides, &mut obstacles);
        let labelled: Vec<&Point> = shown
            .iter()
            .zip(&on_front)
            .filter(|(_, on_front)| shown.len() <= MOST_LABELS || **on_front)
            .map(|(point, _)| *point)
            .collect();
        self.draw_labels(sheet, &plane, &labelled, &obstacles);
    }

    /// Draws the front, if one is asked for; says which points lie on it.
    fn draw_front(&self, sheet: &mut Sheet, plane: &Plane, shown: &[&Point], obstacles: &mut Obstacles) -> Vec<bool> {
        let Some(better) = self.front else {
            return vec![true; shown.len()];
        };
        let front = front(shown, better);
        let corners: Vec<_> = front.iter().map(|&index| pixel_position(plane, shown[index])).collect();
        if corners.len() > 1 {
            sheet.svg.path("front", &polyline(&corners), "The Pareto front");
        }
        obstacles.segments.extend(corners.windows(2).map(|pair| (pair[0], pair[1])));
        let names: Vec<&str> = front.iter().map(|&index| shown[index].label.as_str()).collect();
        sheet.describe(format!("On the Pareto front: {}.", names.join(", ")));
        (0..shown.len()).map(|index| front.contains(&index)).collect()
    }

    fn draw_labels(&self, sheet: &mut Sheet, plane: &Plane, labelled: &[&Point], obstacles: &Obstacles) {
        let texts: Vec<String> = labelled
            .iter()
            .map(|point| match plane.y.beyond(point.y) {
                0 => format::printable(&point.label),
                _ => format!("{} ({})", point.label, format::significant(point.y, 3)),
            })
            .collect();
        let wishes: Vec<Wish> = labelled
            .iter()
            .zip(&texts)
            .map(|(point, text)| Wish {
                at: pixel_position(plane, point),
                width: text_width(text, TEXT) + 2.0,
                height: TEXT + 2.0,
            })
            .collect();
        let bounds = Area { x1: sheet.width, ..plane.area };
        let places = label::arrange(&wishes, obstacles, bounds);
        for ((text, wish), area) in texts.iter().zip(&wishes).zip(places) {
            if let Some(from) = label::leader(area, wish.at) {
                sheet.svg.line("leader", from, wish.at);
            }
            let at = (area.x0 + 1.0, area.y1 - 3.5);
            sheet.svg.text("label halo", at, Anchor::Start, text);
        }
    }
}

fn pixel_position(plane: &Plane, point: &Point) -> (f64, f64) {
    (plane.x.at(point.x), plane.y.at(point.y))
}

fn draw_point(sheet: &mut Sheet, plane: &Plane, point: &Point, on_front: bool, obstacles: &mut Obstacles) {
    let at = pixel_position(plane, point);
    obstacles.areas.push(Area::around(at, 7.0));
    let interval = point.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
    if let Some((low, high)) = interval {
        let (y0, y1) = (plane.y.at(high), plane.y.at(low));
        let class = format!("error {}", super::svg::series_class(point.series));
        sheet.svg.line(&class, (at.0, y0), (at.0, y1));
        for y in [y0, y1] {
            sheet.svg.line(&class, (at.0 - 3.0, y), (at.0 + 3.0, y));
        }
        obstacles.segments.push(((at.0, y0), (at.0, y1)));
    }
    let class = if on_front { "" } else { "hollow" };
    sheet.svg.marker(point.series, class, at, (&point.label, &point.describe()));
    // A value beyond the axis points to where it is.
    let up = -f64::from(plane.y.beyond(point.y));
    if up != 0.0 {
        let tip = (at.0, at.1 + up * 12.0);
        let wings = [(tip.0 - 4.0, tip.1 - up * 5.0), tip, (tip.0 + 4.0, tip.1 - up * 5.0)];
        sheet.svg.path("arrow", &polyline(&wings), "");
        sheet.svg.line("arrow", (at.0, at.1 + up * 5.0), tip);
    }
}

/// The points that no other one beats, from the cheapest on.
fn front(points: &[&Point], better: Better) -> Vec<usize> {
    let cost = |index: usize| match better {
        Better::Lower => points[index].y,
        Better::Higher => -points[index].y,
    };
    let mut order: Vec<usize> = (0..points.len()).collect();
    order.sort_by(|&a, &b| points[a].x.total_cmp(&points[b].x).then(cost(a).total_cmp(&cost(b))));
    let mut best = f64::INFINITY;
    order.retain(|&index| {
        let improves = cost(index) < best;
        if improves {
            best = cost(index);
        }
        improves
    });
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schemes() -> Scatter {
        Scatter {
            title: "Perplexity against size".to_owned(),
            x: Axis::linear("Bits per weight"),
            y: Axis::log("Perplexity"),
            points: vec![
                Point::new("int4-row", 4.01, 46.18).interval(43.0, 49.5),
                Point::new("int4-absmax", 4.0, 365_416_000.0),
                Point::new("nf4", 4.25, 24.55).interval(22.9, 26.3),
                Point::new("int4-g128", 4.125, 31.08),
                Point::new("int4-g64", 4.3, 26.0),
                Point::new("int8-row", 8.02, 22.96),
            ],
            front: Some(Better::Lower),
            ..Scatter::default()
        }
    }

    #[test]
    fn the_front_has_what_nothing_beats() {
        let plot = schemes();
        let points: Vec<&Point> = plot.points.iter().collect();
        let names =
            |better| -> Vec<&str> { front(&points, better).iter().map(|&i| points[i].label.as_str()).collect() };
        assert_eq!(names(Better::Lower), ["int4-absmax", "int4-row", "int4-g128", "nf4", "int8-row"]);
        assert_eq!(names(Better::Higher), ["int4-absmax"]);
    }

    #[test]
    fn one_of_two_equal_points_is_on_the_front() {
        let (a, b) = (Point::new("a", 1.0, 1.0), Point::new("b", 1.0, 1.0));
        assert_eq!(front(&[&a, &b], Better::Lower), [0]);
    }

    #[test]
    fn a_value_beyond_the_axis_is_named_with_its_value() {
        let plot = Scatter { y: Axis::linear("Perplexity").to(60.0), ..schemes() };
        let svg = plot.draw(640.0);
        assert!(svg.contains("int4-absmax (3.7e8)"), "{svg}");
        assert!(svg.contains("class=\"arrow\""));
    }

    #[test]
    fn points_without_a_place_are_counted() {
        let mut plot = schemes();
        plot.points.push(Point::new("zero", 4.0, 0.0));
        plot.points.push(Point::new("nan", f64::NAN, 1.0));
        let svg = plot.draw(640.0);
        assert!(svg.contains("2 points left out"), "{svg}");
        plot.points.drain(..6);
        assert!(plot.draw(640.0).contains("No data"));
    }

    #[test]
    fn the_whole_plot() {
        insta::assert_snapshot!(schemes().draw(super::super::WIDE).replace("><", ">\n<"));
    }
}
