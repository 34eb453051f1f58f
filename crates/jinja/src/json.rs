//! `tojson`, as Python's `json.dumps` writes.

use crate::args::{Args, flag, int, text};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::text::float;
use crate::value::{Key, SeqKind, Value};

struct Dump<'a> {
    budget: &'a Budget,
    ascii: bool,
    indent: Option<String>,
    item: String,
    key: String,
    sort: bool,
    out: String,
}

/// The filter.
pub fn dumps(value: &Value, args: Args, budget: &Budget) -> Result<String> {
    let [ascii, indent, separators, sort] =
        args.bind("tojson", ["ensure_ascii", "indent", "separators", "sort_keys"], 0)?;
    let indent = match &indent {
        Some(Value::Str(s) | Value::Markup(s)) => Some(s.to_string()),
        other => int(other, "indent")?.map(|n| " ".repeat(n.clamp(0, 100) as usize)),
    };
    let (mut item, mut key) = (if indent.is_some() { "," } else { ", " }.to_string(), ": ".to_string());
    if let Some(Value::Seq(pair)) = &separators {
        let part = |at: usize| {
            text(&pair.items.get(at).cloned(), "separator")?.ok_or_else(|| Error::new("separators are two str"))
        };
        (item, key) = (part(0)?.to_string(), part(1)?.to_string());
    }
    let mut dump =
        Dump { budget, ascii: flag(&ascii, false), indent, item, key, sort: flag(&sort, false), out: String::new() };
    dump.value(value, 0)?;
    Ok(dump.out)
}

impl Dump<'_> {
    fn push(&mut self, text: &str) -> Result<()> {
        self.budget.take(text.len())?;
        self.out.push_str(text);
        Ok(())
    }

    fn line(&mut self, level: usize) -> Result<()> {
        match self.indent.clone() {
            Some(indent) => {
                self.budget.take(1 + indent.len() * level)?;
                self.out.push('\n');
                self.out.push_str(&indent.repeat(level));
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn value(&mut self, value: &Value, level: usize) -> Result<()> {
        match value {
            Value::None => self.push("null"),
            Value::Bool(b) => self.push(if *b { "true" } else { "false" }),
            Value::Int(n) => self.push(&n.to_string()),
            Value::Float(f) => self.push(&number(*f)),
            Value::Str(s) | Value::Markup(s) => self.string(s),
            Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple | SeqKind::Group) => {
                self.push("[")?;
                for (i, item) in seq.items.iter().enumerate() {
                    self.separate(i, level)?;
                    self.value(item, level + 1)?;
                }
                self.close(seq.items.is_empty(), level, "]")
            }
            Value::Dict(dict) => {
                let mut entries: Vec<(&Key, &Value)> = dict.entries.iter().collect();
                if self.sort {
                    entries.sort_by(|a, b| {
                        a.0.value().compare(&b.0.value(), "<").ok().flatten().unwrap_or(std::cmp::Ordering::Equal)
                    });
                }
                self.push("{")?;
                for (i, (key, value)) in entries.iter().enumerate() {
                    self.separate(i, level)?;
                    match key {
                        Key::Str(s) => self.string(s)?,
                        Key::Tuple(_) => return Err(Error::new("keys of JSON must be str, int, float, bool or None")),
                        other => {
                            self.push("\"")?;
                            self.value(&other.value(), 0)?;
                            self.push("\"")?;
                        }
                    }
                    let separator = self.key.clone();
                    self.push(&separator)?;
                    self.value(value, level + 1)?;
                }
                self.close(entries.is_empty(), level, "}")
            }
            other => Err(Error::new(format!("Object of type {} is not JSON serializable", other.type_name()))),
        }
    }

    fn separate(&mut self, i: usize, level: usize) -> Result<()> {
        if i > 0 {
            let separator = self.item.clone();
            self.push(&separator)?;
        }
        self.line(level + 1)
    }

    fn close(&mut self, empty: bool, level: usize, bracket: &str) -> Result<()> {
        if !empty {
            self.line(level)?;
        }
        self.push(bracket)
    }

    fn string(&mut self, s: &str) -> Result<()> {
        self.budget.take(s.len() + 2)?;
        self.out.push('"');
        for c in s.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' => self.out.push_str("\\b"),
                '\u{c}' => self.out.push_str("\\f"),
                c if (c as u32) < 0x20 => self.out.push_str(&format!("\\u{:04x}", c as u32)),
                c if self.ascii && (!c.is_ascii() || c == '\u{7f}') => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.out.push_str(&format!("\\u{unit:04x}"));
                    }
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
        Ok(())
    }
}

fn number(f: f64) -> String {
    match f {
        f if f.is_nan() => "NaN".into(),
        f if f.is_infinite() => if f > 0.0 { "Infinity" } else { "-Infinity" }.into(),
        f => float(f),
    }
}
