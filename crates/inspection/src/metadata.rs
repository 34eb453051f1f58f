//! The metadata of model files: GGUF's typed keys, the strings of safetensors headers.

use crate::Result;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use store::gguf::{self, Array};
use store::{Bytes, Container, Model};

/// Elements of an array that are kept.
const SHOWN: usize = 8;

/// One key and its value.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value's type in the file: `string`, `u32`, `array of f32`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Number of elements of an array.
    pub length: Option<usize>,
    /// The value; of an array the first elements.
    pub value: Value,
    /// A hash of the whole value, for comparisons.
    #[serde(skip)]
    pub hash: u64,
}

impl Entry {
    fn string(key: &str, value: &str) -> Self {
        Entry {
            key: key.into(),
            kind: "string".into(),
            length: None,
            value: json!(value),
            hash: hash(value.as_bytes()),
        }
    }

    /// The value on one line.
    pub fn shown(&self) -> String {
        let text = match &self.value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        match self.length {
            Some(n) if n > SHOWN => format!("{} ({n} elements)", text.replace(']', ", ...]")),
            _ => text,
        }
    }
}

/// The metadata of a model's files, in file order.
///
/// # Errors
/// When a GGUF header can't be read.
pub fn entries(model: &Model) -> Result<Vec<Entry>> {
    if model.container != Container::Gguf {
        return Ok(model.metadata.iter().map(|(key, value)| Entry::string(key, value)).collect());
    }
    let file = gguf::parse(&model.path, &Bytes::map(&model.path)?)?;
    Ok(file.metadata.iter().map(|(key, value)| typed(key, value)).collect())
}

fn typed(key: &str, value: &gguf::Value) -> Entry {
    let plain = |value: Value| (value, None);
    let (shown, length) = match value {
        gguf::Value::String(text) => return Entry::string(key, text),
        gguf::Value::Bool(v) => plain(json!(v)),
        gguf::Value::Array(array) => (first_elements(array), Some(array.len())),
        other => match other.integer() {
            Some(v) => plain(json!(v)),
            None => plain(json!(other.number())),
        },
    };
    let kind = match value {
        gguf::Value::Array(array) => format!("array of {}", element_name(array)),
        other => other.type_name().to_string(),
    };
    Entry { key: key.into(), kind, length, value: shown, hash: hash(format!("{value:?}").as_bytes()) }
}

fn first_elements(array: &Array) -> Value {
    match array {
        Array::String(strings) => json!(strings.iter().take(SHOWN).collect::<Vec<_>>()),
        Array::Bool(v) => json!(v[..v.len().min(SHOWN)]),
        Array::F32(v) => json!(v[..v.len().min(SHOWN)]),
        Array::F64(v) => json!(v[..v.len().min(SHOWN)]),
        Array::U64(v) => json!(v[..v.len().min(SHOWN)]),
        other => json!(other.integers().map(|v| v.into_iter().take(SHOWN).collect::<Vec<_>>())),
    }
}

fn element_name(array: &Array) -> &'static str {
    match array {
        Array::U8(_) => "u8",
        Array::I8(_) => "i8",
        Array::U16(_) => "u16",
        Array::I16(_) => "i16",
        Array::U32(_) => "u32",
        Array::I32(_) => "i32",
        Array::U64(_) => "u64",
        Array::I64(_) => "i64",
        Array::F32(_) => "f32",
        Array::F64(_) => "f64",
        Array::Bool(_) => "bool",
        Array::String(_) => "string",
    }
}

fn hash(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_arrays_are_cut() {
        let entry = typed("k", &gguf::Value::Array(Array::I32((0..20).collect())));
        assert_eq!((entry.kind.as_str(), entry.length), ("array of i32", Some(20)));
        assert_eq!(entry.shown(), "[0,1,2,3,4,5,6,7, ...] (20 elements)");
        let other = typed("k", &gguf::Value::Array(Array::I32((0..21).collect())));
        assert_ne!(entry.hash, other.hash);
        assert_eq!(typed("k", &gguf::Value::F32(1e-5)).shown(), "0.00001");
    }
}
