//! JSON objects with string values, duplicates refused.

use indexmap::IndexMap;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};
use serde_json::Value;
use std::fmt;

/// The most bytes of a string that an error message shows.
const SHOWN: usize = 200;

/// A JSON object of strings in the order of the file; a key that comes twice is an error.
#[derive(Debug, Default)]
pub(crate) struct UniqueStrings(pub IndexMap<String, String>);

impl<'de> Deserialize<'de> for UniqueStrings {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_map(StringsVisitor)
    }
}

struct StringsVisitor;

impl<'de> Visitor<'de> for StringsVisitor {
    type Value = UniqueStrings;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of strings")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut out = IndexMap::new();
        while let Some(key) = map.next_key::<String>()? {
            let value: String = map.next_value().map_err(|e| A::Error::custom(format!("key {}: {e}", shown(&key))))?;
            if out.contains_key(&key) {
                return Err(A::Error::custom(format!("key {} stands twice", shown(&key))));
            }
            out.insert(key, value);
        }
        Ok(UniqueStrings(out))
    }
}

/// A key and what it says, for error messages.
pub(crate) fn said(key: &str, value: Option<&Value>) -> String {
    value.map_or_else(|| format!("no {key}"), |v| format!("{key} {}", shown(&v.to_string())))
}

/// The start of a string from a file, for error messages.
pub(crate) fn shown(text: &str) -> String {
    match text.char_indices().find(|(i, _)| *i >= SHOWN) {
        Some((i, _)) => format!("{}...", &text[..i]),
        None => text.to_string(),
    }
}
