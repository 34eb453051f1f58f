//! Fused tensor operations with gradients.
//!
//! candle's own fused kernels (`rms_norm`, `softmax_last_dim`, `rope`) drop the gradient silently; its
//! differentiable compositions walk each tensor ten times. These do the arithmetic in one pass forward and one
//! backward, on the CPU, in f32 (or f64, for checks against finite differences). Every one of them is tested
//! against the plain composition of candle operations.

mod attention;
mod loss;
mod norm;
mod swiglu;

pub use attention::{causal_softmax, rotary};
pub use loss::cross_entropy;
pub use norm::rms_norm;
pub use swiglu::swiglu;

use candle_core::{CpuStorage, Layout, Result, WithDType, bail};

/// A float type that the operations compute in.
pub(crate) trait Real: WithDType {
    fn exp(self) -> Self;
    fn ln(self) -> Self;
    fn sqrt(self) -> Self;
}

impl Real for f32 {
    fn exp(self) -> Self {
        f32::exp(self)
    }
    fn ln(self) -> Self {
        f32::ln(self)
    }
    fn sqrt(self) -> Self {
        f32::sqrt(self)
    }
}

impl Real for f64 {
    fn exp(self) -> Self {
        f64::exp(self)
    }
    fn ln(self) -> Self {
        f64::ln(self)
    }
    fn sqrt(self) -> Self {
        f64::sqrt(self)
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
