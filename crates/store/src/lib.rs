//! Model files: safetensors, GGUF, Hugging Face directories; readers, writers, atomic output.
//!
//! [`open`] gives a [`Model`]: tensors as views into the memory map under their Hugging Face
//! names, whatever the container, with the model's [`Config`], tokenizer and provenance.
//! [`Model::linear`] presents any quantized layout as a packed [`schemes::Matrix`].

mod bytes;
mod config;
mod dtype;
mod error;
pub mod gguf;
pub mod hf;
mod json;
mod layouts;
mod model;
pub mod output;
mod panics;
pub mod safetensors;
#[cfg(test)]
mod testing;
mod text;
mod unused;

pub use bytes::Bytes;
pub use config::{Config, Family, MAX_SIZE, RopeScaling};
pub use dtype::DType;
pub use error::{Error, Result};
pub use json::parse_json;
pub use layouts::{Description, Layout};
pub use model::{Container, Linear, Model, SideFile, Tensor, combined_blake3, open};
pub use text::{Bos, Cut, Encoded, TextTokenizer, TrainedOn};
