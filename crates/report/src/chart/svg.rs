//! SVG as text: elements, escaping, and how wide a text will be.

use crate::format::printable;

/// The size of labels and of most texts, in pixels; the stylesheet agrees.
pub(super) const TEXT: f64 = 12.0;

/// The size of a plot's title.
pub(super) const TITLE: f64 = 15.0;

/// Number of colours and of markers that series go through.
const SERIES: usize = 8;

/// Point of a text that is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// The inside of an SVG element, as it grows.
#[derive(Debug, Default)]
pub(super) struct Svg {
    body: String,
}

impl Svg {
    pub(super) fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        self.body.push_str(&format!(
            "<line class=\"{class}\" x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"/>",
            num(from.0),
            num(from.1),
            num(to.0),
            num(to.1)
        ));
    }

    /// A rectangle; `tip` is what a pointer that rests on it is told.
    pub(super) fn rect(&mut self, class: &str, area: Area, tip: &str) {
        let open = format!(
            "<rect class=\"{class}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"",
            num(area.x0),
            num(area.y0),
            num(area.width()),
            num(area.height())
        );
        self.close(&open, "rect", tip);
    }

    pub(super) fn path(&mut self, class: &str, d: &str, tip: &str) {
        if !d.is_empty() {
            self.close(&format!("<path class=\"{class}\" d=\"{d}\""), "path", tip);
        }
    }

    pub(super) fn text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str) {
        self.turned_text(class, at, anchor, text, 0.0);
    }

    pub(super) fn turned_text(&mut self, class: &str, at: (f64, f64), anchor: Anchor, text: &str, degrees: f64) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        let (x, y) = (num(at.0), num(at.1));
        let turn =
            if degrees == 0.0 { String::new() } else { format!(" transform=\"rotate({} {x} {y})\"", num(degrees)) };
        let text = escape(text);
        self.body.push_str(&format!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\"{anchor}{turn}>{text}</text>"));
    }

    /// The marker of a series; each of the first eight has a shape of its own. The page's script joins it with table
    /// rows of its `name`, where it has one.
    pub(super) fn marker(&mut self, series: usize, class: &str, at: (f64, f64), (name, tip): (&str, &str)) {
        let class = format!("mark {class} {}", series_class(series));
        let name = if name.is_empty() { String::new() } else { format!(" data-name=\"{}\"", escape(name)) };
        let path = marker_path(series, at, 4.5);
        self.close(&format!("<path class=\"{class}\" d=\"{path}\"{name}"), "path", tip);
    }

    fn close(&mut self, open: &str, tag: &str, tip: &str) {
        self.body.push_str(open);
        if tip.is_empty() {
            self.body.push_str("/>");
        } else {
            self.body.push_str(&format!("><title>{}</title></{tag}>", escape(tip)));
        }
    }

    /// The whole element. `description` tells the data to those who can't see.
    pub(super) fn finish(self, size: (f64, f64), title: &str, description: &str) -> String {
        let (width, height) = (num(size.0), num(size.1));
        let name = escape(title);
        let description = escape(description);
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" role=\"img\" \
             aria-label=\"{name}\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\"><title>{name}</title><desc>{description}</desc>{}</svg>",
            self.body
        )
    }
}

/// A rectangle by its corners.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Area {
    pub(super) x0: f64,
    pub(super) y0: f64,
    pub(super) x1: f64,
    pub(super) y1: f64,
}

impl Area {
    pub(super) fn new(x0: f64, y0: f64, x1: f64, y1: f64) -> Self {
        Self { x0, y0, x1, y1 }
    }

    pub(super) fn around(at: (f64, f64), radius: f64) -> Self {
        Self::new(at.0 - radius, at.1 - radius, at.0 + radius, at.1 + radius)
    }

    pub(super) fn width(self) -> f64 {
        (self.x1 - self.x0).max(0.0)
    }

    pub(super) fn height(self) -> f64 {
        (self.y1 - self.y0).max(0.0)
    }

    /// The area that both have.
    pub(super) fn shared(self, other: Self) -> f64 {
        let x = self.x1.min(other.x1) - self.x0.max(other.x0);
        let y = self.y1.min(other.y1) - self.y0.max(other.y0);
        x.max(0.0) * y.max(0.0)
    }
}

/// The class that gives a series its colour.
pub(super) fn series_class(series: usize) -> String {
    format!("s{}", series % SERIES + 1)
}

