//! Text as Python writes it: numbers, quotes, `%` and `str.format`.

use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::value::{Number, Value};

/// White space as Python's `str.isspace` has it.
pub fn is_space(c: char) -> bool {
    c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c)
}

/// `repr` of a float.
pub fn float(f: f64) -> String {
    if f.is_nan() {
        return "nan".into();
    }
    if f.is_infinite() {
        return if f > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{f:e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if (-4..16).contains(&exponent) {
        let plain = format!("{f}");
        return if plain.contains('.') { plain } else { plain + ".0" };
    }
    exponent_form(mantissa, exponent)
}

/// `1.5e+20`: a sign and two digits at least.
fn exponent_form(mantissa: &str, exponent: i32) -> String {
    format!("{mantissa}e{}{:02}", if exponent < 0 { '-' } else { '+' }, exponent.abs())
}

/// Appends `repr` of a string.
pub fn quote(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => out.extend(['\\', c]),
            c if c == ' ' || !(c.is_control() || is_space(c) || is_invisible(c)) => out.push(c),
            c if (c as u32) < 0x100 => out.push_str(&format!("\\x{:02x}", c as u32)),
            c if (c as u32) < 0x10000 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push_str(&format!("\\U{:08x}", c as u32)),
        }
    }
    out.push(quote);
}

/// Format characters and private use, which Python doesn't print.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{10ffff}')
}

/// Python's `str()`, within the budget.
pub fn str_of(value: &Value, budget: &Budget) -> Result<String> {
    budget.take(value.text_size())?;
    let mut out = String::new();
    value.write_str(&mut out);
    Ok(out)
}

/// Format of a number or text: `[[fill]align][sign][#][0][width][,][.precision][type]`.
#[derive(Debug, Clone, Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    sign: Option<char>,
    alternate: bool,
    zero: bool,
    width: usize,
    comma: Option<char>,
    precision: Option<usize>,
    kind: Option<char>,
}

/// Digits of a width or precision at most.
const MAX_WIDTH: usize = 100_000;

fn count(chars: &mut std::iter::Peekable<std::str::Chars<'_>>) -> Result<Option<usize>> {
    let mut out: Option<usize> = None;
    while let Some(digit) = chars.peek().and_then(|c| c.to_digit(10)) {
        chars.next();
        let value = out.unwrap_or(0) * 10 + digit as usize;
        if value > MAX_WIDTH {
            return Err(Error::limit(format!("a width above {MAX_WIDTH}")));
        }
        out = Some(value);
    }
    Ok(out)
}

