//! Operators on values, by Python's rules.

use crate::ast::Comparison;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::python_methods::pairs;
use crate::text::percent;
use crate::value::{Key, Number, Seq, SeqKind, Value};
use std::cmp::Ordering;

/// The error for an undefined value in an operation.
fn defined(value: &Value) -> Result<()> {
    match value {
        Value::Undefined(why) => Err(Error::new(&**why)),
        _ => Ok(()),
    }
}

pub fn too_large() -> Error {
    Error::new("an integer is too large")
}

/// `a op b`.
pub fn arithmetic(op: &str, a: &Value, b: &Value, budget: &Budget) -> Result<Value> {
    defined(a)?;
    if let Some(out) = markup(op, a, b, budget)? {
        return Ok(out);
    }
    if let ("%", Value::Str(template)) = (op, a) {
        return percent(template, b, budget).map(Value::str);
    }
    defined(b)?;
    if let (Some(x), Some(y)) = (a.number(), b.number()) {
        return numbers(op, x, y);
    }
    match (op, a, b) {
        ("+", Value::Str(x), Value::Str(y)) => {
            budget.take(x.len().saturating_add(y.len()))?;
            Ok(Value::str(format!("{x}{y}")))
        }
        ("+", Value::Seq(x), Value::Seq(y)) if x.kind == y.kind && matches!(x.kind, SeqKind::List | SeqKind::Tuple) => {
            budget.items(x.items.len() + y.items.len())?;
            Seq::value(x.kind, x.items.iter().chain(&y.items).cloned().collect())
        }
        ("*", Value::Str(_) | Value::Seq(_), Value::Int(_) | Value::Bool(_)) => repeat(a, b, budget),
        ("*", Value::Int(_) | Value::Bool(_), Value::Str(_) | Value::Seq(_)) => repeat(b, a, budget),
        ("+", Value::Str(_), _) => {
            Err(Error::new(format!("can only concatenate str (not \"{}\") to str", b.type_name())))
        }
        _ => {
            let (a, b) = (a.type_name(), b.type_name());
            Err(Error::new(format!("unsupported operand type(s) for {op}: '{a}' and '{b}'")))
        }
    }
}

/// Operations with a text that is marked as safe: the other text is escaped.
fn markup(op: &str, a: &Value, b: &Value, budget: &Budget) -> Result<Option<Value>> {
    let escaped = |value: &Value| match value {
        Value::Markup(s) => Ok(s.to_string()),
        Value::Str(s) => {
            budget.take(s.len().saturating_mul(6))?;
            Ok(escape(s))
        }
        other => Err(Error::new(format!("can't add {} to Markup", other.type_name()))),
    };
    match (op, a, b) {
        ("+", Value::Markup(_), Value::Str(_) | Value::Markup(_)) | ("+", Value::Str(_), Value::Markup(_)) => {
            let sum = escaped(a)? + &escaped(b)?;
            budget.take(sum.len())?;
            Ok(Some(Value::Markup(sum.into())))
        }
        ("*", Value::Markup(s), _) | ("*", _, Value::Markup(s)) => {
            let times = if a.as_str().is_some() { b } else { a };
            Ok(Some(marked(repeat(&Value::Str(s.clone()), times, budget)?)))
        }
        ("%", Value::Markup(_), _) => {
            Err(Error::new("'%' of a text marked as safe is not supported in chat templates"))
        }
        _ => Ok(None),
    }
}

/// A text marked as safe; other values as they are.
pub fn marked(value: Value) -> Value {
    match value {
        Value::Str(s) => Value::Markup(s),
        other => other,
    }
}

/// HTML's special characters as entities.
pub fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '>' => out.push_str("&gt;"),
            '<' => out.push_str("&lt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            other => out.push(other),
        }
    }
    out
}

fn repeat(what: &Value, times: &Value, budget: &Budget) -> Result<Value> {
    let times = match times.number() {
        Some(Number::Int(n)) => usize::try_from(n).unwrap_or(0),
        _ => 0,
    };
    match what {
        Value::Str(s) => {
            budget.take(s.len().saturating_mul(times))?;
            Ok(Value::str(s.repeat(times)))
        }
        Value::Seq(seq) if matches!(seq.kind, SeqKind::List | SeqKind::Tuple) => {
            let total = seq.items.len().saturating_mul(times);
            budget.items(total)?;
            Seq::value(seq.kind, seq.items.iter().cycle().take(total).cloned().collect())
        }
        other => Err(Error::new(format!("can't multiply '{}' by an integer", other.type_name()))),
    }
}

