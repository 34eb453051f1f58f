//! What a device can do, and what products take on it.

use crate::{ComputeType, Result};
use candle_core::Device;
use schemes::Matrix;
use store::Bytes;

/// What a GPU can do at most.
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
    /// Its row.
    pub row: usize,
    /// Its column.
    pub col: usize,
    /// What the device gives.
    pub found: f32,
    /// What the CPU gives.
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
#[cfg(feature = "cuda")]
pub fn ceilings(device: &Device, compute: ComputeType) -> Result<Option<Ceilings>> {
    if device.is_cpu() { Ok(None) } else { Ok(Some(crate::cuda::ceilings(device, compute)?)) }
}

/// The ceilings of a device; none of the CPU.
///
/// # Errors
/// None in this build.
#[cfg(not(feature = "cuda"))]
pub fn ceilings(_: &Device, _: ComputeType) -> Result<Option<Ceilings>> {
    Ok(None)
}

/// Products of a matrix of `rows` x `cols` in every form, beside cuBLAS in f16 and candle's own; none on
/// the CPU.
///
/// # Errors
/// When the device's memory is full, or a product can't be run.
#[cfg(feature = "cuda")]
pub fn products(
    device: &Device,
    compute: ComputeType,
    (rows, cols): (usize, usize),
    tokens: &[usize],
) -> Result<Vec<Timed>> {
    use crate::selftest::matrices;
    use schemes::{GgmlType, RowOrder};
    if device.is_cpu() {
        return Ok(Vec::new());
    }
    let mut all = Vec::new();
    for (what, storage, activation) in matrices::timed(rows, cols) {
        // The forms fit any shape that is a multiple of 256.
        let Ok(matrix) = Matrix::new(rows, cols, storage, RowOrder::Natural) else { continue };
        let linear = store::Linear { matrix, bias: None, activation };
        all.extend(crate::cuda::layer(device, compute, what, linear, tokens)?);
    }
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_K] {
        all.extend(crate::cuda::candle(device, ty, (rows, cols), tokens)?);
    }
    Ok(all)
}

/// Products of a matrix in every form; none in this build.
///
/// # Errors
/// None in this build.
#[cfg(not(feature = "cuda"))]
pub fn products(_: &Device, _: ComputeType, _: (usize, usize), _: &[usize]) -> Result<Vec<Timed>> {
    Ok(Vec::new())
}
