//! The bounded parser: checked arithmetic, no allocation beyond what the file holds.

use super::cursor::Cursor;
use super::value::Value;
use crate::{Error, Result};
use indexmap::IndexMap;
use schemes::GgmlType;
use std::collections::HashSet;
use std::ops::Range;
use std::path::Path;

/// Alignment of tensor data when the file doesn't say.
pub const DEFAULT_ALIGNMENT: u64 = 32;
/// The key that says.
pub(super) const ALIGNMENT: &str = "general.alignment";
/// Most keys that a file may have.
const MAX_KEYS: u64 = 1 << 16;
/// Most tensors that a file may have.
const MAX_TENSORS: u64 = 1 << 18;
/// Longest key, as the format says.
const MAX_KEY: usize = (1 << 16) - 1;
/// Longest tensor name read; llama.cpp stops at 63, and so does the writer.
const MAX_NAME: usize = 127;
/// Most dimensions.
pub(super) const MAX_DIMS: u32 = 4;

/// A tensor as the header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name of the tensor info.
    pub name: String,
    /// Type of the tensor info.
    pub ggml_type: GgmlType,
    /// Dimensions, innermost first.
    pub dims: Vec<u64>,
    /// Offset of the data, counted from [`GgufFile::data_offset`].
    pub offset: u64,
    /// Length of the data in bytes, without padding.
    pub len: u64,
}

/// The header of a GGUF file, checked against the file's length.
#[derive(Debug, Clone, PartialEq)]
pub struct GgufFile {
    /// Format version, 2 or 3.
    pub version: u32,
    /// Alignment of tensor data, a power of two.
    pub alignment: u64,
    /// Keys and values in file order.
    pub metadata: IndexMap<String, Value>,
    /// Tensors in file order.
    pub tensors: Vec<TensorInfo>,
    /// Offset of the data section in the file.
    pub data_offset: u64,
}

impl GgufFile {
    /// The bytes of a tensor in the file; inside the file by construction.
    pub fn range(&self, tensor: &TensorInfo) -> Range<usize> {
        let start = (self.data_offset + tensor.offset) as usize;
        start..start + tensor.len as usize
    }
}

/// Parses the header of a GGUF file that is `bytes` in whole.
///
/// # Errors
/// [`Error::Malformed`] or [`Error::Unsupported`], naming the key or tensor and the offset.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<GgufFile> {
    let mut c = Cursor::new(path, bytes);
    let version = version(&mut c)?;
    let tensor_count = count(&mut c, "tensor count", MAX_TENSORS)?;
    let key_count = count(&mut c, "key count", MAX_KEYS)?;
    let mut alignment = DEFAULT_ALIGNMENT;
    let mut metadata = IndexMap::new();
    for i in 0..key_count {
        let (key, at, value) = entry(&mut c, i)?;
        if key == ALIGNMENT {
            alignment = check_alignment(&c, at, &value)?;
        }
        if metadata.contains_key(&key) {
            return Err(c.error(at, format!("key {key} appears twice")));
        }
        metadata.insert(key, value);
    }
    let mut names = HashSet::new();
    let mut tensors = Vec::new();
    let mut end = 0u64;
    for i in 0..tensor_count {
        let (tensor, at) = tensor(&mut c, i)?;
        if !names.insert(tensor.name.clone()) {
            return Err(c.error(at, format!("tensor {} appears twice", tensor.name)));
        }
        check_offset(&c, &tensor, at, alignment, end)?;
        // Nothing overflows: what is longer than the file ends here.
        let padded = tensor.len.checked_next_multiple_of(alignment).filter(|_| tensor.len <= bytes.len() as u64);
        end = padded
            .and_then(|padded| end.checked_add(padded))
            .ok_or_else(|| outside(path, &tensor, end.checked_add(tensor.len), bytes.len()))?;
        tensors.push(tensor);
    }
    let data_offset = (c.at() as u64)
        .checked_next_multiple_of(alignment)
        .ok_or_else(|| c.error(c.at(), "the header ends past 2^64"))?;
    let file = GgufFile { version, alignment, metadata, tensors, data_offset };
    check_inside(path, &file, bytes.len())?;
    Ok(file)
}

fn version(c: &mut Cursor<'_>) -> Result<u32> {
    let magic = c.take(4, || "the magic".into())?;
    if magic != b"GGUF" {
        return Err(c.error(0, format!("not a GGUF file: it starts with {}", magic.escape_ascii())));
    }
    let at = c.at();
    let version = c.u32(|| "the version".into())?;
    match version {
        2 | 3 => Ok(version),
        0 => Err(c.error(at, "version 0 is not a GGUF version")),
        1 => Err(c.unsupported(at, "GGUF version 1 (only 2 and 3 are read)")),
        v if v & 0xFFFF == 0 => Err(c.unsupported(at, "a big-endian GGUF file (only little-endian is read)")),
        v => Err(c.unsupported(at, format!("GGUF version {v} (only 2 and 3 are read)"))),
    }
}

