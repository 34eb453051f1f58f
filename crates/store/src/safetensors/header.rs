//! The bounded scan of a safetensors header that runs before the `safetensors` crate sees it.
//!
//! It finds what that crate lets pass (keys that come twice, unknown fields) and names the
//! tensor in every complaint; and by refusing anything but the expected forms it bounds what
//! the crate allocates.

use crate::{
    DType,
    json::{UniqueStrings, shown},
};
use indexmap::{IndexMap, map::Entry as Slot};
use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// The most dimensions of a tensor.
const MAX_DIMS: usize = 32;

/// The most tensors in one file.
const MAX_TENSORS: usize = 1 << 20;

/// The name of the header's string metadata.
pub(super) const METADATA: &str = "__metadata__";

/// Types that the format knows and this project does not.
const FOREIGN: [&str; 7] = ["F4", "F6_E2M3", "F6_E3M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "C64"];

/// Header entry of one tensor.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Entry {
    pub dtype: String,
    pub shape: Dims,
    pub data_offsets: (u64, u64),
}

/// A shape of a bounded number of dimensions.
#[derive(Debug)]
pub(super) struct Dims(pub Vec<u64>);

/// A scanned header.
#[derive(Debug, Default)]
pub(super) struct Header {
    pub tensors: IndexMap<String, Entry>,
    pub metadata: IndexMap<String, String>,
}

/// Mistake in a header, and the tensor that it concerns.
#[derive(Debug)]
pub(super) struct Problem {
    pub tensor: Option<String>,
    pub what: String,
    pub unsupported: bool,
}

impl Problem {
    fn in_tensor(tensor: &str, what: impl Into<String>) -> Self {
        Problem { tensor: Some(shown(tensor)), what: what.into(), unsupported: false }
    }
}

/// Scans the JSON text of a header.
pub(super) fn scan(text: &str) -> Result<Header, Problem> {
    let mut current = None;
    let mut json = serde_json::Deserializer::from_str(text);
    let header = TopSeed { current: &mut current }.deserialize(&mut json).and_then(|h| json.end().map(|()| h));
    header.map_err(|e| Problem {
        tensor: current.map(|t| shown(&t)),
        what: format!("header: {}", shown(&e.to_string())),
        unsupported: false,
    })
}

impl Header {
    /// Checks types, sizes and offsets against the length of the data, and gives the names in
    /// the order of their data.
    pub(super) fn check(&self, data_len: u64) -> Result<Vec<&str>, Problem> {
        let mut order: Vec<_> = self.tensors.iter().collect();
        order.sort_by_key(|(_, e)| e.data_offsets);
        let mut at = 0;
        for (name, entry) in &order {
            let (start, end) = entry.data_offsets;
            if end < start {
                return Err(Problem::in_tensor(name, format!("data_offsets [{start}, {end}] run backwards")));
            }
            if start != at {
                let kind = if start < at { "overlap the tensor before" } else { "leave a hole" };
                return Err(Problem::in_tensor(
                    name,
                    format!("data_offsets [{start}, {end}] {kind}: {at} is where it must start"),
                ));
            }
            if end > data_len {
                return Err(Problem::in_tensor(
                    name,
                    format!("data_offsets [{start}, {end}] run past the {data_len} data bytes of the file"),
                ));
            }
            let size = entry.size(name)?;
            if size != Some(end - start) {
                let size = size.map_or("more than 2^64".into(), |s| s.to_string());
                let shape = &entry.shape.0;
                return Err(Problem::in_tensor(
                    name,
                    format!("{} {shape:?} needs {size} bytes, data_offsets give {}", entry.dtype, end - start),
                ));
            }
            at = end;
        }
        if at != data_len {
            let what = format!("{} bytes after the last tensor belong to none", data_len - at);
            return Err(Problem { tensor: None, what, unsupported: false });
        }
        Ok(order.into_iter().map(|(name, _)| name.as_str()).collect())
    }
}

impl Entry {
    /// Bytes that type and shape need; none when the product overflows.
    fn size(&self, name: &str) -> Result<Option<u64>, Problem> {
        let Some(dtype) = dtype(&self.dtype) else {
            let unsupported = FOREIGN.contains(&self.dtype.as_str());
            let what = if unsupported {
                format!("type {} is not supported", self.dtype)
            } else {
                format!("unknown type {}", shown(&self.dtype))
            };
            return Err(Problem { unsupported, ..Problem::in_tensor(name, what) });
        };
        let element = dtype.size().unwrap_or(1) as u64;
        Ok(self.shape.0.iter().try_fold(element, |n, &d| n.checked_mul(d)))
    }
}

/// The type of a name in a header.
fn dtype(name: &str) -> Option<DType> {
    use DType::*;
    [F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U64, U32, U16, U8, Bool]
        .into_iter()
        .find(|d| d.safetensors_name() == Some(name))
}

struct TopSeed<'a> {
    /// The tensor whose entry is being read.
    current: &'a mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for TopSeed<'_> {
    type Value = Header;

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Header, D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopSeed<'_> {
    type Value = Header;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
        let (mut tensors, mut metadata) = (IndexMap::new(), None);
        while let Some(key) = map.next_key::<String>()? {
            if key == METADATA {
                *self.current = None;
                if metadata.is_some() {
                    return Err(A::Error::custom("__metadata__ stands twice"));
                }
                let strings: UniqueStrings =
                    map.next_value().map_err(|e| A::Error::custom(format!("__metadata__: {e}")))?;
                metadata = Some(strings.0);
                continue;
            }
            *self.current = Some(key.clone());
            let entry: Entry = map.next_value()?;
            match tensors.entry(key) {
                Slot::Occupied(_) => return Err(A::Error::custom("two tensors of this name")),
                Slot::Vacant(slot) => slot.insert(entry),
            };
            if tensors.len() > MAX_TENSORS {
                return Err(A::Error::custom(format!("more than {MAX_TENSORS} tensors")));
            }
        }
        *self.current = None;
        Ok(Header { tensors, metadata: metadata.unwrap_or_default() })
    }
}

impl<'de> Deserialize<'de> for Dims {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_seq(DimsVisitor)
    }
}

struct DimsVisitor;

impl<'de> Visitor<'de> for DimsVisitor {
    type Value = Dims;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of sizes")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Dims, A::Error> {
        let mut dims = Vec::new();
        while let Some(d) = seq.next_element()? {
            if dims.len() == MAX_DIMS {
                return Err(A::Error::custom(format!("more than {MAX_DIMS} dimensions")));
            }
            dims.push(d);
        }
        Ok(Dims(dims))
    }
}
