//! 8-bit floats with scales: compressed-tensors `float-quantized`, and the blocks of DeepSeek's
//! and transformers' `fp8` checkpoints.
//!
//! `P.weight` is F8_E4M3 [O, I]; its scales are `P.weight_scale` ([1], [O, 1], or one for each
//! block) or `P.weight_scale_inv` (blocks; in spite of its name it multiplies).

use super::{Site, quantization};
use crate::{Bytes, DType, Error, Model, Result};
use schemes::{Float8Storage, FloatType, Matrix, ScaleArray, ScaleUse, Storage};
use serde_json::Value;

const SCALE: &str = ".weight_scale";
const SCALE_INV: &str = ".weight_scale_inv";

/// The matrix of a module; without scales, and a method in config.json that has them, the codes are the weights.
pub(super) fn matrix(site: Site<'_>) -> Result<Matrix<Bytes>> {
    let weight = site.typed(".weight", &[DType::F8E4M3])?;
    let shape = site.sides(".weight")?;
    let suffix = [SCALE_INV, SCALE].into_iter().find(|s| site.tensor(s).is_some());
    let (scales, block) = match suffix {
        // A method that has scales wrote them.
        None if quantization(site.model).is_some() => return Err(site.bad(SCALE, "is missing")),
        None => {
            let one = Bytes::from(1f32.to_le_bytes().to_vec());
            (ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: one }, whole())
        }
        Some(suffix) => (site.scales(suffix, ScaleUse::Multiply)?, block(site, suffix, shape)?),
    };
    let storage = Float8Storage { codes: weight.data.clone(), block, scales };
    site.matrix(".weight", shape, Storage::Float8(storage), weight.order)
}

/// One block for any matrix.
fn whole() -> (usize, usize) {
    (usize::MAX, usize::MAX)
}

fn block(site: Site<'_>, suffix: &str, (rows, cols): (usize, usize)) -> Result<(usize, usize)> {
    let found = &site.need(suffix)?.shape;
    let said = said_block(site.model)?;
    match (&found[..], said) {
        ([] | [1] | [1, 1], None) => Ok(whole()),
        ([n] | [n, 1], None) if *n == rows => Ok((1, usize::MAX)),
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
