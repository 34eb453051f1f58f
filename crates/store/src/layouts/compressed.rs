//! compressed-tensors: `int-quantized` and `pack-quantized`, symmetric or with zero points.

use super::{Codes, Described, Form, Site, quantization};
use crate::{
    Bytes, DType, Error, Model, Result,
    json::{said, shown},
};
use schemes::{
    Activation, AffineStorage, FloatType, Grouping, IntStorage, Matrix, Packing, RowOrder, ScaleUse, Storage,
};
use serde_json::{Map, Value};

/// The group of each column.
const G_IDX: &str = ".weight_g_idx";

/// The static scale of activations.
const INPUT_SCALE: &str = ".input_scale";

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
    let outputs = groups.into_iter().flatten().filter_map(|(_, g)| g.get("output_activations"));
    if outputs.into_iter().any(|output| !output.is_null()) {
        return refuse("output_activations are not supported: outputs of layers would have to be rounded".into());
    }
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
fn packed_shape(site: Site<'_>) -> Result<(usize, usize)> {
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
pub(super) fn pack_quantized(site: Site<'_>) -> Result<Described> {
    let group = Group::of_module(site)?;
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
    let row_bytes = words.checked_mul(4).ok_or_else(|| site.bad(".weight_packed", "its rows are too long"))?;
    group.described(&[".weight_packed", ".weight_shape"], shape, (packing, row_bytes, codes.data.clone()))
}

/// An I8 `weight` with `weight_scale`.
pub(super) fn int_quantized(site: Site<'_>) -> Result<Described> {
    let group = Group::of_module(site)?;
    let weight = site.need(".weight")?;
    if weight.dtype != DType::I8 {
        let what = format!("scaled weights of type {} are not supported; I8 is", weight.dtype);
        return Err(site.bad(".weight", what));
    }
    site.need(".weight_scale")?;
    let shape = site.sides(".weight")?;
    group.described(&[".weight"], shape, (Packing::I8, shape.1, weight.data.clone()))
}

/// Codes with zero points, or columns in an order of their own. They have been checked; zero points are still packed.
#[derive(Debug, Clone)]
pub(super) struct Affine {
    /// Rows and columns.
    pub shape: (usize, usize),
    int: IntStorage<Bytes>,
    main: &'static str,
    order: RowOrder,
    zeros: ZeroPoints,
    groups: Option<Vec<u32>>,
}

/// Storage of zero points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroPoints {
    /// There are none: all are 0.
    Absent,
    /// One I8 for each scale.
    Bytes,
    /// In 32-bit words, packed along the rows as the codes are along the columns.
    Words,
}

/// The name of the zero points.
const ZERO_POINTS: &str = ".weight_zero_point";

impl Affine {
    /// Bytes of codes, scales, zero points and the order of groups.
    pub fn packed_bytes(&self) -> usize {
        let order = self.groups.as_ref().map_or(0, |g| 4 * g.len());
        self.int.codes.len() + self.int.scales.data.len() + 2 * self.count() + order
    }

    /// Codes of the matrix, and the type of the scales.
    pub fn codes(&self) -> (Codes, Option<FloatType>) {
        let (bits, grouping) = (self.int.packing.bits(), self.int.grouping);
        (Codes::Affine { bits, grouping, ordered: self.groups.is_some() }, Some(self.int.scales.ty))
    }

    /// Number of scales; the description has shown that it fits.
    fn count(&self) -> usize {
        self.int.grouping.checked_count(self.shape.0, self.shape.1).unwrap_or(0)
    }

    /// Unpacks the zero points.
    pub fn open(self, site: Site<'_>) -> Result<Matrix<Bytes>> {
        let count = self.count();
        let zeros = match self.zeros {
            ZeroPoints::Absent => vec![0; count],
            ZeroPoints::Bytes => site.need(ZERO_POINTS)?.data.iter().map(|b| i16::from(*b as i8)).collect(),
            ZeroPoints::Words => self.unpack(&site.need(ZERO_POINTS)?.data, count),
        };
        let storage = Storage::Affine(AffineStorage { int: self.int, zeros, groups: self.groups });
        site.matrix(self.main, self.shape, storage, self.order)
    }

    fn unpack(&self, data: &[u8], count: usize) -> Vec<i16> {
        let bits = self.int.packing.bits().width() as usize;
        let (per_word, across) = (32 / bits, self.int.grouping.per_row(self.shape.1).max(1));
        let zero = |i: usize| {
            let (row, group) = (i / across, i % across);
            let at = 4 * (row / per_word * across + group);
            let word = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
            let code = word >> (bits * (row % per_word)) & ((1 << bits) - 1);
            code as i16 - (1 << (bits - 1))
        };
        (0..count).map(zero).collect()
    }
}

