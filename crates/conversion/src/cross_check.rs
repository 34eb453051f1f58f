//! A second opinion on a written GGUF: gguf-rs reads its header and must see what we see.

use crate::error::{Error, Result};
use std::io::Cursor;
use std::path::Path;
use store::Bytes;

/// Compares names, shapes and offsets with those that gguf-rs reads.
///
/// gguf-rs is no reader for untrusted files (it panics on some, and reads types it doesn't
/// know with wrong sizes), so it only ever sees the header of a file that our own bounded
/// reader accepted.
///
/// # Errors
/// [`Error::CrossCheck`] with the first difference.
pub fn gguf(path: &Path) -> Result<()> {
    let differs = |what: String| Error::CrossCheck { path: path.into(), what };
    let bytes = Bytes::map(path)?;
    let header = store::gguf::parse(path, &bytes)?;
    let data = usize::try_from(header.data_offset).unwrap_or(bytes.len()).min(bytes.len());
    let mut container =
        gguf_rs::GGUFContainer::new(gguf_rs::ByteOrder::LE, Box::new(Cursor::new(bytes[4..data].to_vec())), u64::MAX);
    let theirs = container.decode().map_err(|e| differs(format!("gguf-rs can't read it: {e}")))?;
    let tensors = theirs.tensors();
    if tensors.len() != header.tensors.len() {
        return Err(differs(format!("gguf-rs sees {} tensors, not {}", tensors.len(), header.tensors.len())));
    }
    for (a, b) in header.tensors.iter().zip(tensors) {
        let shape: Vec<u64> = b.shape.iter().copied().take(a.dims.len()).collect();
        if a.name != b.name || a.dims != shape || a.offset != b.offset {
            return Err(differs(format!(
                "gguf-rs sees tensor {} {shape:?} at {}, not {} {:?} at {}",
                b.name, b.offset, a.name, a.dims, a.offset
            )));
        }
    }
    Ok(())
}
