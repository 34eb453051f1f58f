//! Which scheme each linear layer has, as the artifact says or its layout implies.

use super::{linear, packed};
use crate::{Linear, Model};
use indexmap::{IndexMap, IndexSet};
use schemes::{Activation, Grouping, Nf4Absmax, Scheme, Storage};

/// The metadata key for layouts that name no scheme.
const KEY: &str = "qconvert.tensor_schemes";

/// Endings of the one tensor that every weight of a layout has.
const ENDINGS: [&str; 4] = [".weight.codes", ".weight_packed", ".qweight", ".weight"];

pub(crate) fn declared_schemes(model: &Model) -> IndexMap<String, String> {
    let text = model.metadata.get(KEY).map_or("{}", String::as_str);
    let mut said: IndexMap<String, String> = serde_json::from_str(text).unwrap_or_default();
    said.extend(packed::schemes(model));

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
        let word = said.get(&stored).or_else(|| said.get(&format!("{module}.weight")));
        let scheme = word.cloned().unwrap_or_else(|| match linear(model, module) {
            Ok(layer) => implied(&layer),
            Err(_) => "unknown".into(),
        });
        out.insert(module.to_string(), scheme);
    }
    out
}

/// The scheme that decodes as the layer does.
fn implied(layer: &Linear) -> String {
    let scheme = match layer.matrix.storage() {
        Storage::Float(ty, _) => Scheme::Float(*ty),
        Storage::Ggml(ty, _) => return ty.to_string(),
        Storage::Int(int) => match (int.packing.bits(), int.grouping, layer.activation) {
            (bits, grouping, Activation::Float) => Scheme::Int(bits, grouping),
            (_, Grouping::Row, Activation::Int8Token) => Scheme::W8A8Token,
            (_, Grouping::Row, Activation::Int8Tensor) => Scheme::W8A8Tensor,
            (_, Grouping::Row, Activation::Int8Static(_)) => Scheme::W8A8Static,
            (bits, grouping, activation) => {
                let kind = match activation {
                    Activation::Int8Static(_) => "static",
                    Activation::Int8Tensor => "tensor",
                    _ => "token",
                };
                return format!("{} with int8 activations by {kind}", Scheme::Int(bits, grouping));
            }
        },
        Storage::Affine(a) => {
            let ordered = if a.groups.is_some() { ", activation order" } else { "" };
            return format!("{} with zero points{ordered}", Scheme::Int(a.int.packing.bits(), a.int.grouping));
        }
        Storage::Float8(_) => return "fp8-e4m3".into(),
        // Sign and magnitude, as the levels of a float are; those of NF4 ascend.
        Storage::Nf4(n) if (0..8).all(|i| n.levels[i + 8] == -n.levels[i]) => return "fp4".into(),
        Storage::Nf4(n) => Scheme::Nf4 { double_quant: matches!(n.absmax, Nf4Absmax::Nested { .. }) },
        Storage::Outlier(_) => Scheme::Int8Outlier,
    };
    scheme.to_string()
}
