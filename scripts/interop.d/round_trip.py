"""Hugging Face directory -> GGUF -> directory, and a directory made from somebody else's GGUF."""

import json
import pathlib
import shutil

import torch

from gguf_peers import tokenization
from tools import differing, load, run

# Fields of config.json that decide what a model computes.
FIELDS = ["model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
          "head_dim", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_theta", "hidden_act",
          "tie_word_embeddings", "bos_token_id", "eos_token_id", "attention_bias", "mlp_bias", "use_sliding_window"]


def forth_and_back(args, work, table):
    """Bit-exact in F16 and in BF16, with the side files word for word."""
    import safetensors.torch

    for name, dtype in [("f16", torch.float16), ("bf16", torch.bfloat16)]:
        source, file, back = work / f"rt-{name}", work / "rt.gguf", work / "rt-back"
        shutil.copytree(args.model, source, ignore=shutil.ignore_patterns("*.safetensors*"))
        tensors = {n: t.to(dtype) for n, t in load(args.model).items()}
        safetensors.torch.save_file(tensors, source / "model.safetensors", {"format": "pt"})
        config = json.loads((source / "config.json").read_text()) | {"torch_dtype": str(dtype).removeprefix("torch.")}
        (source / "config.json").write_text(json.dumps(config, indent=2))
        shutil.rmtree(back, ignore_errors=True)
        run([args.bin / "qconvert", source, "--scheme", name, "--to", "gguf", "-o", file, "--overwrite"])
        run([args.bin / "qconvert", file, "--scheme", name, "--to", "hf", "-o", back, "--overwrite"])
        odd = [f.name for f in source.glob("*.json") if f.read_bytes() != (back / f.name).read_bytes()]
        count = len(list(source.glob("*.json")))
        table.row(name, "directory, GGUF, directory", "qconvert", f"{len(odd)} of {count} side files differ {' '.join(odd)}",
                  differing(tensors, load(back)))


def somebody_elses(args, work, table):
    """config.json and tokenizer.json rebuilt from a GGUF, against transformers' own reading of it and llama-tokenize."""
    import transformers

    for file in map(pathlib.Path, args.gguf):
        back = work / "rebuilt"
        shutil.rmtree(back, ignore_errors=True)
        run([args.bin / "qconvert", file, "--to", "hf", "-o", back, "--overwrite"])
        own = transformers.AutoConfig.from_pretrained(back).to_dict()
        peer = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name).to_dict()
        odd = [f"{k}: {a!r} here, {b!r} there" for k in FIELDS if (a := field(own, k)) != (b := field(peer, k))]
        table.row(file.name, "GGUF to directory", "transformers", f"{len(odd)} of {len(FIELDS)} fields differ {'; '.join(odd)}")
        table.row(file.name, "GGUF to directory", "llama-tokenize", tokenization(args, file, back))


def field(config, name):
    value = config.get(name, (config.get("rope_parameters") or {}).get(name))
    if name == "head_dim" and value is None:
        value = config["hidden_size"] // config["num_attention_heads"]
    return round(value, 9) if isinstance(value, float) else value  # GGUF holds F32
