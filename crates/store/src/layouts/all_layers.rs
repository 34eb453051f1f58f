//! Descriptions of all linear layers, with the schemes that the artifact declares.

use super::{Description, Gate, packed};
use crate::{Error, Model, Result};
use indexmap::{IndexMap, IndexSet};

/// The metadata key for layouts that name no scheme.
const KEY: &str = "qconvert.tensor_schemes";

/// Endings of the one tensor that every weight of a layout has.
const ENDINGS: [&str; 4] = [".weight.codes", ".weight_packed", ".qweight", ".weight"];

/// A layer: its declared scheme, and its description or why there is none.
type Layer = (Option<String>, Result<Description>);

fn all(model: &Model) -> IndexMap<String, Layer> {
    let text = model.metadata.get(KEY).map_or("{}", String::as_str);
    let mut said: IndexMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    said.extend(packed::schemes(model));

    let gate = Gate::indexed(model);
    let mut modules: IndexSet<&str> = IndexSet::new();
    let mut out = IndexMap::new();
    for (name, tensor) in &model.tensors {
        let Some((module, ending)) = ENDINGS.iter().find_map(|e| Some((name.strip_suffix(e)?, *e))) else { continue };
        // One-dimensional weights are norms.
        if tensor.shape.len() != 2 && ending != ".weight.codes" || !modules.insert(module) {
            continue;
        }
        let stored = match ending {
            ".weight.codes" => tensor.stored_name.strip_suffix(".codes").unwrap_or_default().to_string(),
            ".weight" => tensor.stored_name.clone(),
            _ => format!("{module}.weight"),
        };
        let declared = said.get(&stored).or_else(|| said.get(&format!("{module}.weight"))).cloned();
        let described = match gate.describe(module) {
            Ok(Some(d)) => Ok(Description { scheme: declared.clone().unwrap_or(d.scheme), ..d }),
            Ok(None) => Err(Error::tensor(&model.path, name, "is of no layout that is known")),
            Err(e) => Err(e),
        };
        out.insert(module.to_string(), (declared, described));
    }
    out
}

/// Descriptions of the linear layers (the embedding among them), by module.
pub(crate) fn layers(model: &Model) -> IndexMap<String, Result<Description>> {
    all(model).into_iter().map(|(module, (_, described))| (module, described)).collect()
}

/// The schemes of the linear layers, by module; "unknown" where nothing is declared and no description made.
pub(crate) fn declared_schemes(model: &Model) -> IndexMap<String, String> {
    let scheme = |(declared, described): Layer| {
        declared.or_else(|| described.ok().map(|d| d.scheme)).unwrap_or_else(|| "unknown".into())
    };
    all(model).into_iter().map(|(module, layer)| (module, scheme(layer))).collect()
}