impl Spec {
    fn parse(text: &str) -> Result<Self> {
        let mut spec = Spec::default();
        let all: Vec<char> = text.chars().take(2).collect();
        let mut chars = text.chars().peekable();
        let is_align = |c: Option<&char>| matches!(c, Some('<' | '>' | '^' | '='));
        if is_align(all.get(1)) {
            (spec.fill, spec.align) = (chars.next(), chars.next());
        } else if is_align(all.first()) {
            spec.align = chars.next();
        }
        spec.sign = chars.next_if(|c| matches!(c, '+' | '-' | ' '));
        spec.alternate = chars.next_if_eq(&'#').is_some();
        spec.zero = chars.next_if_eq(&'0').is_some();
        spec.width = count(&mut chars)?.unwrap_or(0);
        spec.comma = chars.next_if(|c| matches!(c, ',' | '_'));
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(count(&mut chars)?.ok_or_else(|| Error::new("format specifier missing precision"))?);
        }
        spec.kind = chars.next();
        match chars.next() {
            None => Ok(spec),
            Some(_) => Err(Error::new(format!("invalid format specifier '{text}'"))),
        }
    }

    fn pad(&self, sign: &str, body: &str, default_align: char) -> String {
        let missing = self.width.saturating_sub(sign.chars().count() + body.chars().count());
        let zero = self.zero && self.align.is_none();
        let fill = self.fill.unwrap_or(if zero { '0' } else { ' ' });
        let fills = |n: usize| fill.to_string().repeat(n);
        match self.align.unwrap_or(if zero { '=' } else { default_align }) {
            '<' => format!("{sign}{body}{}", fills(missing)),
            '^' => format!("{}{sign}{body}{}", fills(missing / 2), fills(missing - missing / 2)),
            '=' => format!("{sign}{}{body}", fills(missing)),
            _ => format!("{}{sign}{body}", fills(missing)),
        }
    }

    fn text(&self, text: &str) -> Result<String> {
        if !matches!(self.kind, None | Some('s')) {
            let what = format!("unknown format code '{}' for object of type 'str'", self.kind.unwrap_or(' '));
            return Err(Error::new(what));
        }
        let cut: String = text.chars().take(self.precision.unwrap_or(usize::MAX)).collect();
        Ok(self.pad("", &cut, '<'))
    }

    fn number(&self, number: Number) -> Result<String> {
        let negative = match number {
            Number::Int(n) => n < 0,
            Number::Float(f) => f.is_sign_negative() && !f.is_nan(),
        };
        let sign = match (negative, self.sign) {
            (true, _) => "-",
            (false, Some('+')) => "+",
            (false, Some(' ')) => " ",
            _ => "",
        };
        let body = self.digits(number)?;
        let body = match self.comma {
            Some(comma) => grouped(&body, comma),
            None => body,
        };
        Ok(self.pad(sign, &body, '>'))
    }

    /// The digits without a sign.
    fn digits(&self, number: Number) -> Result<String> {
        let kind = self.kind.unwrap_or(match number {
            Number::Int(_) => 'd',
            Number::Float(_) => ' ',
        });
        let prefix = |text: &str| if self.alternate { text.to_string() } else { String::new() };
        if let (Number::Int(n), 'd' | 'i' | 'u' | 'n' | 'x' | 'X' | 'o' | 'b' | 'c') = (number, kind) {
            let n = n.unsigned_abs();
            return Ok(match kind {
                'x' => prefix("0x") + &format!("{n:x}"),
                'X' => prefix("0X") + &format!("{n:X}"),
                'o' => prefix("0o") + &format!("{n:o}"),
                'b' => prefix("0b") + &format!("{n:b}"),
                'c' => u32::try_from(n).ok().and_then(char::from_u32).map(String::from).unwrap_or_default(),
                _ => n.to_string(),
            });
        }
        let value = number.float().abs();
        if !value.is_finite() {
            return Ok(if value.is_nan() { "nan".into() } else { "inf".into() });
        }
        let precision = self.precision.unwrap_or(6);
        match kind {
            'f' | 'F' => Ok(format!("{value:.precision$}")),
            '%' => Ok(format!("{:.precision$}%", value * 100.0)),
            'e' | 'E' => {
                let text = format!("{value:.precision$e}");
                let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let out = exponent_form(mantissa, exponent.parse().unwrap_or(0));
                Ok(if kind == 'E' { out.to_uppercase() } else { out })
            }
            'g' | 'G' => Ok(general(value, precision.max(1))),
            ' ' => Ok(match self.precision {
                Some(precision) => general(value, precision.max(1)),
                None => float(value),
            }),
            other => Err(Error::new(format!("unknown format code '{other}' for a number"))),
        }
    }
}

/// `%g`: the shorter of both forms, without trailing zeros.
fn general(value: f64, precision: usize) -> String {
    let text = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if exponent < -4 || exponent >= precision as i32 {
        return exponent_form(&trim(mantissa), exponent);
    }
    trim(&format!("{value:.*}", (precision as i32 - 1 - exponent).max(0) as usize))
}

fn grouped(digits: &str, comma: char) -> String {
    let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
    let mut out = String::new();
    for (i, c) in digits[..end].chars().enumerate() {
        if i > 0 && (end - i) % 3 == 0 {
            out.push(comma);
        }
        out.push(c);
    }
    out + &digits[end..]
}