fn numbers(op: &str, x: Number, y: Number) -> Result<Value> {
    if let ("/" | "//" | "%", 0.0) = (op, y.float()) {
        return Err(Error::new("division by zero"));
    }
    if let (Number::Int(a), Number::Int(b)) = (x, y) {
        let exact = match op {
            "+" => a.checked_add(b),
            "-" => a.checked_sub(b),
            "*" => a.checked_mul(b),
            // Rounded down; the remainder has the divisor's sign.
            "//" => a.checked_div(b).map(|q| if a % b != 0 && (a < 0) != (b < 0) { q - 1 } else { q }),
            "%" => a.checked_rem(b).map(|r| if r != 0 && (r < 0) != (b < 0) { r + b } else { r }),
            "**" if b >= 0 => u32::try_from(b).ok().and_then(|b| a.checked_pow(b)),
            _ => return float(op, a as f64, b as f64),
        };
        return exact.map(Value::Int).ok_or_else(too_large);
    }
    float(op, x.float(), y.float())
}

fn float(op: &str, a: f64, b: f64) -> Result<Value> {
    Ok(Value::Float(match op {
        "+" => a + b,
        "-" => a - b,
        "*" => a * b,
        "/" => a / b,
        "//" => (a / b).floor(),
        "%" => a - b * (a / b).floor(),
        _ => a.powf(b),
    }))
}

/// `-a`.
pub fn negate(value: &Value) -> Result<Value> {
    defined(value)?;
    match value.number() {
        Some(Number::Int(n)) => n.checked_neg().map(Value::Int).ok_or_else(too_large),
        Some(Number::Float(f)) => Ok(Value::Float(-f)),
        None => Err(Error::new(format!("bad operand type for unary -: '{}'", value.type_name()))),
    }
}

/// Python's `int()` of a float, without its error: none of what isn't finite.
pub fn whole(f: f64) -> Result<Option<i64>> {
    if f.is_finite() && f.abs() >= 9.2e18 {
        return Err(too_large());
    }
    Ok(f.is_finite().then_some(f as i64))
}

/// `a op b` for a comparison.
pub fn compare(op: Comparison, a: &Value, b: &Value, budget: &Budget) -> Result<bool> {
    budget.step(1 + a.text_size().min(b.text_size()) as u64 / 16)?;
    let order = |symbol: &str, holds: fn(Ordering) -> bool| Ok(a.compare(b, symbol)?.is_some_and(holds));
    match op {
        Comparison::Eq => Ok(a.equals(b)),
        Comparison::Ne => Ok(!a.equals(b)),
        Comparison::Lt => order("<", Ordering::is_lt),
        Comparison::Le => order("<=", Ordering::is_le),
        Comparison::Gt => order(">", Ordering::is_gt),
        Comparison::Ge => order(">=", Ordering::is_ge),
        Comparison::In => contains(b, a, budget),
        Comparison::NotIn => Ok(!contains(b, a, budget)?),
    }
}

/// `item in container`.
pub fn contains(container: &Value, item: &Value, budget: &Budget) -> Result<bool> {
    budget.step(1 + container.text_size() as u64 / 64)?;
    match container {
        Value::Str(s) | Value::Markup(s) => match item {
            Value::Str(part) | Value::Markup(part) => Ok(s.contains(&**part)),
            Value::Undefined(why) => Err(Error::new(&**why)),
            other => {
                let what = format!("'in <string>' requires string as left operand, not {}", other.type_name());
                Err(Error::new(what))
            }
        },
        Value::Dict(dict) => Ok(dict.entries.contains_key(&Key::new(item, budget)?)),
        Value::Seq(seq) => {
            budget.step(seq.items.len() as u64)?;
            Ok(seq.read().iter().any(|i| i.equals(item)))
        }
        Value::Undefined(_) => Ok(false),
        other => Err(Error::new(format!("argument of type '{}' is not iterable", other.type_name()))),
    }
}