/// The quantization arguments that hold for a module.
struct Group<'a> {
    site: Site<'a>,
    /// The group of config.json; none where nothing is said.
    json: Option<&'a Map<String, Value>>,
}

impl<'a> Group<'a> {
    fn of_module(site: Site<'a>) -> Result<Self> {
        let groups = quantization(site.model()).and_then(|c| c.get("config_groups")).and_then(Value::as_object);
        let json = groups.map(|groups| Self::choose(site, groups)).transpose()?;
        let group = Group { site, json };
        group.check_weights()?;
        Ok(group)
    }

    /// The group that targets a module, as the library ranks targets: its name, else a pattern of names, else a class of
    /// modules (`Linear`).
    fn choose(site: Site<'a>, groups: &'a Map<String, Value>) -> Result<&'a Map<String, Value>> {
        let mut best: Option<(Rank, &Map<String, Value>)> = None;
        for group in groups.values().filter_map(Value::as_object) {
            let targets = group.get("targets").and_then(Value::as_array);
            for target in targets.into_iter().flatten().filter_map(Value::as_str) {
                if let Some(rank) = rank(site, target)?
                    && best.as_ref().is_none_or(|(found, _)| rank < *found)
                {
                    best = Some((rank, group));
                }
            }
            // Older files name no targets where all layers are in one group.
            if targets.is_none() && groups.len() == 1 {
                best = Some((Rank::Class, group));
            }
        }
        best.map(|(_, group)| group)
            .ok_or_else(|| site.unsupported("its weights are quantized, and no group of config.json targets it"))
    }

    fn weights(&self) -> Option<&'a Map<String, Value>> {
        self.json?.get("weights")?.as_object()
    }

    fn check_weights(&self) -> Result<()> {
        let Some(weights) = self.weights() else { return Ok(()) };
        let text = |key: &str| weights.get(key).and_then(Value::as_str);
        if let Some(ty) = text("type").filter(|t| *t != "int") {
            return Err(self.site.unsupported(format!("weights of type '{}' are not supported; int is", shown(ty))));
        }
        match text("strategy") {
            None | Some("tensor" | "channel" | "group") => Ok(()),
            Some(s) => Err(self.site.unsupported(format!(
                "strategy '{}' of weights is not supported; tensor, channel and group are",
                shown(s)
            ))),
        }
    }

    fn bits(&self) -> Result<Option<u64>> {
        match self.weights().and_then(|w| w.get("num_bits")) {
            None => Ok(None),
            Some(bits) => bits.as_u64().map(Some).ok_or_else(|| self.site.unsupported("num_bits is not a number")),
        }
    }

    /// Describes `codes`, their packing and bytes a row; the grouping is told by the shape of `weight_scale`.
    fn described(
        &self,
        main: &[&'static str],
        shape: (usize, usize),
        (packing, row_bytes, codes): (Packing, usize, Bytes),
    ) -> Result<Described> {
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
        let groups = self.order(shape.1, grouping)?;
        let mut used = main.to_vec();
        used.push(".weight_scale");
        used.extend([ZERO_POINTS, G_IDX].into_iter().filter(|s| site.tensor(s).is_some()));
        let activation = self.activation()?;
        if matches!(activation, Activation::Int8Static(_)) {
            used.push(INPUT_SCALE);
        }
        let order = site.need(main[0])?.order;
        // Codes and scales are checked alike with and without zero points.
        let matrix = site.matrix(main[0], shape, Storage::Int(int.clone()), order)?;
        let form = match zeros {
            ZeroPoints::Absent if groups.is_none() => Form::Views(Box::new(matrix)),
            _ => Form::Compressed(Box::new(Affine { shape, int, main: main[0], order, zeros, groups })),
        };
        Ok(Described { form, activation, used })
    }

    /// Checks zero points: I8 beside I8 codes, else packed along the rows like the codes along the columns.
    fn zeros(&self, packing: Packing, grouping: Grouping, (rows, cols): (usize, usize)) -> Result<ZeroPoints> {
        let (site, suffix) = (self.site, ZERO_POINTS);
        let Some(tensor) = site.tensor(suffix) else {
            let asymmetric = self.weights().and_then(|w| w.get("symmetric")).and_then(Value::as_bool) == Some(false);
            return if asymmetric { site.need(suffix).map(|_| ZeroPoints::Absent) } else { Ok(ZeroPoints::Absent) };
        };
        let too_many = || site.bad(suffix, format!("there are too many for {rows} x {cols} weights"));
        let count = grouping.checked_count(rows, cols).ok_or_else(too_many)?;
        if tensor.dtype == DType::I8 {
            if tensor.data.len() != count {
                return Err(site.bad(suffix, format!("{} zero points for {count} scales", tensor.data.len())));
            }
            return Ok(ZeroPoints::Bytes);
        }
        let data = &site.typed(suffix, &[DType::I32])?.data;
        if grouping == Grouping::Tensor {
            return Err(site.bad(suffix, "is packed along the rows, and weight_scale has one value for all rows"));
        }
        let per_word = 32 / packing.bits().width() as usize;
        let across = grouping.per_row(cols);
        let bytes = rows.div_ceil(per_word).checked_mul(across).and_then(|n| n.checked_mul(4));
        if bytes != Some(data.len()) {
            return Err(site.bad(suffix, format!("{:?} words for {rows} x {across} zero points", tensor.shape)));
        }
        Ok(ZeroPoints::Words)
    }

    /// The group of each column, where a file has it (older versions, `actorder: group`).
    fn order(&self, cols: usize, grouping: Grouping) -> Result<Option<Vec<u32>>> {
        let suffix = G_IDX;
        if self.site.tensor(suffix).is_none() {
            let said = self.weights().and_then(|w| w.get("actorder")).and_then(Value::as_str);
            // Any other order is that of the columns themselves.
            return if said == Some("group") { self.site.need(suffix).map(|_| None) } else { Ok(None) };
        }
        let data = &self.site.typed(suffix, &[DType::I32])?.data;
        let groups: Vec<i32> = data.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        // All -1: it was never set.
        if groups.iter().all(|g| *g == -1) {
            return Ok(None);
        }
        let Grouping::Group(_) = grouping else {
            return Err(self.site.bad(suffix, "gives columns to groups, and weight_scale has none"));
        };
        let (per_row, groups) = (grouping.per_row(cols), groups.into_iter().map(u32::try_from).collect());
        let groups: Result<Vec<u32>, _> = groups;
        match groups {
            Ok(groups) if groups.len() == cols => match groups.iter().find(|g| **g as usize >= per_row) {
                Some(g) => Err(self.site.bad(suffix, format!("group {g} of {per_row}"))),
                None => Ok(Some(groups)),
            },
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
            return Err(self.site.unsupported("activations other than symmetric int8 are not supported"));
        }
        let dynamic = input.get("dynamic").and_then(Value::as_bool).unwrap_or(false);
        match (text("strategy"), dynamic) {
            (Some("token"), true) => Ok(Activation::Int8Token),
            (Some("tensor"), true) => Ok(Activation::Int8Tensor),
            (Some("tensor"), false) => self.static_scale().map(Activation::Int8Static),
            _ => Err(self.site.unsupported(format!(
                "activations with {} (dynamic: {dynamic}) are not supported; dynamic token and tensor, and static \
                 tensor are",
                said("strategy", input.get("strategy"))
            ))),
        }
    }

    fn static_scale(&self) -> Result<f32> {
        let suffix = INPUT_SCALE;
        match super::dense(self.site.need(suffix)?)?[..] {
            [scale] if scale > 0.0 && scale.is_finite() => Ok(scale),
            _ => Err(self.site.bad(suffix, "is not one positive number")),
        }
    }
}

/// Closeness with which a target names a module; the closest is the least.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Name,
    Pattern,
    Class,
}

/// Returns how closely a target of a group (a module's name, `re:` and a pattern of names, or a class of modules) names
/// the module; none where it doesn't.
fn rank(site: Site<'_>, target: &str) -> Result<Option<Rank>> {
    let Some(pattern) = target.strip_prefix("re:") else {
        // Modules with packed weights are linear layers, whatever their class is called.
        let class = !target.contains('.') && target.contains("Linear");
        return Ok(if target == site.module { Some(Rank::Name) } else { class.then_some(Rank::Class) });
    };
    // The library matches at the start of the name.
    let regex = regex::Regex::new(&format!("^(?:{pattern})")).map_err(|_| {
        Error::unsupported(&site.model().path, format!("the target pattern '{}' is not understood", shown(pattern)))
    })?;
    Ok(regex.is_match(site.module).then_some(Rank::Pattern))
}
