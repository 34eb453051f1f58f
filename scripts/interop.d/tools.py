"""What all checks share: running programs, the table, comparing decoded weights, perplexity."""

import json
import pathlib
import re
import subprocess
import sys

PROMPTS = [
    "The capital of France is", "The largest planet in the solar system is", "The chemical symbol for gold is",
    "The first president of the United States was", "Python is a programming",
]
WINDOW = 512
COLUMNS = ["scheme", "container", "engine", "loads", "decode differs", "logits", "math", "ppl here", "ppl there"]


class Table:
    """Prints rows of the matrix as they come."""

    def __init__(self):
        print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)

    def row(self, scheme, container, engine, loads, decode="", logits="", math="", here="", there=""):
        cells = [scheme, container, engine, loads, decode, logits, math, here, there]
        print("| " + " | ".join(str(c).replace("|", "/") for c in cells) + " |", flush=True)

    def perplexities(self, scheme, container, engine, here, there):
        """One row for each arithmetic of ours, beside the other engine's perplexity."""
        for math, value in here.items():
            self.row(scheme, container, engine, "yes", "", "", math, f"{value:.4f}",
                     f"{there:.4f} ({there / value - 1:+.2%})")


def run(command, check=True):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\nfailed with {done.returncode}:\n{done.stdout[-2000:]}")
    return done


def convert(args, model, out, *options):
    """None, or the last line of what qconvert says when it refuses."""
    done = run([args.bin / "qconvert", model, "-o", out, "--overwrite", *options], check=False)
    return done.stdout.strip().splitlines()[-1][:120] if done.returncode else None


def llama(args, tool):
    return args.peers / "llama/bin" / tool


def load(folder):
    """All tensors of a folder as torch's, by name."""
    import safetensors.torch

    tensors = {}
    for shard in sorted(pathlib.Path(folder).glob("*.safetensors")):
        tensors.update(safetensors.torch.load_file(shard))
    return tensors


def decoded(args, artifact, work, scheme="f32"):
    """What `qconvert --to hf` makes of an artifact, and its config.json."""
    back = work / "back"
    run([args.bin / "qconvert", artifact, "--to", "hf", "--scheme", scheme, "-o", back, "--overwrite"])
    return load(back), json.loads((back / "config.json").read_text())


def differing(ours, theirs):
    """How many tensors differ in any bit, or are on one side only."""
    import torch

    def same(a, b):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))

    names = ours.keys() | theirs.keys()
    odd = sum(not (n in ours and n in theirs and same(ours[n], theirs[n])) for n in names)
    return f"{odd} of {len(names)}"


def perplexity(args, artifact, math):
    done = run([args.bin / "qeval", "perplexity", artifact, "--protocol", "llama.cpp", "--text", args.text, "--tokens",
                args.tokens, "--engine-math", math, "--json"])
    return json.loads(done.stdout)["corpora"][0]["perplexity"]["value"]


def llama_perplexity(args, file, *options):
    """llama-perplexity's value, or the reason why there is none."""
    done = run([llama(args, "llama-perplexity"), "-m", file, "-f", args.text, "-c", WINDOW, "--chunks",
                args.tokens // WINDOW, "-t", args.threads, *options], check=False)
    found = re.search(r"PPL = ([0-9.]+)", done.stdout)
    reason = next((line for line in done.stdout.splitlines() if "error" in line.lower()), "no perplexity")
    return float(found.group(1)) if found else reason.strip()[-60:]


def linear_modules(tensors):
    """The projections of the blocks, which are what gets quantized."""
    return [n.removesuffix(".weight") for n in tensors if re.fullmatch(r"model\.layers\.\d+\..*_proj\.weight", n)]
