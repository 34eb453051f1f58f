//! Float tensors into a safetensors file.

use crate::error::{Error, Result};
use candle_core::Var;
use indexmap::IndexMap;
use schemes::{FloatType, Overflow, encode_floats};
use std::path::Path;
use store::output::OutputFile;
use store::safetensors::{TensorSpec, plan};

/// Elements that are encoded and written at a time.
const CHUNK: usize = 1 << 18;

/// A tensor to be written.
#[derive(Debug)]
pub struct Entry<'a> {
    /// Its name in the file.
    pub name: String,
    /// Its dimensions.
    pub shape: Vec<usize>,
    /// Its values, row-major.
    pub values: Values<'a>,
}

/// Where values lie.
#[derive(Debug)]
pub enum Values<'a> {
    /// In a slice.
    Slice(&'a [f32]),
    /// In a variable, in f32.
    Var(&'a Var),
}

impl<'a> Entry<'a> {
    /// A variable.
    pub fn var(name: &str, var: &'a Var) -> Self {
        Self { name: name.into(), shape: var.dims().to_vec(), values: Values::Var(var) }
    }
}

/// Writes a whole file of `float` beside its place and renames it there. What memory it takes doesn't depend on the
/// tensors.
///
/// # Errors
/// [`Error::Weight`] for a value that the type can't hold, [`Error::Store`] where the file can't be written.
pub fn write(path: &Path, float: FloatType, entries: &[Entry<'_>], metadata: &IndexMap<String, String>) -> Result<()> {
    let spec = |e: &Entry<'_>| TensorSpec { name: e.name.clone(), dtype: float.into(), shape: e.shape.clone() };
    let specs: Vec<TensorSpec> = entries.iter().map(spec).collect();
    let plan = plan(path, &specs, metadata)?;
    let file = OutputFile::create(path, Some(plan.file_len()))?;
    file.write_all_at(plan.header(), 0)?;
    for (entry, &offset) in entries.iter().zip(plan.offsets()) {
        match entry.values {
            Values::Slice(values) => write_values(&file, &entry.name, float, values, offset)?,
            Values::Var(var) => {
                let write = |values: &[f32]| write_values(&file, &entry.name, float, values, offset);
                crate::ops::with_values(var, write)??;
            }
        }
    }
    Ok(file.persist()?)
}

fn write_values(file: &OutputFile, name: &str, float: FloatType, values: &[f32], mut offset: u64) -> Result<()> {
    let mut bytes = Vec::new();
    for chunk in values.chunks(CHUNK) {
        let unfit = |value| Error::Weight { name: name.into(), value, float };
        if let Some(&value) = chunk.iter().find(|v| !v.is_finite()) {
            return Err(unfit(value));
        }
        bytes.clear();
        encode_floats(float, chunk, Overflow::Error, &mut bytes).map_err(|e| match e {
            schemes::Error::Overflow { value, .. } => unfit(value),
            _ => unfit(f32::NAN),
        })?;
        file.write_all_at(&bytes, offset)?;
        offset += bytes.len() as u64;
    }
    Ok(())
}
