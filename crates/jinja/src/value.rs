//! Values as Python has them: equality, order, truth, and their text.

use crate::ast::Macro;
use crate::budget::Budget;
use crate::error::{Error, Result};
use crate::text;
use indexmap::IndexMap;
use std::cell::Cell;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// Levels of values in values.
const MAX_DEPTH: usize = 100;
/// Bytes of a value's text at most: values may share parts, so that their text is exponentially larger than they are.
const MAX_TEXT: usize = 64 << 20;

/// A value.
#[derive(Debug, Clone)]
pub enum Value {
    /// A name or attribute that isn't there; the text says which.
    Undefined(Rc<str>),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Rc<str>),
    /// A text that `safe` or `escape` gave: what is added to it is escaped, as markupsafe does.
    Markup(Rc<str>),
    Seq(Rc<Seq>),
    Dict(Rc<Dict>),
    /// Number of a namespace in the interpreter.
    Namespace(usize),
    Macro(Rc<Macro>, usize),
    Global(Global),
    /// A method with its receiver.
    Method(Rc<(Value, Rc<str>)>),
    Loop(Rc<Loop>),
    /// Number of a cycler in the interpreter.
    Cycler(usize),
    /// Number of a joiner in the interpreter.
    Joiner(usize),
}

/// A function that every template has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Global {
    Range,
    Dict,
    Namespace,
    Cycler,
    Joiner,
    RaiseException,
    StrftimeNow,
}

/// The Python type of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeqKind {
    List,
    Tuple,
    /// A pair that `groupby` gives.
    Group,
    /// Result of filters such as `select`: always true, no length, no items, read once.
    Generator,
    /// `dict.keys()`, `.values()` or `.items()`: a length and no items by number.
    View(&'static str),
    Range {
        start: i64,
        stop: i64,
        step: i64,
    },
}

/// A sequence.
#[derive(Debug)]
pub struct Seq {
    pub kind: SeqKind,
    pub items: Vec<Value>,
    nesting: Nesting,
    /// True once a generator was read.
    spent: Cell<bool>,
}

/// A dictionary.
#[derive(Debug)]
pub struct Dict {
    pub entries: IndexMap<Key, Value>,
    nesting: Nesting,
}

/// Size of a container with all that it holds.
#[derive(Debug, Clone, Copy)]
struct Nesting {
    /// Levels of containers, itself among them.
    depth: usize,
    /// A bound of its text's bytes and of the values in it.
    text: usize,
}

/// The key of a dictionary.
#[derive(Debug, Clone)]
pub enum Key {
    None,
    Bool(bool),
    Int(i64),
    /// Bits of a float that is no integer.
    Float(u64),
    Str(Rc<str>),
    Tuple(Vec<Key>),
}

/// The `loop` of a `for`.
#[derive(Debug)]
pub struct Loop {
    pub id: usize,
    pub items: Rc<Seq>,
    pub index: Cell<usize>,
    pub depth: usize,
    /// For `loop(...)`: the loop and the scope around it.
    pub recursive: Option<(Rc<crate::ast::For>, usize)>,
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Key::None, Key::None) => true,
            (Key::Float(a), Key::Float(b)) => a == b,
            (Key::Str(a), Key::Str(b)) => a == b,
            (Key::Tuple(a), Key::Tuple(b)) => a == b,
            (a, b) => a.int().is_some() && a.int() == b.int(),
        }
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Key::None => 0.hash(state),
            Key::Bool(_) | Key::Int(_) => self.int().hash(state),
            Key::Float(bits) => bits.hash(state),
            Key::Str(s) => s.hash(state),
            Key::Tuple(keys) => keys.hash(state),
        }
    }
}

impl Key {
    /// The integer that a key is equal to: True is 1.
    fn int(&self) -> Option<i64> {
        match self {
            Key::Bool(b) => Some(i64::from(*b)),
            Key::Int(n) => Some(*n),
            _ => None,
        }
    }

