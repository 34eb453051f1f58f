//! safetensors: a strict reader, and a planner for writers that stream.
//!
//! The reader checks a header in bounded memory first, with errors that name file and tensor;
//! the `safetensors` crate then parses it and has the last word. The planner fixes where every
//! byte of a file will lie before any is computed, so that tensors can be written at their
//! offsets in any order and by any number of threads.

mod header;
mod plan;
mod shards;

pub use plan::{Plan, TensorSpec, plan};
pub use shards::{INDEX_FILE, SINGLE_FILE, Shard, index_json, shard};

use crate::{Bytes, DType, Error, Result, Tensor};
use ::safetensors::{Dtype, SafeTensors};
use header::Problem;
use indexmap::IndexMap;
use schemes::RowOrder;
use std::path::Path;

/// The longest header that the format allows.
pub const MAX_HEADER: u64 = 100_000_000;

/// Contents of a safetensors file.
#[derive(Debug)]
pub struct Contents {
    /// Tensors in the order of their data, under their stored names.
    pub tensors: IndexMap<String, Tensor>,
    /// The header's string metadata, in file order.
    pub metadata: IndexMap<String, String>,
}

/// Reads the safetensors file `bytes`, mapped from `path`.
///
/// # Errors
/// Names the file, and the tensor where there is one: a header that is too long, cut, not JSON,
/// or names something twice; types that are unknown; offsets that leave holes, overlap, end
/// elsewhere than the file does, or don't suit type and shape.
pub fn read(path: &Path, bytes: &Bytes) -> Result<Contents> {
    let (text, data_start) = frame(path, bytes)?;
    let error = |p: Problem| match p {
        Problem { tensor: Some(t), what, unsupported: false } => Error::tensor(path, t, what),
        Problem { tensor: Some(t), what, unsupported: true } => Error::unsupported(path, format!("tensor {t}: {what}")),
        Problem { tensor: None, what, .. } => Error::malformed(path, what),
    };
    let header = header::scan(text).map_err(error)?;
    let order = header.check((bytes.len() - data_start) as u64).map_err(error)?;

    let refused = |e| Error::malformed(path, format!("the safetensors library refuses it: {e}"));
    let (_, parsed) = SafeTensors::read_metadata(bytes).map_err(refused)?;
    let mut tensors = IndexMap::with_capacity(order.len());
    for name in order {
        let missing = || Error::tensor(path, name, "is not where the header says");
        let info = parsed.info(name).ok_or_else(missing)?;
        let (start, end) = info.data_offsets;
        let data = bytes.slice(data_start + start..data_start + end).ok_or_else(missing)?;
        let tensor = Tensor {
            dtype: dtype(info.dtype)
                .ok_or_else(|| Error::unsupported(path, format!("tensor {name}: type {}", info.dtype)))?,
            shape: info.shape.clone(),
            data,
            order: RowOrder::Natural,
            file: path.to_path_buf(),
            stored_name: name.to_string(),
        };
        tensors.insert(name.to_string(), tensor);
    }
    Ok(Contents { tensors, metadata: header.metadata })
}

/// Returns whether `bytes` start as a safetensors file does.
pub(crate) fn looks_like(bytes: &[u8]) -> bool {
    match bytes.split_first_chunk::<8>() {
        Some((len, rest)) => u64::from_le_bytes(*len) <= MAX_HEADER && rest.first() == Some(&b'{'),
        None => false,
    }
}

/// The header's text, and where the data start.
fn frame<'a>(path: &Path, bytes: &'a Bytes) -> Result<(&'a str, usize)> {
    let bytes: &[u8] = bytes;
    let Some((len, rest)) = bytes.split_first_chunk::<8>() else {
        return Err(Error::malformed(path, format!("{} bytes are no safetensors file", bytes.len())));
    };
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(Error::malformed(path, format!("header length {len} is over the format's limit of {MAX_HEADER}")));
    }
    let len = len as usize;
    let Some(text) = rest.get(..len) else {
        return Err(Error::malformed(
            path,
            format!("the file is cut short: a header of {len} bytes, {} bytes in all", bytes.len()),
        ));
    };
    if text.first() != Some(&b'{') {
        return Err(Error::malformed(path, "the header does not start with '{': not a safetensors file"));
    }
    let text = std::str::from_utf8(text)
        .map_err(|e| Error::malformed(path, format!("the header is not UTF-8 at byte {}", 8 + e.valid_up_to())))?;
    Ok((text, 8 + len))
}

fn dtype(ty: Dtype) -> Option<DType> {
    Some(match ty {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F8_E4M3 => DType::F8E4M3,
        Dtype::F8_E5M2 => DType::F8E5M2,
        Dtype::I64 => DType::I64,
        Dtype::I32 => DType::I32,
        Dtype::I16 => DType::I16,
        Dtype::I8 => DType::I8,
        Dtype::U64 => DType::U64,
        Dtype::U32 => DType::U32,
        Dtype::U16 => DType::U16,
        Dtype::U8 => DType::U8,
        Dtype::BOOL => DType::Bool,
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
