//! Work for a GPU, planned on the CPU: weights in the forms that kernels read, and
//! launches. No device is known here, so all of it is tested where there is none; `crate::cuda`
//! uploads and launches. `cuda/README.md` says what each kernel takes.

// A build without a GPU uses the plans in tests only.
#![cfg_attr(not(feature = "cuda"), allow(dead_code))]

pub mod attention;
pub mod launch;
pub mod packed;
pub mod product;
