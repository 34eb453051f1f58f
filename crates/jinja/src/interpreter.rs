//! Runs the statements of a template. Expressions are in [`super::expressions`].

use crate::Clock;
use crate::args::Args;
use crate::ast::{BLOCK_TEXT, Expr, For, Kind, Macro, Statement, Target};
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::ops::iterate;
use crate::text::str_of;
use crate::value::{Dict, Global, Key, Loop, Seq, SeqKind, Value};
use indexmap::IndexMap;
use std::cell::Cell;
use std::collections::HashMap;
use std::rc::Rc;

/// Levels of statements, expressions and calls in each other.
const MAX_DEPTH: usize = 1500;

/// Variables, and the scope around them.
#[derive(Debug, Default)]
struct Scope {
    around: Option<usize>,
    variables: HashMap<Rc<str>, Value>,
}

/// End of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flow {
    Next,
    Break,
    Continue,
}

/// A rendering.
#[derive(Debug)]
pub struct Interpreter<'a> {
    pub budget: Budget,
    pub clock: &'a Clock,
    scopes: Vec<Scope>,
    /// Macros made so far; each keeps the scopes around it.
    macros: usize,
    pub namespaces: Vec<IndexMap<Rc<str>, Value>>,
    /// Values of each cycler, and the position of the next.
    pub cyclers: Vec<(Vec<Value>, usize)>,
    /// Separators of joiners, and whether each was used.
    pub joiners: Vec<(Value, bool)>,
    /// Last arguments of `loop.changed`, by loop.
    pub changed: HashMap<usize, Vec<Value>>,
    loops: usize,
    depth: usize,
    /// Texts in the making: the rendering, then those of macros and blocks.
    texts: Vec<String>,
}

impl<'a> Interpreter<'a> {
    /// A rendering with these variables.
    pub fn new(variables: HashMap<Rc<str>, Value>, clock: &'a Clock) -> Self {
        let globals = [
            ("range", Global::Range),
            ("dict", Global::Dict),
            ("namespace", Global::Namespace),
            ("cycler", Global::Cycler),
            ("joiner", Global::Joiner),
            ("raise_exception", Global::RaiseException),
            ("strftime_now", Global::StrftimeNow),
        ];
        let globals = globals.into_iter().map(|(name, global)| (Rc::from(name), Value::Global(global))).collect();
        Interpreter {
            budget: Budget::new(),
            clock,
            scopes: vec![
                Scope { around: None, variables: globals },
                Scope { around: Some(0), variables },
                Scope { around: Some(1), variables: HashMap::new() },
            ],
            macros: 0,
            namespaces: Vec::new(),
            cyclers: Vec::new(),
            joiners: Vec::new(),
            changed: HashMap::new(),
            loops: 0,
            depth: 0,
            texts: vec![String::new()],
        }
    }

    /// The text of a template.
    pub fn render(mut self, body: &[Statement]) -> Result<String> {
        self.run(body, 2)?;
        Ok(self.texts.pop().unwrap_or_default())
    }