fn count(c: &mut Cursor<'_>, what: &str, limit: u64) -> Result<u64> {
    let at = c.at();
    let n = c.u64(|| what.into())?;
    if n > limit {
        return Err(c.error(at, format!("{what} {n} exceeds {limit}")));
    }
    Ok(n)
}

/// A key, where it stands, and its value.
fn entry(c: &mut Cursor<'_>, i: u64) -> Result<(String, usize, Value)> {
    let at = c.at();
    let key = c.string(MAX_KEY, || format!("key {i}"))?;
    if key.is_empty() {
        return Err(c.error(at, format!("key {i} is empty")));
    }
    if key.chars().any(char::is_control) {
        return Err(c.error(at, format!("key {i} has control characters: {}", key.escape_debug())));
    }
    let value = c.value(key)?;
    Ok((key.to_string(), at, value))
}

fn check_alignment(c: &Cursor<'_>, at: usize, value: &Value) -> Result<u64> {
    match value {
        Value::U32(a) if a.is_power_of_two() => Ok(u64::from(*a)),
        Value::U32(a) => Err(c.error(at, format!("{ALIGNMENT} is {a}, not a power of two"))),
        other => Err(c.error(at, format!("{ALIGNMENT} has type {}, not u32", other.type_name()))),
    }
}

/// A tensor's entry and where it stands.
fn tensor(c: &mut Cursor<'_>, i: u64) -> Result<(TensorInfo, usize)> {
    let at = c.at();
    let name = c.string(MAX_NAME, || format!("name of tensor {i}"))?;
    if name.is_empty() || name.chars().any(char::is_control) {
        return Err(c.error(at, format!("tensor {i} has the name \"{}\"", name.escape_debug())));
    }
    let what = || format!("tensor {name}");
    let n_dims = c.u32(what)?;
    if n_dims > MAX_DIMS {
        return Err(c.error(at, format!("tensor {name} has {n_dims} dimensions; at most {MAX_DIMS} are allowed")));
    }
    let mut dims = Vec::with_capacity(n_dims as usize);
    for _ in 0..n_dims {
        dims.push(c.u64(what)?);
    }
    let type_at = c.at();
    let id = c.u32(what)?;
    let ggml_type = GgmlType::from_id(id)
        .ok_or_else(|| c.unsupported(type_at, format!("tensor {name}: ggml type {id} is not known")))?;
    let offset = c.u64(what)?;
    let len = byte_len(ggml_type, &dims).map_err(|why| c.error(at, format!("tensor {name} {dims:?}: {why}")))?;
    Ok((TensorInfo { name: name.to_string(), ggml_type, dims, offset, len }, at))
}

/// Bytes of a tensor of these dimensions.
///
/// # Errors
/// Says that the first dimension is no multiple of the type's block, or that the size overflows.
pub(super) fn byte_len(ty: GgmlType, dims: &[u64]) -> Result<u64, String> {
    let block = ty.block_len() as u64;
    let row = dims.first().copied().unwrap_or(1);
    if !row.is_multiple_of(block) {
        return Err(format!("rows of {ty} must be multiples of {block}"));
    }
    let too_big = || "the size overflows".to_string();
    let mut bytes = (row / block).checked_mul(ty.block_bytes() as u64).ok_or_else(too_big)?;
    let mut elements = row;
    for &d in dims.iter().skip(1) {
        bytes = bytes.checked_mul(d).ok_or_else(too_big)?;
        elements = elements.checked_mul(d).ok_or_else(too_big)?;
    }
    if bytes > i64::MAX as u64 || elements > i64::MAX as u64 { Err(too_big()) } else { Ok(bytes) }
}

fn check_offset(c: &Cursor<'_>, t: &TensorInfo, at: usize, alignment: u64, expected: u64) -> Result<()> {
    if !t.offset.is_multiple_of(alignment) {
        return Err(c.error(at, format!("tensor {}: offset {} is not aligned to {alignment}", t.name, t.offset)));
    }
    if t.offset != expected {
        let why = if t.offset < expected { "overlaps what stands before it" } else { "leaves a gap before it" };
        return Err(c.error(at, format!("tensor {}: offset {} {why} (expected {expected})", t.name, t.offset)));
    }
    Ok(())
}

fn check_inside(path: &Path, file: &GgufFile, len: usize) -> Result<()> {
    for t in &file.tensors {
        let end = file.data_offset.checked_add(t.offset).and_then(|start| start.checked_add(t.len));
        if end.is_none_or(|end| end > len as u64) {
            return Err(outside(path, t, end, len));
        }
    }
    Ok(())
}

fn outside(path: &Path, t: &TensorInfo, end: Option<u64>, len: usize) -> Error {
    let end = end.map_or("past 2^64".to_string(), |e| format!("at {e} or later"));
    let what = format!("its data end {end}, but the file ends at {len}: it is cut off or damaged");
    Error::tensor(path, &t.name, what)
}
