//! Values of expressions.

use crate::args::Args;
use crate::ast::{CallArgs, Expr, Macro, Postfix};
use crate::error::{Error, Result};
use crate::interpreter::Interpreter;
use crate::value::{Dict, Global, Key, Loop, Seq, SeqKind, Value};
use crate::{ops, python_methods as methods, sequences};
use indexmap::IndexMap;
use std::rc::Rc;

impl Interpreter<'_> {
    /// The value of an expression in a scope.
    pub fn eval(&mut self, expr: &Expr, scope: usize) -> Result<Value> {
        self.deeper(|run| run.expression(expr, scope))
    }

    fn all(&mut self, exprs: &[Expr], scope: usize) -> Result<Vec<Value>> {
        self.budget.items(exprs.len())?;
        exprs.iter().map(|e| self.eval(e, scope)).collect()
    }

    fn expression(&mut self, expr: &Expr, scope: usize) -> Result<Value> {
        match expr {
            Expr::Const(value) => Ok(value.clone()),
            Expr::Name(name) => self.lookup(name, scope),
            Expr::Tuple(items) => Seq::value(SeqKind::Tuple, self.all(items, scope)?),
            Expr::List(items) => Seq::list(self.all(items, scope)?),
            Expr::Dict(items) => {
                self.budget.items(items.len())?;
                let mut entries = IndexMap::new();
                for (key, value) in items {
                    let key = Key::new(&self.eval(key, scope)?, &self.budget)?;
                    entries.insert(key, self.eval(value, scope)?);
                }
                Dict::value(entries)
            }
            Expr::Arithmetic(first, rest) => {
                let mut value = self.eval(first, scope)?;
                for (op, operand) in rest {
                    let operand = self.eval(operand, scope)?;
                    value = ops::arithmetic(op, &value, &operand, &self.budget)?;
                }
                Ok(value)
            }
            Expr::Concat(parts) => {
                let mut out = String::new();
                for part in parts {
                    let value = self.eval(part, scope)?;
                    self.budget.take(value.text_size())?;
                    value.write_str(&mut out);
                }
                Ok(Value::str(out))
            }
            Expr::And(parts) => self.first_that(parts, scope, |value| !value.is_true()),
            Expr::Or(parts) => self.first_that(parts, scope, Value::is_true),
            Expr::Not(value) => Ok(Value::Bool(!self.eval(value, scope)?.is_true())),
            Expr::Neg(value) => ops::negate(&self.eval(value, scope)?),
            Expr::Pos(value) => match self.eval(value, scope)? {
                value if value.number().is_some() => Ok(value),
                other => Err(Error::new(format!("bad operand type for unary +: '{}'", other.type_name()))),
            },
            Expr::Compare(first, rest) => {
                let mut left = self.eval(first, scope)?;
                for (op, right) in rest {
                    let right = self.eval(right, scope)?;
                    if !ops::compare(*op, &left, &right, &self.budget)? {
                        return Ok(Value::Bool(false));
                    }
                    left = right;
                }
                Ok(Value::Bool(true))
            }
            Expr::Conditional { test, then, otherwise, line } => match (self.eval(test, scope)?.is_true(), otherwise) {
                (true, _) => self.eval(then, scope),
                (false, Some(otherwise)) => self.eval(otherwise, scope),
                (false, None) => Ok(Value::Undefined(
                    format!(
                        "the inline if-expression on line {line} evaluated to false and no else section was defined."
                    )
                    .into(),
                )),
            },
            Expr::Postfix(base, chain) => self.chain(base, chain, None, scope),
        }
    }

    /// The first value that `ends` an `and` or `or`, or the last.
    fn first_that(&mut self, parts: &[Expr], scope: usize, ends: fn(&Value) -> bool) -> Result<Value> {
        let mut last = Value::None;
        for part in parts {
            last = self.eval(part, scope)?;
            if ends(&last) {
                break;
            }
        }
        Ok(last)
    }

    /// The value of a call that gets `caller` as well.
    pub fn eval_call(&mut self, call: &Expr, caller: Value, scope: usize) -> Result<Value> {
        match call {
            Expr::Postfix(base, chain) => self.deeper(|run| run.chain(base, chain, Some(caller), scope)),
            _ => Err(Error::new("a call block needs a call")),
        }
    }

    fn chain(&mut self, base: &Expr, chain: &[Postfix], mut caller: Option<Value>, scope: usize) -> Result<Value> {
        let mut value = self.eval(base, scope)?;
        for (i, step) in chain.iter().enumerate() {
            self.budget.step(1)?;
            value = match step {
                Postfix::Attribute(name) => self.attribute(&value, name)?,
                Postfix::Item(key) => {
                    let key = self.eval(key, scope)?;
                    self.item(&value, &key)?
                }
                Postfix::Slice(parts) => {
                    let mut bounds = [None; 3];
                    for (bound, part) in bounds.iter_mut().zip(parts) {
                        if let Some(part) = part {
                            *bound = crate::args::int(&Some(self.eval(part, scope)?), "a slice index")?;
                        }
                    }
                    ops::slice(&value, bounds, &self.budget)?
                }
                Postfix::Call(args) => {
                    let mut args = self.args(args, scope)?;
                    if i + 1 == chain.len()
                        && let Some(caller) = caller.take()
                    {
                        args.keyword.push(("caller".into(), caller));
                    }
                    self.call(&value, args)?
                }
                Postfix::Filter(name, args) => {
                    let args = self.args(args, scope)?;
                    self.filter(name, value, args)?
                }
                Postfix::Test { name, args, negated } => {
                    let args = self.args(args, scope)?;
                    Value::Bool(self.test(name, &value, args)? != *negated)
                }
            };
        }
        Ok(value)
    }

    fn args(&mut self, args: &CallArgs, scope: usize) -> Result<Args> {
        let mut out = Args { positional: self.all(&args.positional, scope)?, keyword: Vec::new() };
        for (name, value) in &args.keyword {
            out.keyword.push((name.clone(), self.eval(value, scope)?));
        }
        if let Some(star) = &args.star {
            let more = self.eval(star, scope)?;
            out.positional.extend(ops::iterate(&more, &self.budget)?);
        }
        if let Some(star_star) = &args.star_star {
            match self.eval(star_star, scope)? {
                Value::Dict(dict) => {
                    self.budget.items(dict.entries.len())?;
                    for (key, value) in &dict.entries {
                        self.budget.step(key.text_size() as u64 / 4)?;
                        match key {
                            Key::Str(name) => out.keyword.push((name.clone(), value.clone())),
                            _ => return Err(Error::new("keywords must be strings")),
                        }
                    }
                }
                other => {
                    return Err(Error::new(format!("argument after ** must be a mapping, not {}", other.type_name())));
                }
            }
        }
        Ok(out)
    }

    /// `value.name`: an attribute, else an item.
    pub fn attribute(&mut self, value: &Value, name: &Rc<str>) -> Result<Value> {
        let found = match value {
            Value::Undefined(why) => return Err(Error::new(&**why)),
            _ if name.starts_with("__") => Some(methods::unsafe_attribute(value, name)),
            Value::Namespace(at) => self.namespaces[*at].get(name).cloned(),
            Value::Loop(state) => loop_attribute(state, name).or_else(|| methods::find(value, name)),
            Value::Macro(node, _) => macro_attribute(node, name)?,
            Value::Cycler(at) if &**name == "current" => {
                let (values, next) = &self.cyclers[*at];
                values.get(*next).cloned()
            }
            Value::Seq(seq) if seq.kind == SeqKind::Group && matches!(&**name, "grouper" | "list") => {
                seq.items.get(usize::from(&**name == "list")).cloned()
            }
            _ => methods::find(value, name).or_else(|| ops::item(value, &Value::Str(name.clone()), &self.budget)),
        };
        Ok(found.unwrap_or_else(|| absent(value, &format!("'{name}'"))))
    }

    /// `value[key]`: an item, else an attribute.
    pub fn item(&mut self, value: &Value, key: &Value) -> Result<Value> {
        if let Value::Undefined(why) = value {
            return Err(Error::new(&**why));
        }
        if let Some(s) = value.as_str() {
            self.budget.step(s.len() as u64 / 64)?;
        }
        match (ops::item(value, key, &self.budget), key) {
            (Some(found), _) => Ok(found),
            (None, Value::Str(name) | Value::Markup(name)) => self.attribute(value, name),
            (None, key) => {
                let mut text = String::new();
                if key.text_size() < 200 {
                    key.write_repr(&mut text);
                }
                Ok(absent(value, &text))
            }
        }
    }

    /// `value.a.b.0`, as filters take attributes.
    pub fn path(&mut self, value: &Value, path: &Value) -> Result<Value> {
        match path {
            Value::Str(path) | Value::Markup(path) => {
                let mut value = value.clone();
                for part in path.split('.') {
                    let key = match part.parse::<i64>() {
                        Ok(n) if part.bytes().all(|b| b.is_ascii_digit()) => Value::Int(n),
                        _ => Value::str(part),
                    };
                    value = self.item(&value, &key)?;
                }
                Ok(value)
            }
            key => self.item(value, key),
        }
    }

    /// `value(args)`.
    pub fn call(&mut self, value: &Value, args: Args) -> Result<Value> {
        match value {
            Value::Macro(node, around) => self.call_macro(node, *around, args),
            Value::Global(global) => self.call_global(*global, args),
            Value::Method(method) => match &method.0 {
                Value::Cycler(at) => self.cycler(*at, &method.1),
                Value::Loop(state) => self.loop_method(state, &method.1, args),
                receiver => methods::call(receiver, &method.1, args, &self.budget),
            },
            Value::Loop(state) => {
                let [items] = args.bind("loop", ["iterable"], 1)?;
                self.loop_text(state, items.unwrap_or(Value::None))
            }
            Value::Joiner(at) => {
                let (separator, used) = &mut self.joiners[*at];
                Ok(if std::mem::replace(used, true) { separator.clone() } else { Value::str("") })
            }
            Value::Undefined(why) => Err(Error::new(&**why)),
            other => Err(Error::new(format!("'{}' object is not callable", other.type_name()))),
        }
    }

    fn call_global(&mut self, global: Global, args: Args) -> Result<Value> {
        self.budget.take(64)?;
        match global {
            Global::Range => sequences::range(self, args),
            Global::RaiseException => {
                let [message] = args.bind("raise_exception", ["message"], 1)?;
                let message = self.text(&message.unwrap_or(Value::None))?;
                Err(Error::Raised(message.to_string()))
            }
            Global::StrftimeNow => {
                let [format] = args.bind("strftime_now", ["format"], 1)?;
                let format = crate::args::text(&format, "format")?.unwrap_or_default();
                self.budget.take(format.len().saturating_mul(16))?;
                self.clock.strftime(&format).map(Value::str).map_err(Error::new)
            }
            Global::Cycler => {
                if args.positional.is_empty() {
                    return Err(Error::new("at least one item has to be provided"));
                }
                self.cyclers.push((args.positional, 0));
                Ok(Value::Cycler(self.cyclers.len() - 1))
            }
            Global::Joiner => {
                let [separator] = args.bind("joiner", ["sep"], 0)?;
                self.joiners.push((separator.unwrap_or_else(|| Value::str(", ")), false));
                Ok(Value::Joiner(self.joiners.len() - 1))
            }
            Global::Dict | Global::Namespace => {
                let entries = self.dict_entries(args)?;
                if global == Global::Dict {
                    return Dict::value(entries);
                }
                self.namespaces.push(IndexMap::new());
                let at = self.namespaces.len() - 1;
                for (key, value) in entries {
                    match key {
                        Key::Str(name) => self.set_attribute(at, &name, value)?,
                        _ => return Err(Error::new("names of a namespace are strings")),
                    }
                }
                Ok(Value::Namespace(at))
            }
        }
    }

    /// Entries of `dict(...)`.
    fn dict_entries(&mut self, mut args: Args) -> Result<IndexMap<Key, Value>> {
        let mut entries = IndexMap::new();
        match args.positional.pop() {
            Some(Value::Dict(dict)) => {
                self.budget.items(dict.entries.len())?;
                let keys: usize = dict.entries.keys().map(Key::text_size).sum();
                self.budget.step(keys as u64 / 16)?;
                entries.extend(dict.entries.iter().map(|(key, value)| (key.clone(), value.clone())));
            }
            Some(pairs) => {
                for pair in ops::iterate(&pairs, &self.budget)? {
                    match &ops::iterate(&pair, &self.budget)?[..] {
                        [key, value] => entries.insert(Key::new(key, &self.budget)?, value.clone()),
                        _ => return Err(Error::new("dict() takes pairs")),
                    };
                }
            }
            None => {}
        }
        entries.extend(args.keyword.into_iter().map(|(name, value)| (Key::Str(name), value)));
        Ok(entries)
    }

    fn cycler(&mut self, at: usize, method: &str) -> Result<Value> {
        let (values, next) = &mut self.cyclers[at];
        if method == "reset" {
            *next = 0;
            return Ok(Value::None);
        }
        let value = values.get(*next).cloned().unwrap_or(Value::None);
        *next = (*next + 1) % values.len().max(1);
        Ok(value)
    }

    fn loop_method(&mut self, state: &Loop, method: &str, args: Args) -> Result<Value> {
        let values = args.positional;
        if method == "cycle" {
            let at = state.index.get().checked_rem(values.len());
            return at.map(|at| values[at].clone()).ok_or_else(|| Error::new("no items for cycling given"));
        }
        let same = |old: &Vec<Value>| old.len() == values.len() && old.iter().zip(&values).all(|(a, b)| a.equals(b));
        self.budget.step(values.iter().map(|v| v.text_size() as u64 / 16).sum())?;
        let changed = !self.changed.get(&state.id).is_some_and(same);
        self.changed.insert(state.id, values);
        Ok(Value::Bool(changed))
    }
}

