//! Methods of Python's strings, dictionaries and sequences.

use crate::args::{Args, int, text};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::text::{format_value, is_space, str_of};
use crate::value::{Dict, Key, Seq, SeqKind, Value};
use indexmap::IndexMap;
use std::rc::Rc;

const STR: [&str; 44] = [
    "capitalize",
    "casefold",
    "center",
    "count",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "upper",
    "zfill",
];
const DICT: [&str; 5] = ["get", "items", "keys", "values", "copy"];
/// Methods that change a dictionary, which the sandbox forbids.
const CHANGING_DICT: [&str; 5] = ["clear", "pop", "popitem", "setdefault", "update"];
/// Methods that change a list, which the sandbox forbids.
const CHANGING_LIST: [&str; 9] =
    ["clear", "pop", "append", "extend", "insert", "remove", "reverse", "sort", "__setitem__"];

/// The method `value.name`; none where there is no such method.
pub fn find(value: &Value, name: &Rc<str>) -> Option<Value> {
    let (known, changing): (&[&str], &[&str]) = match value {
        Value::Str(_) | Value::Markup(_) => (&STR, &[]),
        Value::Dict(_) => (&DICT, &CHANGING_DICT),
        Value::Seq(seq) => match seq.kind {
            SeqKind::List => (&["count", "index", "copy"], &CHANGING_LIST),
            SeqKind::Tuple | SeqKind::Group | SeqKind::Range { .. } => (&["count", "index"], &[]),
            _ => (&[], &[]),
        },
        Value::Float(_) => (&["is_integer"], &[]),
        Value::Int(_) | Value::Bool(_) => (&["bit_length"], &[]),
        Value::Cycler(_) => (&["next", "reset"], &[]),
        Value::Loop(_) => (&["cycle", "changed"], &[]),
        _ => (&[], &[]),
    };
    if changing.contains(&&**name) {
        return Some(unsafe_attribute(value, name));
    }
    known.contains(&&**name).then(|| Value::Method(Rc::new((value.clone(), name.clone()))))
}

/// An attribute that the sandbox hides.
pub fn unsafe_attribute(value: &Value, name: &str) -> Value {
    Value::Undefined(format!("access to attribute '{name}' of '{}' object is unsafe.", value.type_name()).into())
}

/// Calls a method.
pub fn call(receiver: &Value, name: &str, args: Args, budget: &Budget) -> Result<Value> {
    match receiver {
        Value::Str(s) => string(s, name, args, budget),
        Value::Markup(_) if matches!(name, "format" | "join" | "format_map") => {
            Err(Error::new(format!("{name}() of a text marked as safe is not supported in chat templates")))
        }
        Value::Markup(s) => string(s, name, args, budget).map(crate::ops::marked),
        Value::Dict(dict) => dictionary(receiver, dict, name, args, budget),
        Value::Seq(seq) => sequence(receiver, seq, name, args, budget),
        Value::Float(f) => Ok(Value::Bool(f.fract() == 0.0)),
        Value::Int(n) => Ok(Value::Int(i64::from(64 - n.unsigned_abs().leading_zeros()))),
        other => Err(Error::new(format!("'{}' object has no method '{name}'", other.type_name()))),
    }
}

fn dictionary(receiver: &Value, dict: &Rc<Dict>, name: &str, args: Args, budget: &Budget) -> Result<Value> {
    budget.items(if name == "get" { 0 } else { dict.entries.len() })?;
    let view = |name, items: Vec<Value>| Seq::value(SeqKind::View(name), items);
    match name {
        "get" => {
            let [key, default] = args.bind("get", ["key", "default"], 1)?;
            let found = dict.entries.get(&Key::new(&key.unwrap_or(Value::None), budget)?).cloned();
            Ok(found.or(default).unwrap_or(Value::None))
        }
        "copy" => Ok(receiver.clone()),
        "keys" => view("dict_keys", dict.entries.keys().map(Key::value).collect()),
        "values" => view("dict_values", dict.entries.values().cloned().collect()),
        _ => view("dict_items", pairs(dict)?),
    }
}

/// The entries of a dictionary as tuples.
pub fn pairs(dict: &Dict) -> Result<Vec<Value>> {
    dict.entries.iter().map(|(key, value)| Seq::value(SeqKind::Tuple, vec![key.value(), value.clone()])).collect()
}

