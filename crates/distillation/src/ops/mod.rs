//! Tensor operations with gradients, in two forms.
//!
//! candle's own fused kernels (`rms_norm`, `softmax_last_dim`, `rope`) drop the gradient silently; its
//! differentiable compositions walk each tensor ten times. On the CPU the operations here do the arithmetic in one pass
//! forward and one backward, in f32 (or f64, for checks against finite differences). Rows are shared out among threads;
//! sums over rows are made in an order that doesn't depend on how many there are. Other devices run the compositions.
//! Both forms run on the CPU, where the tests hold each to the other.

mod attention;
mod composed;
mod composed_loss;
mod distill;
mod norm;
mod pass;
pub(crate) mod sums;
mod swiglu;

pub use distill::{Divergence, HeadGradient, Losses, Objective, SoftRow, Target, chunk_rows, head_loss};
pub use pass::Operations;
pub(crate) use rowmath::softened::{exponentials, largest, total};

use candle_core::{CpuStorage, Device, Layout, Result, Tensor, WithDType, bail};

/// Form in which operations are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// By loops of this crate, which change sums where they lie: on the CPU.
    Fused,
    /// Operations composed of candle's: on any device.
    Composed,
}

impl Form {
    /// The form for a device.
    pub fn on(device: &Device) -> Self {
        if device.is_cpu() { Form::Fused } else { Form::Composed }
    }
}

/// Rows that a thread takes at least.
const ROWS: usize = 16;

/// A float type that the operations compute in.
pub trait Real: WithDType + rowmath::softened::Real {
    /// The natural logarithm.
    fn ln(self) -> Self;
    /// The square root.
    fn sqrt(self) -> Self;
    /// All values of a storage of this type.
    fn storage_mut(storage: &mut CpuStorage) -> Result<&mut [Self]>;
}

impl Real for f32 {
    fn ln(self) -> Self {
        f32::ln(self)
    }
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
    fn storage_mut(storage: &mut CpuStorage) -> Result<&mut [Self]> {
        match storage {
            CpuStorage::F32(values) => Ok(values),
            _ => bail!("this operation expected f32"),
        }
    }
}

impl Real for f64 {
    fn ln(self) -> Self {
        f64::ln(self)
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
    }
    fn storage_mut(storage: &mut CpuStorage) -> Result<&mut [Self]> {
        match storage {
            CpuStorage::F64(values) => Ok(values),
            _ => bail!("this operation expected f64"),
        }
    }
}

/// The values of a contiguous tensor.
pub(crate) fn values<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let all = T::cpu_storage_as_slice(storage)?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("this operation needs contiguous tensors"),
    }
}

/// Values of a storage, to be changed in place.
pub(crate) fn values_mut<'a, T: Real>(storage: &'a mut CpuStorage, layout: &Layout) -> Result<&'a mut [T]> {
    let Some((start, end)) = layout.contiguous_offsets() else { bail!("this operation needs contiguous tensors") };
    // candle has no such view of a storage in general.
    T::storage_mut(storage).map(|all| &mut all[start..end])
}

/// Shows the values of a contiguous tensor; those of another device are copied for that.
pub(crate) fn with_values<T: Real, R>(tensor: &Tensor, show: impl FnOnce(&[T]) -> R) -> Result<R> {
    let tensor = tensor.to_device(&Device::Cpu)?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        candle_core::Storage::Cpu(storage) => Ok(show(values(storage, layout)?)),
        _ => bail!("a tensor on the CPU isn't there"),
    }
}

/// The length of a tensor's last dimension.
pub(crate) fn last_dim(layout: &Layout) -> Result<usize> {
    match layout.dims().last() {
        Some(&n) if n > 0 => Ok(n),
        _ => bail!("this operation needs a tensor with at least one dimension and one element"),
    }
}

/// Runs `$body` with `$t` bound to the float type of `$storage`.
macro_rules! dispatch {
    ($storage:expr, $t:ident => $body:expr) => {
        match $storage {
            candle_core::CpuStorage::F32(_) => {
                type $t = f32;
                $body
            }
            candle_core::CpuStorage::F64(_) => {
                type $t = f64;
                $body
            }
            other => candle_core::bail!(
                "training computes in f32 or f64, not in {:?}",
                candle_core::backend::BackendStorage::dtype(other)
            ),
        }
    };
}
pub(crate) use dispatch;

#[cfg(test)]
mod tests;
