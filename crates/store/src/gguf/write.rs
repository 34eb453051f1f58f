//! Planning a new file: the header's bytes and the place of every tensor, before any data.

use super::parse::{ALIGNMENT, DEFAULT_ALIGNMENT, MAX_DIMS, byte_len};
use super::value::{Array, Value};
use crate::{Error, Result};
use indexmap::IndexMap;
use schemes::GgmlType;
use std::collections::HashSet;
use std::path::Path;

/// Tensor names must be shorter than this, in bytes: llama.cpp refuses longer ones.
pub const NAME_LIMIT: usize = 64;

/// A tensor to be written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedTensor {
    /// Name of the planned tensor.
    pub name: String,
    /// Type of the planned tensor.
    pub ggml_type: GgmlType,
    /// Dimensions, innermost first.
    pub dims: Vec<u64>,
}

impl PlannedTensor {
    /// A tensor of this shape, outermost dimension first.
    pub fn new(name: impl Into<String>, ggml_type: GgmlType, shape: &[usize]) -> Self {
        PlannedTensor { name: name.into(), ggml_type, dims: shape.iter().rev().map(|&d| d as u64).collect() }
    }

    /// Bytes of its data; the largest number where they are more.
    pub fn bytes(&self) -> u64 {
        let count = self.dims.iter().fold(1u64, |n, d| n.saturating_mul(*d));
        (count / self.ggml_type.block_len() as u64).saturating_mul(self.ggml_type.block_bytes() as u64)
    }
}

/// Offsets of everything in a new file. The same input gives the same plan.
#[derive(Debug, Clone)]
pub struct Plan {
    header: Vec<u8>,
    values: IndexMap<String, u64>,
    tensors: Vec<(u64, u64)>,
    len: u64,
}

