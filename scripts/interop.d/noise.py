"""How far a perplexity moves by last bits alone.

Where activations are rounded to 8 bits, a last bit decides which of two codes a value near a boundary gets, so even two
orders of one sum give other perplexities. Exchanging whole blocks of neurons in an MLP (rows of gate and up, columns of
down) leaves every block of weights and of activations as it is: same codes, same scales, same model. Only sums run in
another order. What several such models score in one engine is that engine's noise; a difference between two engines
means something where it is larger than the noise of the means.
"""

import pathlib
import shutil
import statistics

from tools import llama_perplexity, load, perplexity, run

DEFAULT = ["int8-row", "ggml-q8_0", "ggml-q4_0"]
ORDERS = 6


def reordered(model, folder, seed, block):
    import safetensors.torch
    import torch

    generator = torch.Generator().manual_seed(seed)
    tensors = load(model)
    for name in [n for n in tensors if n.endswith("mlp.down_proj.weight")]:
        width = tensors[name].shape[1]
        blocks = torch.randperm(width // block, generator=generator)
        order = (blocks[:, None] * block + torch.arange(block)).flatten()
        tensors[name] = tensors[name][:, order].contiguous()
        for other in ("gate_proj", "up_proj"):
            key = name.replace("down_proj", other)
            tensors[key] = tensors[key][order].contiguous()
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(model, folder, ignore=shutil.ignore_patterns("*.safetensors*"))
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def check(args, work, table):
    for scheme in args.scheme or DEFAULT:
        here, there = [], []
        for seed in range(ORDERS):
            model, file = work / "reordered", work / "reordered.gguf"
            reordered(pathlib.Path(args.model), model, seed, 256 if scheme.endswith("_k") else 32)
            run([args.bin / "qconvert", model, "--scheme", scheme, "--to", "gguf", "-o", file, "--overwrite"])
            here.append(perplexity(args, file, "llama.cpp"))
            there.append(llama_perplexity(args, file))
        (a, b), (x, y) = [statistics.mean(v) for v in (here, there)], [statistics.stdev(v) for v in (here, there)]
        error = ((x * x + y * y) / ORDERS) ** 0.5
        table.row(scheme, "GGUF", "llama.cpp", f"{ORDERS} orders of sums", "", "", "llama.cpp", f"{a:.3f}, sd {x / a:.2%}",
                  f"{b:.3f}, sd {y / b:.2%} (mean {b / a - 1:+.2%}, standard error {error / a:.2%})")
