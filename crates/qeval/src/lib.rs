//! Scores of quantized artifacts against one reference.
