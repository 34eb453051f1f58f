//! compressed-tensors: `pack-quantized` weight-only integers, `int-quantized` W8A8.

use super::{Laid, Layout, NoFit, OutTensor, Request};
use crate::encode::{CodeLayout, Encoding};
use schemes::{Bits, FloatType, Grouping, Packing, Scheme};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use store::DType;

/// Lays a weight out.
pub(super) fn lay(r: &Request<'_>) -> Result<Laid, NoFit> {
    let Some((bits, grouping)) = r.scheme.int() else {
        return Err(NoFit {
            why: format!("compressed-tensors does not hold {}", r.scheme),
            instead: "use --layout packed (or bitsandbytes for nf4)".into(),
        });
    };
    if let Grouping::Group(n) = grouping
        && !r.cols.is_multiple_of(n)
    {
        return Err(NoFit {
            why: format!("compressed-tensors refuses groups of {n} that do not divide {} columns", r.cols),
            instead: format!("{} fit here, or --layout packed holds {}", dividing(r, bits), r.scheme),
        });
    }
    if bits == Bits::Four && r.scale == FloatType::F32 {
        return Err(NoFit {
            why: "its scales need f32, and int4 there has f16".into(),
            instead: "--layout packed holds it".into(),
        });
    }
    let base = r.name.strip_suffix(".weight").unwrap_or(r.name);
    // A single scale is written once for each row, as strategy `channel`: exact, and vLLM
    // takes no `tensor` strategy for weight-only.
    let scales = OutTensor::stream(
        format!("{base}.weight_scale"),
        r.scale.into(),
        vec![r.rows, grouping.per_row(r.cols).max(1)],
        1,
    );
    let activations = !matches!(r.scheme, Scheme::Int(..));
    let (packing, row_bytes) = match (activations, bits) {
        (true, _) => (Packing::I8, r.cols),
        (false, Bits::Eight) => (Packing::Offset8, r.cols.next_multiple_of(4)),
        (false, Bits::Four) => (Packing::Nibble, r.cols.div_ceil(8) * 4),
    };
    let mut tensors = if activations {
        vec![OutTensor::stream(r.name.to_string(), DType::I8, vec![r.rows, r.cols], 0), scales]
    } else {
        let shape = [r.rows as i64, r.cols as i64].iter().flat_map(|d| d.to_le_bytes()).collect();
        vec![
            OutTensor::stream(format!("{base}.weight_packed"), DType::I32, vec![r.rows, row_bytes / 4], 0),
            scales,
            OutTensor::constant(format!("{base}.weight_shape"), DType::I64, vec![2], shape),
        ]
    };
    if let (Scheme::W8A8Static, Some(scale)) = (r.scheme, r.activation_scale) {
        tensors.push(OutTensor::constant(
            format!("{base}.input_scale"),
            DType::F32,
            vec![1],
            scale.to_le_bytes().to_vec(),
        ));
    }
    let layout = CodeLayout::Rows { packing, row_bytes };
    let encoding = Encoding::Int { bits, grouping, scale: r.scale, layout, repeat: grouping == Grouping::Tensor };
    Ok(Laid { layout: Layout::CompressedTensors, encoding, tensors, entry: None })
}

fn dividing(r: &Request<'_>, bits: Bits) -> String {
    let fitting: Vec<String> = [128, 64, 32]
        .into_iter()
        .filter(|n| r.cols.is_multiple_of(*n))
        .map(|n| format!("int{}-g{n}", bits.width()))
        .collect();
    if fitting.is_empty() {
        format!("int{}-row does", bits.width())
    } else {
        format!("int{}-row, {}", bits.width(), fitting.join(", "))
    }
}

/// The `quantization_config` of config.json. `modules` are the quantized modules with their
/// schemes; `ignore` the linear modules that are not quantized. `target` gives the name by which
/// a group among several targets a module.
pub fn quantization_config(modules: &[(String, Scheme)], ignore: &[String], target: impl Fn(&str) -> String) -> Value {
    let mut groups: BTreeMap<String, (Scheme, Vec<&str>)> = BTreeMap::new();
    for (module, scheme) in modules {
        groups.entry(scheme.to_string()).or_insert((*scheme, Vec::new())).1.push(module);
    }
    let uniform = groups.len() == 1;
    let mut config_groups = serde_json::Map::new();
    let mut formats = Vec::new();
    for (i, (scheme, modules)) in groups.values().enumerate() {
        let format = if matches!(scheme, Scheme::Int(..)) { "pack-quantized" } else { "int-quantized" };
        formats.push(format);
        // Of experts one pattern stands for all.
        let names: indexmap::IndexSet<String> = modules.iter().map(|m| target(m)).collect();
        let targets = if uniform { json!(["Linear"]) } else { json!(names) };
        config_groups.insert(
            format!("group_{i}"),
            json!({
                "targets": targets,
                "format": format,
                "weights": weights_args(*scheme),
                "input_activations": activation_args(*scheme),
                "output_activations": null,
            }),
        );
    }
    formats.dedup();
    let format = if let [one] = formats[..] { one } else { "mixed-precision" };
    json!({
        "quant_method": "compressed-tensors",
        "format": format,
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": config_groups,
    })
}

fn weights_args(scheme: Scheme) -> Value {
    let (bits, grouping) = scheme.int().unwrap_or((Bits::Eight, Grouping::Row));
    let mut args =
        json!({"num_bits": bits.width(), "type": "int", "symmetric": true, "strategy": "channel", "dynamic": false});
    if let Grouping::Group(n) = grouping {
        args["strategy"] = json!("group");
        args["group_size"] = json!(n);
    }
    args
}

fn activation_args(scheme: Scheme) -> Value {
    let args = |strategy: &str, dynamic: bool| json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": strategy, "dynamic": dynamic});
    match scheme {
        Scheme::W8A8Token => args("token", true),
        Scheme::W8A8Tensor => args("tensor", true),
        Scheme::W8A8Static => args("tensor", false),
        _ => Value::Null,
    }
}
