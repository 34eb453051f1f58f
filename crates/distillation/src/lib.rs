//! Distillation: training a small student.
//!
//! [`labels`] keeps a teacher's distributions, [`distill`] and [`train`](mod@train) train a student on them,
//! [`pretrain`](fn@pretrain) trains a small Llama and its tokenizer from text, and [`outliers::plant`] gives a finished
//! model the outlier channels that large models have, without changing what it computes. Training runs in f32, on
//! candle's autograd with the operations of [`ops`]: fused on the CPU, composed of candle's on a GPU. [`selftest`] holds
//! a device to the definitions.

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
pub mod selftest;
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
