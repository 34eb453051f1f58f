//! Quantization schemes: numbers to codes and back, with no knowledge of files or models.
//!
//! A *scheme* says how the weights of a matrix `W [out, in]` (row-major, `y = W x`) become
//! codes and scales; a *packing* says how the codes lie in bytes. [`Matrix`] is a view of a
//! matrix in any packed form, over borrowed, owned or memory-mapped bytes.
//!
//! Rounding is to nearest, ties to even. Of integer codes and NF4 a scale is rounded to its stored
//! type *before* the codes are computed. The ggml types and `nf4-dq` follow ggml and bitsandbytes,
//! which compute codes with the scale that is not rounded yet.

mod affine;
mod dynamic_map;
mod error;
mod float;
mod float8;
pub mod ggml;
pub mod int;
mod matrix;
pub mod measure;
pub mod nf4;
pub mod outlier;
pub mod pack;
mod scheme;
mod suggest;

pub use affine::AffineStorage;
pub use error::Error;
pub use float::{FloatType, Overflow, decode_floats, encode_floats};
pub use float8::{Float8Storage, e4m3};
pub use ggml::GgmlType;
pub use matrix::{
    DECODE_ALIGN, INV_127, IntStorage, Matrix, Nf4Absmax, Nf4Storage, OutlierStorage, RowOrder, ScaleArray, ScaleUse,
    ScaledStorage, Storage,
};
pub use pack::Packing;
pub use scheme::{Activation, Bits, Grouping, Scheme};
