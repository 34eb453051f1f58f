//! Distillation: training a small student.
//!
//! So far: [`pretrain`] trains a small Llama and its tokenizer from text, and [`outliers::plant`] gives a finished
//! model the outlier channels that large models have, without changing what it computes. Training runs on the CPU in
//! f32, on candle's autograd with the fused operations of [`ops`].

pub mod checkpoint;
pub mod continuations;
pub mod data;
pub mod distill;
mod error;
pub mod gradient;
pub mod labels;
mod memory;
pub mod metrics;
pub mod model;
pub mod ops;
pub mod optim;
pub mod outliers;
mod pretrain;
pub mod random;
pub mod recipe;
pub mod resume;
pub mod soft;
pub mod student;
pub mod teacher;
pub mod tokenizer;
pub mod train;
pub mod weights;
pub mod width;
pub mod windows;

pub use error::{Error, Result};
pub use pretrain::{Texts, pretrain};
pub use soft::{Soft, Teacher};
pub use windows::{Split, Windows};

#[cfg(test)]
mod testing;
