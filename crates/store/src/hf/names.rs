//! Tensor names of checkpoints that were saved from the base model.

use crate::{Error, Result, Tensor};
use indexmap::IndexMap;
use serde_json::Value;

/// Families whose language model has its base model under `model`.
const FAMILIES: [&str; 4] = ["llama", "mistral", "qwen2", "qwen3"];

/// Modules of the base model.
const MODULES: [&str; 3] = ["embed_tokens.", "layers.", "norm."];

/// Puts the prefix `model.` before names of the base model's modules, and takes it from lm_head's, as transformers
/// does when it loads a language model. Gives a note where it did.
///
/// # Errors
/// When a name stands there both with and without the prefix.
pub(super) fn add_prefix(tensors: &mut IndexMap<String, Tensor>, config: Option<&Value>) -> Result<Option<String>> {
    let family = config.and_then(|json| json["model_type"].as_str()).unwrap_or_default();
    if !FAMILIES.contains(&family) || tensors.keys().all(|name| renamed(name).is_none()) {
        return Ok(None);
    }
    let mut out = IndexMap::with_capacity(tensors.len());
    for (name, tensor) in std::mem::take(tensors) {
        let name = renamed(&name).unwrap_or(name);
        if let Some(other) = out.insert(name.clone(), tensor) {
            let what = "is stored both with and without the prefix 'model.'";
            return Err(Error::tensor(other.file, name, what));
        }
    }
    *tensors = out;
    Ok(Some("the names lack the prefix 'model.', as saved from the base model; they are read with it".into()))
}

/// The name in a language model; none where it is the same.
fn renamed(name: &str) -> Option<String> {
    if MODULES.iter().any(|module| name.starts_with(module)) {
        return Some(format!("model.{name}"));
    }
    name.strip_prefix("model.").filter(|rest| rest.starts_with("lm_head.")).map(str::to_string)
}

#[cfg(test)]
mod tests {
    use crate::{open, testing::*};
    use serde_json::json;

    #[test]
    fn names_of_the_base_model_get_their_prefix() {
        let bare = |name: &str| f16s(name, &[4, 8], &[1.0; 32]);
        let parts = [bare("embed_tokens.weight"), f32s("norm.weight", &[2], &[1.0, 2.0]), bare("model.lm_head.weight")];
        let dir = folder(&config(), &parts, &[]);
        let model = open(dir.path()).expect("a model");
        let mut names: Vec<_> = model.tensors.keys().map(String::as_str).collect();
        names.sort();
        assert_eq!(names, ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"]);
        assert_eq!(model.tensors["model.norm.weight"].stored_name, "norm.weight");
        assert!(model.warnings[0].contains("lack the prefix 'model.'"), "{:?}", model.warnings);
        assert_eq!(model.config().expect("a configuration").vocab_size, 4);

        let other = folder(&config_with(json!({"model_type": "gemma2"})), &parts, &[]);
        assert!(open(other.path()).expect("a model").tensors.contains_key("embed_tokens.weight"));

        let both = folder(&config(), &[bare("embed_tokens.weight"), embedding()], &[]);
        let error = open(both.path()).expect_err("refused").to_string();
        assert!(error.contains("model.embed_tokens.weight: is stored both with and without"), "{error}");
    }

    #[test]
    fn other_prefixes_are_refused() {
        let part = f16s("language_model.model.embed_tokens.weight", &[4, 8], &[1.0; 32]);
        let dir = folder(&config(), &[part], &[]);
        let error = open(dir.path()).expect("a model").config().expect_err("refused").to_string();
        assert!(error.contains("language_model.model.embed_tokens.weight is there"), "{error}");
    }
}
