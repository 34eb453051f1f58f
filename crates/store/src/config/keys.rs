//! Typed access to the keys of config.json.

use super::MAX_SIZE;
use crate::{Error, Result};
use serde_json::{Map, Value};
use std::path::Path;

/// Typed access to a JSON object; null counts as absent.
pub(super) struct Keys<'a> {
    pub path: &'a Path,
    pub map: &'a Map<String, Value>,
}

impl<'a> Keys<'a> {
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    pub fn bad(&self, key: &str, what: impl std::fmt::Display) -> Error {
        Error::malformed(self.path, format!("{key}: {what}"))
    }

    pub fn unsupported(&self, what: impl Into<String>) -> Error {
        Error::unsupported(self.path, what)
    }

    pub fn typed<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Result<Option<T>> {
        match self.get(key) {
            None => Ok(None),
            Some(v) => read(v).map(Some).ok_or_else(|| self.bad(key, format!("must be {what}"))),
        }
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        self.typed(key, "a string", Value::as_str)
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.typed(key, "true or false", Value::as_bool)
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.typed(key, "a finite number", |v| v.as_f64().filter(|f| f.is_finite()))
    }

    pub fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>> {
        self.typed(key, "an object", Value::as_object)
    }

    /// `key` as a number; an error where it is there and null.
    pub fn stated_number(&self, key: &str) -> Result<Option<f64>> {
        self.refuse_null(key)?;
        self.number(key)
    }

    /// An error where `key` is there and null: transformers fails on it.
    pub fn refuse_null(&self, key: &str) -> Result<()> {
        match self.map.get(key) {
            Some(Value::Null) => Err(self.bad(key, "is null; give a value or remove the key")),
            _ => Ok(()),
        }
    }

    pub fn positive(&self, key: &str) -> Result<f64> {
        self.number(key)?.filter(|f| *f > 0.0).ok_or_else(|| self.bad(key, "must be a positive number"))
    }

    pub fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>> {
        let read = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| (1..=max).contains(n));
        self.typed(key, &format!("an integer from 1 to {max}"), read)
    }

    pub fn size(&self, key: &str) -> Result<usize> {
        self.optional_size(key, MAX_SIZE)?.ok_or_else(|| self.bad(key, "is missing"))
    }

    pub fn tokens(&self, key: &str) -> Result<Vec<u32>> {
        let one = |v: &Value| v.as_u64().and_then(|n| u32::try_from(n).ok());
        let read = |v: &Value| match v {
            Value::Array(ids) if ids.len() <= 1000 => ids.iter().map(one).collect(),
            other => one(other).map(|id| vec![id]),
        };
        Ok(self.typed(key, "a token id or a list of them", read)?.unwrap_or_default())
    }
}