/// The path of a series' marker with this radius.
fn marker_path(series: usize, (x, y): (f64, f64), r: f64) -> String {
    let polygon = |corners: &[(f64, f64)]| {
        let corners: Vec<_> = corners.iter().map(|&(dx, dy)| (x + dx * r, y + dy * r)).collect();
        format!("{}Z", polyline(&corners))
    };
    match series % SERIES {
        0 => format!(
            "M{} {y1}a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0Z",
            num(x - r),
            y1 = num(y),
            r = num(r),
            d = num(2.0 * r)
        ),
        1 => polygon(&[(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)]),
        2 => polygon(&[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)]),
        3 => polygon(&[(0.0, -1.2), (1.15, 0.9), (-1.15, 0.9)]),
        4 => polygon(&[(0.0, 1.2), (1.15, -0.9), (-1.15, -0.9)]),
        5 => polygon(&[(-1.25, -0.5), (1.25, -0.5), (1.25, 0.5), (-1.25, 0.5)]),
        6 => polygon(&[(0.0, -1.2), (1.15, -0.35), (0.7, 1.0), (-0.7, 1.0), (-1.15, -0.35)]),
        _ => polygon(&[(-0.5, -1.25), (0.5, -1.25), (0.5, 1.25), (-0.5, 1.25)]),
    }
}

/// A path through these points; empty for fewer than one.
pub(super) fn polyline(points: &[(f64, f64)]) -> String {
    let mut d = String::new();
    for (index, &(x, y)) in points.iter().enumerate() {
        d.push(if index == 0 { 'M' } else { 'L' });
        d.push_str(&format!("{} {}", num(x), num(y)));
    }
    d
}

/// A coordinate with at most one decimal, always one that SVG can read.
pub(super) fn num(value: f64) -> String {
    let value = if value.is_finite() { value.clamp(-1e5, 1e5) } else { 0.0 };
    let rounded = (value * 10.0).round() / 10.0;
    // No negative zero.
    format!("{}", rounded + 0.0)
}

/// The text as XML and HTML can hold it.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// About how wide a text is at this size, in the wider of common sans-serifs.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    let units: f64 = text
        .chars()
        .map(|c| match c {
            'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.29,
            't' | 'f' | 'r' | ' ' | '(' | ')' | '[' | ']' | '-' | '/' => 0.39,
            'm' | 'w' | 'M' | 'W' | '%' | '@' => 0.9,
            'A'..='Z' => 0.69,
            c if u32::from(c) >= 0x2e80 => 1.0,
            _ => 0.62,
        })
        .sum();
    units * size
}

/// The text, cut at the end so that it is no wider than this.
pub(super) fn shorten(text: &str, size: f64, width: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if text_width(&kept, size) + size * 0.8 > width {
            kept.pop();
            break;
        }
    }
    format!("{}…", kept.trim_end())
}

/// The text in lines of this width, broken at spaces.
pub(super) fn wrap(text: &str, size: f64, width: f64) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if text_width(&format!("{line} {word}"), size) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.iter().map(|line| shorten(line, size, width)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coordinates_are_short_and_readable() {
        assert_eq!(num(1.04), "1");
        assert_eq!(num(-0.01), "0");
        assert_eq!(num(12.349), "12.3");
        assert_eq!(num(f64::NAN), "0");
        assert_eq!(num(f64::INFINITY), "0");
        assert_eq!(num(1e300), "100000");
    }

    #[test]
    fn markup_in_texts_is_escaped() {
        assert_eq!(escape("<a&\"b'>\u{0}\u{ffff}"), "&lt;a&amp;&quot;b&#39;&gt;\u{fffd}\u{fffd}");
    }

    #[test]
    fn texts_are_cut_and_wrapped() {
        assert_eq!(shorten("short", 12.0, 100.0), "short");
        let cut = shorten("a rather long label", 12.0, 60.0);
        assert!(cut.ends_with('…') && text_width(&cut, 12.0) <= 62.0, "{cut}");
        assert_eq!(wrap("one two three", 12.0, 50.0), ["one two", "three"]);
        assert!(wrap("", 12.0, 50.0).is_empty());
    }

    #[test]
    fn every_series_has_a_marker() {
        let paths: Vec<_> = (0..SERIES).map(|s| marker_path(s, (10.0, 10.0), 4.0)).collect();
        for (index, path) in paths.iter().enumerate() {
            assert!(!paths[..index].contains(path), "marker {index} is used twice");
        }
    }
}