    /// The key that a value is; the budget pays for hashing it.
    pub fn new(value: &Value, budget: &Budget) -> Result<Self> {
        budget.step(value.text_size() as u64 / 16)?;
        Ok(match value {
            Value::None => Key::None,
            Value::Bool(b) => Key::Bool(*b),
            Value::Int(n) => Key::Int(*n),
            Value::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => Key::Int(*f as i64),
            Value::Float(f) => Key::Float(f.to_bits()),
            Value::Str(s) | Value::Markup(s) => Key::Str(s.clone()),
            Value::Seq(s) if s.kind == SeqKind::Tuple => {
                Key::Tuple(s.items.iter().map(|item| Key::new(item, budget)).collect::<Result<_>>()?)
            }
            Value::Undefined(what) => return Err(Error::new(&**what)),
            other => return Err(Error::new(format!("unhashable type: '{}'", other.type_name()))),
        })
    }

    pub fn text_size(&self) -> usize {
        match self {
            Key::Str(s) => s.len() + 4,
            Key::Tuple(keys) => keys.iter().map(|k| k.text_size() + 2).sum::<usize>() + 3,
            _ => 24,
        }
    }

    pub fn value(&self) -> Value {
        match self {
            Key::None => Value::None,
            Key::Bool(b) => Value::Bool(*b),
            Key::Int(n) => Value::Int(*n),
            Key::Float(bits) => Value::Float(f64::from_bits(*bits)),
            Key::Str(s) => Value::Str(s.clone()),
            Key::Tuple(keys) => {
                let items: Vec<Value> = keys.iter().map(Key::value).collect();
                let nesting = Nesting { depth: 1, text: self.text_size() };
                Value::Seq(Rc::new(Seq { kind: SeqKind::Tuple, items, nesting, spent: Cell::new(false) }))
            }
        }
    }
}

impl Seq {
    /// A sequence, unless it nests too deep.
    pub fn value(kind: SeqKind, items: Vec<Value>) -> Result<Value> {
        let nesting = Nesting::new(items.iter(), 16)?;
        Ok(Value::Seq(Rc::new(Seq { kind, items, nesting, spent: Cell::new(false) })))
    }

    pub fn list(items: Vec<Value>) -> Result<Value> {
        Seq::value(SeqKind::List, items)
    }

    /// The items to go over; a generator has them once.
    pub fn read(&self) -> &[Value] {
        if self.kind == SeqKind::Generator && self.spent.replace(true) { &[] } else { &self.items }
    }
}

impl Dict {
    /// A dictionary, unless it nests too deep.
    pub fn value(entries: IndexMap<Key, Value>) -> Result<Value> {
        let keys = entries.keys().fold(2, |n: usize, key| n.saturating_add(key.text_size()));
        let nesting = Nesting::new(entries.values(), keys)?;
        Ok(Value::Dict(Rc::new(Dict { entries, nesting })))
    }

    pub fn get(&self, key: &str) -> Option<&Value> {
        self.entries.get(&Key::Str(key.into()))
    }
}

impl Nesting {
    /// Of a container of these, whose own text has `own` bytes.
    fn new<'a>(items: impl Iterator<Item = &'a Value>, own: usize) -> Result<Self> {
        let mut out = Nesting { depth: 1, text: own };
        for item in items {
            out.depth = out.depth.max(1 + item.depth());
            out.text = out.text.saturating_add(item.text_size() + 2);
        }
        if out.depth > MAX_DEPTH {
            return Err(Error::limit(format!("values are nested deeper than {MAX_DEPTH} levels")));
        }
        if out.text > MAX_TEXT {
            return Err(Error::limit(format!("a value stands for more than {} MiB of text", MAX_TEXT >> 20)));
        }
        Ok(out)
    }
}

impl Value {
    pub fn str(text: impl Into<Rc<str>>) -> Value {
        Value::Str(text.into())
    }

    pub fn depth(&self) -> usize {
        match self {
            Value::Seq(seq) => seq.nesting.depth,
            Value::Dict(dict) => dict.nesting.depth,
            Value::Loop(l) => l.items.nesting.depth + 1,
            Value::Method(method) => method.0.depth() + 1,
            _ => 0,
        }
    }

