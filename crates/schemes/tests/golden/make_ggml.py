"""Makes ggml_*.bin with gguf-py: pip install gguf numpy; python make_ggml.py

decode: ggml_TYPE.bin holds BLOCKS blocks, then the weights that gguf-py decodes from them (f32).
encode: ggml_encode_TYPE.bin holds ROWS x 32 weights (f32), then the blocks that gguf-py makes of them.
Everything little-endian; the seed is fixed.
"""

from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

BLOCKS = 24
ROWS = 64
# Where the f16 scales of a block stand, in bytes; mxfp4 has an 8-bit exponent instead.
SCALES = {
    T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.IQ4_NL: [0], T.MXFP4: [],
    T.Q2_K: [80, 82], T.Q3_K: [108], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208], T.IQ4_XS: [0],
}
SPECIAL = np.array([0.0, -0.0, 6e-8, 5.9e-5, -65504.0, 1.0], dtype=np.float16)

here = Path(__file__).parent
rng = np.random.default_rng(20240517)

for ty, places in SCALES.items():
    blocks = rng.integers(0, 256, (BLOCKS, GGML_QUANT_SIZES[ty][1]), dtype=np.uint8)
    for place in places:
        scales = rng.normal(0, 0.05, BLOCKS).astype(np.float16)
        scales[: len(SPECIAL)] = rng.permutation(SPECIAL)
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(BLOCKS, 2)
    if ty == T.MXFP4:
        # 255 overflows in numpy's own way; e8m0 has NaN there.
        blocks[:, 0] = np.minimum(blocks[:, 0], 254)
        blocks[:3, 0] = [0, 1, 2]
    weights = dequantize(blocks, ty).astype("<f4")
    (here / f"ggml_{ty.name.lower()}.bin").write_bytes(blocks.tobytes() + weights.tobytes())

weights = rng.normal(0, 1, (ROWS, 32)).astype(np.float32) * np.logspace(-6, 3, ROWS, dtype=np.float32)[:, None]
weights[0] = 0
weights[1] = 1
weights[2] = np.linspace(-8, 8, 32)
weights[3] = np.arange(32) - 16.5
weights[4] = np.where(np.arange(32) % 2, 3.0, -3.0)
weights[5] = np.arange(32) * np.float32(1e-30)
for ty in (T.Q8_0, T.Q4_0):
    (here / f"ggml_encode_{ty.name.lower()}.bin").write_bytes(weights.astype("<f4").tobytes() + quantize(weights, ty).tobytes())

# The rest, fewer blocks of each.
SMALL = {T.TQ1_0: 52, T.TQ2_0: 64, T.NVFP4: None, T.IQ2_XXS: 0, T.IQ2_XS: 0, T.IQ2_S: 0, T.IQ3_XXS: 0, T.IQ3_S: 0,
         T.IQ1_S: 0, T.IQ1_M: None}
rng = np.random.default_rng(20240518)
for ty, place in SMALL.items():
    blocks = rng.integers(0, 256, (5, GGML_QUANT_SIZES[ty][1]), dtype=np.uint8)
    scales = rng.normal(0, 0.05, 5).astype(np.float16)
    scales[:2] = [5.9e-8, -1.0]
    if place is not None:
        blocks[:, place : place + 2] = scales.view(np.uint8).reshape(5, 2)
    elif ty == T.IQ1_M:
        # Four bits in the top of each of the last four words.
        for i in range(4):
            blocks[:, 49 + 2 * i] = blocks[:, 49 + 2 * i] & 15 | (scales.view(np.uint16) >> (4 * i) & 15) << 4
    else:
        blocks[0, :4] = [0, 1, 0x7F, 0x7E]
    weights = dequantize(blocks, ty).astype("<f4")
    assert np.isfinite(weights).all(), ty
    (here / f"ggml_{ty.name.lower()}.bin").write_bytes(blocks.tobytes() + weights.tobytes())
