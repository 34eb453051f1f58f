//! Choice of the device, for all of the runtime.

use crate::linear::rounding::Math;
use crate::{Error, Result};
use candle_core::{Device, DeviceLocation};
use std::fmt;
use std::str::FromStr;

/// Settings for running a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Engine whose rounding of activations is reproduced.
    pub math: Math,
    /// Precision of matrix products on a GPU.
    pub compute: ComputeType,
}

/// The type of a matrix product's inputs on a GPU; sums are f32. The CPU multiplies codes and f32
/// whatever is asked for: half types are no faster there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ComputeType {
    /// For agreement with the CPU.
    F32,
    /// The finest of the fast ones; values beyond 65504 are cut to that.
    #[default]
    F16,
    /// For models whose activations exceed f16.
    BF16,
}

/// `f32`, `f16` or `bf16`.
impl fmt::Display for ComputeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ComputeType::F32 => "f32",
            ComputeType::F16 => "f16",
            ComputeType::BF16 => "bf16",
        })
    }
}

impl FromStr for ComputeType {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let types = [ComputeType::F32, ComputeType::F16, ComputeType::BF16];
        types.into_iter().find(|ty| ty.to_string() == name).ok_or_else(|| Error::UnknownType(name.into()))
    }
}

/// A device as people name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Auto,
    Cpu,
    Cuda(usize),
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let number = |n: &str| n.parse().ok().filter(|_| n.bytes().all(|b| b.is_ascii_digit())).map(Choice::Cuda);
        match name {
            "auto" => Some(Choice::Auto),
            "cpu" => Some(Choice::Cpu),
            "cuda" => Some(Choice::Cuda(0)),
            other => other.strip_prefix("cuda:").and_then(number),
        }
        .ok_or_else(|| Error::UnknownDevice(name.into()))
    }
}

/// The CPU.
pub fn cpu() -> Device {
    Device::Cpu
}

/// The device of a name: `cpu`; `cuda` or `cuda:N`; `auto` for the first GPU where there is one
/// that can do what the options ask for, else the CPU.
///
/// # Errors
/// [`Error::UnknownDevice`]; [`Error::NoCuda`] in a build without it; [`Error::Gpu`] with the driver's
/// reason; [`Error::CpuOnly`].
pub fn device(name: &str, options: &Options) -> Result<Device> {
    match name.parse()? {
        Choice::Cpu => Ok(cpu()),
        Choice::Auto => Ok(supported(options).and_then(|()| gpu(name, 0)).unwrap_or_else(|_| cpu())),
        Choice::Cuda(ordinal) => {
            let device = gpu(name, ordinal)?;
            supported(options)?;
            Ok(device)
        }
    }
}

/// A device, and how to run on it: in the type of a name, with an engine's rounding.
///
/// # Errors
/// As [`device`], and [`Error::UnknownType`].
pub fn device_and_options(name: &str, compute: &str, math: Math) -> Result<(Device, Options)> {
    let options = Options { math, compute: compute.parse()? };
    Ok((device(name, &options)?, options))
}

/// Refuses what only the CPU does.
pub(crate) fn supported(options: &Options) -> Result<()> {
    if options.math == Math::Exact { Ok(()) } else { Err(Error::CpuOnly("another engine's rounding".into())) }
}

#[cfg(not(feature = "cuda"))]
fn gpu(name: &str, _: usize) -> Result<Device> {
    Err(Error::NoCuda(name.into()))
}

#[cfg(feature = "cuda")]
fn gpu(name: &str, ordinal: usize) -> Result<Device> {
    crate::cuda::open(ordinal).map_err(|reason| Error::Gpu { device: name.into(), reason })
}

/// Name of a device: `cpu`, or such as `cuda:0, NVIDIA H200`.
pub fn device_name(device: &Device) -> String {
    match device.location() {
        DeviceLocation::Cpu => "cpu".into(),
        DeviceLocation::Cuda { gpu_id } => match gpu_model(device) {
            Some(model) => format!("cuda:{gpu_id}, {model}"),
            None => format!("cuda:{gpu_id}"),
        },
        DeviceLocation::Metal { gpu_id } => format!("metal:{gpu_id}"),
    }
}

/// Multiprocessors of a device.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub(crate) fn processors(device: &Device) -> usize {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return crate::cuda::processors(device);
    }
    1
}

#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
fn gpu_model(device: &Device) -> Option<String> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return crate::cuda::model(device);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices() {
        let of = |name: &str| name.parse::<Choice>().ok();
        assert_eq!(of("cuda:3"), Some(Choice::Cuda(3)));
        assert_eq!((of("cuda"), of("auto"), of("cpu")), (Some(Choice::Cuda(0)), Some(Choice::Auto), Some(Choice::Cpu)));
        for wrong in ["", "gpu", "cuda:", "cuda:-1", "cuda:+1", "cuda:x", "CUDA", "cuda:99999999999999999999"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn what_is_not_there_is_said_in_one_line() {
        let options = Options::default();
        assert!(device("cpu", &options).is_ok() && device("auto", &options).is_ok());
        assert_eq!(device_name(&cpu()), "cpu");
        let refused = |name: &str| device(name, &options).expect_err("refused").to_string();
        assert!(refused("gpu").contains("'gpu'") && refused("gpu").contains("cuda:N"));
        if !cfg!(feature = "cuda") {
            let e = refused("cuda:1");
            assert!(e.contains("'cuda:1'") && e.contains("scripts/build-cuda") && !e.contains('\n'), "{e}");
        }
    }

    #[test]
    fn types_are_named_as_they_print() {
        for ty in [ComputeType::F32, ComputeType::F16, ComputeType::BF16] {
            assert_eq!(ty.to_string().parse::<ComputeType>().ok(), Some(ty));
        }
        assert!("f64".parse::<ComputeType>().is_err());
    }

    #[test]
    fn another_engines_rounding_is_for_the_cpu() {
        let options = Options { math: Math::LlamaCpp, ..Options::default() };
        assert!(device("auto", &options).is_ok_and(|d| d.is_cpu()));
        assert!(matches!(supported(&options), Err(Error::CpuOnly(_))));
    }
}
