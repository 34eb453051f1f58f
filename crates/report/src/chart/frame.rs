//! Parts that all plots share: title, legend, axes, notes below.

use super::axis::{Axis, Mapping};
use super::label::Obstacles;
use super::svg::{Anchor, Area, Svg, TEXT, TITLE, series_class, shorten, text_width, wrap};

/// A line across the plot at a value of note.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Guide {
    /// Label of the guide.
    pub label: String,
    /// Value at which the guide is drawn.
    pub at: f64,
}

/// Symbol of a legend's entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Key {
    /// A filled marker.
    Marker,
    /// An outlined marker.
    Hollow,
    /// A line with the series' dashes.
    Line,
}

/// The least width that a plot is laid out for.
const LEAST_WIDTH: f64 = 240.0;

/// The space between two lines of text.
const LEADING: f64 = 16.0;

/// A plot from top to bottom: what is drawn moves `y` down.
#[derive(Debug)]
pub(super) struct Sheet {
    pub(super) svg: Svg,
    pub(super) width: f64,
    pub(super) y: f64,
    title: String,
    facts: Vec<String>,
}

impl Sheet {
    /// A sheet with its title drawn.
    pub(super) fn new(width: f64, title: &str) -> Self {
        let width = if width.is_finite() { width.clamp(LEAST_WIDTH, 4000.0) } else { LEAST_WIDTH };
        let mut svg = Svg::default();
        let mut y = 0.0;
        // It is bold, so it is wider.
        for line in wrap(title, TITLE * 1.1, width) {
            y += TITLE + 4.0;
            svg.text("title", (0.0, y - 3.0), Anchor::Start, &line);
        }
        Self { svg, width, y: y + 6.0, title: title.to_owned(), facts: Vec::new() }
    }

    /// A sentence of the description for those who can't see the plot.
    pub(super) fn describe(&mut self, fact: String) {
        self.facts.push(fact);
    }

    /// The names of the series, each behind its marker, in as many lines as needed.
    pub(super) fn legend(&mut self, entries: &[(usize, Key, &str)]) {
        if entries.is_empty() {
            return;
        }
        let mut x = 0.0;
        self.y += LEADING;
        for &(series, key, name) in entries {
            let name = shorten(name, TEXT, self.width - 30.0);
            let width = 28.0 + text_width(&name, TEXT);
            if x > 0.0 && x + width > self.width {
                x = 0.0;
                self.y += LEADING + 2.0;
            }
            let middle = self.y - 4.0;
            match key {
                Key::Marker => self.svg.marker(series, "", (x + 6.0, middle), ("", "")),
                Key::Hollow => self.svg.marker(series, "hollow", (x + 6.0, middle), ("", "")),
                Key::Line => {
                    let class = format!("series {}", series_class(series));
                    self.svg.line(&class, (x, middle), (x + 16.0, middle));
                }
            }
            self.svg.text("label", (x + 20.0, self.y), Anchor::Start, &name);
            x += width + 14.0;
        }
        self.y += 8.0;
    }

    /// A line of small text below what is drawn so far.
    pub(super) fn note(&mut self, text: &str) {
        for line in wrap(text, TEXT, self.width) {
            self.y += LEADING;
            self.svg.text("note", (0.0, self.y), Anchor::Start, &line);
        }
        self.facts.push(text.to_owned());
    }

    /// Says how many values have no place, if there are any.
    pub(super) fn note_left_out(&mut self, count: usize, what: &str) {
        match count {
            0 => {}
            1 => self.note(&format!("1 {what} left out: this axis has no place for its value.")),
            n => self.note(&format!("{n} {what}s left out: this axis has no place for them.")),
        }
    }

    /// An empty frame that says that there is nothing to show.
    pub(super) fn nothing(&mut self) {
        let area = Area::new(0.0, self.y, self.width, self.y + 120.0);
        self.svg.rect("empty", area, "");
        let at = (self.width / 2.0, self.y + 64.0);
        self.svg.text("note", at, Anchor::Middle, "No data");
        self.y += 126.0;
        self.facts.push("There is no data.".to_owned());
    }

    pub(super) fn finish(self) -> String {
        self.svg.finish((self.width, self.y + 6.0), &self.title, &self.facts.join(" "))
    }
}

/// Space that the axes of an x-y plot leave.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// The height of the plotting area.
    pub(super) height: f64,
    /// The space to the right of it.
    pub(super) right: f64,
}

/// An x-y plotting area with its axes drawn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plane {
    pub(super) area: Area,
    pub(super) x: Mapping,
    pub(super) y: Mapping,
}

