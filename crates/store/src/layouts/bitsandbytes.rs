//! bitsandbytes: NF4 and FP4 with plain or double-quantized scales, and LLM.int8's codes.
//!
//! FP4 has the layout of NF4 and other levels, which the file carries.

use super::{Described, Site, json_shape, table};
use crate::{DType, Result, json::said};
use schemes::{Grouping, IntStorage, Nf4Absmax, Nf4Storage, Packing, ScaleArray, ScaleUse, Storage, nf4::NESTED_BLOCK};
use serde_json::{Map, Value};

/// The tensor with the JSON that describes NF4 codes.
pub(super) const NF4_STATE: &str = ".weight.quant_state.bitsandbytes__nf4";

/// Suffix of the tensor that holds the state of an FP4 weight.
pub(super) const FP4_STATE: &str = ".weight.quant_state.bitsandbytes__fp4";

/// The longest state that is read.
const MAX_STATE: usize = 1 << 16;

fn shape_of(site: Site<'_>, state: &Map<String, Value>) -> Result<(usize, usize)> {
    json_shape(state.get("shape")).ok_or_else(|| site.bad(state_of(site), "shape is not two sizes"))
}

/// The tensor that describes the codes.
fn state_of(site: Site<'_>) -> &'static str {
    if site.tensor(FP4_STATE).is_some() { FP4_STATE } else { NF4_STATE }
}

fn state(site: Site<'_>) -> Result<Map<String, Value>> {
    let name = state_of(site);
    let data = &site.typed(name, &[DType::U8])?.data;
    if data.len() > MAX_STATE {
        return Err(site.bad(name, format!("{} bytes are too many", data.len())));
    }
    let state: Map<String, Value> =
        serde_json::from_slice(data).map_err(|e| site.bad(name, format!("is not a JSON object: {e}")))?;
    let kind = if name == FP4_STATE { "fp4" } else { "nf4" };
    match state.get("quant_type").and_then(Value::as_str) {
        Some(found) if found == kind => Ok(state),
        _ => Err(site.bad(name, format!("{} is not {kind}", said("quant_type", state.get("quant_type"))))),
    }
}

/// NF4 or FP4.
pub(super) fn four_bit(site: Site<'_>) -> Result<Described> {
    let mut used = vec![".weight", state_of(site), ".weight.quant_map", ".weight.absmax"];
    let (name, state) = (state_of(site), state(site)?);
    let shape = shape_of(site, &state)?;
    let block = state.get("blocksize").and_then(Value::as_u64).filter(|b| (1..=1 << 20).contains(b));
    let block = block.ok_or_else(|| site.bad(name, "blocksize is not a positive size"))? as usize;
    let levels: [f32; 16] = table(site, ".weight.quant_map")?;
    let absmax = match site.typed(".weight.absmax", &[DType::F32, DType::U8])? {
        plain if plain.dtype == DType::F32 => Nf4Absmax::Plain(ScaleArray {
            ty: schemes::FloatType::F32,
            usage: ScaleUse::Multiply,
            data: plain.data.clone(),
        }),
        nested => {
            let number = |key: &str| state.get(key).and_then(Value::as_f64);
            if number("nested_blocksize") != Some(NESTED_BLOCK as f64) {
                return Err(site.bad(name, format!("nested_blocksize must be {NESTED_BLOCK}")));
            }
            let offset = number("nested_offset").map(|o| o as f32).filter(|o| o.is_finite());
            used.extend([".weight.nested_quant_map", ".weight.nested_absmax"]);
            Nf4Absmax::Nested {
                codes: nested.data.clone(),
                map: Box::new(table(site, ".weight.nested_quant_map")?),
                nested: site.typed(".weight.nested_absmax", &[DType::F32])?.data.clone(),
                offset: offset.ok_or_else(|| site.bad(name, "nested_offset is not a number"))?,
            }
        }
    };
    // The codes may be stored as bytes of any type (`bnb_4bit_quant_storage`).
    let weight = site.need(".weight")?;
    let storage = Nf4Storage { codes: weight.data.clone(), block, absmax, levels };
    Ok(Described::views(site.matrix(".weight", shape, Storage::Nf4(storage), weight.order)?, used))
}

/// LLM.int8.
pub(super) fn int8(site: Site<'_>) -> Result<Described> {
    let weight = site.typed(".weight", &[DType::I8])?;
    if let Some(format) = site.tensor(".weight_format")
        && format.data.iter().any(|b| *b != 0)
    {
        return Err(site.bad(".weight_format", "only format 0 (row-major) is supported"));
    }
    site.typed(".SCB", &[DType::F32])?;
    let shape = site.sides(".weight")?;
    let storage = IntStorage {
        packing: Packing::I8,
        row_bytes: shape.1,
        codes: weight.data.clone(),
        grouping: Grouping::Row,
        scales: site.scales(".SCB", ScaleUse::Absmax127)?,
    };
    let matrix = site.matrix(".weight", shape, Storage::Int(storage), weight.order)?;
    Ok(Described::views(matrix, [".weight", ".SCB", ".weight_format"]))
}