fn sequence(receiver: &Value, seq: &Rc<Seq>, name: &str, args: Args, budget: &Budget) -> Result<Value> {
    if name == "copy" {
        return Ok(receiver.clone());
    }
    let [wanted] = args.bind(name, ["value"], 1)?;
    let wanted = wanted.unwrap_or(Value::None);
    budget.step(1 + seq.items.len() as u64 + wanted.text_size() as u64 / 16)?;
    if name == "count" {
        return Ok(Value::Int(seq.items.iter().filter(|item| item.equals(&wanted)).count() as i64));
    }
    let at = seq.items.iter().position(|item| item.equals(&wanted));
    at.map(|at| Value::Int(at as i64)).ok_or_else(|| Error::new("the value is not in the list"))
}

/// Range of a text in which a prefix, suffix or substring is looked for: Python's `start` and `end`.
fn window(s: &str, start: &Option<Value>, end: &Option<Value>) -> Result<(usize, usize)> {
    let length = s.chars().count() as i64;
    let clamp = |n: i64| (if n < 0 { n + length } else { n }).clamp(0, length) as usize;
    let start = clamp(int(start, "start")?.unwrap_or(0));
    let end = clamp(int(end, "end")?.unwrap_or(length)).max(start);
    let byte = |at: usize| s.char_indices().nth(at).map_or(s.len(), |(byte, _)| byte);
    Ok((byte(start), byte(end)))
}

fn affixes(value: Option<Value>, name: &str) -> Result<Vec<Rc<str>>> {
    let one = |value: &Value| match value {
        Value::Str(s) | Value::Markup(s) => Ok(s.clone()),
        Value::Undefined(why) => Err(Error::new(&**why)),
        other => Err(Error::new(format!("{name} first arg must be str or a tuple of str, not {}", other.type_name()))),
    };
    match value {
        Some(Value::Seq(seq)) if seq.kind == SeqKind::Tuple => seq.items.iter().map(one).collect(),
        Some(value) => Ok(vec![one(&value)?]),
        None => Ok(Vec::new()),
    }
}

/// Charges the budget for [`strip`] with these characters: each character is sought among them.
pub fn pay_for_strip(s: &str, chars: Option<&str>, budget: &Budget) -> Result<()> {
    budget.step((s.len() as u64).saturating_mul(chars.map_or(0, str::len) as u64) / 16)
}

/// Strips white space, or the characters of `chars`, from the ends that are asked for.
pub fn strip<'a>(s: &'a str, chars: Option<&str>, start: bool, end: bool) -> &'a str {
    let strips = |c: char| chars.map_or_else(|| is_space(c), |set| set.contains(c));
    let s = if start { s.trim_start_matches(strips) } else { s };
    if end { s.trim_end_matches(strips) } else { s }
}

pub fn capitalize(s: &str) -> String {
    let mut chars = s.chars();
    let mut out = String::with_capacity(s.len());
    if let Some(first) = chars.next() {
        push_titlecase(first, &mut out);
    }
    out.extend(chars.flat_map(char::to_lowercase));
    out
}

/// Appends a character as it begins a word: of a digraph or ligature, only the first letter is a capital.
pub fn push_titlecase(c: char, out: &mut String) {
    match c {
        '\u{1c4}'..='\u{1c6}' => out.push('\u{1c5}'),
        '\u{1c7}'..='\u{1c9}' => out.push('\u{1c8}'),
        '\u{1ca}'..='\u{1cc}' => out.push('\u{1cb}'),
        '\u{1f1}'..='\u{1f3}' => out.push('\u{1f2}'),
        '\u{df}' | '\u{587}' | '\u{fb00}'..='\u{fb17}' => {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
        _ => out.extend(c.to_uppercase()),
    }
}

fn title(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    let mut inside = false;
    for c in s.chars() {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            push_titlecase(c, &mut out)
        }
        inside = c.is_alphabetic();
    }
    out
}

/// Pads a text to `width` characters.
pub fn pad(s: &str, width: i64, fill: char, left: bool, right: bool, budget: &Budget) -> Result<String> {
    let length = s.chars().count();
    let missing = usize::try_from(width).unwrap_or(0).saturating_sub(length);
    budget.take(s.len().saturating_add(missing.saturating_mul(fill.len_utf8())))?;
    let before = match (left, right) {
        // As str.center: an odd rest goes to the left where the width is odd.
        (true, true) => missing / 2 + (missing & width as usize & 1),
        (true, false) => missing,
        _ => 0,
    };
    let fills = |n: usize| fill.to_string().repeat(n);
    Ok(format!("{}{s}{}", fills(before), fills(missing - before)))
}

pub fn replace(s: &str, old: &str, new: &str, count: Option<i64>, budget: &Budget) -> Result<String> {
    let most = count.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    let found = if old.is_empty() { s.chars().count() + 1 } else { s.matches(old).count() }.min(most);
    budget.take(s.len().saturating_add(found.saturating_mul(new.len())))?;
    Ok(s.replacen(old, new, found))
}

