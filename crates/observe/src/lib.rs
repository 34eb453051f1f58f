//! Activation statistics and calibration.
