//! JSON as Python's `json` module reads it, and objects of strings whose keys are unique.

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::{Value, json};
use std::{fmt, str};

/// The most bytes of a string that an error message shows.
const SHOWN: usize = 200;

/// A JSON object of strings in the order of the file; a key that comes twice is an error.
#[derive(Debug, Default)]
pub(crate) struct UniqueStrings(pub IndexMap<String, String>);

impl<'de> Deserialize<'de> for UniqueStrings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(StringsVisitor)
    }
}

struct StringsVisitor;

impl<'de> Visitor<'de> for StringsVisitor {
    type Value = UniqueStrings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = IndexMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value: String = map.next_value().map_err(|e| A::Error::custom(format!("key {}: {e}", shown(&key))))?;
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!("key {} stands twice", shown(&key))));
            }
            out.insert(key, value);
        }
        Ok(UniqueStrings(out))
    }
}

/// A key and what it says, for error messages.
pub(crate) fn said(key: &str, value: Option<&Value>) -> String {
    value.map_or_else(|| format!("no {key}"), |v| format!("{key} {}", shown(&v.to_string())))
}

/// The start of a string from a file, for error messages.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().find(|(i, _)| *i >= SHOWN) {
        Some((i, _)) => format!("{}...", &text[..i]),
        None => text.to_string(),
    }
}

/// The key of the object that stands for NaN or an infinity: `{"__float__": "NaN"}`. transformers writes
/// and reads such floats so.
const FLOAT_TAG: &str = "__float__";

/// Parses JSON as Python's `json.loads` does.
///
/// Accepts `NaN`, `Infinity`, `-Infinity`, floats beyond the range and lone surrogates. A float that is not finite
/// becomes `{"__float__": "NaN"}`, as transformers writes it, and is no number to whoever reads the value. A lone
/// surrogate becomes U+FFFD. Of several values of one key the last is kept.
///
/// # Errors
/// What is wrong, with line and column: comments, a byte order mark and UTF-16 are errors, as in Python.
pub fn parse_json(bytes: &[u8]) -> Result<Value, String> {
    match bytes {
        [0xef, 0xbb, 0xbf, ..] => return Err("starts with a byte order mark; save it as UTF-8 without one".into()),
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => return Err("is UTF-16; save it as UTF-8".into()),
        _ => {}
    }
    let parsed = serde_json::from_slice(bytes).or_else(|strict| {
        // A position in the rewritten text would mislead: the error is that of the text as it stands.
        let rewritten = str::from_utf8(bytes).ok().map(to_strict);
        rewritten.and_then(|text| serde_json::from_str(&text).ok()).ok_or_else(|| strict.to_string())
    });
    parsed.map(|mut value| {
        to_finite(&mut value);
        value
    })
}

/// Makes each number that is no 64-bit integer a float, and tags the infinite ones. Where a dependency turns on
/// serde_json's `arbitrary_precision`, numbers are kept as they are written, and 1e400 is one.
fn to_finite(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(to_finite),
        Value::Object(all) => all.values_mut().for_each(to_finite),
        Value::Number(n) if !n.is_i64() && !n.is_u64() => {
            *value = match n.to_string().parse::<f64>() {
                Ok(float) if float.is_finite() => float.into(),
                Ok(float) => json!({FLOAT_TAG: if float > 0.0 { "Infinity" } else { "-Infinity" }}),
                Err(_) => return,
            };
        }
        _ => {}
    }
}

/// Rewrites what Python's parser accepts beyond the standard.
fn to_strict(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 64);
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let used = match c {
            '"' => string(rest, &mut out),
            'N' | 'I' | '-' | '0'..='9' => float(rest, &mut out),
            _ => {
                out.push(c);
                c.len_utf8()
            }
        };
        rest = &rest[used..];
    }
    out
}

/// Copies a string literal, lone surrogates replaced; gives its length.
fn string(text: &str, out: &mut String) -> usize {
    let mut at = 1;
    out.push('"');
    while let Some(c) = text[at..].chars().next() {
        let escaped = (c == '\\').then(|| text[at + 1..].chars().next()).flatten();
        let used = c.len_utf8() + escaped.map_or(0, char::len_utf8);
        match (escaped, surrogate(&text[at..])) {
            (Some('u'), Some(0xd800..=0xdbff)) if matches!(surrogate(&text[at + 6..]), Some(0xdc00..=0xdfff)) => {
                out.push_str(&text[at..at + 12]);
                at += 12;
            }
            (Some('u'), Some(_)) => {
                out.push_str("\\ufffd");
                at += 6;
            }
            _ => {
                out.push_str(&text[at..at + used]);
                at += used;
                if c == '"' {
                    break;
                }
            }
        }
    }
    at
}

/// The surrogate that `text` begins with, as `\uXXXX`.
fn surrogate(text: &str) -> Option<u16> {
    let digits = text.strip_prefix("\\u")?.get(..4)?;
    let unit = digits.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())??;
    (0xd800..0xe000).contains(&unit).then_some(unit)
}

/// Copies a number, or writes the object that stands for one that is not finite; gives its length.
fn float(text: &str, out: &mut String) -> usize {
    let mut tag = |name: &str, length: usize| {
        out.push_str(&format!("{{\"{FLOAT_TAG}\": \"{name}\"}}"));
        length
    };
    for name in ["NaN", "Infinity", "-Infinity"] {
        if text.starts_with(name) {
            return tag(name, name.len());
        }
    }
    let number = |c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.' | 'e' | 'E');
    let length = text.find(|c| !number(c)).unwrap_or(text.len());
    let literal = &text[..length];
    let whole = literal.bytes().all(|b| b.is_ascii_digit() || b == b'-');
    match literal.parse::<f64>() {
        Ok(f) if f.is_infinite() && !whole => tag(if f > 0.0 { "Infinity" } else { "-Infinity" }, length),
        _ => {
            // A lone letter, such as the N of None, is copied, for the parser to refuse.
            let length = length.max(1);
            out.push_str(&text[..length]);
            length
        }
    }
}

#[cfg(test)]
#[path = "json_tests.rs"]
mod tests;
