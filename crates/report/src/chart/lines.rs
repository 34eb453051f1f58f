//! Lines over a common axis, with bands.

use super::Chart;
use super::axis::Axis;
use super::frame::{self, Guide, Key, Plane, Room, Sheet};
use super::label::Obstacles;
use super::svg::{Anchor, Area, TEXT, polyline, series_class, shorten, text_width};
use crate::format;

/// Lines, each with a band around it where its interval is known.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct LinePlot {
    /// Title of the plot.
    pub title: String,
    /// The axis to the right.
    pub x: Axis,
    /// The axis upwards.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
    /// Values of y to compare with.
    pub guides: Vec<Guide>,
}

/// A line of a [`LinePlot`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Line {
    /// Name of the line.
    pub name: String,
    /// Points of the line, in the order in which they are joined. A point without a
    /// place is a gap.
    pub points: Vec<(f64, f64)>,
    /// The band: x, and the interval of y there.
    pub band: Vec<(f64, f64, f64)>,
}

/// A plot at least this wide names its lines at their ends.
const WIDE_ENOUGH: f64 = 480.0;

impl Chart for LinePlot {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let left_out = points().filter(|point| !self.holds(**point)).count();
        if left_out == points().count() {
            sheet.nothing();
        } else {
            self.draw_plane(&mut sheet);
        }
        sheet.note_left_out(left_out, "point");
        for line in self.lines.iter().take(20) {
            let ends = [line.points.first(), line.points.last()]
                .map(|end| end.map_or(format::ABSENT.to_owned(), |end| format::significant(end.1, 3)));
            sheet.describe(format!("{}: from {} to {}.", line.name, ends[0], ends[1]));
        }
        sheet.finish()
    }
}

impl LinePlot {
    fn holds(&self, (x, y): (f64, f64)) -> bool {
        self.x.scale.holds(x) && self.y.scale.holds(y)
    }

    fn draw_plane(&self, sheet: &mut Sheet) {
        let names_at_end = sheet.width >= WIDE_ENOUGH && self.lines.len() > 1;
        if self.lines.len() > 1 && !names_at_end {
            let entry = |(index, line)| (index, Key::Line, Line::name(line));
            let entries: Vec<_> = self.lines.iter().enumerate().map(entry).collect();
            sheet.legend(&entries);
        }
        let shown = || {
            let points = self.lines.iter().flat_map(|line| line.points.iter().copied());
            let bands = self.lines.iter().flat_map(|line| &line.band);
            points.chain(bands.flat_map(|&(x, low, high)| [(x, low), (x, high)])).filter(|&point| self.holds(point))
        };
        let guides = self.guides.iter().map(|guide| guide.at);
        let x_range = self.x.range(shown().map(|point| point.0), 0.0);
        let y_range = self.y.range(shown().map(|point| point.1).chain(guides), 0.06);
        let names = self.lines.iter().map(|line| text_width(&line.name, TEXT));
        let names = names.fold(0.0, f64::max).min(sheet.width * 0.3);
        let right = if names_at_end { names + 16.0 } else { 12.0 };
        let height = (sheet.width * 0.5).clamp(220.0, 340.0);
        let room = Room { height, right };
        let plane = Plane::new(sheet, (&self.x, x_range), (&self.y, y_range), room);
        for (index, line) in self.lines.iter().enumerate() {
            self.draw_band(sheet, &plane, index, line);
        }
        for (index, line) in self.lines.iter().enumerate() {
            self.draw_line(sheet, &plane, index, line);
        }
        let mut obstacles = self.obstacles(&plane);
        frame::draw_guides(sheet, &plane, &self.guides, &mut obstacles);
        frame::name_guides(sheet, &plane, &self.guides, &mut obstacles);
        if names_at_end {
            self.draw_names(sheet, &plane, names);
        }
    }

    /// Positions of lines and bands, for texts that should keep clear of them.
    fn obstacles(&self, plane: &Plane) -> Obstacles {
        let points = self.lines.iter().flat_map(|line| line.points.iter().copied());
        let bands = self.lines.iter().flat_map(|line| &line.band);
        let areas = points
            .chain(bands.flat_map(|&(x, low, high)| [(x, low), (x, high)]))
            .filter(|&point| self.holds(point))
            .map(|(x, y)| Area::around((plane.x.at(x), plane.y.at(y)), 3.0));
        Obstacles { areas: areas.collect(), segments: Vec::new() }
    }

    fn draw_band(&self, sheet: &mut Sheet, plane: &Plane, series: usize, line: &Line) {
        let is_held = |&&(x, low, high): &&(f64, f64, f64)| self.holds((x, low)) && self.holds((x, high));
        let held: Vec<_> = line.band.iter().filter(is_held).collect();
        let upper = held.iter().map(|(x, _, high)| (plane.x.at(*x), plane.y.at(*high)));
        let lower = held.iter().rev().map(|(x, low, _)| (plane.x.at(*x), plane.y.at(*low)));
        let outline: Vec<_> = upper.chain(lower).collect();
        let class = format!("band {}", series_class(series));
        sheet.svg.path(&class, &polyline(&outline), "");
    }

