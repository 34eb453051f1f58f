//! Arguments of a call, bound to parameters.

use crate::error::{Error, Result};
use crate::value::Value;
use std::rc::Rc;

/// Arguments with their values.
#[derive(Debug, Default, Clone)]
pub struct Args {
    pub positional: Vec<Value>,
    pub keyword: Vec<(Rc<str>, Value)>,
}

impl Args {
    /// The arguments by parameter, of which the first `required` must be there.
    pub fn bind<const N: usize>(self, what: &str, names: [&str; N], required: usize) -> Result<[Option<Value>; N]> {
        if self.positional.len() > N {
            let what = format!("{what}() takes at most {N} arguments, {} given", self.positional.len());
            return Err(Error::new(what));
        }
        let mut out = [const { None }; N];
        for (slot, value) in out.iter_mut().zip(self.positional) {
            *slot = Some(value);
        }
        for (name, value) in self.keyword {
            let Some(at) = names.iter().position(|n| **n == *name) else {
                return Err(Error::new(format!("{what}() got an unexpected keyword argument '{name}'")));
            };
            if out[at].replace(value).is_some() {
                return Err(Error::new(format!("{what}() got multiple values for argument '{name}'")));
            }
        }
        match out.iter().take(required).position(Option::is_none) {
            Some(at) => Err(Error::new(format!("{what}() misses the argument '{}'", names[at]))),
            None => Ok(out),
        }
    }
}

/// A text argument.
pub fn text(value: &Option<Value>, what: &str) -> Result<Option<Rc<str>>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Str(s) | Value::Markup(s)) => Ok(Some(s.clone())),
        Some(Value::Undefined(why)) => Err(Error::new(&**why)),
        Some(other) => Err(Error::new(format!("{what} must be str, not {}", other.type_name()))),
    }
}

/// An integer argument.
pub fn int(value: &Option<Value>, what: &str) -> Result<Option<i64>> {
    match value {
        None | Some(Value::None) => Ok(None),
        Some(Value::Int(n)) => Ok(Some(*n)),
        Some(Value::Bool(b)) => Ok(Some(i64::from(*b))),
        Some(Value::Undefined(why)) => Err(Error::new(&**why)),
        Some(other) => Err(Error::new(format!("{what} must be int, not {}", other.type_name()))),
    }
}

/// Returns whether a flag is set; `default` where it isn't given.
pub fn flag(value: &Option<Value>, default: bool) -> bool {
    value.as_ref().map_or(default, Value::is_true)
}
