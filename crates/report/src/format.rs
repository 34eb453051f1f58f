//! Numbers as people read them.
//!
//! Everything here is for the eye; the machine value of a number belongs into
//! [`Cell::value`](crate::table::Cell::value), at full precision.

/// Text for a value that is not a number.
pub const NOT_A_NUMBER: &str = "not a number";

/// Text for a value that was not measured.
pub const ABSENT: &str = "–";

/// At this magnitude and above, numbers are written as `3.7e8`.
const HUGE: f64 = 1e6;

/// A number of bytes with a binary unit: `512 B`, `1.50 GiB`.
///
/// ```
/// assert_eq!(report::format::bytes(270_900_000), "258 MiB");
/// ```
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    let mut value = count as f64;
    let mut unit = 0;
    // 1023.5 would be rounded to 1024 of the smaller unit.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    let decimals = if value < 9.995 {
        2
    } else if value < 99.95 {
        1
    } else {
        0
    };
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// A whole number with separated thousands: `4,358,144`.
#[must_use]
pub fn count(number: u64) -> String {
    group_thousands(&number.to_string())
}

fn group_thousands(digits: &str) -> String {
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A number with this many significant digits: `23.08`, `0.0132`, `3.7e8`.
///
/// A whole number never loses digits before the point (`12345` stays so with
/// three digits); from a million on it is written with two digits and an
/// exponent, and so are numbers below 0.0001, with all the digits asked for.
#[must_use]
pub fn significant(value: f64, digits: usize) -> String {
    if let Some(word) = not_finite(value) {
        return word.to_owned();
    }
    let digits = digits.clamp(1, 17);
    if value == 0.0 {
        return "0".to_owned();
    }
    let exponent = decimal_exponent(value, digits);
    if value.abs() >= HUGE || exponent >= 6 {
        return scientific(value, digits.min(2));
    }
    if exponent < -4 {
        return scientific(value, digits);
    }
    let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
    fixed_plain(value, decimals)
}

/// A number with this many decimals, so that a column lines up: `23.08`.
///
/// From a million on it is written as `3.7e8`.
#[must_use]
pub fn fixed(value: f64, decimals: usize) -> String {
    match not_finite(value) {
        Some(word) => word.to_owned(),
        None if value.abs() >= HUGE => scientific(value, 2),
        None => fixed_plain(value, decimals.min(17)),
    }
}

/// A value and its interval: `23.08 [22.1, 24.0]`.
///
/// The bounds carry one digit less than the value, or as many as it takes to
/// tell one from the other.
#[must_use]
pub fn interval(value: f64, low: f64, high: f64, digits: usize) -> String {
    format!("{} {}", significant(value, digits), bounds(low, high, digits.saturating_sub(1)))
}

/// The interval alone: `[22.1, 24.0]`.
#[must_use]
pub fn bounds(low: f64, high: f64, digits: usize) -> String {
    let (low, high) = apart(low, high, digits, significant);
    format!("[{low}, {high}]")
}

/// A change and its interval, all with the same decimals: `+0.52 [+0.41, +0.63]`.
///
/// The number of the three that is largest has this many digits. Bounds that
/// are not zero never look like it: there are more decimals where that takes it.
#[must_use]
pub fn signed_interval(value: f64, low: f64, high: f64, digits: usize) -> String {
    let digits = digits.clamp(1, 17);
    let numbers = [value, low, high];
    let largest = numbers.iter().map(|number| number.abs()).fold(0.0, f64::max);
    let exponent = if largest > 0.0 { decimal_exponent(largest, digits) } else { 0 };
    let write = |number: f64, extra: usize| {
        if !largest.is_finite() || !(-4..6).contains(&exponent) {
            return signed(number, digits);
        }
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize + extra;
        with_sign(number, fixed(number, decimals))
    };
    let looks_zero = |extra: usize| {
        let hides = |number: f64| number != 0.0 && !shows_digits(&write(number, extra));
        low.is_finite() && high.is_finite() && (hides(low) || hides(high))
    };
    let extra = (0..4).find(|&extra| !looks_zero(extra)).unwrap_or(4);
    let [value, low, high] = numbers.map(|number| write(number, extra));
    format!("{value} [{low}, {high}]")
}

/// Both ends with the fewest digits, from `digits` on, that tell them apart.
fn apart(low: f64, high: f64, digits: usize, write: impl Fn(f64, usize) -> String) -> (String, String) {
    let first = digits.max(1);
    let mut texts = (write(low, first), write(high, first));
    for digits in first + 1..first + 5 {
        if low == high || texts.0 != texts.1 {
            break;
        }
        texts = (write(low, digits), write(high, digits));
    }
    texts
}

/// A change, always with its sign: `+0.52`, `-3.1`, `0`.
#[must_use]
pub fn signed(value: f64, digits: usize) -> String {
    with_sign(value, significant(value, digits))
}

/// A share as percent: `98.6%` for 0.986 with one decimal.
#[must_use]
pub fn percent(share: f64, decimals: usize) -> String {
    match not_finite(share) {
        Some(word) => word.to_owned(),
        None => format!("{}%", fixed(share * 100.0, decimals)),
    }
}

/// A relative change as percent, with its sign: `+1.3%`.
#[must_use]
pub fn signed_percent(share: f64, decimals: usize) -> String {
    with_sign(share, percent(share, decimals))
}

fn with_sign(value: f64, text: String) -> String {
    let shows = shows_digits(&text) || value.is_infinite();
    if value > 0.0 && shows { format!("+{text}") } else { text }
}

fn shows_digits(text: &str) -> bool {
    text.bytes().any(|byte| (b'1'..=b'9').contains(&byte))
}

/// A count out of a total: `142/144 (98.6%)`.
#[must_use]
pub fn proportion(part: u64, total: u64) -> String {
    if total == 0 {
        return format!("{part}/{total}");
    }
    format!("{part}/{total} ({})", percent(part as f64 / total as f64, 1))
}

/// A duration in seconds: `850 ms`, `12.3 s`, `4 min 05 s`, `2 h 10 min`.
#[must_use]
pub fn duration(seconds: f64) -> String {
    if let Some(word) = not_finite(seconds) {
        return word.to_owned();
    }
    let seconds = seconds.max(0.0);
    if seconds < 0.0995 {
        return format!("{} ms", significant(seconds * 1e3, 2));
    }
    if seconds < 0.9995 {
        return format!("{:.0} ms", seconds * 1e3);
    }
    if seconds < 59.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    if whole < 3600 {
        return format!("{} min {:02} s", whole / 60, whole % 60);
    }
    let minutes = (seconds / 60.0).round() as u64;
    format!("{} h {:02} min", minutes / 60, minutes % 60)
}

/// Formats a measured value with `write`; a value that was not measured becomes [`ABSENT`].
///
/// ```
/// use report::format;
/// assert_eq!(format::or_absent(None, |x| format::fixed(x, 2)), "–");
/// ```
#[must_use]
pub fn or_absent(value: Option<f64>, write: impl FnOnce(f64) -> String) -> String {
    value.map_or_else(|| ABSENT.to_owned(), write)
}

/// The text without control characters, which could drive a terminal.
///
/// Line breaks stay; a tab becomes a space; others become `\u{fffd}`.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|c| match c {
            '\n' => '\n',
            '\t' => ' ',
            c if c.is_control() || is_direction_mark(c) => '\u{fffd}',
            c => c,
        })
        .collect()
}

