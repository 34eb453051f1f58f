//! Why a model is hard to quantize: what is in it, how its weights and activations are spread,
//! which parts of it suffer most, what fits in memory, and what differs between two of them.
//!
//! Each module gives findings as data; [`cli`] shows them. The statistics themselves are
//! [`observe`]'s.

pub mod activations;
pub mod diff;
mod error;
pub mod hybrid;
pub mod layers;
pub mod memory;
pub mod metadata;
pub mod place;
pub mod tensors;
pub mod text;
pub mod weights;

pub use error::{Error, Result};
