//! Filters of sequences.

use crate::args::{Args, flag, int, text};
use crate::error::{Error, Result};
use crate::interpreter::Interpreter;
use crate::ops::{arithmetic, iterate};
use crate::value::{Number, Seq, SeqKind, Value};
use std::cmp::Ordering;

/// `value | name(args)` for the filters of this module; none for another name.
pub fn filter(run: &mut Interpreter<'_>, name: &str, value: &Value, args: &Args) -> Result<Option<Value>> {
    let args = args.clone();
    Ok(Some(match name {
        "reverse" => reverse(run, value)?,
        "first" | "last" => {
            let items = iterate(value, &run.budget)?;
            let end = if name == "first" { items.first() } else { items.last() };
            end.cloned().unwrap_or_else(|| Value::Undefined(format!("No {name} item, sequence was empty.").into()))
        }
        "list" => Seq::list(iterate(value, &run.budget)?)?,
        "join" => {
            let items = iterate(value, &run.budget)?;
            run.join(items, args)?
        }
        "select" | "reject" | "selectattr" | "rejectattr" => select(run, name, value, args)?,
        "map" => map(run, value, args)?,
        "sort" => sort(run, value, args)?,
        "unique" => unique(run, value, args)?,
        "min" | "max" => extreme(run, name, value, args)?,
        "sum" => sum(run, value, args)?,
        "dictsort" => dictsort(run, value, args)?,
        "groupby" => groupby(run, value, args)?,
        "batch" => batch(run, value, args)?,
        "slice" => slice(run, value, args)?,
        _ => return Ok(None),
    }))
}

/// The items of a value that `select` and `map` go over: jinja2 takes any false value for an empty sequence.
fn items(run: &Interpreter<'_>, value: &Value) -> Result<Vec<Value>> {
    if value.is_true() { iterate(value, &run.budget) } else { Ok(Vec::new()) }
}

fn generator(items: Vec<Value>) -> Result<Value> {
    Seq::value(SeqKind::Generator, items)
}

fn reverse(run: &mut Interpreter<'_>, value: &Value) -> Result<Value> {
    let mut items = iterate(value, &run.budget)?;
    items.reverse();
    match value {
        Value::Str(s) => Ok(Value::str(s.chars().rev().collect::<String>())),
        _ => generator(items),
    }
}

fn select(run: &mut Interpreter<'_>, name: &str, value: &Value, mut args: Args) -> Result<Value> {
    let attribute = match name.ends_with("attr") {
        true if args.positional.is_empty() => return Err(Error::new(format!("{name} misses an attribute"))),
        true => Some(args.positional.remove(0)),
        false => None,
    };
    let test = if args.positional.is_empty() { None } else { Some(args.positional.remove(0)) };
    let test = text(&test, "the name of a test")?;
    let wanted = name.starts_with("select");
    let mut out = Vec::new();
    for item in items(run, value)? {
        run.budget.step(1)?;
        let tested = match &attribute {
            Some(path) => run.path(&item, path)?,
            None => item.clone(),
        };
        let holds = match &test {
            Some(test) => run.test(test, &tested, args.clone())?,
            None => tested.is_true(),
        };
        if holds == wanted {
            out.push(item);
        }
    }
    generator(out)
}

fn map(run: &mut Interpreter<'_>, value: &Value, mut args: Args) -> Result<Value> {
    let attribute = args.keyword.iter().position(|(name, _)| &**name == "attribute" && args.positional.is_empty());
    let mut out = Vec::new();
    if let Some(at) = attribute {
        let (_, path) = args.keyword.remove(at);
        let [default] = args.bind("map", ["default"], 0)?;
        for item in items(run, value)? {
            let found = run.path(&item, &path)?;
            out.push(match &default {
                Some(default) if found.is_undefined() => default.clone(),
                _ => found,
            });
        }
        return generator(out);
    }
    if args.positional.is_empty() {
        return Err(Error::new("map needs a filter's name or attribute="));
    }
    let filter = text(&Some(args.positional.remove(0)), "the name of a filter")?.unwrap_or_default();
    for item in items(run, value)? {
        out.push(run.filter(&filter, item, args.clone())?);
    }
    generator(out)
}

