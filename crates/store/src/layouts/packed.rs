//! The packed layout: each scheme at its true bits per weight.

use super::{Described, Form, Site, json_shape, table};
use crate::{
    Bytes, DType, Error, Model, Result, Tensor,
    json::{said, shown},
};
use indexmap::IndexMap;
use schemes::{
    Activation, Grouping, IntStorage, Nf4Absmax, Nf4Storage, OutlierStorage, Packing, ScaleUse, Storage, nf4,
};
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// The metadata key that describes the packed weights.
pub(super) const KEY: &str = "qconvert.tensors";

/// The longest group of an entry.
const MAX_GROUP: i64 = 1 << 24;

/// Byte tensors: the bytes of I8 may be unsigned.
const BYTES: [DType; 2] = [DType::I8, DType::U8];

/// An error about the entry of a module.
fn bad(site: Site<'_>, what: impl fmt::Display) -> Error {
    site.bad(".weight.codes", format!("entry in {KEY}: {what}"))
}

/// The entry of a module, under the name of its weight in the file.
fn entry(site: Site<'_>) -> Result<Map<String, Value>> {
    let codes = site.need(".weight.codes")?;
    let Some(weight) = codes.stored_name.strip_suffix(".codes") else {
        return Err(site.bad(".weight.codes", "the stored name does not end in .codes"));
    };
    if let Some(index) = &site.gate.index {
        return match &index.entries {
            Ok(entries) => object(site, entries.0.get(weight).cloned()),
            Err(_) => Err(entries(site.model()).err().unwrap_or_else(|| bad(site, "there is none for this weight"))),
        };
    }
    let Some(text) = site.model().metadata.get(KEY) else {
        return Err(no_key(site));
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let found = Find { key: weight }.deserialize(&mut json).map_err(|e| not_json(site.model(), &e))?;
    object(site, found)
}

fn object(site: Site<'_>, found: Option<Value>) -> Result<Map<String, Value>> {
    match found {
        Some(Value::Object(entry)) => Ok(entry),
        _ if !site.model().metadata.contains_key(KEY) => Err(no_key(site)),
        _ => Err(bad(site, "there is none for this weight")),
    }
}

fn no_key(site: Site<'_>) -> Error {
    site.bad(".weight.codes", format!("the metadata have no {KEY}"))
}

fn not_json(model: &Model, e: &serde_json::Error) -> Error {
    Error::malformed(&model.path, format!("metadata {KEY}: {}", shown(&e.to_string())))
}

/// All entries of a model; a name that stands twice is an error.
pub(super) struct Entries(IndexMap<String, Value>);

/// Reads all entries of a model at once.
pub(super) fn entries(model: &Model) -> Result<Entries> {
    let text = model.metadata.get(KEY).map_or("{}", String::as_str);
    let mut json = serde_json::Deserializer::from_str(text);
    All.deserialize(&mut json).map(Entries).map_err(|e| not_json(model, &e))
}

/// Takes all values of an object.
struct All;

impl<'de> DeserializeSeed<'de> for All {
    type Value = IndexMap<String, Value>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for All {
    type Value = IndexMap<String, Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of weights")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut all = IndexMap::new();
        while let Some((key, value)) = map.next_entry::<String, Value>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("{} stands twice", shown(&key))));
            }
            all.insert(key, value);
        }
        Ok(all)
    }
}

/// The names and schemes of all entries.
pub(super) fn schemes(model: &Model) -> IndexMap<String, String> {
    let text = model.metadata.get(KEY).map_or("{}", String::as_str);
    let all: Map<String, Value> = serde_json::from_str(text).unwrap_or_default();
    let scheme = |v: &Value| v.get("scheme").and_then(Value::as_str).map(str::to_string);
    all.iter().filter_map(|(k, v)| Some((k.clone(), scheme(v)?))).collect()
}

/// Takes one value of an object and skips the others, unparsed.
struct Find<'a> {
    key: &'a str,
}

impl<'de> DeserializeSeed<'de> for Find<'_> {
    type Value = Option<Value>;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Find<'_> {
    type Value = Option<Value>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of weights")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key != self.key {
                map.next_value::<IgnoredAny>()?;
            } else if found.replace(map.next_value::<Value>()?).is_some() {
                return Err(A::Error::custom(format!("{} stands twice", shown(&key))));
            }
        }
        Ok(found)
    }
}

pub(super) fn describe(site: Site<'_>) -> Result<Described> {
    let entry = entry(site)?;
    let shape = json_shape(entry.get("shape")).ok_or_else(|| bad(site, "shape is not two sizes"))?;
    let codes = site.typed(".weight.codes", &BYTES)?;
    let mut used = vec![".weight.codes"];
    used.extend(parts(entry.get("kind").and_then(Value::as_str), site));
    let storage = match entry.get("kind").and_then(Value::as_str) {
        Some("int") => Storage::Int(int(site, &entry, shape.1, codes)?),
        Some("nf4") => Storage::Nf4(nf4(site, &entry, codes, false)?),
        Some("nf4-dq") => Storage::Nf4(nf4(site, &entry, codes, true)?),
        Some("outlier") => Storage::Outlier(outlier(site, shape.1, codes)?),
        _ => {
            return Err(bad(
                site,
                format!("{} is not known; int, nf4, nf4-dq and outlier are", said("kind", entry.get("kind"))),
            ));
        }
    };
    let matrix = site.matrix(".weight.codes", shape, storage, codes.order)?;
    Ok(Described { form: Form::Views(Box::new(matrix)), activation: activation(site, &entry)?, used })
}

