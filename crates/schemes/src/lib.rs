//! Quantization schemes: numbers to codes and back, with no knowledge of files or models.