/// `str.join`.
pub fn join(separator: &str, items: &[Value], strict: bool, budget: &Budget) -> Result<String> {
    let mut out = String::new();
    for (i, item) in items.iter().enumerate() {
        if strict && item.as_str().is_none() {
            let what = format!("sequence item {i}: expected str instance, {} found", item.type_name());
            return Err(Error::new(what));
        }
        budget.take(separator.len() + item.text_size())?;
        out.push_str(if i == 0 { "" } else { separator });
        item.write_str(&mut out);
    }
    Ok(out)
}

fn is_line_end(c: char) -> bool {
    matches!(c, '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}')
}

fn split_lines(s: &str, keep_ends: bool) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = s;
    while let Some(at) = rest.find(is_line_end) {
        let width =
            if rest[at..].starts_with("\r\n") { 2 } else { rest[at..].chars().next().map_or(1, char::len_utf8) };
        out.push(rest[..if keep_ends { at + width } else { at }].to_string());
        rest = &rest[at + width..];
    }
    if !rest.is_empty() {
        out.push(rest.to_string());
    }
    out
}

/// `str.split` and `str.rsplit`.
fn split(s: &str, separator: Option<&str>, most: Option<i64>, from_right: bool) -> Result<Vec<String>> {
    let most = most.and_then(|n| usize::try_from(n).ok()).unwrap_or(usize::MAX);
    if let Some(separator) = separator {
        if separator.is_empty() {
            return Err(Error::new("empty separator"));
        }
        let limit = most.saturating_add(1);
        return Ok(match from_right {
            false => s.splitn(limit, separator).map(str::to_string).collect(),
            true => {
                let mut parts: Vec<String> = s.rsplitn(limit, separator).map(str::to_string).collect();
                parts.reverse();
                parts
            }
        });
    }
    let mut out = Vec::new();
    let mut rest = strip(s, None, !from_right, from_right);
    while !rest.is_empty() {
        if out.len() == most {
            out.push(rest.to_string());
            break;
        }
        if from_right {
            let at = rest.rfind(is_space).map_or(0, |at| at + rest[at..].chars().next().map_or(1, char::len_utf8));
            out.push(rest[at..].to_string());
            rest = rest[..at].trim_end_matches(is_space);
        } else {
            let at = rest.find(is_space).unwrap_or(rest.len());
            out.push(rest[..at].to_string());
            rest = rest[at..].trim_start_matches(is_space);
        }
    }
    if from_right {
        out.reverse();
    } else if let Some(last) = out.last_mut().filter(|_| most == usize::MAX) {
        let end = last.trim_end_matches(is_space).len();
        last.truncate(end);
    }
    Ok(out)
}

fn strings(kind: SeqKind, all: Vec<String>) -> Result<Value> {
    Seq::value(kind, all.into_iter().map(Value::str).collect())
}

/// Returns whether every character (and one at least) is of a kind.
fn all(s: &str, is: impl Fn(char) -> bool) -> Value {
    Value::Bool(!s.is_empty() && s.chars().all(is))
}

