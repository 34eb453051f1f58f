//! Scores of quantized artifacts against one reference.
//!
//! [`compare::compare`] runs everything: [`windows`] say which tokens of a text are scored,
//! [`score`] gives each token's loss and divergence, [`stats`] the intervals, [`battery`],
//! [`choices`] and [`agreement`] ask questions, [`size`] and [`speed`] measure, [`verdict`]
//! gives the word, and [`rows`] is what comes out, as JSON too. Models are asked through
//! [`model::LanguageModel`] alone.
//!
//! [`generate`], [`bench`](mod@bench), [`speculate`] and [`schedule`] are about serving.

pub mod agreement;
pub mod battery;
pub mod bench;
pub mod choices;
pub mod cli;
pub mod compare;
mod error;
pub mod generate;
pub mod kernels;
pub mod load;
pub mod model;
pub mod rows;
pub mod schedule;
pub mod score;
pub mod selftest;
pub mod size;
pub mod speculate;
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

/// The program and its version, as it stands in every result.
pub(crate) const TOOL: &str = concat!("qeval ", env!("CARGO_PKG_VERSION"));
