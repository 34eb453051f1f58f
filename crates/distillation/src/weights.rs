//! Float tensors into a safetensors file.

use crate::error::{Error, Result};
use candle_core::Tensor;
use indexmap::IndexMap;
use schemes::{FloatType, Overflow, encode_floats};
use std::path::Path;
use store::output::OutputFile;
use store::output::provenance::SEAL_KEY;
use store::safetensors::{TensorSpec, plan};

/// Elements that are encoded and written at a time.
const CHUNK: usize = 1 << 18;

/// A tensor to be written.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Name of the tensor in the file.
    pub name: String,
    /// Dimensions of the entry.
    pub shape: Vec<usize>,
    /// Values of the entry, row-major.
    pub values: Values<'a>,
}

/// Storage of values.
#[derive(Debug)]
pub enum Values<'a> {
    /// In a slice.
    Slice(&'a [f32]),
    /// In a tensor of f32, on any device.
    Tensor(&'a Tensor),
}

impl<'a> Entry<'a> {
    /// Shows the values, some at a time.
    ///
    /// # Errors
    /// What `see` says.
    pub fn each_chunk(&self, see: impl FnMut(&[f32]) -> Result<()>) -> Result<()> {
        match self.values {
            Values::Slice(values) => values.chunks(CHUNK).try_for_each(see),
            Values::Tensor(tensor) => {
                crate::ops::with_values(tensor, |values: &[f32]| values.chunks(CHUNK).try_for_each(see))?
            }
        }
    }

    /// A tensor.
    pub fn tensor(name: String, tensor: &'a Tensor) -> Self {
        Self { name, shape: tensor.dims().to_vec(), values: Values::Tensor(tensor) }
    }
}

/// Writes a whole file of `float` beside its place and renames it there, and seals it where the metadata have a
/// place for that. What memory it takes doesn't depend on the
/// tensors.
///
/// # Errors
/// [`Error::Weight`] for a value that the type can't hold, [`Error::Store`] where the file can't be written.
pub fn write(path: &Path, float: FloatType, entries: &[Entry<'_>], metadata: &IndexMap<String, String>) -> Result<()> {
    let spec = |e: &Entry<'_>| TensorSpec { name: e.name.clone(), dtype: float.into(), shape: e.shape.clone() };
    let specs: Vec<TensorSpec> = entries.iter().map(spec).collect();
    let plan = plan(path, &specs, metadata)?;
    let file = OutputFile::create_own(path, path, Some(plan.file_len()))?;
    file.write_header(plan.header(), plan.metadata_value(SEAL_KEY).map(|place| place.start))?;
    for (entry, &offset) in entries.iter().zip(plan.offsets()) {
        let mut offset = offset;
        entry.each_chunk(|values| {
            let bytes = encoded(&entry.name, float, values)?;
            file.write_all_at(&bytes, offset)?;
            offset += bytes.len() as u64;
            Ok(())
        })?;
    }
    Ok(file.persist()?)
}

fn encoded(name: &str, float: FloatType, values: &[f32]) -> Result<Vec<u8>> {
    let unfit = |value| Error::Weight { name: name.into(), value, float };
    if let Some(&value) = values.iter().find(|v| !v.is_finite()) {
        return Err(unfit(value));
    }
    let mut bytes = Vec::new();
    encode_floats(float, values, Overflow::Error, &mut bytes).map_err(|e| match e {
        schemes::Error::Overflow { value, .. } => unfit(value),
        _ => unfit(f32::NAN),
    })?;
    Ok(bytes)
}