fn string(s: &Rc<str>, name: &str, args: Args, budget: &Budget) -> Result<Value> {
    budget.take(s.len())?;
    budget.step(s.len() as u64 / 4)?;
    match name {
        "format" => return format(s, &args, budget).map(Value::str),
        "split" | "rsplit" => {
            let [separator, most] = args.bind(name, ["sep", "maxsplit"], 0)?;
            let separator = text(&separator, "sep")?;
            let cuts = match separator.as_deref() {
                Some(separator) if !separator.is_empty() => s.matches(separator).count(),
                _ => s.chars().filter(|c| is_space(*c)).count(),
            };
            budget.items(2 * cuts + 2)?;
            let parts = split(s, separator.as_deref(), int(&most, "maxsplit")?, name == "rsplit")?;
            return strings(SeqKind::List, parts);
        }
        "splitlines" => {
            let [keep] = args.bind(name, ["keepends"], 0)?;
            budget.items(2 * s.chars().filter(|c| is_line_end(*c)).count() + 2)?;
            let lines = split_lines(s, keep.is_some_and(|v| v.is_true()));
            return strings(SeqKind::List, lines);
        }
        "startswith" | "endswith" => {
            let [affix, start, end] = args.bind(name, ["affix", "start", "end"], 1)?;
            let (from, to) = window(s, &start, &end)?;
            let part = &s[from..to];
            let has = |a: &Rc<str>| if name == "startswith" { part.starts_with(&**a) } else { part.ends_with(&**a) };
            return Ok(Value::Bool(affixes(affix, name)?.iter().any(has)));
        }
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let [sub, start, end] = args.bind(name, ["sub", "start", "end"], 1)?;
            let sub = text(&sub, "sub")?.ok_or_else(|| Error::new("sub must be str"))?;
            let (from, to) = window(s, &start, &end)?;
            let part = &s[from..to];
            if name == "count" {
                let n = if sub.is_empty() { part.chars().count() + 1 } else { part.matches(&*sub).count() };
                return Ok(Value::Int(n as i64));
            }
            let found = if name.starts_with('r') { part.rfind(&*sub) } else { part.find(&*sub) };
            let found = found.map(|at| s[..from + at].chars().count() as i64);
            return match found {
                None if name.ends_with("index") => Err(Error::new("substring not found")),
                at => Ok(Value::Int(at.unwrap_or(-1))),
            };
        }
        "join" => {
            let [items] = args.bind(name, ["iterable"], 1)?;
            let items = crate::ops::iterate(&items.unwrap_or(Value::None), budget)?;
            return join(s, &items, true, budget).map(Value::str);
        }
        "partition" | "rpartition" => {
            let [separator] = args.bind(name, ["sep"], 1)?;
            let separator =
                text(&separator, "sep")?.filter(|s| !s.is_empty()).ok_or_else(|| Error::new("empty separator"))?;
            let right = name == "rpartition";
            let parts = if right { s.rsplit_once(&*separator) } else { s.split_once(&*separator) };
            return strings(
                SeqKind::Tuple,
                match (parts, right) {
                    (Some((a, b)), _) => vec![a.into(), separator.to_string(), b.into()],
                    (None, false) => vec![s.to_string(), String::new(), String::new()],
                    (None, true) => vec![String::new(), String::new(), s.to_string()],
                },
            );
        }
        _ => {}
    }
    if let Some(is) = kind_of_text(s, name) {
        args.bind(name, [], 0)?;
        return Ok(is);
    }
    changed(s, name, args, budget).map(Value::str)
}

fn is_superscript(c: char) -> bool {
    matches!(c, '\u{b2}' | '\u{b3}' | '\u{b9}' | '\u{2070}'..='\u{2079}' | '\u{2080}'..='\u{2089}' | '\u{2460}'..='\u{2468}')
}

/// A digit of a decimal system, not a fraction, numeral or number in a circle.
fn is_decimal(c: char) -> bool {
    let other = matches!(c, '\u{bc}'..='\u{be}' | '\u{9f4}'..='\u{9f9}' | '\u{2150}'..='\u{218b}' | '\u{2460}'..='\u{24ff}'
        | '\u{2776}'..='\u{2793}' | '\u{2cfd}' | '\u{3007}'..='\u{3038}' | '\u{3192}'..='\u{32bf}' | '\u{3400}'..='\u{9fff}' | '\u{f900}'..='\u{faff}');
    c.is_numeric() && !other && !is_superscript(c)
}

/// `isalpha` and its like.
fn kind_of_text(s: &str, name: &str) -> Option<Value> {
    let cased = |upper: bool| {
        let has = s.chars().any(|c| c.is_lowercase() || c.is_uppercase());
        Value::Bool(has && !s.chars().any(|c| if upper { c.is_lowercase() } else { c.is_uppercase() }))
    };
    Some(match name {
        "isalpha" => all(s, char::is_alphabetic),
        "isalnum" => all(s, char::is_alphanumeric),
        "isascii" => Value::Bool(s.is_ascii()),
        "isnumeric" => all(s, char::is_numeric),
        "isdigit" => all(s, |c| is_decimal(c) || is_superscript(c)),
        "isdecimal" => all(s, is_decimal),
        "isspace" => all(s, is_space),
        "isprintable" => Value::Bool(!s.chars().any(char::is_control)),
        "islower" => cased(false),
        "isupper" => cased(true),
        "istitle" => Value::Bool(s.chars().any(char::is_alphabetic) && title(s) == s),
        "isidentifier" => {
            let start = s.chars().next().is_some_and(|c| c.is_alphabetic() || c == '_');
            Value::Bool(start && s.chars().all(|c| c.is_alphanumeric() || c == '_'))
        }
        _ => return None,
    })
}

