//! Tests: `is name`.

use crate::args::Args;
use crate::ast::Comparison;
use crate::error::{Error, Result};
use crate::interpreter::Interpreter;
use crate::ops;
use crate::value::{Number, SeqKind, Value};

/// Returns whether a test is known.
pub fn exists(name: &str) -> bool {
    matches!(
        name,
        "defined"
            | "undefined"
            | "none"
            | "boolean"
            | "true"
            | "false"
            | "integer"
            | "float"
            | "number"
            | "string"
            | "mapping"
            | "sequence"
            | "iterable"
            | "callable"
            | "escaped"
            | "odd"
            | "even"
            | "lower"
            | "upper"
            | "filter"
            | "test"
            | "divisibleby"
            | "sameas"
            | "in"
    ) || comparison(name).is_some()
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" | "equalto" | "==" => Comparison::Eq,
        "ne" | "!=" => Comparison::Ne,
        "lt" | "lessthan" | "<" => Comparison::Lt,
        "le" | "<=" => Comparison::Le,
        "gt" | "greaterthan" | ">" => Comparison::Gt,
        "ge" | ">=" => Comparison::Ge,
        _ => return None,
    })
}

impl Interpreter<'_> {
    /// `value is name(args)`.
    pub fn test(&mut self, name: &str, value: &Value, args: Args) -> Result<bool> {
        self.budget.step(1 + value.as_str().map_or(0, |s| s.len() as u64 / 16))?;
        let with_argument = comparison(name).is_some() || matches!(name, "divisibleby" | "sameas" | "in");
        let [argument] = args.bind(name, ["argument"], usize::from(with_argument))?;
        let argument = argument.unwrap_or(Value::None);
        if let Some(op) = comparison(name) {
            return ops::compare(op, value, &argument, &self.budget);
        }
        let remainder = |by: i64| match ops::arithmetic("%", value, &Value::Int(by), &self.budget)?.number() {
            Some(number) => Ok(number.float()),
            None => Err(Error::new("not all arguments converted during string formatting")),
        };
        Ok(match name {
            "defined" => !value.is_undefined(),
            "undefined" => value.is_undefined(),
            "none" => matches!(value, Value::None),
            "boolean" => matches!(value, Value::Bool(_)),
            "true" => matches!(value, Value::Bool(true)),
            "false" => matches!(value, Value::Bool(false)),
            "integer" => matches!(value, Value::Int(_)),
            "float" => matches!(value, Value::Float(_)),
            "number" => value.number().is_some(),
            "string" => value.as_str().is_some(),
            "mapping" => matches!(value, Value::Dict(_)),
            // Whatever has a length and items by key; of an undefined value both fail.
            "sequence" => match value {
                Value::Seq(seq) => !matches!(seq.kind, SeqKind::Generator | SeqKind::View(_)),
                other => matches!(other, Value::Str(_) | Value::Markup(_) | Value::Dict(_)),
            },
            "iterable" => {
                matches!(
                    value,
                    Value::Undefined(_)
                        | Value::Str(_)
                        | Value::Markup(_)
                        | Value::Seq(_)
                        | Value::Dict(_)
                        | Value::Loop(_)
                )
            }
            "callable" => {
                matches!(
                    value,
                    Value::Macro(..) | Value::Global(_) | Value::Method(_) | Value::Joiner(_) | Value::Loop(_)
                ) || value.is_undefined()
            }
            "escaped" => matches!(value, Value::Markup(_)),
            "odd" => remainder(2)? == 1.0,
            "even" => remainder(2)? == 0.0,
            "lower" => {
                self.text(value)?.chars().any(char::is_lowercase) && !self.text(value)?.chars().any(char::is_uppercase)
            }
            "upper" => {
                self.text(value)?.chars().any(char::is_uppercase) && !self.text(value)?.chars().any(char::is_lowercase)
            }
            "filter" => value.as_str().is_some_and(|name| crate::filters::exists(name)),
            "test" => value.as_str().is_some_and(|name| exists(name)),
            "divisibleby" => match argument.number() {
                Some(Number::Int(by)) => remainder(by)? == 0.0,
                _ => return Err(Error::new("divisibleby takes an integer")),
            },
            "sameas" => same(value, &argument),
            "in" => ops::contains(&argument, value, &self.budget)?,
            other => return Err(Error::new(format!("no test is named '{other}'"))),
        })
    }
}

/// Python's `is`, as far as it can be told for values.
fn same(a: &Value, b: &Value) -> bool {
    a.type_name() == b.type_name() && a.equals(b)
}
