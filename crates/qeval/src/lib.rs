//! Scores of quantized artifacts against one reference.
//!
//! [`compare::compare`] runs everything: [`windows`] say which tokens of a text are scored,
//! [`score`] gives each token's loss and divergence, [`stats`] the intervals, [`battery`],
//! [`choices`] and [`agreement`] ask questions, [`size`] and [`speed`] measure, [`verdict`]
//! finds the word, and [`rows`] is what comes out, as JSON too. Models are asked through
//! [`model::LanguageModel`] alone.

pub mod agreement;
pub mod battery;
pub mod choices;
pub mod cli;
pub mod compare;
mod error;
pub mod kernels;
pub mod load;
pub mod model;
pub mod rows;
pub mod score;
pub mod size;
pub mod speed;
pub mod stats;
pub mod text;
mod transformer;
pub mod verdict;
pub mod windows;

pub use error::{Error, Result};
pub use text::{Corpus, Encoder};
pub use transformer::Packed;
pub use windows::{Bos, Protocol, Style, Window, Windows};