/// Methods that give a text.
fn changed(s: &Rc<str>, name: &str, args: Args, budget: &Budget) -> Result<String> {
    match name {
        "strip" | "lstrip" | "rstrip" => {
            let [chars] = args.bind(name, ["chars"], 0)?;
            let chars = text(&chars, "chars")?;
            pay_for_strip(s, chars.as_deref(), budget)?;
            Ok(strip(s, chars.as_deref(), name != "rstrip", name != "lstrip").to_string())
        }
        "replace" => {
            let [old, new, count] = args.bind(name, ["old", "new", "count"], 2)?;
            let part =
                |v: &Option<Value>| text(v, "replace() argument")?.ok_or_else(|| Error::new("replace() takes str"));
            replace(s, &part(&old)?, &part(&new)?, int(&count, "count")?, budget)
        }
        "removeprefix" | "removesuffix" => {
            let [affix] = args.bind(name, ["affix"], 1)?;
            let affix = text(&affix, "affix")?.unwrap_or_default();
            let cut = if name == "removeprefix" { s.strip_prefix(&*affix) } else { s.strip_suffix(&*affix) };
            Ok(cut.unwrap_or(s).to_string())
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let [width, fill] = args.bind(name, ["width", "fillchar"], 1)?;
            let width = int(&width, "width")?.unwrap_or(0);
            let fill = text(&fill, "fillchar")?.and_then(|f| f.chars().next()).unwrap_or(' ');
            if name == "zfill" {
                let (sign, digits) = if s.starts_with(['+', '-']) { s.split_at(1) } else { ("", &**s) };
                return Ok(sign.to_string() + &pad(digits, width - sign.len() as i64, '0', true, false, budget)?);
            }
            pad(s, width, fill, name != "ljust", name != "rjust", budget)
        }
        "expandtabs" => {
            let [size] = args.bind(name, ["tabsize"], 0)?;
            let size = int(&size, "tabsize")?.unwrap_or(8).clamp(0, 1000) as usize;
            budget.take(s.matches('\t').count().saturating_mul(size))?;
            let (mut out, mut column) = (String::new(), 0);
            for c in s.chars() {
                let width = if c == '\t' && size > 0 { size - column % size } else { usize::from(c != '\t') };
                if c == '\t' {
                    out.push_str(&" ".repeat(width))
                } else {
                    out.push(c)
                }
                column = if matches!(c, '\n' | '\r') { 0 } else { column + width };
            }
            Ok(out)
        }
        _ => {
            args.bind(name, [], 0)?;
            Ok(match name {
                "lower" | "casefold" => s.to_lowercase(),
                "upper" => s.to_uppercase(),
                "capitalize" => capitalize(s),
                "title" => title(s),
                "swapcase" => s
                    .chars()
                    .flat_map(|c| {
                        if c.is_uppercase() { c.to_lowercase().collect::<Vec<_>>() } else { c.to_uppercase().collect() }
                    })
                    .collect(),
                other => return Err(Error::new(format!("str.{other}() is not supported in chat templates"))),
            })
        }
    }
}

/// `str.format`.
fn format(s: &str, args: &Args, budget: &Budget) -> Result<String> {
    let named: IndexMap<&str, &Value> = args.keyword.iter().map(|(name, value)| (&**name, value)).collect();
    let (mut out, mut next, mut rest) = (String::new(), 0, s);
    while let Some(at) = rest.find(['{', '}']) {
        out.push_str(&rest[..at]);
        let brace = &rest[at..at + 1];
        rest = &rest[at + 1..];
        if rest.starts_with(brace) {
            out.push_str(brace);
            rest = &rest[1..];
            continue;
        }
        let end =
            rest.find('}').filter(|_| brace == "{").ok_or_else(|| Error::new("single brace in a format string"))?;
        let field = &rest[..end];
        rest = &rest[end + 1..];
        let (field, spec) = field.split_once(':').unwrap_or((field, ""));
        let (field, conversion) = field.split_once('!').unwrap_or((field, ""));
        let value = if field.is_empty() {
            next += 1;
            args.positional.get(next - 1)
        } else if let Ok(at) = field.parse::<usize>() {
            args.positional.get(at)
        } else {
            named.get(field).copied()
        };
        let value = value.ok_or_else(|| Error::new(format!("no argument for '{{{field}}}' of a format string")))?;
        let converted = match conversion {
            "r" => {
                budget.take(value.text_size())?;
                let mut text = String::new();
                value.write_repr(&mut text);
                Value::str(text)
            }
            "s" => Value::str(str_of(value, budget)?),
            _ => value.clone(),
        };
        let piece = format_value(&converted, spec, budget)?;
        budget.take(piece.len())?;
        out.push_str(&piece);
    }
    out.push_str(rest);
    budget.take(out.len())?;
    Ok(out)
}
