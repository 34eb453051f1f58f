//! Small charts for a terminal.

use crate::format;

/// Characters that a terminal chart is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Glyphs {
    /// Block elements, an eighth of a cell fine.
    #[default]
    Unicode,
    /// Plain ASCII, for terminals and logs that know nothing else.
    Ascii,
}

impl Glyphs {
    /// Chooses the characters that the environment's locale can show.
    ///
    /// `LC_ALL`, `LC_CTYPE` and `LANG` count in this order, as everywhere.
    #[must_use]
    pub fn detect() -> Self {
        let locale = ["LC_ALL", "LC_CTYPE", "LANG"]
            .iter()
            .find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()));
        Self::of_locale(locale.as_deref().unwrap_or(""))
    }

    fn of_locale(locale: &str) -> Self {
        let locale = locale.to_ascii_lowercase();
        if locale.contains("utf-8") || locale.contains("utf8") { Self::Unicode } else { Self::Ascii }
    }

    fn levels(self) -> &'static [char] {
        match self {
            Self::Unicode => &['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'],
            Self::Ascii => &['_', '.', ':', '-', '=', '+', '*', '#'],
        }
    }
}

/// One character for each value, from the lowest to the highest.
///
/// A value that is not finite leaves a space.
///
/// ```
/// use report::spark::{Glyphs, sparkline};
/// assert_eq!(sparkline(&[0.0, 1.0, 2.0, 7.0], Glyphs::Unicode), "▁▂▃█");
/// ```
#[must_use]
pub fn sparkline(values: &[f64], glyphs: Glyphs) -> String {
    let finite = || values.iter().copied().filter(|value| value.is_finite());
    let low = finite().fold(f64::INFINITY, f64::min);
    let high = finite().fold(f64::NEG_INFINITY, f64::max);
    let levels = glyphs.levels();
    let top = levels.len() - 1;
    values
        .iter()
        .map(|&value| {
            if !value.is_finite() {
                return ' ';
            }
            // Halved, so that the span of the largest numbers stays finite.
            let span = high / 2.0 - low / 2.0;
            let share = if span > 0.0 { (value / 2.0 - low / 2.0) / span } else { 0.0 };
            levels[((share * top as f64).round() as usize).min(top)]
        })
        .collect()
}

/// A bar that is `share` of `width` characters long, padded with spaces.
///
/// A positive share always shows something.
#[must_use]
pub fn bar(share: f64, width: usize, glyphs: Glyphs) -> String {
    const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let share = if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) };
    let shows = share > 0.0 && width > 0;
    let (mut out, used) = match glyphs {
        Glyphs::Unicode => {
            let eighths = ((share * width as f64 * 8.0).round() as usize).max(usize::from(shows));
            let rest = EIGHTHS[eighths % 8];
            (format!("{}{rest}", "█".repeat(eighths / 8)), eighths.div_ceil(8))
        }
        Glyphs::Ascii => {
            let cells = ((share * width as f64).round() as usize).max(usize::from(shows));
            ("#".repeat(cells), cells)
        }
    };
    out.extend(std::iter::repeat_n(' ', width.saturating_sub(used)));
    out
}

/// One line of [`bars`].
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Label of the bar.
    pub label: String,
    /// Value of the bar; the longest bar is the largest value.
    pub value: f64,
    /// The value as text, written after the bar.
    pub text: String,
}

/// Horizontal bars, one a line, in at most `width` characters if that is possible.
///
/// Negative values and values that are not finite get an empty bar; their text
/// is shown all the same.
#[must_use]
pub fn bars(lines: &[Line], width: usize, glyphs: Glyphs) -> String {
    let chars = |text: &str| text.chars().count();
    let labels = lines.iter().map(|line| chars(&line.label)).max().unwrap_or(0);
    let texts = lines.iter().map(|line| chars(&line.text)).max().unwrap_or(0);
    let room = width.saturating_sub(labels + texts + 2).clamp(4, 60);
    let largest = lines.iter().map(|line| line.value).filter(|value| value.is_finite()).fold(0.0, f64::max);
    let mut out = String::new();
    for line in lines {
        let drawable = line.value.is_finite() && largest > 0.0;
        let share = if drawable { line.value / largest } else { 0.0 };
        let label = format::printable(&line.label);
        let text = format::printable(&line.text);
        let drawn = format!("{label:labels$} {} {text}", bar(share, room, glyphs));
        out.push_str(drawn.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sparkline_covers_its_levels() {
        let values: Vec<f64> = (0..8).map(f64::from).collect();
        assert_eq!(sparkline(&values, Glyphs::Unicode), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&values, Glyphs::Ascii), "_.:-=+*#");
    }

    #[test]
    fn sparkline_takes_what_is_not_finite_as_a_gap() {
        assert_eq!(sparkline(&[1.0, f64::NAN, 2.0, f64::INFINITY], Glyphs::Ascii), "_ # ");
        assert_eq!(sparkline(&[f64::MIN, f64::MAX], Glyphs::Ascii), "_#");
        assert_eq!(sparkline(&[3.0, 3.0], Glyphs::Ascii), "__");
        assert_eq!(sparkline(&[], Glyphs::Ascii), "");
    }

    #[test]
    fn a_bar_has_its_width() {
        for glyphs in [Glyphs::Unicode, Glyphs::Ascii] {
            for share in [0.0, 1e-9, 0.3, 0.5, 0.99, 1.0, 7.0, -1.0, f64::NAN] {
                assert_eq!(bar(share, 10, glyphs).chars().count(), 10, "{share}");
            }
            assert_eq!(bar(0.5, 0, glyphs), "");
        }
        assert_eq!(bar(0.45, 10, Glyphs::Unicode), "████▌     ");
        assert_ne!(bar(1e-9, 10, Glyphs::Ascii).trim(), "");
    }

    #[test]
    fn bars_share_one_scale() {
        let line =
            |label: &str, value: f64| Line { label: label.to_owned(), value, text: format::significant(value, 3) };
        let lines = [line("int8-row", 0.01), line("nf4", 0.1), line("broken", f64::NAN)];
        insta::assert_snapshot!(bars(&lines, 40, Glyphs::Ascii), @r"
        int8-row ##                 0.0100
        nf4      ################## 0.100
        broken                      not a number
        ");
    }

    #[test]
    fn the_locale_decides() {
        assert_eq!(Glyphs::of_locale("en_GB.UTF-8"), Glyphs::Unicode);
        assert_eq!(Glyphs::of_locale("C.utf8"), Glyphs::Unicode);
        assert_eq!(Glyphs::of_locale("C"), Glyphs::Ascii);
        assert_eq!(Glyphs::of_locale(""), Glyphs::Ascii);
    }
}
