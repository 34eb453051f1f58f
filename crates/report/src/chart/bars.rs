//! Horizontal bars, one for each of a few things.

use super::Chart;
use super::axis::{Axis, Mapping, Scale};
use super::frame::{Guide, Sheet, x_axis};
use super::svg::{Anchor, Area, TEXT, shorten, text_width};
use crate::table::Tone;

/// Horizontal bars from zero, with intervals where they are known.
///
/// On an axis that does not hold zero (a log axis, or one that begins
/// elsewhere) the length of a bar would mean nothing: there the values are dots.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BarChart {
    /// Title of the plot.
    pub title: String,
    /// Axis of the bars' lengths.
    pub axis: Axis,
    /// The bars, from top to bottom.
    pub bars: Vec<Bar>,
    /// A value to compare with.
    pub guide: Option<Guide>,
}

/// A bar of a [`BarChart`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Bar {
    /// Label before the bar.
    pub label: String,
    /// Value of the bar.
    pub value: f64,
    /// The interval of the value.
    pub interval: Option<(f64, f64)>,
    /// The value as text, written at the end of the line.
    pub text: String,
    /// Meaning of the value: good, bad, neutral.
    pub tone: Tone,
}

const ROW: f64 = 26.0;

impl Chart for BarChart {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let left_out = self.bars.iter().filter(|bar| !self.axis.scale.holds(bar.value)).count();
        if left_out == self.bars.len() {
            sheet.nothing();
        } else {
            self.draw_bars(&mut sheet);
        }
        sheet.note_left_out(left_out, "value");
        for bar in self.bars.iter().take(60) {
            sheet.describe(format!("{}: {}.", bar.label, bar.text));
        }
        sheet.finish()
    }
}

impl BarChart {
    fn draw_bars(&self, sheet: &mut Sheet) {
        let texts: Vec<String> =
            self.bars.iter().map(|bar| format!("{} {}", bar.tone.symbol(), bar.text).trim().to_owned()).collect();
        let widest = |texts: &mut dyn Iterator<Item = &str>, share: f64| {
            texts.map(|text| text_width(text, TEXT)).fold(0.0, f64::max).min(sheet.width * share)
        };
        let labels = widest(&mut self.bars.iter().map(|bar| bar.label.as_str()), 0.36);
        let values = widest(&mut texts.iter().map(String::as_str), 0.4);
        let pixels = (labels + 10.0, (sheet.width - values - 12.0).max(labels + 50.0));
        let top = sheet.y + 4.0;
        sheet.y = top + ROW * self.bars.len() as f64;
        let (range, has_zero) = self.range();
        let map = x_axis(sheet, (&self.axis, range), pixels, top);
        let origin = has_zero.then(|| map.at(0.0));
        for (index, (bar, text)) in self.bars.iter().zip(&texts).enumerate() {
            let middle = top + ROW * (index as f64 + 0.5);
            let label = shorten(&bar.label, TEXT, labels + 1.0);
            sheet.svg.text("label", (labels, middle + 4.0), Anchor::End, &label);
            let at = (pixels.1 + 10.0, middle + 4.0);
            sheet.svg.text(&format!("value {}", bar.tone.word()), at, Anchor::Start, text);
            if self.axis.scale.holds(bar.value) {
                draw_bar(sheet, bar, &map, origin, middle);
            }
        }
        if let Some(x) = origin {
            sheet.svg.line("axis", (x, top), (x, top + ROW * self.bars.len() as f64));
        }
        self.draw_guide(sheet, &map, top);
    }

    /// The axis' range, and whether bars can begin at its zero.
    fn range(&self) -> ((f64, f64), bool) {
        let begins_elsewhere = self.axis.from.is_some_and(|from| from > 0.0) || self.axis.to.is_some_and(|to| to < 0.0);
        let has_zero = self.axis.scale == Scale::Linear && !begins_elsewhere;
        let values = self.bars.iter().flat_map(|bar| {
            let (low, high) = bar.interval.unwrap_or((bar.value, bar.value));
            [bar.value, low, high]
        });
        let guide = self.guide.iter().map(|guide| guide.at);
        let mut axis = self.axis.clone();
        let (low, high) = axis.range(values.clone().chain(guide.clone()), 0.04);
        if !has_zero {
            return ((low, high), false);
        }
        // The margin below zero would be empty.
        let is_negative = |value: f64| axis.scale.holds(value) && value < 0.0;
        let is_positive = |value: f64| axis.scale.holds(value) && value > 0.0;
        let any_negative = values.clone().chain(guide.clone()).any(is_negative);
        let any_positive = values.clone().chain(guide.clone()).any(is_positive);
        axis.from = axis.from.or(if any_negative { Some(low) } else { Some(0.0) });
        axis.to = axis.to.or(if any_positive || !any_negative { Some(high) } else { Some(0.0) });
        (axis.range(values.chain(guide), 0.0), true)
    }

