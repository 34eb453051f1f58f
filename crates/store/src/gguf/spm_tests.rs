//! BPE with byte fallback, to GGUF and back.