/// Marks that turn the writing direction around, so that text shows as another.
fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

fn not_finite(value: f64) -> Option<&'static str> {
    if value.is_nan() {
        Some(NOT_A_NUMBER)
    } else if value == f64::INFINITY {
        Some("infinite")
    } else if value == f64::NEG_INFINITY {
        Some("-infinite")
    } else {
        None
    }
}

/// The exponent of ten that the number has once it is rounded.
fn decimal_exponent(value: f64, digits: usize) -> i32 {
    let text = format!("{value:.*e}", digits - 1);
    text.rsplit_once('e').and_then(|(_, exponent)| exponent.parse().ok()).unwrap_or(0)
}

/// `3.7e8`; the mantissa's trailing zeros are dropped.
fn scientific(value: f64, digits: usize) -> String {
    let text = format!("{value:.*e}", digits - 1);
    match text.rsplit_once('e') {
        Some((mantissa, exponent)) if mantissa.contains('.') => {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            format!("{mantissa}e{exponent}")
        }
        _ => text,
    }
}

fn fixed_plain(value: f64, decimals: usize) -> String {
    let text = format!("{value:.decimals$}");
    let is_zero = text.bytes().all(|byte| matches!(byte, b'-' | b'0' | b'.'));
    if is_zero { text.trim_start_matches('-').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_change_unit_before_the_number_gets_long() {
        let cases = [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.00 KiB"),
            (10 * 1024, "10.0 KiB"),
            (1024 * 1024 - 1, "1.00 MiB"),
            (1_610_612_736, "1.50 GiB"),
            (u64::MAX, "16.0 EiB"),
        ];
        for (count, text) in cases {
            assert_eq!(bytes(count), text);
        }
    }

    #[test]
    fn significant_digits_keep_the_magnitude() {
        let cases = [
            (23.0812, 4, "23.08"),
            (0.013_225, 3, "0.0132"),
            (365_416_000.0, 4, "3.7e8"),
            (1_000_000.0, 4, "1e6"),
            (999_999.7, 4, "1e6"),
            (12_345.0, 3, "12345"),
            (9.9996, 4, "10.00"),
            (-0.5, 2, "-0.50"),
            (0.0, 4, "0"),
            (-0.0, 4, "0"),
            (1.234e-6, 3, "1.23e-6"),
            (f64::NAN, 3, "not a number"),
            (f64::INFINITY, 3, "infinite"),
            (f64::NEG_INFINITY, 3, "-infinite"),
            (5e-324, 3, "4.94e-324"),
            (f64::MAX, 3, "1.8e308"),
        ];
        for (value, digits, text) in cases {
            assert_eq!(significant(value, digits), text, "{value} with {digits} digits");
        }
    }

    #[test]
    fn fixed_decimals_have_no_negative_zero() {
        assert_eq!(fixed(-0.001, 2), "0.00");
        assert_eq!(fixed(23.0812, 2), "23.08");
        assert_eq!(fixed(3.654e8, 2), "3.7e8");
        assert_eq!(fixed(f64::NAN, 2), NOT_A_NUMBER);
    }

    #[test]
    fn interval_bounds_are_told_apart() {
        assert_eq!(interval(23.08, 22.1, 24.0, 4), "23.08 [22.1, 24.0]");
        assert_eq!(interval(0.1323, 0.13221, 0.13239, 4), "0.1323 [0.1322, 0.1324]");
        assert_eq!(interval(1.0, 1.0, 1.0, 3), "1.00 [1.0, 1.0]");
        assert_eq!(bounds(22.1, 24.0, 3), "[22.1, 24.0]");
        assert_eq!(bounds(f64::NAN, 2.0, 2), "[not a number, 2.0]");
    }

    #[test]
    fn a_change_and_its_interval_share_decimals() {
        let cases = [
            ((0.52, 0.413, 0.634), "+0.52 [+0.41, +0.63]"),
            ((-0.09, -0.26, 0.078), "-0.09 [-0.26, +0.08]"),
            ((-0.1, -0.3, 0.0012), "-0.100 [-0.300, +0.001]"),
            ((23.1, 18.2, 28.4), "+23 [+18, +28]"),
            ((3.7e8, 2.9e8, 4.4e8), "+3.7e8 [+2.9e8, +4.4e8]"),
            ((1.2e-7, -1e-8, 3e-7), "+1.2e-7 [-1e-8, +3e-7]"),
            ((0.0, 0.0, 0.0), "0.0 [0.0, 0.0]"),
            ((f64::NAN, f64::NAN, 1.0), "not a number [not a number, +1.0]"),
            ((f64::INFINITY, 1.0, f64::INFINITY), "+infinite [+1.0, +infinite]"),
        ];
        for ((value, low, high), text) in cases {
            assert_eq!(signed_interval(value, low, high, 2), text);
        }
    }

    #[test]
    fn changes_carry_their_sign() {
        assert_eq!(signed(0.52, 2), "+0.52");
        assert_eq!(signed(-3.1, 2), "-3.1");
        assert_eq!(signed(0.0, 2), "0");
        assert_eq!(signed(f64::INFINITY, 2), "+infinite");
        assert_eq!(signed(f64::NAN, 2), NOT_A_NUMBER);
        assert_eq!(signed_percent(0.0134, 1), "+1.3%");
        assert_eq!(signed_percent(-0.0001, 1), "0.0%");
        assert_eq!(signed_percent(0.0001, 1), "0.0%");
        assert_eq!(percent(f64::NAN, 1), NOT_A_NUMBER);
    }

    #[test]
    fn proportions_and_counts() {
        assert_eq!(proportion(142, 144), "142/144 (98.6%)");
        assert_eq!(proportion(0, 0), "0/0");
        assert_eq!(count(4_358_144), "4,358,144");
        assert_eq!(count(999), "999");
        assert_eq!(count(0), "0");
    }

    #[test]
    fn durations_use_two_units_at_most() {
        let cases = [
            (0.0, "0 ms"),
            (0.0042, "4.2 ms"),
            (0.85, "850 ms"),
            (12.34, "12.3 s"),
            (59.97, "1 min 00 s"),
            (245.0, "4 min 05 s"),
            (7801.0, "2 h 10 min"),
            (-1.0, "0 ms"),
        ];
        for (seconds, text) in cases {
            assert_eq!(duration(seconds), text);
        }
        assert_eq!(duration(f64::NAN), NOT_A_NUMBER);
    }

    #[test]
    fn control_characters_do_not_reach_a_terminal() {
        assert_eq!(printable("a\u{1b}[31mb\tc\nd\u{202e}"), "a\u{fffd}[31mb c\nd\u{fffd}");
    }
}
