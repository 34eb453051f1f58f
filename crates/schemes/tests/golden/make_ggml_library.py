"""Makes golden files with ggml's own library: pip install numpy llama-cpp-python;
python make_ggml_library.py PATH/libggml-base.so

decode: the types that gguf-py lacks, in the form of make_ggml.py.
encode: ggml_rows.bin holds rows of 256 weights (f32), ggml_quantize_TYPE.bin the library's blocks of them, without
an importance matrix.

The library must be built without fused multiply-add, as the generic x86-64 one is: with it some blocks come out
differently.
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

i = np.arange(256)
sub = i // 32
normal = lambda: rng.normal(0, 1, 256)  # noqa: E731
rows = np.array([
    np.zeros(256),
    np.where(i % 3, 0.0, -0.0),
    np.full(256, -1.5),
    np.where(i == 77, 100, 1e-3),
    np.where(i % 32 == 5, -1000, normal()),
    1e-30 * normal(),
    3e-7 * normal(),
    -np.abs(normal()),
    np.where(i % 2, 3.0, -3.0),
    # Sub-blocks whose scale is coded as 0, and some that are zeros.
    np.where(sub == 3, 0, normal() * 10.0 ** (-sub)),
    2 + 1e-5 * normal(),
    np.round(normal() * 8) / 8,
    0.02 * rng.standard_t(3, 256),
    0.03 * normal(),
    normal().astype(np.float16),
]).astype("<f4")
(here / "ggml_rows.bin").write_bytes(rows.tobytes())
quantize = lib.ggml_quantize_chunk
quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p] + [ctypes.c_int64] * 3 + [ctypes.c_void_p]
quantize.restype = ctypes.c_size_t
# Number of the type, and bytes of 256 weights.
for name, number, size in (
    ("q4_0", 2, 144), ("q4_1", 3, 160), ("q5_0", 6, 176), ("q5_1", 7, 192), ("q8_0", 8, 272), ("q2_k", 10, 84),
    ("q3_k", 11, 110), ("q4_k", 12, 144), ("q5_k", 13, 176), ("q6_k", 14, 210), ("iq4_nl", 20, 144),
    ("iq4_xs", 23, 136),
):
    out = np.zeros((len(rows), size), dtype=np.uint8)
    assert quantize(number, rows.ctypes.data, out.ctypes.data, 0, len(rows), 256, None) == out.size
    (here / f"ggml_quantize_{name}.bin").write_bytes(out.tobytes())
