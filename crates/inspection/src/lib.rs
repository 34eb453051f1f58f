//! Properties that make a model hard to quantize.
//!
//! | module | gives |
//! |---|---|
//! | [`tensors`], [`metadata`] | names, types, shapes and bytes of tensors, and the metadata of a file |
//! | [`weights`] | outliers of weights, and the error of each scheme |
//! | [`activations`] | large dimensions of activations on a text |
//! | [`layers`] | the parts of a model that a scheme hurts most, and a recipe; [`hybrid`] puts the models together |
//! | [`memory`] | what fits on a device |
//! | [`diff`] | differences of two models |
//!
//! Each module gives findings as data; qinspect shows them. The statistics themselves are [`observe`]'s.

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