impl Plan {
    /// Lays out a file.
    ///
    /// # Errors
    /// Names the key or tensor that the format cannot hold: a name of 64 bytes or more,
    /// more than 4 dimensions, rows that are no whole blocks, duplicates, odd keys.
    pub fn new(path: &Path, metadata: &[(String, Value)], tensors: &[PlannedTensor]) -> Result<Plan> {
        let alignment = check_metadata(path, metadata)?;
        let places = tensor_offsets(path, tensors, alignment)?;
        let mut header = b"GGUF".to_vec();
        header.extend_from_slice(&3u32.to_le_bytes());
        put_len(tensors.len(), &mut header);
        put_len(metadata.len(), &mut header);
        let mut values = IndexMap::new();
        for (key, value) in metadata {
            put_str(key, &mut header);
            let at = put_value(value, &mut header);
            values.insert(key.clone(), at as u64);
        }
        for (t, (offset, _)) in tensors.iter().zip(&places) {
            put_str(&t.name, &mut header);
            header.extend_from_slice(&(t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| header.extend_from_slice(&d.to_le_bytes()));
            header.extend_from_slice(&t.ggml_type.id().to_le_bytes());
            header.extend_from_slice(&offset.to_le_bytes());
        }
        header.resize((header.len() as u64).next_multiple_of(alignment) as usize, 0);
        let data = header.len() as u64;
        let len = places.last().map_or(data, |(offset, len)| data + (offset + len).next_multiple_of(alignment));
        let tensors = places.into_iter().map(|(offset, len)| (data + offset, len)).collect();
        Ok(Plan { header, values, tensors, len })
    }

    /// The first bytes of the file, up to the data.
    pub fn header(&self) -> &[u8] {
        &self.header
    }

    /// Offset of tensor `i` in the file, in the order given. Gaps between tensors are zeros.
    pub fn offset(&self, i: usize) -> u64 {
        self.tensors[i].0
    }

    /// Bytes of tensor `i`.
    pub fn tensor_len(&self, i: usize) -> u64 {
        self.tensors[i].1
    }

    /// Length of the file, padding after the last tensor included.
    pub fn file_len(&self) -> u64 {
        self.len
    }

    /// Offset in the file of the value of `key` (of a string, its first byte), for values of fixed length that are
    /// known only after the data.
    pub fn value_offset(&self, key: &str) -> Option<u64> {
        self.values.get(key).copied()
    }
}

fn check_metadata(path: &Path, metadata: &[(String, Value)]) -> Result<u64> {
    let mut seen = HashSet::new();
    let mut alignment = DEFAULT_ALIGNMENT;
    for (key, value) in metadata {
        let fine = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
        if key.is_empty() || key.len() > usize::from(u16::MAX) || !key.bytes().all(fine) {
            return Err(Error::malformed(path, format!("the key \"{}\" cannot be written", key.escape_debug())));
        }
        if !seen.insert(key) {
            return Err(Error::malformed(path, format!("key {key} would be written twice")));
        }
        if key == ALIGNMENT {
            alignment = match value {
                Value::U32(a) if a.is_power_of_two() => u64::from(*a),
                _ => return Err(Error::malformed(path, format!("{ALIGNMENT} must be a u32 power of two"))),
            };
        }
    }
    Ok(alignment)
}

/// Offsets from the start of the data, and lengths.
fn tensor_offsets(path: &Path, tensors: &[PlannedTensor], alignment: u64) -> Result<Vec<(u64, u64)>> {
    let mut seen = HashSet::new();
    let mut places = Vec::with_capacity(tensors.len());
    let mut end = 0u64;
    for t in tensors {
        let fail = |what: String| Error::tensor(path, &t.name, what);
        if t.name.is_empty() || t.name.len() >= NAME_LIMIT {
            let what = format!("a name of {} bytes; GGUF names have 1 to {}", t.name.len(), NAME_LIMIT - 1);
            return Err(fail(what));
        }
        if !seen.insert(&t.name) {
            return Err(fail("would be written twice".into()));
        }
        if t.dims.len() > MAX_DIMS as usize {
            return Err(fail(format!("{} dimensions; GGUF has at most {MAX_DIMS}", t.dims.len())));
        }
        let len = byte_len(t.ggml_type, &t.dims).map_err(fail)?;
        places.push((end, len));
        end = end
            .checked_add(len)
            .and_then(|e| e.checked_next_multiple_of(alignment))
            .ok_or_else(|| fail("the file would be longer than 2^64 bytes".into()))?;
    }
    Ok(places)
}

fn put_len(n: usize, out: &mut Vec<u8>) {
    out.extend_from_slice(&(n as u64).to_le_bytes());
}

fn put_str(s: &str, out: &mut Vec<u8>) {
    put_len(s.len(), out);
    out.extend_from_slice(s.as_bytes());
}

/// Appends type and value; returns where the value (of a string, its text) starts.
fn put_value(value: &Value, out: &mut Vec<u8>) -> usize {
    out.extend_from_slice(&value.type_id().to_le_bytes());
    let at = out.len();
    match value {
        Value::U8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I8(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I16(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::U64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::I64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F32(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::F64(v) => out.extend_from_slice(&v.to_le_bytes()),
        Value::Bool(v) => out.push(u8::from(*v)),
        Value::String(s) => {
            put_str(s, out);
            return at + 8;
        }
        Value::Array(a) => put_array(a, out),
    }
    at
}

fn put_array(array: &Array, out: &mut Vec<u8>) {
    fn all<T: Copy, const N: usize>(values: &[T], bytes: fn(T) -> [u8; N], out: &mut Vec<u8>) {
        values.iter().for_each(|v| out.extend_from_slice(&bytes(*v)));
    }
    out.extend_from_slice(&array.element_type().to_le_bytes());
    put_len(array.len(), out);
    match array {
        Array::U8(v) => out.extend_from_slice(v),
        Array::I8(v) => all(v, i8::to_le_bytes, out),
        Array::U16(v) => all(v, u16::to_le_bytes, out),
        Array::I16(v) => all(v, i16::to_le_bytes, out),
        Array::U32(v) => all(v, u32::to_le_bytes, out),
        Array::I32(v) => all(v, i32::to_le_bytes, out),
        Array::U64(v) => all(v, u64::to_le_bytes, out),
        Array::I64(v) => all(v, i64::to_le_bytes, out),
        Array::F32(v) => all(v, f32::to_le_bytes, out),
        Array::F64(v) => all(v, f64::to_le_bytes, out),
        Array::Bool(v) => all(v, |b| [u8::from(b)], out),
        Array::String(v) => v.iter().for_each(|s| put_str(s, out)),
    }
}
