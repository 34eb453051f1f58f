//! Offsets of every byte of a safetensors file, before any is written.

use super::{MAX_HEADER, header::METADATA};
use crate::{DType, Error, Result};
use indexmap::{IndexMap, IndexSet};
use std::{ops::Range, path::Path};

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// Name of the tensor in the file.
    pub name: String,
    /// Element type; not a block type.
    pub dtype: DType,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
}

impl TensorSpec {
    /// Bytes of the tensor; none when the product overflows or the type has no element size.
    pub fn bytes(&self) -> Option<u64> {
        let element = self.dtype.size()? as u64;
        self.shape.iter().try_fold(element, |n, &d| n.checked_mul(d as u64))
    }
}

/// The plan of a file: write [`Plan::header`] at 0, tensor `i` at `offsets()[i]`, and the file
/// is complete.
#[derive(Debug, Clone)]
pub struct Plan {
    header: Vec<u8>,
    offsets: Vec<u64>,
    file_len: u64,
    values: IndexMap<String, Range<u64>>,
}

impl Plan {
    /// The bytes that the file starts with: the length and the padded header.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// The absolute offset of each tensor, in the order in which they were given.
    pub fn offsets(&self) -> &[u64] {
        &self.offsets
    }

    /// Bytes of the whole file.
    pub fn file_len(&self) -> u64 {
        self.file_len
    }

    /// Range in the file of the value of a metadata key, without its quotes, so that a placeholder can be overwritten
    /// by a value of the same length that needs no escapes.
    pub fn metadata_value(&self, key: &str) -> Option<Range<u64>> {
        self.values.get(key).cloned()
    }
}

/// Plans the file `path` (named in errors only) of `tensors` and string metadata.
///
/// Data lie in the order given, but types with larger elements come first, so that every tensor
/// is aligned to its element. The same input gives the same bytes.
///
/// # Errors
/// A name that comes twice or is reserved, a type that safetensors doesn't have, a size that
/// overflows, or a header over the format's limit.
pub fn plan(path: &Path, tensors: &[TensorSpec], metadata: &IndexMap<String, String>) -> Result<Plan> {
    let mut order: Vec<usize> = (0..tensors.len()).collect();
    order.sort_by_key(|&i| std::cmp::Reverse(tensors[i].dtype.size()));

    let mut text = String::from("{");
    let values = write_metadata(&mut text, metadata);
    let mut offsets = vec![0u64; tensors.len()];
    let (mut at, mut names) = (0u64, IndexSet::with_capacity(tensors.len()));
    for &i in &order {
        let spec = &tensors[i];
        if spec.name == METADATA || !names.insert(spec.name.as_str()) {
            return Err(Error::tensor(path, &spec.name, "the name is reserved or stands twice"));
        }
        let ty = spec.dtype.safetensors_name().ok_or_else(|| {
            Error::tensor(path, &spec.name, format!("safetensors has no type {}; use GGUF", spec.dtype))
        })?;
        let end = spec
            .bytes()
            .and_then(|n| at.checked_add(n))
            .ok_or_else(|| Error::tensor(path, &spec.name, format!("shape {:?} overflows", spec.shape)))?;
        if text.len() > 1 {
            text.push(',');
        }
        text.push_str(&quoted(&spec.name));
        text.push_str(&format!(":{{\"dtype\":\"{ty}\",\"shape\":["));
        let dims: Vec<String> = spec.shape.iter().map(usize::to_string).collect();
        text.push_str(&dims.join(","));
        text.push_str(&format!("],\"data_offsets\":[{at},{end}]}}"));
        (offsets[i], at) = (at, end);
    }
    text.push('}');
    finish(path, text, offsets, at, values)
}

/// Adds the metadata to the header's text; gives where each value lies in the file.
fn write_metadata(text: &mut String, metadata: &IndexMap<String, String>) -> IndexMap<String, Range<u64>> {
    let mut values = IndexMap::with_capacity(metadata.len());
    if metadata.is_empty() {
        return values;
    }
    text.push_str(&format!("\"{METADATA}\":{{"));
    for (i, (key, value)) in metadata.iter().enumerate() {
        if i > 0 {
            text.push(',');
        }
        text.push_str(&quoted(key));
        text.push(':');
        let value = quoted(value);
        // The header follows 8 bytes of length.
        let start = 8 + text.len() as u64 + 1;
        text.push_str(&value);
        values.insert(key.clone(), start..start + value.len() as u64 - 2);
    }
    text.push('}');
    values
}

fn finish(
    path: &Path,
    text: String,
    mut offsets: Vec<u64>,
    data_len: u64,
    values: IndexMap<String, Range<u64>>,
) -> Result<Plan> {
    let mut text = text.into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let len = text.len() as u64;
    if len > MAX_HEADER {
        return Err(Error::unsupported(
            path,
            format!("a header of {len} bytes is over safetensors' limit of {MAX_HEADER}; write shards"),
        ));
    }
    let start = 8 + len;
    let file_len = start.checked_add(data_len).ok_or_else(|| Error::unsupported(path, "the file overflows 2^64"))?;
    offsets.iter_mut().for_each(|o| *o += start);
    let mut header = len.to_le_bytes().to_vec();
    header.append(&mut text);
    Ok(Plan { header, offsets, file_len, values })
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
