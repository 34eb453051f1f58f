//! Filters: `value | name`.

use crate::args::{Args, flag, int, text};
use crate::error::{Error, Result};
use crate::interpreter::Interpreter;
use crate::python_methods::{self as methods, capitalize, join, pad};
use crate::text::{format_value, percent};
use crate::value::{Key, Number, Seq, SeqKind, Value};
use crate::{json, ops, sequences};
use std::num::IntErrorKind;
use std::rc::Rc;

/// Names of all filters.
const NAMES: [&str; 51] = [
    "abs",
    "attr",
    "batch",
    "capitalize",
    "center",
    "count",
    "d",
    "default",
    "dictsort",
    "e",
    "escape",
    "filesizeformat",
    "first",
    "float",
    "forceescape",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "pprint",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "safe",
    "select",
    "selectattr",
    "slice",
    "sort",
    "string",
    "striptags",
    "sum",
    "title",
    "tojson",
    "trim",
    "truncate",
    "unique",
    "upper",
    "urlencode",
    "wordcount",
    "wordwrap",
];

/// Returns whether a filter is known.
pub fn exists(name: &str) -> bool {
    NAMES.contains(&name)
}

impl Interpreter<'_> {
    /// `value | name(args)`.
    pub fn filter(&mut self, name: &str, value: Value, args: Args) -> Result<Value> {
        if !exists(name) {
            return Err(Error::new(format!("no filter is named '{name}'")));
        }
        self.budget.step(1 + value.text_size() as u64 / 32)?;
        if let Some(out) = sequences::filter(self, name, &value, &args)? {
            return Ok(out);
        }
        match name {
            "default" | "d" => {
                let [default, boolean] = args.bind(name, ["default_value", "boolean"], 0)?;
                let missing = value.is_undefined() || (flag(&boolean, false) && !value.is_true());
                Ok(if missing { default.unwrap_or_else(|| Value::str("")) } else { value })
            }
            "length" | "count" => ops::length(&value).map(|n| Value::Int(n as i64)),
            "tojson" => json::dumps(&value, args, &self.budget).map(Value::str),
            "attr" => {
                let [attribute] = args.bind(name, ["name"], 1)?;
                let attribute = text(&attribute, "name")?.unwrap_or_default();
                let method = methods::find(&value, &attribute);
                Ok(method.unwrap_or_else(|| Value::Undefined(format!("no attribute '{attribute}'").into())))
            }
            "abs" | "round" | "int" | "float" => self.number_filter(name, &value, args),
            "format" => {
                let template = self.text(&value)?;
                let values = match args.keyword.is_empty() {
                    true => Seq::value(SeqKind::Tuple, args.positional)?,
                    false => crate::value::Dict::value(
                        args.keyword.into_iter().map(|(key, value)| (Key::Str(key), value)).collect(),
                    )?,
                };
                percent(&template, &values, &self.budget).map(Value::str)
            }
            "items" => {
                let entries = ops::entries(&value, &self.budget)?;
                Seq::value(SeqKind::Generator, entries)
            }
            "pprint" | "filesizeformat" | "wordwrap" => {
                Err(Error::new(format!("the filter {name} is not supported in chat templates")))
            }
            "safe" => Ok(Value::Markup(self.text(&value)?)),
            "escape" | "e" if matches!(value, Value::Markup(_)) => Ok(value),
            "escape" | "e" | "forceescape" => {
                let s = self.text(&value)?;
                self.budget.take(s.len().saturating_mul(6))?;
                Ok(Value::Markup(ops::escape(&s).into()))
            }
            _ => self.text_filter(name, &value, args),
        }
    }

    fn number_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value> {
        if let Value::Undefined(why) = value {
            return Err(Error::new(&**why));
        }
        match name {
            "abs" => match value.number() {
                Some(Number::Int(n)) => n.checked_abs().map(Value::Int).ok_or_else(ops::too_large),
                Some(Number::Float(f)) => Ok(Value::Float(f.abs())),
                None => Err(Error::new(format!("bad operand type for abs(): '{}'", value.type_name()))),
            },
            "round" => {
                let [precision, method] = args.bind(name, ["precision", "method"], 0)?;
                let precision = int(&precision, "precision")?.unwrap_or(0).clamp(-300, 300) as i32;
                let Some(number) = value.number() else {
                    return Err(Error::new(format!("type {} can't be rounded", value.type_name())));
                };
                let (x, scale) = (number.float(), 10f64.powi(precision));
                Ok(match (text(&method, "method")?.as_deref(), number) {
                    (Some("ceil"), _) => Value::Float((x * scale).ceil() / scale),
                    (Some("floor"), _) => Value::Float((x * scale).floor() / scale),
                    (_, Number::Int(n)) if precision >= 0 => Value::Int(n),
                    (_, Number::Int(_)) => Value::Int(((x * scale).round_ties_even() / scale) as i64),
                    _ if precision > 0 => Value::Float(format!("{x:.0$}", precision as usize).parse().unwrap_or(x)),
                    _ => Value::Float((x * scale).round_ties_even() / scale),
                })
            }
            "int" => {
                let [default, base] = args.bind(name, ["default", "base"], 0)?;
                let base = int(&base, "base")?.unwrap_or(10);
                let base = u32::try_from(base).ok().filter(|b| (2..=36).contains(b)).unwrap_or(10);
                let whole = match value {
                    Value::Str(s) => {
                        let s = s.trim().replace('_', "").to_lowercase();
                        let prefix = match base {
                            16 => "0x",
                            8 => "0o",
                            2 => "0b",
                            _ => "",
                        };
                        let s = s.strip_prefix(prefix).unwrap_or(&s);
                        match i64::from_str_radix(s, base) {
                            Ok(n) => Some(n),
                            Err(e) if matches!(e.kind(), IntErrorKind::PosOverflow | IntErrorKind::NegOverflow) => {
                                return Err(ops::too_large());
                            }
                            Err(_) => s.parse().ok().map(ops::whole).transpose()?.flatten(),
                        }
                    }
                    other => match other.number() {
                        Some(Number::Int(n)) => Some(n),
                        Some(Number::Float(f)) => ops::whole(f)?,
                        None => None,
                    },
                };
                Ok(whole.map(Value::Int).or(default).unwrap_or(Value::Int(0)))
            }
            _ => {
                let [default] = args.bind(name, ["default"], 0)?;
                let number = match value {
                    Value::Str(s) => s.trim().parse::<f64>().ok(),
                    other => other.number().map(Number::float),
                };
                Ok(number.map(Value::Float).or(default).unwrap_or(Value::Float(0.0)))
            }
        }
    }

    /// Filters of the value's text.
    fn text_filter(&mut self, name: &str, value: &Value, args: Args) -> Result<Value> {
        let s = self.text(value)?;
        self.budget.take(s.len())?;
        self.budget.step(s.len() as u64 / 4)?;
        let budget = &self.budget;
        let out = match name {
            "string" => s.to_string(),
            "lower" => s.to_lowercase(),
            "upper" => s.to_uppercase(),
            "capitalize" => capitalize(&s),
            "title" => title(&s),
            "trim" => {
                let [chars] = args.bind(name, ["chars"], 0)?;
                let chars = text(&chars, "chars")?;
                methods::pay_for_strip(&s, chars.as_deref(), budget)?;
                methods::strip(&s, chars.as_deref(), true, true).to_string()
            }
            "replace" => {
                let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
                let part = |value: &Option<Value>| self.text(value.as_ref().unwrap_or(&Value::None));
                methods::replace(&s, &part(&old)?, &part(&new)?, int(&count, "count")?, budget)?
            }
            "center" => {
                let [width] = args.bind(name, ["width"], 0)?;
                pad(&s, int(&width, "width")?.unwrap_or(80), ' ', true, true, budget)?
            }
            "indent" => self.indent(&s, args)?,
            "truncate" => self.truncate(&s, args)?,
            "wordcount" => {
                let words = s.split(|c: char| !(c.is_alphanumeric() || c == '_')).filter(|w| !w.is_empty()).count();
                return Ok(Value::Int(words as i64));
            }
            "striptags" => strip_tags(&s),
            "urlencode" if !matches!(value, Value::Str(_) | Value::Markup(_)) => {
                return Err(Error::new(format!(
                    "urlencode of {} is not supported in chat templates",
                    value.type_name()
                )));
            }
            "urlencode" => url_encode(&s, budget)?,
            _ => format_value(value, "", budget)?,
        };
        // Methods of a marked text mark their result; `replace` and the like take its plain text.
        let keeps =
            matches!(name, "string" | "lower" | "upper" | "capitalize" | "trim" | "center" | "indent" | "truncate");
        let out = Value::str(out);
        Ok(if keeps && matches!(value, Value::Markup(_)) { ops::marked(out) } else { out })
    }

    fn indent(&self, s: &str, args: Args) -> Result<String> {
        let [width, first, blank] = args.bind("indent", ["width", "first", "blank"], 0)?;
        let prefix = match &width {
            Some(Value::Str(s)) => s.to_string(),
            other => " ".repeat(int(other, "width")?.unwrap_or(4).clamp(0, 1000) as usize),
        };
        let lines: Vec<&str> = s.split('\n').collect();
        self.budget.take(lines.len().saturating_mul(prefix.len()))?;
        let (first, blank) = (flag(&first, false), flag(&blank, false));
        let mut out = String::new();
        for (i, line) in lines.iter().enumerate() {
            out.push_str(if i == 0 { "" } else { "\n" });
            if (i > 0 || first) && (blank || !line.is_empty() || (i == 0 && first)) {
                out.push_str(&prefix);
            }
            out.push_str(line);
        }
        Ok(out)
    }

    fn truncate(&self, s: &str, args: Args) -> Result<String> {
        let [length, kill, end, leeway] = args.bind("truncate", ["length", "killwords", "end", "leeway"], 0)?;
        let length = int(&length, "length")?.unwrap_or(255).max(0) as usize;
        let end = text(&end, "end")?.unwrap_or_else(|| "...".into());
        let leeway = int(&leeway, "leeway")?.unwrap_or(5).max(0) as usize;
        if s.chars().count() <= length.saturating_add(leeway) {
            return Ok(s.into());
        }
        let cut: String = s.chars().take(length.saturating_sub(end.chars().count())).collect();
        let cut = if flag(&kill, false) { &cut } else { cut.rsplit_once(' ').map_or(&*cut, |(before, _)| before) };
        Ok(format!("{cut}{end}"))
    }

    /// `value | join(d, attribute)`.
    pub fn join(&mut self, items: Vec<Value>, args: Args) -> Result<Value> {
        let [separator, attribute] = args.bind("join", ["d", "attribute"], 0)?;
        let separator = match separator {
            Some(separator) => self.text(&separator)?,
            None => Rc::from(""),
        };
        let items = match attribute {
            Some(path) => items.iter().map(|item| self.path(item, &path)).collect::<Result<_>>()?,
            None => items,
        };
        join(&separator, &items, false, &self.budget).map(Value::str)
    }
}

/// jinja2's `title`: words begin after white space and opening brackets.
fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut starts = true;
    for c in s.chars() {
        if starts {
            methods::push_titlecase(c, &mut out)
        } else {
            out.extend(c.to_lowercase())
        }
        starts = crate::text::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    }
    out
}

fn strip_tags(s: &str) -> String {
    let mut out = String::new();
    let mut rest = s;
    while let Some(at) = rest.find('<') {
        out.push_str(&rest[..at]);
        let comment = rest[at..].starts_with("<!--");
        let end = if comment { rest[at..].find("-->").map(|e| e + 3) } else { rest[at..].find('>').map(|e| e + 1) };
        match end {
            Some(end) => rest = &rest[at + end..],
            None => break,
        }
    }
    out.push_str(rest);
    out.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn url_encode(s: &str, budget: &crate::budget::Budget) -> Result<String> {
    budget.take(s.len().saturating_mul(3))?;
    let mut out = String::new();
    for byte in s.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' | b'/' => out.push(byte as char),
            other => out.push_str(&format!("%{other:02X}")),
        }
    }
    Ok(out)
}
