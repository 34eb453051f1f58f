//! compressed-tensors: `int-quantized` and `pack-quantized`, symmetric or with zero points.

use super::{Site, quantization};
use crate::{
    Bytes, DType, Error, Model, Result,
    json::{said, shown},
};
use schemes::{Activation, AffineStorage, Grouping, IntStorage, Matrix, Packing, ScaleUse, Storage};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Tensors whose presence means something that isn't understood.
const REFUSED: [(&str, &str); 2] = [
    (".input_zero_point", "zero points of activations are not supported"),
    (".weight_global_scale", "two-level float scales are not supported"),
];

/// Refuses what would change every weight if it were ignored.
pub(super) fn check_config(model: &Model, config: &Map<String, Value>) -> Result<()> {
    let refuse = |what: String| Err(Error::unsupported(&model.path, format!("compressed-tensors: {what}")));
    let present =
        |key: &str| config.get(key).is_some_and(|v| !v.is_null() && v.as_object().is_none_or(|m| !m.is_empty()));
    if present("transform_config") {
        return refuse("transform_config is not supported".into());
    }
    if let Some(format) = config.get("sparsity_config").and_then(|s| s.get("format")).and_then(Value::as_str)
        && format != "dense"
    {
        return refuse(format!("sparsity format '{}' is not supported", shown(format)));
    }
    let groups = config.get("config_groups").filter(|g| !g.is_null());
    if groups.is_some_and(|g| g.as_object().is_none_or(Map::is_empty)) {
        return refuse("config_groups has no groups, so what its weights are is not known".into());
    }
    let groups = groups.and_then(Value::as_object);
    let formats = groups.into_iter().flatten().filter_map(|(_, g)| g.get("format")).chain(config.get("format"));
    for format in formats.filter_map(Value::as_str) {
        if !matches!(
            format,
            "int-quantized" | "pack-quantized" | "float-quantized" | "naive-quantized" | "mixed-precision" | "dense"
        ) {
            return refuse(format!(
                "format '{}' is not supported; int-quantized, pack-quantized and float-quantized are",
                shown(format)
            ));
        }
    }
    Ok(())
}

/// Rows and columns, from `weight_shape`.
pub(super) fn packed_shape(site: Site<'_>) -> Result<(usize, usize)> {
    let suffix = ".weight_shape";
    let tensor = site.typed(suffix, &[DType::I64, DType::I32])?;
    let width = tensor.dtype.size().unwrap_or(8);
    let side = |b: &[u8]| {
        let mut le = [0u8; 8];
        le[..width].copy_from_slice(b);
        let n = u64::from_le_bytes(le);
        usize::try_from(n).ok().filter(|_| n <= super::MAX_SIDE)
    };
    match tensor.data.chunks_exact(width).map(side).collect::<Option<Vec<_>>>().as_deref() {
        Some(&[rows, cols]) => Ok((rows, cols)),
        _ => Err(site.bad(suffix, "does not hold two sizes")),
    }
}

/// `weight_packed`: offset codes in 32-bit words.
pub(super) fn pack_quantized(site: Site<'_>) -> Result<(Matrix<Bytes>, Activation)> {
    let group = Group::of(site)?;
    let codes = site.typed(".weight_packed", &[DType::I32])?;
    let shape = packed_shape(site)?;
    let (rows, words) = site.sides(".weight_packed")?;
    let bits = match group.bits()? {
        Some(bits) => bits,
        None if words == shape.1.div_ceil(8) => 4,
        None => 8,
    };
    let (packing, per_word) = match bits {
        4 => (Packing::Nibble, 8),
        8 => (Packing::Offset8, 4),
        n => return Err(site.bad(".weight_packed", format!("{n} bits are not supported; 4 and 8 are"))),
    };
    if rows != shape.0 || words != shape.1.div_ceil(per_word) {
        let what = format!("[{rows}, {words}] words do not hold {} x {} codes of {bits} bits", shape.0, shape.1);
        return Err(site.bad(".weight_packed", what));
    }
    let row_bytes = 4 * words;
    let matrix = group.matrix(".weight_packed", shape, packing, row_bytes, codes.data.clone())?;
    Ok((matrix, group.activation()?))
}

/// An I8 `weight` with `weight_scale`.
pub(super) fn int_quantized(site: Site<'_>) -> Result<(Matrix<Bytes>, Activation)> {
    let group = Group::of(site)?;
    let weight = site.need(".weight")?;
    if weight.dtype != DType::I8 {
        let what = format!("scaled weights of type {} are not supported; I8 is", weight.dtype);
        return Err(site.bad(".weight", what));
    }
    site.need(".weight_scale")?;
    let shape = site.sides(".weight")?;
    let matrix = group.matrix(".weight", shape, Packing::I8, shape.1, weight.data.clone())?;
    Ok((matrix, group.activation()?))
}