/// Items of a value in a `for` loop.
pub fn iterate(value: &Value, budget: &Budget) -> Result<Vec<Value>> {
    match value {
        Value::Undefined(_) => Ok(Vec::new()),
        Value::Str(s) | Value::Markup(s) => {
            budget.items(s.len())?;
            Ok(s.chars().map(|c| Value::str(c.to_string())).collect())
        }
        Value::Seq(seq) => {
            budget.items(seq.items.len())?;
            Ok(seq.read().to_vec())
        }
        Value::Dict(dict) => {
            budget.items(dict.entries.len())?;
            Ok(dict.entries.keys().map(Key::value).collect())
        }
        Value::Loop(l) => {
            let loops = l.items.items.clone();
            budget.items(loops.len())?;
            Ok(loops)
        }
        other => Err(Error::new(format!("'{}' object is not iterable", other.type_name()))),
    }
}

/// `len(value)`.
pub fn length(value: &Value) -> Result<usize> {
    match value {
        Value::Undefined(_) => Ok(0),
        Value::Str(s) | Value::Markup(s) => Ok(s.chars().count()),
        Value::Seq(seq) if seq.kind != SeqKind::Generator => Ok(seq.items.len()),
        Value::Dict(dict) => Ok(dict.entries.len()),
        Value::Loop(l) => Ok(l.items.items.len()),
        other => Err(Error::new(format!("object of type '{}' has no len()", other.type_name()))),
    }
}

/// `value[key]`, if it is there and the budget has enough left to look for it.
pub fn item(value: &Value, key: &Value, budget: &Budget) -> Option<Value> {
    let at = |length: usize| match key.number()? {
        Number::Int(n) => usize::try_from(if n < 0 { n + length as i64 } else { n }).ok().filter(|i| *i < length),
        Number::Float(_) => None,
    };
    match value {
        Value::Dict(dict) => dict.entries.get(&Key::new(key, budget).ok()?).cloned(),
        Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator | SeqKind::View(_)) => {
            seq.items.get(at(seq.items.len())?).cloned()
        }
        Value::Str(s) | Value::Markup(s) => {
            let found = if s.is_ascii() { at(s.len()) } else { at(s.chars().count()) }?;
            s.chars().nth(found).map(|c| Value::str(c.to_string()))
        }
        _ => None,
    }
}

/// `value[start:stop:step]`.
pub fn slice(value: &Value, parts: [Option<i64>; 3], budget: &Budget) -> Result<Value> {
    let positions = |length: usize| -> Result<Vec<usize>> {
        budget.items(length)?;
        let length = length as i64;
        let [start, stop, step] = parts;
        let step = step.unwrap_or(1);
        if step == 0 {
            return Err(Error::new("slice step cannot be zero"));
        }
        let bound = |given: Option<i64>, default: i64| {
            let low = if step < 0 { -1 } else { 0 };
            let high = if step < 0 { length - 1 } else { length };
            given.map_or(default, |n| (if n < 0 { n.saturating_add(length) } else { n }).clamp(low, high))
        };
        let (first, last) = if step < 0 { (length - 1, -1) } else { (0, length) };
        let (mut at, stop) = (bound(start, first), bound(stop, last));
        let mut out = Vec::new();
        while if step < 0 { at > stop } else { at < stop } {
            out.push(at as usize);
            at = at.saturating_add(step);
        }
        Ok(out)
    };
    match value {
        Value::Markup(s) => Ok(marked(slice(&Value::Str(s.clone()), parts, budget)?)),
        Value::Str(s) => {
            let chars: Vec<char> = s.chars().collect();
            let text: String = positions(chars.len())?.into_iter().map(|at| chars[at]).collect();
            Ok(Value::str(text))
        }
        Value::Seq(seq) if !matches!(seq.kind, SeqKind::Generator | SeqKind::View(_)) => {
            let items = positions(seq.items.len())?.into_iter().map(|at| seq.items[at].clone()).collect();
            Seq::value(if seq.kind == SeqKind::List { SeqKind::List } else { SeqKind::Tuple }, items)
        }
        Value::Undefined(why) => Err(Error::new(&**why)),
        other => Ok(Value::Undefined(format!("'{}' object can't be sliced", other.type_name()).into())),
    }
}

/// The entries of a mapping, for `**` and `items`.
pub fn entries(value: &Value, budget: &Budget) -> Result<Vec<Value>> {
    match value {
        Value::Dict(dict) => {
            budget.items(dict.entries.len())?;
            pairs(dict)
        }
        Value::Undefined(_) => Ok(Vec::new()),
        other => Err(Error::new(format!("can only get item pairs from a mapping, not {}", other.type_name()))),
    }
}