/// `format(value, spec)`.
pub fn format_value(value: &Value, spec: &str, budget: &Budget) -> Result<String> {
    if spec.is_empty() {
        return str_of(value, budget);
    }
    let spec = Spec::parse(spec)?;
    budget.take(spec.width.saturating_add(spec.precision.unwrap_or(0)))?;
    match (value, value.number()) {
        (Value::Bool(_), Some(number)) if spec.kind.is_some() => spec.number(number),
        (Value::Int(_) | Value::Float(_), Some(number)) => spec.number(number),
        _ => {
            let text = str_of(value, budget)?;
            spec.text(&text)
        }
    }
}

/// `template % values`.
pub fn percent(template: &str, values: &Value, budget: &Budget) -> Result<String> {
    let mut out = String::new();
    let mut chars = template.chars().peekable();
    let tuple: Vec<Value> = match values {
        Value::Seq(seq) if seq.kind == crate::value::SeqKind::Tuple => seq.items.clone(),
        one => vec![one.clone()],
    };
    let mut next = tuple.into_iter();
    let mut named = false;
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut given = None;
        if chars.next_if_eq(&'(').is_some() {
            let name: String = chars.by_ref().take_while(|c| *c != ')').collect();
            let Value::Dict(dict) = values else { return Err(Error::new("format requires a mapping")) };
            given = Some(dict.get(&name).cloned().ok_or_else(|| Error::new(format!("KeyError: '{name}'")))?);
            named = true;
        }
        let mut spec = Spec::default();
        while let Some(flag) = chars.next_if(|c| matches!(c, '-' | '+' | ' ' | '0' | '#')) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.zero = true,
                '#' => spec.alternate = true,
                sign => spec.sign = Some(sign),
            }
        }
        spec.width = count(&mut chars)?.unwrap_or(0);
        if chars.next_if_eq(&'.').is_some() {
            spec.precision = Some(count(&mut chars)?.unwrap_or(0));
        }
        let kind = chars.next().ok_or_else(|| Error::new("incomplete format"))?;
        if kind == '%' {
            out.push('%');
            continue;
        }
        let value =
            given.or_else(|| next.next()).ok_or_else(|| Error::new("not enough arguments for format string"))?;
        budget.take(spec.width.saturating_add(spec.precision.unwrap_or(0)))?;
        let piece = match kind {
            's' | 'r' | 'a' => {
                let mut text = str_of(&value, budget)?;
                if kind != 's' {
                    text.clear();
                    value.write_repr(&mut text);
                }
                let cut: String = text.chars().take(spec.precision.unwrap_or(usize::MAX)).collect();
                spec.zero = false;
                spec.pad("", &cut, '>')
            }
            'd' | 'i' | 'u' => match value.number() {
                Some(Number::Float(f)) if f.is_finite() => spec.number(Number::Int(f as i64))?,
                Some(number @ Number::Int(_)) => spec.number(number)?,
                _ => {
                    return Err(Error::new(format!(
                        "%{kind} format: a real number is required, not {}",
                        value.type_name()
                    )));
                }
            },
            'c' => match &value {
                Value::Str(s) if s.chars().count() == 1 => spec.pad("", s, '>'),
                Value::Int(_) => Spec { kind: Some('c'), ..spec }.number(value.number().unwrap_or(Number::Int(0)))?,
                _ => return Err(Error::new("%c requires int or char")),
            },
            'x' | 'X' | 'o' | 'f' | 'F' | 'e' | 'E' | 'g' | 'G' => match value.number() {
                Some(number) => Spec { kind: Some(kind), ..spec }.number(number)?,
                None => return Err(Error::new(format!("must be real number, not {}", value.type_name()))),
            },
            other => return Err(Error::new(format!("unsupported format character '{other}'"))),
        };
        out.push_str(&piece);
    }
    if !named && next.next().is_some() && !matches!(values, Value::Dict(_)) {
        return Err(Error::new("not all arguments converted during string formatting"));
    }
    budget.take(out.len())?;
    Ok(out)
}
