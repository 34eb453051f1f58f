//! Models that are put together: the tensors of some modules from an artifact, all else from the
//! reference. Nothing is copied, all tensors stay views into their files.

use crate::{Error, Result};
use conversion::{Job, Layout, Settings, Source, Target};
use observe::Calibration;
use progress::Progress;
use schemes::Scheme;
use serde_json::{Map, Value};
use std::collections::HashSet;
use store::Model;
use store::output::Transient;
use tempfile::TempDir;

/// The metadata key that describes packed weights.
const PACKED: &str = "qconvert.tensors";

/// A whole model in a scheme, in a folder of its own that goes when this does.
#[derive(Debug)]
pub struct Converted {
    /// The artifact.
    pub model: Model,
    _transient: Transient,
    _folder: TempDir,
}

impl Converted {
    /// Converts a model.
    ///
    /// # Errors
    /// What conversion says, or when there is no room for it.
    pub fn new(
        source: &Source<'_>,
        scheme: Scheme,
        calibration: Option<&Calibration>,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let io = |e| Error::io(std::env::temp_dir(), "make a folder", e);
        // Gone, too, when the program is told to stop.
        let (folder, transient) = Transient::folder("qinspect-").map_err(io)?;
        // ggml's blocks lie in GGUF, all else at its own size in the packed layout.
        let (target, layout, name) = match scheme {
            Scheme::Ggml(_) => (Target::Gguf, None, "model.gguf"),
            _ => (Target::Safetensors, Some(Layout::Packed), "model"),
        };
        let destination = folder.path().join(name);
        let settings = Settings { layout, calibration: calibration.cloned(), ..Settings::new(target) };
        let job = Job { scheme, settings, destination: destination.clone(), existing: Default::default() };
        conversion::convert(source, &[job], progress)?;
        Ok(Converted { model: store::open(&destination)?, _transient: transient, _folder: folder })
    }
}

/// The reference with the tensors of these modules from artifacts; their biases stay.
///
/// # Errors
/// When an artifact has no such module.
pub fn hybrid(reference: &Model, replaced: &[(&Model, &[String])]) -> Result<Model> {
    let mut model = reference.clone();
    let mut entries = entries(reference);
    for (artifact, modules) in replaced {
        let modules: HashSet<&str> = modules.iter().map(String::as_str).collect();
        let is_theirs = |name: &str| module_of(name, &modules).is_some();
        model.tensors.retain(|name, _| !is_theirs(name));
        let mut found = HashSet::new();
        for (name, tensor) in &artifact.tensors {
            found.extend(module_of(name, &modules));
            if is_theirs(name) {
                model.tensors.insert(name.clone(), tensor.clone());
            }
        }
        if let Some(missing) = modules.iter().find(|module| !found.contains(*module)) {
            return Err(Error::Model(format!("{}: has no {missing}", artifact.path.display())));
        }
        let of_module = |key: &String| key.strip_suffix(".weight").is_some_and(|module| modules.contains(module));
        entries.extend(self::entries(artifact).into_iter().filter(|(key, _)| of_module(key)));
    }
    if !entries.is_empty() {
        model.metadata.insert(PACKED.into(), Value::Object(entries).to_string());
    }
    Ok(model)
}

/// Returns the module that a tensor belongs to, biases aside.
fn module_of<'a>(name: &str, modules: &HashSet<&'a str>) -> Option<&'a str> {
    if name.ends_with(".bias") {
        return None;
    }
    name.rmatch_indices('.').find_map(|(at, _)| modules.get(&name[..at]).copied())
}

fn entries(model: &Model) -> Map<String, Value> {
    let text = model.metadata.get(PACKED).map_or("{}", String::as_str);
    serde_json::from_str(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn one_module_from_an_artifact() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny"));
        let model = store::open(path).expect("opens");
        let source = Source::new(&model).expect("whole");
        let module = "model.layers.1.mlp.up_proj".to_string();
        for name in ["int4-g64", "nf4-dq", "ggml-q4_0"] {
            let scheme: Scheme = name.parse().expect("a scheme");
            let artifact = Converted::new(&source, scheme, None, &progress::Silent).expect("converts");
            let mixed = hybrid(&model, &[(&artifact.model, std::slice::from_ref(&module))]).expect("is there");
            let decoded = |model: &Model, module: &str| model.linear(module).expect("linear").matrix.decode_all();
            assert_eq!(decoded(&mixed, &module), decoded(&artifact.model, &module), "{name}");
            assert_ne!(decoded(&mixed, &module), decoded(&model, &module), "{name}");
            let other = "model.layers.0.self_attn.q_proj";
            assert_eq!(decoded(&mixed, other), decoded(&model, other), "{name}");
        }
        let missing = hybrid(&model, &[(&model, &["lm_heat".to_string()])]).expect_err("no such module");
        assert!(missing.to_string().ends_with("has no lm_heat"), "{missing}");
    }
}