    /// Runs `work` one level deeper.
    pub fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        self.budget.step(1)?;
        if self.depth == MAX_DEPTH {
            return Err(Error::limit(format!("the template recurses deeper than {MAX_DEPTH} levels")));
        }
        self.depth += 1;
        let out = work(self);
        self.depth -= 1;
        out
    }

    /// Python's `str()`.
    pub fn text(&self, value: &Value) -> Result<Rc<str>> {
        match value {
            Value::Str(s) | Value::Markup(s) => Ok(s.clone()),
            Value::Namespace(at) => {
                let attributes = self.namespaces[*at].iter();
                let attributes = attributes.map(|(name, value)| (Key::Str(name.clone()), value.clone()));
                let attributes = str_of(&Dict::value(attributes.collect())?, &self.budget)?;
                Ok(format!("<Namespace {attributes}>").into())
            }
            other => str_of(other, &self.budget).map(Rc::from),
        }
    }

    pub fn lookup(&self, name: &Rc<str>, scope: usize) -> Result<Value> {
        let mut at = Some(scope);
        while let Some(scope) = at {
            self.budget.step(1)?;
            if let Some(value) = self.scopes[scope].variables.get(name) {
                return Ok(value.clone());
            }
            at = self.scopes[scope].around;
        }
        Ok(Value::Undefined(format!("'{name}' is undefined").into()))
    }

    fn set(&mut self, scope: usize, name: &Rc<str>, value: Value) -> Result<()> {
        self.budget.take(64)?;
        self.scopes[scope].variables.insert(name.clone(), value);
        Ok(())
    }

    /// Runs `work` in a scope of its own, which stays only if a macro may refer to it.
    fn scoped<T>(&mut self, around: usize, work: impl FnOnce(&mut Self, usize) -> Result<T>) -> Result<T> {
        self.budget.take(96)?;
        let (scope, macros) = (self.scopes.len(), self.macros);
        self.scopes.push(Scope { around: Some(around), variables: HashMap::new() });
        let out = work(self, scope);
        if self.macros == macros {
            self.scopes.truncate(scope);
        }
        out
    }

    fn write(&mut self, text: &str) -> Result<()> {
        self.budget.take(text.len())?;
        if let Some(out) = self.texts.last_mut() {
            out.push_str(text);
        }
        Ok(())
    }

    /// The text that `work` writes.
    fn captured(&mut self, work: impl FnOnce(&mut Self) -> Result<Flow>) -> Result<Value> {
        self.texts.push(String::new());
        let done = work(self);
        let text = self.texts.pop().unwrap_or_default();
        done.map(|_| Value::str(text))
    }

    fn run(&mut self, body: &[Statement], scope: usize) -> Result<Flow> {
        self.deeper(|run| {
            for statement in body {
                let flow = run.statement(&statement.kind, scope).map_err(|e| e.in_line(statement.line))?;
                if flow != Flow::Next {
                    return Ok(flow);
                }
            }
            Ok(Flow::Next)
        })
    }

    fn statement(&mut self, kind: &Kind, scope: usize) -> Result<Flow> {
        self.budget.step(1)?;
        match kind {
            Kind::Data(text) => self.write(text)?,
            Kind::Print(value) => {
                let value = self.eval(value, scope)?;
                let text = self.text(&value)?;
                self.write(&text)?;
            }
            Kind::If { branches, otherwise } => {
                for (test, body) in branches {
                    if self.eval(test, scope)?.is_true() {
                        return self.run(body, scope);
                    }
                }
                return self.run(otherwise, scope);
            }
            Kind::For(node) => {
                let items = self.eval(&node.iterable, scope)?;
                self.for_loop(node, items, scope, 0)?;
            }
            Kind::Set(target, value) => {
                let value = self.eval(value, scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::SetBlock { target, filters, body } => {
                let value = self.block_text(body, filters.as_ref(), scope)?;
                self.assign(target, value, scope)?;
            }
            Kind::FilterBlock { filters, body } => {
                let value = self.block_text(body, Some(filters), scope)?;
                let text = self.text(&value)?;
                self.write(&text)?;
            }
            Kind::With(values, body) => {
                let values: Vec<(&Target, Value)> = values
                    .iter()
                    .map(|(target, value)| Ok((target, self.eval(value, scope)?)))
                    .collect::<Result<_>>()?;
                return self.scoped(scope, |run, inner| {
                    for (target, value) in values {
                        run.assign(target, value, inner)?;
                    }
                    run.run(body, inner)
                });
            }
            Kind::Scope(body) => return self.scoped(scope, |run, inner| run.run(body, inner)),
            Kind::Block(body) => {
                self.scoped(2, |run, inner| run.run(body, inner))?;
            }
            Kind::Macro(node) => {
                self.macros += 1;
                self.set(scope, &node.name, Value::Macro(node.clone(), scope))?;
            }
            Kind::CallBlock { caller, call } => {
                self.macros += 1;
                let caller = Value::Macro(caller.clone(), scope);
                let value = self.eval_call(call, caller, scope)?;
                let text = self.text(&value)?;
                self.write(&text)?;
            }
            Kind::Load(tag) => {
                return Err(Error::new(format!("'{tag}': a chat template has no other templates to load")));
            }
            Kind::Break => return Ok(Flow::Break),
            Kind::Continue => return Ok(Flow::Continue),
        }
        Ok(Flow::Next)
    }

    /// The text of a block, through filters.
    fn block_text(&mut self, body: &[Statement], filters: Option<&Expr>, scope: usize) -> Result<Value> {
        let text = self.scoped(scope, |run, inner| run.captured(|run| run.run(body, inner)))?;
        match filters {
            None => Ok(text),
            Some(filters) => self.scoped(scope, |run, inner| {
                run.set(inner, &BLOCK_TEXT.into(), text)?;
                run.eval(filters, inner)
            }),
        }
    }

    fn assign(&mut self, target: &Target, value: Value, scope: usize) -> Result<()> {
        match target {
            Target::Name(name) => self.set(scope, name, value),
            Target::Attribute(name, attribute) => match self.lookup(name, scope)? {
                Value::Namespace(at) => self.set_attribute(at, attribute, value),
                _ => Err(Error::new("cannot assign attribute on non-namespace object")),
            },
            Target::Tuple(targets) => {
                let values = iterate(&value, &self.budget)?;
                if values.len() != targets.len() {
                    let what = format!("{} values can't be unpacked into {} names", values.len(), targets.len());
                    return Err(Error::new(what));
                }
                targets.iter().zip(values).try_for_each(|(target, value)| self.assign(target, value, scope))
            }
        }
    }

    pub fn set_attribute(&mut self, namespace: usize, name: &Rc<str>, value: Value) -> Result<()> {
        if name.starts_with('_') {
            return Err(Error::new(format!("a namespace can't store the attribute '{name}', which begins with '_'")));
        }
        self.budget.take(64)?;
        self.namespaces[namespace].insert(name.clone(), value);
        Ok(())
    }

    /// Runs a loop over `items`; `depth` counts `loop(...)` calls around it.
    pub fn for_loop(&mut self, node: &Rc<For>, items: Value, around: usize, depth: usize) -> Result<()> {
        self.deeper(|run| run.for_items(node, items, around, depth))
    }

    fn for_items(&mut self, node: &Rc<For>, items: Value, around: usize, depth: usize) -> Result<()> {
        let mut items = iterate(&items, &self.budget)?;
        if let Some(condition) = &node.condition {
            let mut kept = Vec::new();
            for item in items {
                let holds = self.scoped(around, |run, inner| {
                    run.assign(&node.target, item.clone(), inner)?;
                    Ok(run.eval(condition, inner)?.is_true())
                })?;
                if holds {
                    kept.push(item);
                }
            }
            items = kept;
        }
        if items.is_empty() {
            self.scoped(around, |run, inner| run.run(&node.otherwise, inner))?;
            return Ok(());
        }
        let Value::Seq(items) = Seq::value(SeqKind::List, items)? else { return Ok(()) };
        self.loops += 1;
        let recursive = node.recursive.then(|| (node.clone(), around));
        let state = Rc::new(Loop { id: self.loops, items: items.clone(), index: Cell::new(0), depth, recursive });
        for (index, item) in items.items.iter().enumerate() {
            state.index.set(index);
            let flow = self.scoped(around, |run, inner| {
                run.set(inner, &"loop".into(), Value::Loop(state.clone()))?;
                run.assign(&node.target, item.clone(), inner)?;
                run.run(&node.body, inner)
            })?;
            if flow == Flow::Break {
                break;
            }
        }
        self.changed.remove(&state.id);
        Ok(())
    }

    /// The text of a recursive loop over `items`.
    pub fn loop_text(&mut self, state: &Loop, items: Value) -> Result<Value> {
        let Some((node, around)) = state.recursive.clone() else {
            return Err(Error::new("loop(...) needs a loop that is 'recursive'"));
        };
        self.captured(|run| run.for_loop(&node, items, around, state.depth + 1).map(|()| Flow::Next))
    }

    /// Calls a macro that was made in the scope `around`.
    pub fn call_macro(&mut self, node: &Rc<Macro>, around: usize, args: Args) -> Result<Value> {
        self.deeper(|run| run.scoped(around, |run, inner| run.macro_text(node, inner, args)))
    }

    fn macro_text(&mut self, node: &Macro, scope: usize, args: Args) -> Result<Value> {
        let mut positional = args.positional.into_iter();
        let mut keyword: IndexMap<Rc<str>, Value> = IndexMap::new();
        for (name, value) in args.keyword {
            if keyword.insert(name.clone(), value).is_some() {
                return Err(Error::new(format!("macro '{}' got the argument '{name}' twice", node.name)));
            }
        }
        let caller = if node.uses_caller || node.parameters.iter().any(|(name, _)| &**name == "caller") {
            None
        } else {
            keyword.shift_remove("caller")
        };
        if caller.is_some() {
            return Err(Error::new(format!("macro '{}' takes no caller: it was used in a call block", node.name)));
        }
        let mut missing = Vec::new();
        for (name, default) in &node.parameters {
            match (positional.next(), keyword.shift_remove(name), default) {
                (Some(_), Some(_), _) => {
                    return Err(Error::new(format!("macro '{}' got the argument '{name}' twice", node.name)));
                }
                (Some(value), None, _) | (None, Some(value), _) => self.set(scope, name, value)?,
                (None, None, default) => missing.push((name, default)),
            }
        }
        for (name, default) in missing {
            let value = match default {
                Some(default) => self.eval(default, scope)?,
                None => Value::Undefined(format!("parameter '{name}' was not provided").into()),
            };
            self.set(scope, name, value)?;
        }
        if node.uses_caller {
            let none = || Value::Undefined("No caller defined".into());
            let caller = keyword.shift_remove("caller").unwrap_or_else(none);
            self.set(scope, &"caller".into(), caller)?;
        }
        let rest: Vec<Value> = positional.collect();
        if node.uses_varargs {
            self.set(scope, &"varargs".into(), Seq::value(SeqKind::Tuple, rest)?)?;
        } else if !rest.is_empty() {
            let most = node.parameters.len();
            return Err(Error::new(format!("macro '{}' takes not more than {most} argument(s)", node.name)));
        }
        if node.uses_kwargs {
            let entries = keyword.into_iter().map(|(name, value)| (Key::Str(name), value)).collect();
            self.set(scope, &"kwargs".into(), Dict::value(entries)?)?;
        } else if let Some((name, _)) = keyword.first() {
            return Err(Error::new(format!("macro '{}' takes no keyword argument '{name}'", node.name)));
        }
        self.captured(|run| run.run(&node.body, scope))
    }
}
