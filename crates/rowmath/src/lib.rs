//! Mathematics on rows of numbers, with one definition for encoding, inference, evaluation and training.
//!
//! | module | holds |
//! |---|---|
//! | [`round`] | rounding to the nearest integer, by an addition that vectorizes |
//! | [`absmax`](fn@absmax) | the largest magnitude of a row |
//! | [`exp`](fn@exp) | the exponential of one number |
//! | [`logits`] | maximum, log-sum-exp and KL divergence of rows of logits |
//! | [`softened`] | the same at a temperature, with gradients, for training |

mod absmax;
mod exp;
pub mod logits;
pub mod round;
pub mod softened;

pub use absmax::absmax;
pub use exp::exp;