impl Plane {
    /// Draws both axes below what is on the sheet.
    pub(super) fn new(sheet: &mut Sheet, x: (&Axis, (f64, f64)), y: (&Axis, (f64, f64)), room: Room) -> Self {
        if !y.0.label.is_empty() {
            sheet.y += LEADING;
            let label = shorten(&y.0.label, TEXT, sheet.width);
            sheet.svg.text("axis-label", (0.0, sheet.y), Anchor::Start, &label);
        }
        // Room for the arrow of a value beyond the axis.
        sheet.y += 22.0;
        let (top, bottom) = (sheet.y, sheet.y + room.height);
        let y_map = Mapping::new(y.0, y.1, (bottom, top));
        let ticks = y_map.ticks((room.height / 45.0) as usize);
        let widest = ticks.iter().map(|tick| text_width(&tick.label, TEXT)).fold(10.0, f64::max);
        let left = (widest + 8.0).min(sheet.width * 0.3);
        let right = (sheet.width - room.right).max(left + 60.0);
        let area = Area::new(left, top, right, bottom);
        for tick in ticks {
            let at = y_map.at(tick.value);
            sheet.svg.line("grid", (left, at), (right, at));
            sheet.svg.text("tick", (left - 8.0, at + 4.0), Anchor::End, &tick.label);
        }
        sheet.y = bottom;
        let x_map = x_axis(sheet, x, (left, right), top);
        Self { area, x: x_map, y: y_map }
    }
}

impl Plane {
    fn shows(&self, guide: &Guide) -> bool {
        guide.at.is_finite() && self.y.beyond(guide.at) == 0
    }
}

/// Lines across the plane at values of note.
pub(super) fn draw_guides(sheet: &mut Sheet, plane: &Plane, guides: &[Guide], obstacles: &mut Obstacles) {
    for guide in guides.iter().filter(|guide| plane.shows(guide)) {
        let y = plane.y.at(guide.at);
        let ends = ((plane.area.x0, y), (plane.area.x1, y));
        sheet.svg.line("guide", ends.0, ends.1);
        obstacles.segments.push(ends);
    }
}

/// The names of these lines, each where it hides the least.
pub(super) fn name_guides(sheet: &mut Sheet, plane: &Plane, guides: &[Guide], obstacles: &mut Obstacles) {
    for guide in guides.iter().filter(|guide| plane.shows(guide)) {
        let width = text_width(&guide.label, TEXT);
        let y = plane.y.at(guide.at);
        let room = (plane.area.width() - width - 4.0).max(0.0);
        let places = (0..=6).flat_map(|step| {
            let x = plane.area.x1 - 2.0 - width - room * f64::from(step) / 6.0;
            [y - 4.0 - TEXT, y + 4.0].map(|top| Area::new(x, top, x + width, top + TEXT))
        });
        let hidden = |area: &Area| -> f64 {
            let areas: f64 = obstacles.areas.iter().map(|other| area.shared(*other)).sum();
            areas + (area.width() * area.height() - area.shared(plane.area)) * 10.0
        };
        // The first of equals: at the right end, above the line.
        let best = places.min_by(|a, b| hidden(a).total_cmp(&hidden(b)));
        if let Some(area) = best {
            let at = (area.x0, area.y1 - 2.0);
            sheet.svg.text("guide-label halo", at, Anchor::Start, &guide.label);
            obstacles.areas.push(area);
        }
    }
}

/// Draws an x axis at the sheet's lower end, with grid lines up to `top`.
pub(super) fn x_axis(
    sheet: &mut Sheet,
    (axis, range): (&Axis, (f64, f64)),
    (left, right): (f64, f64),
    top: f64,
) -> Mapping {
    let bottom = sheet.y;
    let map = Mapping::new(axis, range, (left, right));
    let mut ticks = map.ticks(((right - left) / 70.0) as usize);
    let widest = ticks.iter().map(|tick| text_width(&tick.label, TEXT)).fold(1.0, f64::max);
    let room = ((right - left) / (widest + 12.0)).max(1.0) as usize;
    let every = ticks.len().div_ceil(room).max(1);
    ticks = ticks.into_iter().step_by(every).collect();
    for tick in ticks {
        let at = map.at(tick.value);
        sheet.svg.line("grid", (at, top), (at, bottom));
        let half = text_width(&tick.label, TEXT) / 2.0;
        let x = at.min(sheet.width - half).max(half);
        sheet.svg.text("tick", (x, bottom + 17.0), Anchor::Middle, &tick.label);
    }
    sheet.svg.line("axis", (left, bottom), (right, bottom));
    sheet.y += 20.0;
    for line in wrap(&axis.label, TEXT, sheet.width) {
        sheet.y += LEADING;
        let half = text_width(&line, TEXT) / 2.0;
        let middle = ((left + right) / 2.0).min(sheet.width - half).max(half);
        sheet.svg.text("axis-label", (middle, sheet.y), Anchor::Middle, &line);
    }
    sheet.y += 4.0;
    map
}