/// An attribute of `loop`.
fn loop_attribute(state: &Loop, name: &str) -> Option<Value> {
    let (index, length) = (state.index.get(), state.items.items.len());
    let int = |n: usize| Some(Value::Int(n as i64));
    let neighbour = |at: Option<usize>, what: &str| {
        let item = at.and_then(|at| state.items.items.get(at)).cloned();
        Some(item.unwrap_or_else(|| Value::Undefined(format!("there is no {what} item").into())))
    };
    match name {
        "index" => int(index + 1),
        "index0" => int(index),
        "revindex" => int(length - index),
        "revindex0" => int(length - index - 1),
        "first" => Some(Value::Bool(index == 0)),
        "last" => Some(Value::Bool(index + 1 == length)),
        "length" => int(length),
        "depth" => int(state.depth + 1),
        "depth0" => int(state.depth),
        "previtem" => neighbour(index.checked_sub(1), "previous"),
        "nextitem" => neighbour(Some(index + 1), "next"),
        _ => None,
    }
}

/// The undefined value for something that `value` hasn't.
fn absent(value: &Value, what: &str) -> Value {
    Value::Undefined(format!("'{} object' has no attribute {what}", value.type_name()).into())
}

fn macro_attribute(node: &Macro, name: &str) -> Result<Option<Value>> {
    Ok(Some(match name {
        "name" => Value::Str(node.name.clone()),
        "arguments" => {
            let names = node.parameters.iter().map(|(name, _)| Value::Str(name.clone()));
            Seq::value(SeqKind::Tuple, names.collect())?
        }
        "catch_kwargs" => Value::Bool(node.uses_kwargs),
        "catch_varargs" => Value::Bool(node.uses_varargs),
        "caller" => Value::Bool(node.uses_caller),
        _ => return Ok(None),
    }))
}