    fn draw_guide(&self, sheet: &mut Sheet, map: &Mapping, top: f64) {
        let Some(guide) = self.guide.as_ref() else { return };
        if !self.axis.scale.holds(guide.at) || map.beyond(guide.at) != 0 {
            return;
        }
        let x = map.at(guide.at);
        let bottom = top + ROW * self.bars.len() as f64;
        sheet.svg.line("guide", (x, top), (x, bottom));
        sheet.note(&format!("Dashed line: {}.", guide.label.trim_end_matches('.')));
    }
}

fn draw_bar(sheet: &mut Sheet, bar: &Bar, map: &Mapping, origin: Option<f64>, middle: f64) {
    let x = map.at(bar.value);
    let tip = format!("{}: {}", bar.label, bar.text);
    if let Some(origin) = origin {
        let area = Area::new(origin.min(x), middle - 8.0, origin.max(x), middle + 8.0);
        sheet.svg.rect(&format!("bar {}", bar.tone.word()), area, &tip);
    }
    let interval = bar.interval.filter(|(low, high)| low.is_finite() && high.is_finite());
    if let Some((low, high)) = interval {
        let (x0, x1) = (map.at(low), map.at(high));
        sheet.svg.line("whisker", (x0, middle), (x1, middle));
        for x in [x0, x1] {
            sheet.svg.line("whisker", (x, middle - 4.0), (x, middle + 4.0));
        }
    }
    if origin.is_none() {
        sheet.svg.marker(0, "", (x, middle), (&bar.label, &tip));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(label: &str, value: f64) -> Bar {
        Bar { label: label.to_owned(), value, text: crate::format::percent(value, 1), ..Bar::default() }
    }

    fn agreement() -> BarChart {
        BarChart {
            title: "Token agreement".to_owned(),
            axis: Axis::linear("Share of tokens").to(1.0),
            bars: vec![
                Bar { interval: Some((0.95, 0.996)), tone: Tone::Good, ..bar("int8-row", 0.986) },
                Bar { tone: Tone::Bad, ..bar("int4-absmax", 0.02) },
            ],
            guide: None,
        }
    }

    #[test]
    fn bars_begin_at_zero() {
        let (range, has_zero) = agreement().range();
        assert!(has_zero);
        assert_eq!(range, (0.0, 1.0));
        let svg = agreement().draw(640.0);
        assert!(svg.contains("class=\"bar good\"") && svg.contains("✗ 2.0%"), "{svg}");
    }

    #[test]
    fn an_axis_without_zero_has_dots() {
        for axis in [Axis::log("x"), Axis::linear("x").from(0.5)] {
            let plot = BarChart { axis, ..agreement() };
            let svg = plot.draw(640.0);
            assert!(!svg.contains("class=\"bar "), "{svg}");
            assert!(svg.contains("class=\"mark "));
        }
    }

    #[test]
    fn changes_go_both_ways() {
        let plot = BarChart { bars: vec![bar("a", -0.5), bar("b", 0.2)], ..BarChart::default() };
        let ((low, high), has_zero) = plot.range();
        assert!(has_zero && low < -0.5 && high > 0.2, "{low} {high}");
        let plot = BarChart { bars: vec![bar("a", -0.5)], ..BarChart::default() };
        assert_eq!(plot.range().0.1, 0.0);
    }

    #[test]
    fn values_without_a_place_are_counted() {
        let plot = BarChart { bars: vec![bar("a", f64::NAN), bar("b", 0.2)], ..agreement() };
        let svg = plot.draw(640.0);
        assert!(svg.contains("1 value left out") && svg.contains("not a number"), "{svg}");
    }

    #[test]
    fn the_whole_plot() {
        insta::assert_snapshot!(agreement().draw(super::super::WIDE).replace("><", ">\n<"));
    }
}