/// The quantization arguments that hold for a module.
struct Group<'a> {
    site: Site<'a>,
    /// The group of config.json; none where nothing is said.
    json: Option<&'a Map<String, Value>>,
}

impl<'a> Group<'a> {
    fn of(site: Site<'a>) -> Result<Self> {
        for (suffix, why) in REFUSED {
            if site.tensor(suffix).is_some() {
                return Err(site.bad(suffix, why));
            }
        }
        let groups = quantization(site.model).and_then(|c| c.get("config_groups")).and_then(Value::as_object);
        let json = match groups {
            None => None,
            Some(groups) if groups.len() == 1 => groups.values().next().and_then(Value::as_object),
            Some(groups) => Self::choose(site, groups)?,
        };
        let group = Group { site, json };
        group.check_weights()?;
        Ok(group)
    }

    /// Of several groups, the one that names the module or its pattern, else that of all linear
    /// layers.
    fn choose(site: Site<'a>, groups: &'a Map<String, Value>) -> Result<Option<&'a Map<String, Value>>> {
        let mut general = None;
        for group in groups.values().filter_map(Value::as_object) {
            let targets = group.get("targets").and_then(Value::as_array);
            for target in targets.into_iter().flatten().filter_map(Value::as_str) {
                if target == "Linear" {
                    general = general.or(Some(group));
                } else if names(site, target)? {
                    return Ok(Some(group));
                }
            }
        }
        Ok(general)
    }

    fn weights(&self) -> Option<&'a Map<String, Value>> {
        self.json?.get("weights")?.as_object()
    }

    fn unsupported(&self, what: impl Into<Cow<'static, str>>) -> Error {
        let what = what.into();
        Error::unsupported(&self.site.model.path, format!("module {}: {what}", shown(self.site.module)))
    }

    fn check_weights(&self) -> Result<()> {
        let Some(weights) = self.weights() else { return Ok(()) };
        let text = |key: &str| weights.get(key).and_then(Value::as_str);
        if let Some(ty) = text("type").filter(|t| *t != "int") {
            return Err(self.unsupported(format!("weights of type '{}' are not supported; int is", shown(ty))));
        }
        match text("strategy") {
            None | Some("tensor" | "channel" | "group") => Ok(()),
            Some(s) => Err(self.unsupported(format!(
                "strategy '{}' of weights is not supported; tensor, channel and group are",
                shown(s)
            ))),
        }
    }

    fn bits(&self) -> Result<Option<u64>> {
        match self.weights().and_then(|w| w.get("num_bits")) {
            None => Ok(None),
            Some(bits) => bits.as_u64().map(Some).ok_or_else(|| self.unsupported("num_bits is not a number")),
        }
    }

    /// The matrix over `codes`, its grouping told by the shape of `weight_scale`.
    fn matrix(
        &self,
        suffix: &str,
        shape: (usize, usize),
        packing: Packing,
        row_bytes: usize,
        codes: Bytes,
    ) -> Result<Matrix<Bytes>> {
        let site = self.site;
        let scale = site.need(".weight_scale")?;
        let grouping = match scale.shape[..] {
            [] => Grouping::Tensor,
            [1] | [1, 1] if shape.0 != 1 => Grouping::Tensor,
            [_] | [_, 1] => Grouping::Row,
            [_, n] => self.grouping(shape.1, n)?,
            _ => return Err(site.bad(".weight_scale", format!("shape {:?} is not understood", scale.shape))),
        };
        let scales = site.scales(".weight_scale", ScaleUse::Multiply)?;
        let int = IntStorage { packing, row_bytes, codes, grouping, scales };
        let zeros = self.zeros(packing, grouping, shape)?;
        let groups = self.order(shape.1)?;
        let storage = if zeros.is_none() && groups.is_none() {
            Storage::Int(int)
        } else {
            let zeros = zeros.unwrap_or_else(|| vec![0; grouping.count(shape.0, shape.1)]);
            Storage::Affine(AffineStorage { int, zeros, groups })
        };
        let order = site.need(suffix)?.order;
        site.matrix(suffix, shape, storage, order)
    }

    /// Zero points: I8 beside I8 codes, else packed along the rows like the codes along the columns.
    fn zeros(&self, packing: Packing, grouping: Grouping, (rows, cols): (usize, usize)) -> Result<Option<Vec<i16>>> {
        let suffix = ".weight_zero_point";
        let Some(tensor) = self.site.tensor(suffix) else {
            let asymmetric = self.weights().and_then(|w| w.get("symmetric")).and_then(Value::as_bool) == Some(false);
            return if asymmetric { self.site.need(suffix).map(|_| None) } else { Ok(None) };
        };
        let count = grouping.count(rows, cols);
        if tensor.dtype == DType::I8 {
            if tensor.data.len() != count {
                return Err(self.site.bad(suffix, format!("{} zero points for {count} scales", tensor.data.len())));
            }
            return Ok(Some(tensor.data.iter().map(|b| i16::from(*b as i8)).collect()));
        }
        let data = &self.site.typed(suffix, &[DType::I32])?.data;
        let bits = packing.bits().width() as usize;
        let across = count / rows.max(1);
        let per_word = 32 / bits;
        if data.len() != 4 * rows.div_ceil(per_word) * across {
            return Err(self.site.bad(suffix, format!("{:?} words for {rows} x {across} zero points", tensor.shape)));
        }
        let zero = |i: usize| {
            let (row, group) = (i / across, i % across);
            let at = 4 * (row / per_word * across + group);
            let word = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
            let code = word >> (bits * (row % per_word)) & ((1 << bits) - 1);
            code as i16 - (1 << (bits - 1))
        };
        Ok(Some((0..count).map(zero).collect()))
    }

    /// The group of each column, where a file has it (older versions, `actorder: group`).
    fn order(&self, cols: usize) -> Result<Option<Vec<u32>>> {
        let suffix = ".weight_g_idx";
        if self.site.tensor(suffix).is_none() {
            return Ok(None);
        }
        let data = &self.site.typed(suffix, &[DType::I32])?.data;
        let groups: Vec<i32> = data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        // All -1: it was never set.
        if groups.iter().all(|g| *g == -1) {
            return Ok(None);
        }
        let groups: Result<Vec<u32>, _> = groups.into_iter().map(u32::try_from).collect();
        match groups {
            Ok(groups) if groups.len() == cols => Ok(Some(groups)),
            _ => Err(self.site.bad(suffix, format!("does not hold a group for each of {cols} columns"))),
        }
    }

    /// The group size for `n` scales a row.
    fn grouping(&self, cols: usize, n: usize) -> Result<Grouping> {
        let group_size = self.weights().and_then(|w| w.get("group_size"));
        let size = match group_size.and_then(Value::as_u64) {
            Some(size) => usize::try_from(size).ok(),
            None => cols.is_multiple_of(n.max(1)).then(|| cols / n.max(1)),
        };
        match size.filter(|s| *s > 0 && cols.div_ceil(*s) == n) {
            Some(size) => Ok(Grouping::Group(size)),
            None => Err(self.site.bad(
                ".weight_scale",
                format!("{n} scales a row do not suit {cols} columns and {}", said("group_size", group_size)),
            )),
        }
    }

    fn activation(&self) -> Result<Activation> {
        let Some(input) = self.json.and_then(|g| g.get("input_activations")).filter(|v| !v.is_null()) else {
            return Ok(Activation::Float);
        };
        let text = |key: &str| input.get(key).and_then(Value::as_str);
        let int8 = input.get("num_bits").and_then(Value::as_u64) == Some(8) && text("type").is_none_or(|t| t == "int");
        let symmetric = input.get("symmetric").and_then(Value::as_bool) != Some(false);
        if !int8 || !symmetric {
            return Err(self.unsupported("activations other than symmetric int8 are not supported"));
        }
        let dynamic = input.get("dynamic").and_then(Value::as_bool).unwrap_or(false);
        match (text("strategy"), dynamic) {
            (Some("token"), true) => Ok(Activation::Int8Token),
            (Some("tensor"), true) => Ok(Activation::Int8Tensor),
            (Some("tensor"), false) => self.static_scale().map(Activation::Int8Static),
            _ => Err(self.unsupported(format!(
                "activations with {} (dynamic: {dynamic}) are not supported; dynamic token and tensor, and static \
                 tensor are",
                said("strategy", input.get("strategy"))
            ))),
        }
    }

    fn static_scale(&self) -> Result<f32> {
        let suffix = ".input_scale";
        match super::dense(self.site.need(suffix)?)?[..] {
            [scale] if scale > 0.0 && scale.is_finite() => Ok(scale),
            _ => Err(self.site.bad(suffix, "is not one positive number")),
        }
    }
}

/// Whether a target of a group (a module's name, or `re:` and a pattern of names) means the module.
fn names(site: Site<'_>, target: &str) -> Result<bool> {
    let Some(pattern) = target.strip_prefix("re:") else {
        return Ok(target == site.module);
    };
    // The library matches at the start of the name.
    let regex = regex::Regex::new(&format!("^(?:{pattern})")).map_err(|_| {
        Error::unsupported(&site.model.path, format!("the target pattern '{}' is not understood", shown(pattern)))
    })?;
    Ok(regex.is_match(site.module))
}
