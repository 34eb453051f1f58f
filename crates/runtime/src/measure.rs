//! Ceilings of a device, and times of products on it.

use crate::{ComputeType, Result};
use candle_core::Device;
use schemes::Matrix;
use store::Bytes;

/// Ceilings of a GPU.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ceilings {
    /// Bytes read and written in a second by copies within its memory.
    pub copied_bytes_per_s: f64,
    /// Operations (a multiply-add counts as two) in a second of a large square product by cuBLAS in the
    /// type that is computed in.
    pub flop_per_s: f64,
}

/// A product of a layer with some tokens.
#[derive(Debug, Clone, PartialEq)]
pub struct Timed {
    /// The form of the weights, and whose product it is.
    pub what: String,
    /// Tokens.
    pub tokens: usize,
    /// Seconds that it takes.
    pub seconds: f64,
    /// Bytes of the weights.
    pub bytes: usize,
}

/// A weight that two devices decode differently.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Row of the difference.
    pub row: usize,
    /// Column of the difference.
    pub col: usize,
    /// Result of the device.
    pub found: f32,
    /// Result of the CPU.
    pub expected: f32,
}

/// The first weight of a matrix that a device, from the packed form that it is uploaded in, decodes to
/// something else than the CPU does.
///
/// # Errors
/// When the device's memory is full.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub fn difference(device: &Device, matrix: &Matrix<Bytes>) -> Result<Option<Difference>> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return Ok(crate::cuda::difference(device, matrix)?);
    }
    Ok(None)
}

/// The ceilings of a device; none of the CPU.
///
/// # Errors
/// When the device's memory is full.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub fn ceilings(device: &Device, compute: ComputeType) -> Result<Option<Ceilings>> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return Ok(Some(crate::cuda::ceilings(device, compute)?));
    }
    Ok(None)
}

/// Products of a matrix of `rows` x `cols` in every form, beside cuBLAS in f16 and candle's own; none on
/// the CPU.
///
/// # Errors
/// When the device's memory is full, or a product can't be run.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub fn products(device: &Device, compute: ComputeType, shape: (usize, usize), tokens: &[usize]) -> Result<Vec<Timed>> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return Ok(crate::cuda::products(device, compute, shape, tokens)?);
    }
    Ok(Vec::new())
}
