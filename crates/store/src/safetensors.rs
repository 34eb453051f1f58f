//! safetensors.
