//! Axes: which range they cover, where their ticks are.

use crate::format;

/// Mapping from values to positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Scale {
    /// Equal steps are equal differences.
    #[default]
    Linear,
    /// Equal steps are equal ratios; only positive values have a place.
    Log,
}

/// Beyond this magnitude, differences of two values are no longer numbers.
const LARGEST: f64 = 1e300;

impl Scale {
    /// Returns whether the value has a place on this scale.
    #[must_use]
    pub fn holds(self, value: f64) -> bool {
        value.is_finite() && value.abs() <= LARGEST && (self == Self::Linear || value >= 1.0 / LARGEST)
    }

    /// The value in the units that the axis is even in.
    pub(super) fn even(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Log => value.log10(),
        }
    }

    /// The way back from [`even`](Self::even).
    pub(super) fn value(self, even: f64) -> f64 {
        match self {
            Self::Linear => even,
            Self::Log => 10f64.powf(even),
        }
    }
}

/// Axis of a plot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Axis {
    /// Measured quantity, with its unit.
    pub label: String,
    /// Mapping from values to positions.
    pub scale: Scale,
    /// Start of the axis; by default just below the lowest value.
    pub from: Option<f64>,
    /// End of the axis; by default just above the highest value. A value beyond it is drawn at the edge, with an arrow.
    pub to: Option<f64>,
    /// True if only whole numbers have ticks.
    pub whole: bool,
}

impl Axis {
    /// A linear axis that covers its data.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), ..Self::default() }
    }

    /// A linear axis of whole numbers (of blocks, for example) that covers its data.
    pub fn whole(label: impl Into<String>) -> Self {
        Self { whole: true, ..Self::linear(label) }
    }

    /// A log axis that covers its data.
    pub fn log(label: impl Into<String>) -> Self {
        Self { scale: Scale::Log, ..Self::linear(label) }
    }

    /// Sets the start of the axis.
    #[must_use]
    pub fn from(mut self, from: f64) -> Self {
        self.from = Some(from);
        self
    }

    /// Sets the end of the axis.
    #[must_use]
    pub fn to(mut self, to: f64) -> Self {
        self.to = Some(to);
        self
    }

    /// The range that the axis covers: its own ends, else those of the data
    /// with a margin (as a share of the range).
    pub(super) fn range(&self, values: impl Iterator<Item = f64>, margin: f64) -> (f64, f64) {
        let scale = self.scale;
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for value in values.filter(|&value| scale.holds(value)) {
            low = low.min(value);
            high = high.max(value);
        }
        let end = |end: Option<f64>| end.filter(|&value| scale.holds(value));
        let (from, to) = (end(self.from), end(self.to));
        if low > high {
            low = from.or(to).unwrap_or(1.0);
            high = to.or(from).unwrap_or(low);
        }
        let (low, high) = (from.unwrap_or(low), to.unwrap_or(high));
        let (mut first, mut last) = (scale.even(low), scale.even(high));
        let magnitude = first.abs().max(last.abs());
        if last - first <= magnitude * 1e-9 || last - first < 1e-290 {
            let middle = first / 2.0 + last / 2.0;
            let half = if scale == Scale::Log { 0.5 } else { (magnitude * 0.1).max(1e-280) };
            let half = if magnitude == 0.0 { 0.5 } else { half };
            return (scale.value(middle - half), scale.value(middle + half));
        }
        let pad = (last - first) * margin;
        if from.is_none() {
            first -= pad;
        }
        if to.is_none() {
            last += pad;
        }
        if scale == Scale::Log {
            // Exponents whose power is still a normal number.
            (first, last) = (first.max(-307.0), last.min(307.0));
        }
        (scale.value(first), scale.value(last))
    }
}

/// A tick: where, and what is written there.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tick {
    pub(super) value: f64,
    pub(super) label: String,
}

