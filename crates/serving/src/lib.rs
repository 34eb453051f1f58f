//! Serving measured: what a model writes, how fast, and how requests share it.
//!
//! | module | gives |
//! |---|---|
//! | [`generate`] | continuations of a prompt, with chat templates |
//! | [`bench`](mod@bench) | prefill, decoding, cache and batches beside the machine's ceilings |
//! | [`speculate`] | speculative decoding: a draft proposes, the target decides |
//! | [`schedule`] | static against continuous batching, over a trace of requests |

pub mod bench;
pub mod generate;
pub mod schedule;
pub mod speculate;

pub use scoring::{Error, Failed, Result};
