//! Checks a program's JSON against the published schema.

use assert_cmd::Command;
use serde_json::{Value, json};
use std::path::Path;

/// The model in the repository.
pub const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");

/// Runs a command in `folder` and checks its JSON against the schema named after `command`.
pub fn check(command: &str, folder: &Path, args: &[&str]) {
    let program = command.split(' ').next().unwrap_or_default();
    let out = Command::cargo_bin(program).expect("built").current_dir(folder).args(args).arg("--json").output();
    let out = out.expect("runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    assert_valid(command, &out.stdout);
}

/// Checks the JSON text that `command` (`qeval compare`) printed against its schema, with no field beyond those that it
/// lists.
fn assert_valid(command: &str, printed: &[u8]) {
    let name = format!("{}.json", command.replace(' ', "-"));
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schemas").join(name);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut schema: Value = serde_json::from_str(&text).expect("the schema is JSON");
    close(&mut schema, false);
    let result: Value = serde_json::from_slice(printed).expect("the result is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("the schema is one");
    let errors: Vec<String> =
        validator.iter_errors(&result).map(|e| format!("{}: {e:.300}", e.instance_path())).take(5).collect();
    assert!(errors.is_empty(), "{command}: {}", errors.join("\n"));
}

/// Allows no fields but those that are listed. A `part` of a schema's choice sees only some of them.
fn close(schema: &mut Value, part: bool) {
    if let Some(items) = schema.as_array_mut() {
        return items.iter_mut().for_each(|item| close(item, part));
    }
    let Some(fields) = schema.as_object_mut() else { return };
    let has_properties = fields.contains_key("properties");
    for (key, value) in fields.iter_mut() {
        let is_choice = matches!(key.as_str(), "anyOf" | "oneOf" | "allOf");
        close(value, is_choice && has_properties);
    }
    if has_properties && !part && fields.get("type").is_some_and(|ty| ty == "object") {
        fields.insert("unevaluatedProperties".into(), json!(false));
    }
}