/// A range of values laid onto a range of pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mapping {
    scale: Scale,
    whole: bool,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Mapping {
    pub(super) fn new(axis: &Axis, range: (f64, f64), pixels: (f64, f64)) -> Self {
        let Axis { scale, whole, .. } = *axis;
        Self { scale, whole, low: scale.even(range.0), high: scale.even(range.1), from: pixels.0, to: pixels.1 }
    }

    /// The pixel of a value; at the edge for a value beyond it.
    pub(super) fn at(&self, value: f64) -> f64 {
        let share = (self.scale.even(value) - self.low) / (self.high - self.low);
        let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
        self.from + share * (self.to - self.from)
    }

    /// The pixel where the axis begins.
    pub(super) fn at_low(&self) -> f64 {
        self.from
    }

    /// The pixel where the axis ends.
    pub(super) fn at_high(&self) -> f64 {
        self.to
    }

    /// -1 below the range, 1 above it, otherwise 0.
    pub(super) fn beyond(&self, value: f64) -> i32 {
        let even = self.scale.even(value);
        let slack = (self.high - self.low) * 1e-9;
        i32::from(even > self.high + slack) - i32::from(even < self.low - slack)
    }

    /// Ticks inside the range, about this many.
    pub(super) fn ticks(&self, about: usize) -> Vec<Tick> {
        let about = about.clamp(2, 20) as f64;
        match self.scale {
            Scale::Linear => linear_ticks(self.low, self.high, about, if self.whole { 1.0 } else { 0.0 }),
            Scale::Log => log_ticks(self.low, self.high, about),
        }
    }
}

/// The 1, 2 or 5 times a power of ten that is nearest in ratio to `raw`.
fn nice_step(raw: f64) -> f64 {
    let power = 10f64.powf(raw.log10().floor());
    let lead = raw / power;
    // Where neighbours differ by the same factor: the roots of 1x2, 2x5, 5x10.
    let limits = [(2f64.sqrt(), 1.0), (10f64.sqrt(), 2.0), (50f64.sqrt(), 5.0)];
    limits.into_iter().find(|(limit, _)| lead < *limit).map_or(10.0, |(_, factor)| factor) * power
}

/// At steps of `least` or more.
fn linear_ticks(low: f64, high: f64, about: f64, least: f64) -> Vec<Tick> {
    let step = nice_step((high - low) / about).max(least);
    if !(step.is_normal() && step > 0.0) {
        return Vec::new();
    }
    let decimals = (-step.log10().floor()).clamp(0.0, 20.0) as usize;
    let plain = low.abs().max(high.abs()) < 1e6 && step >= 1e-4;
    let first = (low / step - 1e-9).ceil();
    (0..50)
        .map(|index| (first + f64::from(index)) * step)
        .take_while(|value| *value <= high + step * 1e-9)
        .map(|value| {
            // The product may miss zero by a rounding error.
            let value = if value.abs() < step * 1e-6 { 0.0 } else { value };
            let label =
                if plain { with_thousands(&format::fixed(value, decimals)) } else { format::significant(value, 3) };
            Tick { value, label }
        })
        .collect()
}

/// `low` and `high` are exponents of ten.
fn log_ticks(low: f64, high: f64, about: f64) -> Vec<Tick> {
    let decades = high - low;
    let inside = |exponent: f64| exponent >= low - 1e-9 && exponent <= high + 1e-9;
    let factors: &[f64] = if decades >= about * 0.6 {
        &[1.0]
    } else if decades >= about * 0.4 {
        &[1.0, 3.0]
    } else {
        &[1.0, 2.0, 5.0]
    };
    let every = if factors.len() > 1 { 1.0 } else { (decades / about).ceil().max(1.0) };
    let first = (low / every).floor() * every;
    let mut ticks = Vec::new();
    for index in 0..200 {
        let exponent = first + f64::from(index) * every;
        if exponent > high + 1e-9 {
            break;
        }
        for factor in factors.iter().filter(|factor| inside(exponent + factor.log10())) {
            let value = format!("{factor}e{exponent}").parse().unwrap_or(f64::NAN);
            ticks.push(Tick { value, label: log_label(*factor, exponent) });
        }
    }
    if ticks.len() < 3 && decades < 2.0 {
        let (low, high) = (10f64.powf(low), 10f64.powf(high));
        return linear_ticks(low, high, about, 0.0).into_iter().filter(|t| t.value > 0.0).collect();
    }
    ticks
}

fn log_label(factor: f64, exponent: f64) -> String {
    if (-3.0..=5.0).contains(&exponent) {
        let decimals = (-exponent).max(0.0) as usize;
        return with_thousands(&format!("{:.decimals$}", factor * 10f64.powf(exponent)));
    }
    let power = format!("10{}", superscript(exponent as i64));
    if factor == 1.0 { power } else { format!("{factor}·{power}") }
}

