//! Where a program computes: the same arguments for all programs.

use clap::Args;

/// Where to compute.
#[derive(Debug, Clone, Args)]
pub struct DeviceArgs {
    /// Where to compute: auto (a GPU where there is one that can), cpu, cuda, or cuda:N for the N-th GPU.
    #[arg(long, default_value = "auto", value_name = "DEVICE")]
    pub device: String,
}

/// Where to compute, and in what.
#[derive(Debug, Clone, Args)]
pub struct ComputeArgs {
    /// Where.
    #[command(flatten)]
    pub place: DeviceArgs,
    /// What a GPU multiplies: f32, f16 or bf16; sums are f32. On the CPU it makes no difference.
    #[arg(long, default_value = "f16", value_name = "TYPE", value_parser = ["f32", "f16", "bf16"])]
    pub dtype: String,
}
