//! Activation statistics: what the inputs of linear layers look like on text.

mod calibration;

pub use calibration::{Calibration, Collector, Error};
