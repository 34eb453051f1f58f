//! Where the device is chosen: nowhere else.

use crate::linear::rounding::Math;
use crate::{Error, Result};
use candle_core::Device;

/// The CPU.
pub fn cpu() -> Device {
    Device::Cpu
}

/// The device of a name: `cpu`, or `auto` for the best there is.
///
/// # Errors
/// [`Error::Device`] for one that this build does not have.
pub fn device(name: &str) -> Result<Device> {
    match name {
        "cpu" | "auto" => Ok(cpu()),
        other => Err(Error::Device(other.to_string())),
    }
}

/// How to run a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Options {
    /// Whose rounding of activations is reproduced.
    pub math: Math,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_devices_are_named() {
        assert!(device("cpu").is_ok() && device("auto").is_ok());
        let e = device("cuda").expect_err("not in this build").to_string();
        assert!(e.contains("'cuda'") && !e.contains('\n'), "{e}");
    }
}
