//! 8-bit floats with scales: compressed-tensors `float-quantized`, the blocks of DeepSeek's and transformers' `fp8`
//! checkpoints, and ComfyUI's scaled weights.
//!
//! `P.weight` is F8_E4M3 [O, I]. One of [`SCALES`] holds its scales; all of them multiply, `weight_scale_inv` in spite
//! of its name.

use super::{Described, Site, quantization};
use crate::{Bytes, DType, Error, Model, Result};
use schemes::{Float8Storage, FloatType, ScaleArray, ScaleUse, Storage};
use serde_json::Value;

/// Names of the scales: transformers' `fp8`, compressed-tensors, ComfyUI, DeepSeek's own checkpoints.
const SCALES: [&str; 4] = [".weight_scale_inv", ".weight_scale", ".scale_weight", ".scale"];

/// The name in DeepSeek's own checkpoints, whose configuration need not say the size of the blocks.
const DEEPSEEK: &str = ".scale";

/// The size of DeepSeek's blocks.
const DEEPSEEK_BLOCK: usize = 128;

/// Describes a module. Weights without scales are refused unless config.json says that all weights are plain floats of
/// this type.
pub(super) fn describe(site: Site<'_>) -> Result<Described> {
    let weight = site.typed(".weight", &[DType::F8E4M3])?;
    let shape = site.sides(".weight")?;
    let suffix = SCALES.into_iter().find(|s| site.tensor(s).is_some());
    let (scales, block) = match suffix {
        None if !is_plain_type(site.model()) => {
            let what = "has no scale: weights of type F8_E4M3 need a weight_scale, weight_scale_inv, scale_weight or scale \
                        beside them, or a config.json whose dtype is float8_e4m3fn";
            return Err(site.bad(".weight", what));
        }
        None => {
            let one = Bytes::from(1f32.to_le_bytes().to_vec());
            (ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: one }, whole())
        }
        Some(suffix) => (site.scales(suffix, ScaleUse::Multiply)?, block(site, suffix, shape)?),
    };
    let storage = Float8Storage { codes: weight.data.clone(), block, scales };
    let matrix = site.matrix(".weight", shape, Storage::Float8(storage), weight.order)?;
    Ok(Described::views(matrix, [".weight"].into_iter().chain(suffix)))
}

/// Returns whether config.json says that the weights are 8-bit floats as they stand.
fn is_plain_type(model: &Model) -> bool {
    let Some(json) = model.config_json.as_ref().filter(|_| quantization(model).is_none()) else { return false };
    let said = |key: &str| json.get(key).and_then(Value::as_str) == Some("float8_e4m3fn");
    said("torch_dtype") || said("dtype")
}

/// One block for any matrix.
fn whole() -> (usize, usize) {
    (usize::MAX, usize::MAX)
}

fn block(site: Site<'_>, suffix: &str, (rows, cols): (usize, usize)) -> Result<(usize, usize)> {
    let found = &site.need(suffix)?.shape;
    let said = said_block(site.model())?;
    match (&found[..], said) {
        ([] | [1] | [1, 1], None) => Ok(whole()),
        ([n] | [n, 1], None) if *n == rows => Ok((1, usize::MAX)),
        (&[down, across], None)
            if suffix == DEEPSEEK
                && (down, across) == (rows.div_ceil(DEEPSEEK_BLOCK), cols.div_ceil(DEEPSEEK_BLOCK)) =>
        {
            Ok((DEEPSEEK_BLOCK, DEEPSEEK_BLOCK))
        }
        (&[down, across], Some((r, c))) if (down, across) == (rows.div_ceil(r), cols.div_ceil(c)) => Ok((r, c)),
        _ => {
            let blocks = said.map_or("no block size".into(), |(r, c)| format!("blocks of {r} x {c}"));
            Err(site.bad(suffix, format!("shape {found:?} does not suit {rows} x {cols} weights and {blocks}")))
        }
    }
}

/// The block size of config.json: `weight_block_size` of `fp8`, `block_structure` of compressed-tensors.
fn said_block(model: &Model) -> Result<Option<(usize, usize)>> {
    let Some(config) = quantization(model) else { return Ok(None) };
    let groups = config.get("config_groups").and_then(Value::as_object).into_iter().flatten();
    let mut blocks = groups.filter_map(|(_, g)| g.get("weights")?.get("block_structure")).filter(|v| !v.is_null());
    let Some(value) = config.get("weight_block_size").filter(|v| !v.is_null()).or_else(|| blocks.next()) else {
        return Ok(None);
    };
    match super::json_shape(Some(value)) {
        Some((r, c)) if r > 0 && c > 0 => Ok(Some((r, c))),
        _ => Err(Error::unsupported(&model.path, format!("the block size {value} is not two sizes"))),
    }
}