    fn draw_line(&self, sheet: &mut Sheet, plane: &Plane, series: usize, line: &Line) {
        let mut d = String::new();
        for piece in line.points.split(|&point| !self.holds(point)) {
            let piece: Vec<_> = piece.iter().map(|&(x, y)| (plane.x.at(x), plane.y.at(y))).collect();
            match piece[..] {
                // A point between two gaps would not be seen.
                [(x, y)] => d.push_str(&polyline(&[(x - 1.0, y), (x + 1.0, y)])),
                _ => d.push_str(&polyline(&thin_out(&piece))),
            }
        }
        sheet.svg.path(&format!("series {}", series_class(series)), &d, &line.name);
    }

    /// Names at the lines' ends, moved apart where they would overlap.
    fn draw_names(&self, sheet: &mut Sheet, plane: &Plane, width: f64) {
        let mut ends: Vec<(usize, f64)> = self
            .lines
            .iter()
            .enumerate()
            .filter_map(|(index, line)| {
                let end = line.points.iter().rev().find(|&&point| self.holds(point))?;
                Some((index, plane.y.at(end.1)))
            })
            .collect();
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        let wanted: Vec<f64> = ends.iter().map(|end| end.1).collect();
        let places = apart(&wanted, TEXT + 3.0, plane.area.y0, plane.area.y1);
        for ((index, _), y) in ends.iter().zip(places) {
            let name = shorten(&self.lines[*index].name, TEXT, width + 1.0);
            let class = format!("label name {}", series_class(*index));
            let at = (plane.area.x1 + 10.0, y + 4.0);
            sheet.svg.text(&class, at, Anchor::Start, &name);
        }
    }
}

impl Line {
    fn name(&self) -> &str {
        &self.name
    }
}

/// Ascending positions at least `gap` apart, as near to the wanted ones as a
/// pass down and a pass up make them.
fn apart(wanted: &[f64], gap: f64, top: f64, bottom: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut lowest = top;
    for place in &mut places {
        *place = place.max(lowest);
        lowest = *place + gap;
    }
    let mut highest = bottom;
    for place in places.iter_mut().rev() {
        *place = place.min(highest);
        highest = *place - gap;
    }
    places
}

/// At most four points for each pixel across: the first, the lowest, the
/// highest, the last. What is drawn stays the same.
fn thin_out(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let is_ordered = points.windows(2).all(|pair| pair[0].0 <= pair[1].0);
    if points.len() < 2000 || !is_ordered {
        return points.to_vec();
    }
    let mut out = Vec::new();
    for column in points.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
        if column.len() <= 4 {
            out.extend_from_slice(column);
            continue;
        }
        let y = |&(_, point): &(usize, &(f64, f64))| point.1;
        let indexed = || column.iter().enumerate();
        let lowest = indexed().min_by(|a, b| y(a).total_cmp(&y(b))).map_or(0, |(i, _)| i);
        let highest = indexed().max_by(|a, b| y(a).total_cmp(&y(b))).map_or(0, |(i, _)| i);
        let mut kept = [0, lowest, highest, column.len() - 1];
        kept.sort_unstable();
        out.extend(kept.iter().map(|&index| column[index]));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(name: &str, slope: f64) -> Line {
        let points: Vec<_> = (0..8).map(|i| (f64::from(i), slope * f64::from(i) + 1.0)).collect();
        let band = points.iter().map(|&(x, y)| (x, y - 0.5, y + 0.5)).collect();
        Line { name: name.to_owned(), points, band }
    }

    fn plot() -> LinePlot {
        LinePlot {
            title: "Loss".to_owned(),
            x: Axis::linear("Step"),
            y: Axis::linear("nats"),
            lines: vec![line("student", 1.0), line("teacher", 1.02)],
            guides: vec![Guide { label: "reference".to_owned(), at: 3.0 }],
        }
    }

    #[test]
    fn the_whole_plot() {
        insta::assert_snapshot!(plot().draw(super::super::WIDE).replace("><", ">\n<"));
    }

    #[test]
    fn a_narrow_plot_has_a_legend() {
        assert!(!plot().draw(640.0).contains("<line class=\"series s2\""));
        assert!(plot().draw(360.0).contains("<line class=\"series s2\""));
    }

    #[test]
    fn what_has_no_place_is_a_gap() {
        let mut plot = plot();
        plot.lines[0].points[3].1 = f64::NAN;
        let svg = plot.draw(640.0);
        let path = svg.split("class=\"series s1\" d=\"").nth(1).and_then(|d| d.split('"').next());
        assert_eq!(path.map(|d| d.matches('M').count()), Some(2), "{svg}");
        assert!(svg.contains("1 point left out"));
    }

    #[test]
    fn names_are_moved_apart() {
        assert_eq!(apart(&[10.0, 11.0, 12.0], 10.0, 0.0, 100.0), [10.0, 20.0, 30.0]);
        assert_eq!(apart(&[95.0, 99.0], 10.0, 0.0, 100.0), [90.0, 100.0]);
    }

    #[test]
    fn long_lines_keep_their_extremes() {
        let mut points: Vec<_> = (0..50_000).map(|i| (f64::from(i) / 100.0, 1.0)).collect();
        points[25_003].1 = 9.0;
        let thin = thin_out(&points);
        assert!(thin.len() <= 2000 + 4, "{}", thin.len());
        assert!(thin.contains(&points[25_003]));
        assert!(thin.ends_with(&points[points.len() - 1..]));
    }
}
