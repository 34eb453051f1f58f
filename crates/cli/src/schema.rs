//! JSON Schemas of the results that `--json` prints.

use crate::provenance::Record;
use schemars::generate::SchemaSettings;
use schemars::transform::{RecursiveTransform, Transform};
use schemars::{JsonSchema, Schema};
use serde::Serialize;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;

/// A result with the header that every one has.
#[derive(Serialize, JsonSchema)]
struct Headed<T> {
    /// Program and version.
    tool: String,
    /// Version of this JSON: it rises when a field is renamed, removed or changes its meaning. Fields may be added.
    version: u32,
    /// The program's command.
    command: String,
    /// Origin of the result: command, date, machine and inputs.
    provenance: Record,
    #[serde(flatten)]
    fields: T,
}

/// A number that is not finite is `null` in JSON.
#[derive(Clone)]
struct NullableNumbers;

impl Transform for NullableNumbers {
    fn transform(&mut self, schema: &mut Schema) {
        if let Some(ty) = schema.get_mut("type").filter(|ty| *ty == "number") {
            *ty = json!(["number", "null"]);
        }
    }
}

/// The schema of the JSON of `command` (`qeval compare`), whose fields are those of `T`.
pub fn schema<T: JsonSchema>(command: &str) -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let generator = settings.with_transform(RecursiveTransform(NullableNumbers)).into_generator();
    let mut schema = generator.into_root_schema_for::<Headed<T>>();
    schema.insert("title".into(), format!("{command} --json").into());
    schema.remove("description");
    // A result that has a version of its own names it twice.
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        let mut seen = Vec::new();
        required.retain(|name| {
            !seen.contains(name) && {
                seen.push(name.clone());
                true
            }
        });
    }
    schema.to_value()
}

/// Compares the schema of `command` with the published file `docs/schemas/PROGRAM-COMMAND.json`, or writes that where
/// UPDATE_SCHEMAS is set. For tests.
///
/// # Errors
/// Says which file differs.
pub fn check_published<T: JsonSchema>(command: &str) -> Result<(), String> {
    let name = format!("{}.json", command.replace(' ', "-"));
    let path = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas")).join(name);
    let text = format!("{:#}\n", schema::<T>(command));
    if std::env::var_os("UPDATE_SCHEMAS").is_some() {
        return fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()));
    }
    match fs::read_to_string(&path) {
        Ok(published) if published == text => Ok(()),
        _ => Err(format!("{} is not the schema of {command}: UPDATE_SCHEMAS=1 writes it", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, JsonSchema)]
    struct Found {
        /// An amount.
        amount: f64,
        #[serde(skip_serializing_if = "Option::is_none")]
        word: Option<String>,
        version: u32,
    }

    #[test]
    fn fields_stand_beside_the_header() {
        let schema = schema::<Found>("qeval compare");
        assert_eq!(schema["title"], "qeval compare --json");
        assert_eq!(schema["properties"]["amount"]["type"], json!(["number", "null"]));
        assert_eq!(schema["properties"]["amount"]["description"], "An amount.");
        let required = schema["required"].as_array().expect("listed");
        assert!(required.contains(&json!("provenance")) && !required.contains(&json!("word")), "{required:?}");
        assert_eq!(required.iter().filter(|name| **name == "version").count(), 1);
    }
}
