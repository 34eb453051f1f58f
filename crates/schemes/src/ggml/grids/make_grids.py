"""Makes the tables of the iq1, iq2 and iq3 types beside it: pip install gguf; python make_grids.py

Each file is gguf-py's grid of the type: codes of 2 bits (iq1, iq2) or of 4 bits (iq3) into the type's few
magnitudes, first in the low bits, 8 (iq1, iq2) or 4 (iq3) weights for each entry.
"""

from pathlib import Path

from gguf import quants

here = Path(__file__).parent
for name in ("IQ1_S", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S"):
    (here / f"{name.lower()}.bin").write_bytes(bytes.fromhex(getattr(quants, name).grid_hex.decode()))
