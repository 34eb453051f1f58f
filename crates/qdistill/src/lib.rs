//! Distillation: training a small student.
//!
//! So far: [`pretrain`] trains a small Llama and its tokenizer from text, and [`outliers::plant`] gives a finished
//! model the outlier channels that large models have, without changing what it computes. Training runs on the CPU in
//! f32, on candle's autograd with the fused operations of [`ops`].

pub mod checkpoint;
pub mod data;
mod error;
pub mod model;
pub mod ops;
pub mod optim;
pub mod outliers;
mod pretrain;
pub mod random;
pub mod recipe;
pub mod soft;
pub mod tokenizer;
pub mod windows;

pub use error::{Error, Result};
pub use pretrain::{Progress, Start, Step, Texts, Validation, pretrain};
pub use soft::{Soft, Teacher};
pub use windows::{Split, Windows};

#[cfg(test)]
mod testing;
