//! Everything that the four programs share.
//!
//! | module | holds |
//! |---|---|
//! | [`program`] | `main` of a program: arguments, progress bars, result, exit code |
//! | [`exit`] | exit codes, and the one list of errors that are wrong usage |
//! | [`device`] | `--device`, `--dtype` |
//! | [`output`] | `--json`, `--markdown`, `--csv`, `--html`, `--overwrite`: the [`Findings`] of a command in each form |
//! | [`bars`] | progress bars on standard error |
//! | [`provenance`] | command, date, machine and hashes of inputs, in JSON and pages |
//! | [`interrupt`] | Ctrl-C, SIGTERM and SIGHUP |
//! | [`CommonArgs`] | `--quiet`, `--color`, `--threads` |
//! | [`text`] | paragraphs and lists of facts for a terminal |
//! | [`man`] | shell completions and man pages |
//!
//! A program's own crate holds its options and, for each command, a function that calls the libraries and returns an
//! [`Outcome`]. This crate knows every library's errors; no library knows this crate.

pub mod bars;
mod bos;
mod common;
pub mod device;
pub mod exit;
pub mod interrupt;
pub mod man;
pub mod output;
mod overwrite;
pub mod program;
pub mod provenance;
pub mod schema;
pub mod size;
pub mod text;

pub use bars::Bars;
pub use bos::BosArg;
pub use common::{CommonArgs, HasCommon};
pub use device::{ComputeArgs, DeviceArgs};
pub use exit::{Outcome, Usage};
pub use output::{Findings, JsonArgs, OutputArgs};
pub use overwrite::OverwriteArgs;
pub use program::{run, say};
pub use provenance::Provenance;
