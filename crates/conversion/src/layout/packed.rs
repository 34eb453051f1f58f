//! Our own layout (ARCHITECTURE.md, "The packed layout"): every scheme but ggml's own.

use super::{Laid, Layout, NoFit, OutTensor, Request};
use crate::encode::{CodeLayout, Encoding};
use schemes::{Bits, FloatType, Grouping, Packing, Scheme, nf4, outlier};
use serde_json::{Value, json};
use store::DType;

/// Lays a weight out.
pub(super) fn lay(r: &Request<'_>) -> Result<Laid, NoFit> {
    let laid = |encoding, tensors, entry| Ok(Laid { layout: Layout::Packed, encoding, tensors, entry: Some(entry) });
    let mut entry = json!({"scheme": r.scheme.to_string(), "shape": [r.rows, r.cols]});
    if let Some((bits, grouping)) = r.scheme.int() {
        let (encoding, tensors) = ints(r, bits, grouping, &mut entry);
        activation(r, &mut entry);
        return laid(encoding, tensors, entry);
    }
    let codes = || OutTensor::stream(format!("{}.codes", r.name), DType::I8, vec![(r.rows * r.cols).div_ceil(2)], 0);
    let blocks = (r.rows * r.cols).div_ceil(nf4::BLOCK);
    match r.scheme {
        Scheme::Nf4 { double_quant: false } => {
            set(&mut entry, &[("kind", json!("nf4")), ("block", json!(nf4::BLOCK))]);
            let absmax = OutTensor::stream(format!("{}.absmax", r.name), r.scale.into(), vec![blocks], 1);
            laid(Encoding::Nf4(r.scale), vec![codes(), absmax], entry)
        }
        Scheme::Nf4 { double_quant: true } => {
            set(&mut entry, &[("kind", json!("nf4-dq")), ("block", json!(nf4::BLOCK))]);
            let name = |suffix: &str| format!("{}.{suffix}", r.name);
            let map: Vec<u8> = nf4::dynamic_map().iter().flat_map(|v| v.to_le_bytes()).collect();
            let tensors = vec![
                codes(),
                OutTensor::stream(name("absmax_codes"), DType::I8, vec![blocks], 1),
                OutTensor::stream(name("nested_absmax"), DType::F32, vec![blocks.div_ceil(nf4::NESTED_BLOCK)], 2),
                OutTensor::constant(name("nested_map"), DType::F32, vec![256], map),
                OutTensor::stream(name("nested_offset"), DType::F32, vec![1], 3),
            ];
            laid(Encoding::Nf4Nested(None), tensors, entry)
        }
        Scheme::Int8Outlier => {
            set(&mut entry, &[("kind", json!("outlier")), ("threshold", json!(outlier::THRESHOLD))]);
            activation(r, &mut entry);
            let (encoding, tensors) = outliers(r);
            laid(encoding, tensors, entry)
        }
        _ => Err(NoFit {
            why: format!("the packed layout does not hold {}", r.scheme),
            instead: "choose another layout".into(),
        }),
    }
}

fn ints(r: &Request<'_>, bits: Bits, grouping: Grouping, entry: &mut Value) -> (Encoding, Vec<OutTensor>) {
    let (packing, word) = match bits {
        Bits::Eight => (Packing::I8, "i8"),
        Bits::Four => (Packing::Nibble, "nibble"),
    };
    let (group, scales) = match grouping {
        Grouping::Tensor => (-1, vec![1]),
        Grouping::Row => (0, vec![r.rows, 1]),
        Grouping::Group(n) => (n as i64, vec![r.rows, grouping.per_row(r.cols)]),
    };
    set(entry, &[("kind", json!("int")), ("packing", json!(word)), ("group", json!(group))]);
    let row_bytes = packing.row_bytes(r.cols);
    let layout = CodeLayout::Rows { packing, row_bytes };
    let tensors = vec![
        OutTensor::stream(format!("{}.codes", r.name), DType::I8, vec![r.rows, row_bytes], 0),
        OutTensor::stream(format!("{}.scales", r.name), r.scale.into(), scales, 1),
    ];
    (Encoding::Int { bits, grouping, scale: r.scale, layout, repeat: false }, tensors)
}

fn outliers(r: &Request<'_>) -> (Encoding, Vec<OutTensor>) {
    let n = r.outlier_columns.len();
    let mut tensors = vec![
        OutTensor::stream(format!("{}.codes", r.name), DType::I8, vec![r.rows, r.cols - n], 0),
        OutTensor::stream(format!("{}.scales", r.name), r.scale.into(), vec![r.rows, 1], 1),
    ];
    if n > 0 {
        let columns = r.outlier_columns.iter().flat_map(|c| c.to_le_bytes()).collect();
        tensors.push(OutTensor::constant(format!("{}.outlier_columns", r.name), DType::I32, vec![n], columns));
        tensors.push(OutTensor::stream(format!("{}.outliers", r.name), FloatType::F16.into(), vec![r.rows, n], 2));
    }
    (Encoding::Outlier { columns: r.outlier_columns.to_vec(), scale: r.scale }, tensors)
}

fn activation(r: &Request<'_>, entry: &mut Value) {
    let word = match r.scheme {
        Scheme::W8A8Token | Scheme::Int8Outlier => "int8-token",
        Scheme::W8A8Tensor => "int8-tensor",
        Scheme::W8A8Static => "int8-static",
        _ => return,
    };
    set(entry, &[("activation", json!(word))]);
    if let (Scheme::W8A8Static, Some(scale)) = (r.scheme, r.activation_scale) {
        set(entry, &[("activation_scale", json!(scale))]);
    }
}

fn set(entry: &mut Value, fields: &[(&str, Value)]) {
    for (key, value) in fields {
        entry[*key] = value.clone();
    }
}
