//! Scores of models and quantized artifacts.
//!
//! [`compare::compare`] runs everything:
//!
//! | module | gives |
//! |---|---|
//! | [`windows`] | the tokens of a text that are scored |
//! | [`score`] | loss and divergence of each token |
//! | [`stats`] | confidence intervals |
//! | [`battery`], [`choices`], [`agreement`] | answers to questions, multiple choice, agreement of continuations |
//! | [`size`], [`speed`] | bytes, bits per weight, tokens per second |
//! | [`cache`] | passes that earlier runs kept |
//! | [`verdict`] | the word for an artifact, from the intervals and a margin |
//! | [`rows`] | the comparison as data, as JSON too |
//!
//! Models are asked through [`model::LanguageModel`] alone; [`load`] opens them. [`selftest`] compares a device's models
//! with the CPU's.

pub mod agreement;
pub mod battery;
pub mod cache;
pub mod choices;
pub mod compare;
mod error;
pub mod load;
pub mod model;
pub mod rows;
pub mod score;
pub mod selftest;
pub mod size;
pub mod speed;
pub mod stats;
pub mod text;
mod transformer;
pub mod verdict;
pub mod windows;

pub use error::{Error, Failed, Result};
pub use store::Bos;
pub use text::{Corpus, Encoder};
pub use transformer::{Packed, Session};
pub use windows::{Protocol, Style, Window, Windows};
