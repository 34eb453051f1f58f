//! Fused operations of the transformer, on the CPU in f32.
//!
//! Each is a candle custom operation, so that another device can be added beside `cpu_fwd`.
//! They write into tensors that the caller keeps for the whole pass, so that nothing is
//! allocated from layer to layer.

pub mod attention;
pub mod norm;
pub mod rope;
pub mod swiglu;

use candle_core::{CpuStorage, Layout, Result, WithDType, bail};

/// The values of a contiguous tensor.
pub(crate) fn values<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let all = T::cpu_storage_as_slice(storage)?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("this operation needs contiguous tensors"),
    }
}

/// The values of a contiguous f32 tensor, to be written.
pub(crate) fn values_mut<'a>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [f32]> {
    match (storage, layout.contiguous_offsets()) {
        (CpuStorage::F32(all), Some((start, end))) => Ok(&mut all[start..end]),
        _ => bail!("this operation writes contiguous f32 tensors"),
    }
}

/// The length of a tensor's last dimension.
pub(crate) fn last_dim(layout: &Layout) -> Result<usize> {
    match layout.dims().last() {
        Some(&n) if n > 0 => Ok(n),
        _ => bail!("this operation needs a tensor with at least one dimension and one element"),
    }
}
