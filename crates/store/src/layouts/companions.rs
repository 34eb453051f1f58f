//! Tensors that stand beside a module's weight: scales that other tools add under names of their own.
//!
//! Every tensor under the name of a module with quantized weights must be one that the description reads, or be known
//! to be needless here. Any other may change the weights, so the module is refused by that tensor's name.

use super::{Codes, Layout, Scaling, Site};
use crate::{Container, Result, json::shown};
use schemes::Activation;

/// Factors of the columns: ModelOpt multiplies a layer's inputs by them before the product.
const PRE_QUANT: &str = ".pre_quant_scale";

/// The factor of all weights of a GGUF tensor (llama.cpp multiplies the product with it).
const GGUF_SCALE: &str = ".scale";

/// Scales that engines round activations, keys and values with. The weights don't depend on them.
const OF_ACTIVATIONS: [&str; 7] =
    [".input_scale", ".scale_input", ".input_global_scale", ".output_scale", ".q_scale", ".k_scale", ".v_scale"];

/// Suffixes of refused tensors, with the reason.
const REFUSED: [(&str, &str); 5] = [
    (
        ".weight_scale_2",
        "is the second scale of ModelOpt's NVFP4 or MXFP4 weights, which are not supported in safetensors",
    ),
    (".weight_global_scale", "is the second scale of compressed-tensors' NVFP4 weights, which are not supported"),
    (".comfy_quant", "describes ComfyUI's mixed quantization, which is not supported"),
    (".input_zero_point", "is the zero point of activations, which is not supported"),
    (".weight", "is a second weight of a module that has one in another layout"),
];

/// Refuses what is known to mean a layout that isn't supported.
pub(super) fn check_known(site: Site<'_>) -> Result<()> {
    match REFUSED.iter().find(|(suffix, _)| *suffix != ".weight" && site.tensor(suffix).is_some()) {
        Some((suffix, why)) => Err(site.bad(suffix, *why)),
        None => Ok(()),
    }
}

/// The factors beside those of the form itself.
pub(super) fn scaling(site: Site<'_>, cols: usize, activation: Activation) -> Result<(Scaling, Vec<&'static str>)> {
    let (mut scaling, mut used) = (Scaling::default(), Vec::new());
    // llama.cpp reads it of linear layers in blocks only.
    if site.model().container == Container::Gguf
        && site.module.starts_with("model.layers.")
        && let Some(tensor) = site.tensor(GGUF_SCALE)
    {
        match super::dense(tensor)?[..] {
            [factor] if factor.is_finite() => scaling.factor = Some(factor),
            _ => return Err(site.bad(GGUF_SCALE, format!("shape {:?} is not one finite number", tensor.shape))),
        }
        used.push(GGUF_SCALE);
    }
    if let Some(tensor) = site.tensor(PRE_QUANT) {
        let factors = super::dense(tensor)?;
        if factors.len() != cols || factors.iter().any(|f| !f.is_finite()) {
            let what = format!("{} factors, which must be finite, for {cols} columns", factors.len());
            return Err(site.bad(PRE_QUANT, what));
        }
        if activation != Activation::Float {
            return Err(site.bad(PRE_QUANT, "beside rounded activations is not supported"));
        }
        scaling.columns = Some(factors);
        used.push(PRE_QUANT);
    }
    Ok((scaling, used))
}

/// The tensors under the module's name that `used` doesn't have, all of them needless; an error for any other.
pub(super) fn unneeded(site: Site<'_>, layout: Layout, codes: Codes, used: &[&str]) -> Result<Vec<String>> {
    let mut unneeded = Vec::new();
    for suffix in site.companions().into_iter().filter(|s| !used.contains(s)) {
        if OF_ACTIVATIONS.contains(&suffix) {
            unneeded.push(format!("{}{suffix}", site.module));
        } else if let Some(why) = reason(suffix, layout, codes) {
            return Err(site.bad(suffix, why));
        }
    }
    Ok(unneeded)
}

/// Returns whether a tensor is a scale that engines round activations with.
pub(super) fn is_of_activations(name: &str) -> bool {
    OF_ACTIVATIONS.iter().any(|suffix| name.ends_with(suffix))
}

/// The reason that a tensor is refused; none for what merely has a name below that of a module of floats.
fn reason(suffix: &str, layout: Layout, codes: Codes) -> Option<String> {
    let quantized = !matches!(codes, Codes::Float(_)) || layout != Layout::Plain;
    // A scale beside floats means that they are no plain floats.
    let last = suffix.rsplit('.').next().unwrap_or_default();
    let scales = suffix.matches('.').count() == 1 && last.contains("scale");
    if !(quantized || scales) {
        return None;
    }
    let known = REFUSED.iter().find(|(name, _)| *name == suffix).map(|(_, why)| why.to_string());
    Some(known.unwrap_or_else(|| {
        let kind = if quantized { "quantized weights" } else { "weights" };
        format!("stands beside {kind} that may depend on it, and {} is not known here", shown(last))
    }))
}
