"""Makes golden files with ggml's own library: pip install numpy llama-cpp-python;
python make_ggml_library.py PATH/libggml-base.so

Decoding of the types that gguf-py lacks, in the form of make_ggml.py.
"""

import ctypes
import sys
from pathlib import Path

import numpy as np

here = Path(__file__).parent
lib = ctypes.CDLL(sys.argv[1])
rng = np.random.default_rng(20240519)

# Bytes and weights of a block, and where the scale stands: f32 for q8_K, f16 else.
for name, size, length in (("q8_K", 292, 256), ("q1_0", 18, 128), ("q2_0", 18, 64)):
    blocks = rng.integers(0, 256, (5, size), dtype=np.uint8)
    scales = rng.normal(0, 0.05, 5).astype(np.float32 if name == "q8_K" else np.float16)
    scales[:2] = [5.9e-8, -1.0]
    blocks[:, : scales.itemsize] = scales.view(np.uint8).reshape(5, -1)
    weights = np.empty(5 * length, dtype="<f4")
    convert = getattr(lib, f"dequantize_row_{name}")
    convert(blocks.ctypes.data_as(ctypes.c_void_p), weights.ctypes.data_as(ctypes.c_void_p), ctypes.c_int64(weights.size))
    (here / f"ggml_{name.lower()}.bin").write_bytes(blocks.tobytes() + weights.tobytes())