fn superscript(number: i64) -> String {
    const DIGITS: [char; 10] = ['⁰', '¹', '²', '³', '⁴', '⁵', '⁶', '⁷', '⁸', '⁹'];
    number.to_string().chars().map(|c| c.to_digit(10).map_or('⁻', |digit| DIGITS[digit as usize])).collect()
}

/// `12345` as `12,345`; shorter numbers and those with an exponent stay.
fn with_thousands(text: &str) -> String {
    let digits = text.trim_start_matches('-');
    match digits.parse::<u64>() {
        Ok(number) if number >= 10_000 => {
            format!("{}{}", &text[..text.len() - digits.len()], format::count(number))
        }
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn labels(scale: Scale, low: f64, high: f64, about: usize) -> Vec<String> {
        let ticks = Mapping::new(&Axis { scale, ..Axis::default() }, (low, high), (0.0, 100.0)).ticks(about);
        ticks.into_iter().map(|tick| tick.label).collect()
    }

    #[test]
    fn linear_ticks_are_nice() {
        assert_eq!(labels(Scale::Linear, 3.6, 16.4, 6), ["4", "6", "8", "10", "12", "14", "16"].map(str::to_owned));
        assert_eq!(labels(Scale::Linear, -0.12, 0.31, 5), ["-0.1", "0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(labels(Scale::Linear, 0.0, 40_000.0, 4), ["0", "10,000", "20,000", "30,000", "40,000"]);
        assert_eq!(labels(Scale::Linear, 0.0, 3e8, 3), ["0", "1e8", "2e8", "3e8"]);
    }

    #[test]
    fn blocks_have_no_halves() {
        let ticks = Mapping::new(&Axis::whole("Block"), (-0.1, 3.1), (0.0, 100.0)).ticks(7);
        assert_eq!(ticks.iter().map(|tick| tick.label.as_str()).collect::<Vec<_>>(), ["0", "1", "2", "3"]);
        let one = Axis::whole("Block").range([0.0].into_iter(), 0.05);
        assert_eq!(Mapping::new(&Axis::whole("Block"), one, (0.0, 100.0)).ticks(7).len(), 1);
    }

    #[test]
    fn log_ticks_suit_their_span() {
        assert_eq!(labels(Scale::Log, 1e-6, 1e2, 5), ["10⁻⁶", "10⁻⁴", "0.01", "1", "100"]);
        assert_eq!(labels(Scale::Log, 20.0, 500.0, 5), ["20", "50", "100", "200", "500"]);
        assert_eq!(labels(Scale::Log, 22.0, 31.0, 5), ["22", "24", "26", "28", "30"]);
        assert_eq!(labels(Scale::Log, 1.0, 1e9, 9).len(), 10);
    }

    #[test]
    fn one_value_still_gets_a_range() {
        for axis in [Axis::linear("x"), Axis::log("x")] {
            for value in [7.0, 1e-200, 1e200] {
                let (low, high) = axis.range([value, value].into_iter(), 0.05);
                assert!(low < value && value < high, "{low} {value} {high}");
            }
        }
        assert_eq!(Axis::linear("x").range(std::iter::empty(), 0.05), (0.9, 1.1));
    }

    #[test]
    fn a_value_beyond_the_axis_is_noticed() {
        let mapping = Mapping::new(&Axis::linear("x"), (0.0, 10.0), (0.0, 100.0));
        assert_eq!([-1.0, 0.0, 5.0, 10.0, 11.0].map(|v| mapping.beyond(v)), [-1, 0, 0, 0, 1]);
        assert_eq!(mapping.at(1e300), 100.0);
    }

    proptest! {
        #[test]
        fn any_range_has_ordered_ticks_inside(a in any::<f64>(), b in any::<f64>(), log: bool) {
            let axis = if log { Axis::log("x") } else { Axis::linear("x") };
            let (low, high) = axis.range([a, b].into_iter(), 0.05);
            prop_assert!(low < high, "{} {}", low, high);
            let mapping = Mapping::new(&axis, (low, high), (0.0, 100.0));
            let ticks = mapping.ticks(6);
            prop_assert!(ticks.len() <= 50);
            for tick in &ticks {
                prop_assert_eq!(mapping.beyond(tick.value), 0, "{:?}", tick);
            }
            prop_assert!(ticks.windows(2).all(|t| t[0].value < t[1].value), "{:?}", ticks);
        }
    }
}
