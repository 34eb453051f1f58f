//! Statistics: how weights are spread and what schemes lose of them, what the inputs of linear layers
//! look like on text.

pub mod activations;
mod calibration;
pub mod weights;

pub use calibration::{Calibration, Collector, Error};
