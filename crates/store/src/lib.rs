//! Model files: safetensors, GGUF, Hugging Face directories; readers, writers, atomic output.
