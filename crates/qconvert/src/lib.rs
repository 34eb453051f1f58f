//! Checkpoint in, quantized artifact out: plan, stream, verify.