    /// From JSON.
    pub fn from_json(json: &serde_json::Value) -> Result<Value> {
        use serde_json::Value as Json;
        Ok(match json {
            Json::Null => Value::None,
            Json::Bool(b) => Value::Bool(*b),
            Json::Number(n) => match n.as_i64() {
                Some(n) => Value::Int(n),
                None => Value::Float(n.as_f64().unwrap_or(f64::NAN)),
            },
            Json::String(s) => Value::str(s.as_str()),
            Json::Array(all) => Seq::list(all.iter().map(Value::from_json).collect::<Result<_>>()?)?,
            Json::Object(all) => {
                let entries =
                    all.iter().map(|(key, value)| Ok((Key::Str(key.as_str().into()), Value::from_json(value)?)));
                Dict::value(entries.collect::<Result<_>>()?)?
            }
        })
    }

    /// The text of a string.
    pub fn as_str(&self) -> Option<&Rc<str>> {
        match self {
            Value::Str(s) | Value::Markup(s) => Some(s),
            _ => None,
        }
    }

    pub fn is_undefined(&self) -> bool {
        matches!(self, Value::Undefined(_))
    }

    /// Python's name of the type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Value::Undefined(_) => "Undefined",
            Value::None => "NoneType",
            Value::Bool(_) => "bool",
            Value::Int(_) => "int",
            Value::Float(_) => "float",
            Value::Str(_) => "str",
            Value::Markup(_) => "Markup",
            Value::Seq(seq) => match seq.kind {
                SeqKind::List => "list",
                SeqKind::Tuple | SeqKind::Group => "tuple",
                SeqKind::Generator => "generator",
                SeqKind::View(name) => name,
                SeqKind::Range { .. } => "range",
            },
            Value::Dict(_) => "dict",
            Value::Namespace(_) => "Namespace",
            Value::Macro(..) => "Macro",
            Value::Global(_) => "function",
            Value::Method(_) => "method",
            Value::Loop(_) => "LoopContext",
            Value::Cycler(_) => "Cycler",
            Value::Joiner(_) => "Joiner",
        }
    }

    pub fn is_true(&self) -> bool {
        match self {
            Value::Undefined(_) | Value::None => false,
            Value::Bool(b) => *b,
            Value::Int(n) => *n != 0,
            Value::Float(f) => *f != 0.0,
            Value::Str(s) | Value::Markup(s) => !s.is_empty(),
            Value::Seq(seq) => seq.kind == SeqKind::Generator || !seq.items.is_empty(),
            Value::Dict(dict) => !dict.entries.is_empty(),
            _ => true,
        }
    }

    /// The value as a number, if it is one (True is 1).
    pub fn number(&self) -> Option<Number> {
        Some(match self {
            Value::Bool(b) => Number::Int(i64::from(*b)),
            Value::Int(n) => Number::Int(*n),
            Value::Float(f) => Number::Float(*f),
            _ => return None,
        })
    }

    pub fn equals(&self, other: &Value) -> bool {
        if let (Some(a), Some(b)) = (self.number(), other.number()) {
            return a.compare(b) == Some(Ordering::Equal);
        }
        match (self, other) {
            (Value::Undefined(_), Value::Undefined(_)) | (Value::None, Value::None) => true,
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => a == b,
            (Value::Seq(a), Value::Seq(b)) if Rc::ptr_eq(a, b) => true,
            (Value::Seq(a), Value::Seq(b)) => {
                a.kind == b.kind
                    && !matches!(a.kind, SeqKind::Generator)
                    && a.items.len() == b.items.len()
                    && a.items.iter().zip(&b.items).all(|(x, y)| x.equals(y))
            }
            (Value::Dict(a), Value::Dict(b)) => {
                let same = |(key, value): (&Key, &Value)| b.entries.get(key).is_some_and(|other| value.equals(other));
                Rc::ptr_eq(a, b) || (a.entries.len() == b.entries.len() && a.entries.iter().all(same))
            }
            (Value::Namespace(a), Value::Namespace(b)) | (Value::Cycler(a), Value::Cycler(b)) => a == b,
            (Value::Macro(a, x), Value::Macro(b, y)) => Rc::ptr_eq(a, b) && x == y,
            (Value::Global(a), Value::Global(b)) => a == b,
            (Value::Loop(a), Value::Loop(b)) => Rc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Python's order; `operator` is for the error.
    pub fn compare(&self, other: &Value, operator: &str) -> Result<Option<Ordering>> {
        if let (Some(a), Some(b)) = (self.number(), other.number()) {
            return Ok(a.compare(b));
        }
        match (self, other) {
            (Value::Str(a) | Value::Markup(a), Value::Str(b) | Value::Markup(b)) => Ok(Some(a.cmp(b))),
            (Value::Seq(a), Value::Seq(b)) if a.kind == b.kind && matches!(a.kind, SeqKind::List | SeqKind::Tuple) => {
                for (x, y) in a.items.iter().zip(&b.items) {
                    if !x.equals(y) {
                        return x.compare(y, operator);
                    }
                }
                Ok(Some(a.items.len().cmp(&b.items.len())))
            }
            (Value::Undefined(what), _) | (_, Value::Undefined(what)) => Err(Error::new(&**what)),
            _ => {
                let (a, b) = (self.type_name(), other.type_name());
                Err(Error::new(format!("'{operator}' not supported between instances of '{a}' and '{b}'")))
            }
        }
    }

    /// Appends Python's `str()`.
    pub fn write_str(&self, out: &mut String) {
        match self {
            Value::Str(s) | Value::Markup(s) => out.push_str(s),
            Value::Undefined(_) => {}
            other => other.write_repr(out),
        }
    }

    /// Appends Python's `repr()`.
    pub fn write_repr(&self, out: &mut String) {
        match self {
            Value::Undefined(_) => out.push_str("Undefined"),
            Value::None => out.push_str("None"),
            Value::Bool(true) => out.push_str("True"),
            Value::Bool(false) => out.push_str("False"),
            Value::Int(n) => out.push_str(&n.to_string()),
            Value::Float(f) => out.push_str(&text::float(*f)),
            Value::Str(s) => text::quote(s, out),
            Value::Markup(s) => {
                out.push_str("Markup(");
                text::quote(s, out);
                out.push(')');
            }
            Value::Seq(seq) => {
                let (open, close) = match seq.kind {
                    SeqKind::Tuple | SeqKind::Group => ("(", if seq.items.len() == 1 { ",)" } else { ")" }),
                    SeqKind::List => ("[", "]"),
                    SeqKind::Range { start, stop, step: 1 } => return out.push_str(&format!("range({start}, {stop})")),
                    SeqKind::Range { start, stop, step } => {
                        return out.push_str(&format!("range({start}, {stop}, {step})"));
                    }
                    SeqKind::View(name) => {
                        out.push_str(name);
                        ("([", "])")
                    }
                    SeqKind::Generator => return out.push_str("<generator object>"),
                };
                out.push_str(open);
                for (i, item) in seq.items.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { ", " });
                    item.write_repr(out);
                }
                out.push_str(close);
            }
            Value::Dict(dict) => {
                out.push('{');
                for (i, (key, value)) in dict.entries.iter().enumerate() {
                    out.push_str(if i == 0 { "" } else { ", " });
                    key.value().write_repr(out);
                    out.push_str(": ");
                    value.write_repr(out);
                }
                out.push('}');
            }
            Value::Macro(m, _) => out.push_str(&format!("<Macro '{}'>", m.name)),
            Value::Loop(l) => out.push_str(&format!("<LoopContext {}/{}>", l.index.get() + 1, l.items.items.len())),
            other => out.push_str(&format!("<{}>", other.type_name())),
        }
    }

    /// A bound of the bytes that [`Value::write_repr`] appends, short of escapes, for the budget.
    pub fn text_size(&self) -> usize {
        match self {
            Value::Str(s) | Value::Markup(s) => 10 + s.len(),
            Value::Seq(seq) => seq.nesting.text,
            Value::Dict(dict) => dict.nesting.text,
            Value::Loop(l) => l.items.nesting.text,
            _ => 24,
        }
    }
}

/// A number of Python.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Number {
    Int(i64),
    Float(f64),
}

impl Number {
    pub fn float(self) -> f64 {
        match self {
            Number::Int(n) => n as f64,
            Number::Float(f) => f,
        }
    }

    fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Int(a), Number::Int(b)) => Some(a.cmp(&b)),
            (a, b) => a.float().partial_cmp(&b.float()),
        }
    }
}