/// Sort keys of items: an attribute, in lower case where case doesn't count.
fn keys(run: &mut Interpreter<'_>, items: &[Value], path: &Option<Value>, case: bool) -> Result<Vec<Value>> {
    let lower = |value: Value| match value {
        Value::Str(s) if !case => Value::str(s.to_lowercase()),
        other => other,
    };
    let mut out = Vec::with_capacity(items.len());
    for item in items {
        let several: Option<Vec<Value>> = match path {
            Some(Value::Str(s)) if s.contains(',') => Some(s.split(',').map(|p| Value::str(p.trim())).collect()),
            _ => None,
        };
        out.push(match (path, several) {
            (_, Some(paths)) => {
                let parts: Result<Vec<Value>> = paths.iter().map(|p| Ok(lower(run.path(item, p)?))).collect();
                Seq::value(SeqKind::Tuple, parts?)?
            }
            (Some(path), None) => lower(run.path(item, path)?),
            (None, None) => lower(item.clone()),
        });
    }
    Ok(out)
}

/// A stable order of `items` by `keys`.
fn ordered(run: &Interpreter<'_>, items: Vec<Value>, keys: Vec<Value>, reverse: bool) -> Result<Vec<(Value, Value)>> {
    let length = items.len() as u64;
    run.budget.step(length.saturating_mul(u64::from(length.max(2).ilog2()) + 1))?;
    run.budget.items(items.len())?;
    let mut pairs: Vec<(Value, Value)> = keys.into_iter().zip(items).collect();
    let mut failed = None;
    pairs.sort_by(|a, b| {
        let order = if failed.is_none() { a.0.compare(&b.0, "<") } else { Ok(None) };
        let order = order.unwrap_or_else(|e| {
            failed = Some(e);
            None
        });
        let order = order.unwrap_or(Ordering::Equal);
        if reverse { order.reverse() } else { order }
    });
    failed.map_or(Ok(pairs), Err)
}

fn sort(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [reverse, case, attribute] = args.bind("sort", ["reverse", "case_sensitive", "attribute"], 0)?;
    let items = iterate(value, &run.budget)?;
    let keys = keys(run, &items, &attribute, flag(&case, false))?;
    let sorted = ordered(run, items, keys, flag(&reverse, false))?;
    Seq::list(sorted.into_iter().map(|(_, item)| item).collect())
}

fn unique(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [case, attribute] = args.bind("unique", ["case_sensitive", "attribute"], 0)?;
    let items = iterate(value, &run.budget)?;
    let keys = keys(run, &items, &attribute, flag(&case, false))?;
    let mut seen = std::collections::HashSet::new();
    let mut out = Vec::new();
    for (key, item) in keys.iter().zip(items) {
        if seen.insert(crate::value::Key::new(key, &run.budget)?) {
            out.push(item);
        }
    }
    generator(out)
}

fn extreme(run: &mut Interpreter<'_>, name: &str, value: &Value, args: Args) -> Result<Value> {
    let [case, attribute] = args.bind(name, ["case_sensitive", "attribute"], 0)?;
    let items = iterate(value, &run.budget)?;
    let keys = keys(run, &items, &attribute, flag(&case, false))?;
    let sorted = ordered(run, items, keys, name == "max")?;
    let first = sorted.into_iter().next().map(|(_, item)| item);
    Ok(first.unwrap_or_else(|| Value::Undefined("No aggregated item, sequence was empty.".into())))
}

fn sum(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [attribute, start] = args.bind("sum", ["attribute", "start"], 0)?;
    let mut total = start.unwrap_or(Value::Int(0));
    for item in iterate(value, &run.budget)? {
        let item = match &attribute {
            Some(path) if !matches!(path, Value::None) => run.path(&item, path)?,
            _ => item,
        };
        total = arithmetic("+", &total, &item, &run.budget)?;
    }
    Ok(total)
}

