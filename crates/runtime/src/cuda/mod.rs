//! Operations on a GPU: candle's CUDA backend for memory, cuBLAS for matrix products of many
//! tokens, and the kernels of `crates/runtime/cuda` for everything else.
//!
//! What is launched is planned in [`crate::gpu`], which knows no device.

mod case;
mod driver;
mod inputs;
mod launch;
mod measure;
mod ops;
mod product;
mod verify;
mod weights;

pub use case::run;
pub use launch::open;
pub use measure::{ceilings, products};
pub use ops::{attend, copy_block, rms_norm, store_keys, swiglu, turn_heads};
pub use product::project;
pub use verify::difference;
pub use weights::{Group, upload_layers};

use candle_core::cuda::cudarc::driver::sys::CUdevice_attribute;
use candle_core::{Device, DeviceLocation};

/// The name of a GPU, if it says.
pub fn model(device: &Device) -> Option<String> {
    device.as_cuda_device().ok()?.cuda_stream().context().name().ok()
}

/// Bytes of its memory that are free, if it says, or kept by its pool for what comes.
pub fn free_memory(device: &Device) -> Option<u64> {
    let (free, _) = device.as_cuda_device().ok()?.cuda_stream().context().mem_get_info().ok()?;
    let DeviceLocation::Cuda { gpu_id } = device.location() else { return None };
    u64::try_from(free).ok()?.checked_add(launch::pooled(gpu_id).unwrap_or(0))
}

/// Number of the device's multiprocessors.
pub fn processors(device: &Device) -> usize {
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
    let count = device.as_cuda_device().ok().and_then(|d| d.cuda_stream().context().attribute(attribute).ok());
    count.and_then(|n| usize::try_from(n).ok()).unwrap_or(1)
}
