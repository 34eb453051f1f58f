//! Transformer inference on candle with packed weights.
//!
//! [`Transformer::load`] takes the weights of a [`store::Model`] as they lie in the file and
//! multiplies from that form: a tile of rows at a time is decoded to f32, never a whole
//! matrix. Everything is summed in f32, on the CPU in an order that depends on the shape of the
//! model alone, so that neither the batch nor the number of threads changes a bit of a result.

mod cache;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod engine;
mod error;
mod gpu;
mod linear;
pub mod measure;
pub mod memory;
pub mod mirror;
mod ops;
mod sample;
pub mod selftest;
mod simd;
mod transformer;

pub use cache::{KvCache, KvType, Pool, Sequence};
pub use device::{ComputeType, Options, cpu, device, device_and_options, device_name};
pub use engine::{Batching, Engine, Policy, Request, RequestId, Step};
pub use error::{Error, Result};
pub use gpu::product::FEW as FEW_TOKENS;
pub use linear::rounding::Math;
pub use sample::{Sampler, Sampling, generate};
pub use transformer::{Feed, Observer, Transformer};

/// Returns the name of the instruction set that the kernels run with: `avx512-vnni`, `avx512`, `avx2` or `plain`. The
/// environment variable `QEVAL_ISA` forces one that is lower than the processor's best.
///
/// # Errors
/// [`Error::InstructionSet`] where the variable names one that the processor doesn't have. Programs call this when they
/// start.
pub fn instruction_set() -> Result<&'static str> {
    simd::Isa::chosen().map(simd::Isa::name)
}

/// Returns the name of the instruction set that this process runs products with.
pub fn active_instruction_set() -> &'static str {
    simd::Isa::active().name()
}

/// Returns the names of all instruction sets that this processor has, best first.
pub fn instruction_sets() -> Vec<&'static str> {
    simd::Isa::available().into_iter().map(simd::Isa::name).collect()
}