fn dictsort(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [case, by, reverse] = args.bind("dictsort", ["case_sensitive", "by", "reverse"], 0)?;
    let at = match text(&by, "by")?.as_deref() {
        None | Some("key") => 0,
        Some("value") => 1,
        Some(other) => return Err(Error::new(format!("dictsort by '{other}'; it takes key or value"))),
    };
    let items = crate::ops::entries(value, &run.budget)?;
    let keys = keys(run, &items, &Some(Value::Int(at)), flag(&case, false))?;
    let sorted = ordered(run, items, keys, flag(&reverse, false))?;
    Seq::list(sorted.into_iter().map(|(_, item)| item).collect())
}

fn groupby(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [attribute, default, case] = args.bind("groupby", ["attribute", "default", "case_sensitive"], 1)?;
    let items = iterate(value, &run.budget)?;
    let mut keys = keys(run, &items, &attribute, flag(&case, false))?;
    if let Some(default) = default {
        keys.iter_mut().filter(|key| key.is_undefined()).for_each(|key| *key = default.clone());
    }
    let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
    for (key, item) in ordered(run, items, keys, false)? {
        match groups.last_mut().filter(|(last, _)| last.equals(&key)) {
            Some((_, group)) => group.push(item),
            None => groups.push((key, vec![item])),
        }
    }
    let pairs = groups.into_iter().map(|(key, group)| Seq::value(SeqKind::Group, vec![key, Seq::list(group)?]));
    Seq::list(pairs.collect::<Result<_>>()?)
}

/// A count of columns or rows.
fn size(value: &Option<Value>) -> Result<usize> {
    match value.as_ref().and_then(Value::number) {
        Some(Number::Int(n)) if n > 0 => Ok(n as usize),
        _ => Err(Error::new("a positive number of items is expected")),
    }
}

fn batch(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("batch", ["linecount", "fill_with"], 1)?;
    let count = size(&count)?;
    let items = iterate(value, &run.budget)?;
    let mut out = Vec::new();
    for part in items.chunks(count) {
        let mut part = part.to_vec();
        if let Some(fill) = fill.as_ref().filter(|f| !matches!(f, Value::None)) {
            run.budget.items(count)?;
            part.resize(count, fill.clone());
        }
        out.push(Seq::list(part)?);
    }
    generator(out)
}

fn slice(run: &mut Interpreter<'_>, value: &Value, args: Args) -> Result<Value> {
    let [count, fill] = args.bind("slice", ["slices", "fill_with"], 1)?;
    let count = size(&count)?;
    let items = iterate(value, &run.budget)?;
    run.budget.items(count)?;
    let (each, extra) = (items.len() / count, items.len() % count);
    let (mut out, mut at) = (Vec::new(), 0);
    for i in 0..count {
        let end = at + each + usize::from(i < extra);
        let mut part = items[at..end].to_vec();
        at = end;
        if let Some(fill) = fill.as_ref().filter(|f| !matches!(f, Value::None) && i >= extra) {
            part.push(fill.clone());
        }
        out.push(Seq::list(part)?);
    }
    generator(out)
}

/// A range as `range(...)` gives it.
pub fn range(run: &Interpreter<'_>, args: Args) -> Result<Value> {
    let given = args.positional.len();
    let [a, b, c] = args.bind("range", ["start", "stop", "step"], 1)?;
    let number = |value: &Option<Value>, default: i64| Ok::<i64, Error>(int(value, "range()")?.unwrap_or(default));
    let (start, stop) = if given == 1 { (0, number(&a, 0)?) } else { (number(&a, 0)?, number(&b, 0)?) };
    let step = number(&c, 1)?;
    if step == 0 {
        return Err(Error::new("range() arg 3 must not be zero"));
    }
    let span = if step > 0 { i128::from(stop) - i128::from(start) } else { i128::from(start) - i128::from(stop) };
    let count = if span <= 0 { 0 } else { (span - 1) / i128::from(step.unsigned_abs()) + 1 };
    // The bound of jinja2's sandbox.
    if count > 100_000 {
        return Err(Error::new("range too big, the sandbox blocks ranges larger than 100000"));
    }
    run.budget.items(count as usize)?;
    Seq::value(SeqKind::Range { start, stop, step }, (0..count as i64).map(|i| Value::Int(start + i * step)).collect())
}