/// The tensors beside the codes, by kind.
fn parts(kind: Option<&str>, site: Site<'_>) -> &'static [&'static str] {
    match kind {
        Some("int") => &[".weight.scales"],
        Some("nf4") => &[".weight.absmax"],
        Some("nf4-dq") => {
            &[".weight.absmax_codes", ".weight.nested_absmax", ".weight.nested_map", ".weight.nested_offset"]
        }
        Some("outlier") if site.tensor(".weight.outlier_columns").is_some() => {
            &[".weight.scales", ".weight.outlier_columns", ".weight.outliers"]
        }
        Some("outlier") => &[".weight.scales"],
        _ => &[],
    }
}

fn int(site: Site<'_>, entry: &Map<String, Value>, cols: usize, codes: &Tensor) -> Result<IntStorage<Bytes>> {
    let packing = match entry.get("packing").and_then(Value::as_str) {
        Some("i8") => Packing::I8,
        Some("nibble") => Packing::Nibble,
        _ => {
            return Err(bad(
                site,
                format!("{} is not known; i8 and nibble are", said("packing", entry.get("packing"))),
            ));
        }
    };
    let grouping = match entry.get("group").and_then(Value::as_i64) {
        Some(-1) => Grouping::Tensor,
        Some(0) => Grouping::Row,
        Some(n @ 1..=MAX_GROUP) => Grouping::Group(n as usize),
        _ => return Err(bad(site, format!("{} is not a group size, 0 or -1", said("group", entry.get("group"))))),
    };
    Ok(IntStorage {
        packing,
        row_bytes: packing.row_bytes(cols),
        codes: codes.data.clone(),
        grouping,
        scales: site.scales(".weight.scales", ScaleUse::Multiply)?,
    })
}

fn nf4(site: Site<'_>, entry: &Map<String, Value>, codes: &Tensor, double: bool) -> Result<Nf4Storage<Bytes>> {
    let block = entry.get("block").and_then(Value::as_u64).filter(|b| (1..=1 << 20).contains(b));
    let block = block.ok_or_else(|| bad(site, "block is not a positive size"))? as usize;
    let absmax = if double {
        let [offset] = table(site, ".weight.nested_offset")?;
        Nf4Absmax::Nested {
            codes: site.typed(".weight.absmax_codes", &BYTES)?.data.clone(),
            map: Box::new(table(site, ".weight.nested_map")?),
            nested: site.typed(".weight.nested_absmax", &[DType::F32])?.data.clone(),
            offset,
        }
    } else {
        Nf4Absmax::Plain(site.scales(".weight.absmax", ScaleUse::Multiply)?)
    };
    Ok(Nf4Storage { codes: codes.data.clone(), block, absmax, levels: nf4::LEVELS })
}

fn outlier(site: Site<'_>, cols: usize, codes: &Tensor) -> Result<OutlierStorage<Bytes>> {
    let (columns, outliers) = match site.tensor(".weight.outlier_columns") {
        None => (Vec::new(), Bytes::from(Vec::new())),
        Some(_) => {
            let columns = site.typed(".weight.outlier_columns", &[DType::I32])?;
            let column = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            let outliers = site.typed(".weight.outliers", &[DType::F16])?;
            (columns.data.chunks_exact(4).map(column).collect(), outliers.data.clone())
        }
    };
    let kept = cols.checked_sub(columns.len()).ok_or_else(|| {
        site.bad(".weight.outlier_columns", format!("{} columns of a matrix that has {cols}", columns.len()))
    })?;
    let inner = IntStorage {
        packing: Packing::I8,
        row_bytes: kept,
        codes: codes.data.clone(),
        grouping: Grouping::Row,
        scales: site.scales(".weight.scales", ScaleUse::Multiply)?,
    };
    Ok(OutlierStorage { inner, columns, outliers })
}

fn activation(site: Site<'_>, entry: &Map<String, Value>) -> Result<Activation> {
    let scale = || entry.get("activation_scale").and_then(Value::as_f64).map(|s| s as f32);
    match entry.get("activation").filter(|v| !v.is_null()) {
        None => Ok(Activation::Float),
        Some(kind) => match kind.as_str() {
            Some("int8-token") => Ok(Activation::Int8Token),
            Some("int8-tensor") => Ok(Activation::Int8Tensor),
            Some("int8-static") => match scale().filter(|s| *s > 0.0 && s.is_finite()) {
                Some(scale) => Ok(Activation::Int8Static(scale)),
                None => Err(bad(site, "activation_scale is not a positive number")),
            },
            _ => Err(bad(site, format!("activation {} is not known", shown(&kind.to_string())))),
        },
    }
}
