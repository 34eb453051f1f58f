//! `--device` and `--dtype`: the same options for all programs.

use clap::Args;

/// The device to compute on.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Device to run on: auto (a usable GPU if there is one, else the CPU), cpu, cuda, or cuda:N for the N-th GPU.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
}

/// The device to compute on, and the precision of its matrix products.
#[derive(Debug, Clone, Args)]
pub struct ComputeArgs {
    /// The device.
    #[command(flatten)]
    pub place: DeviceArgs,
    /// Precision of matrix products on a GPU: f32, f16 or bf16. Sums are f32. It changes nothing on the CPU.
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = ["f32", "f16", "bf16"])]
    pub dtype: String,
}
