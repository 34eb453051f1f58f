"""GGUF files, ours and theirs, in gguf-py and llama.cpp."""

import collections
import json
import pathlib
import re
import subprocess
import tempfile

from tools import PROMPTS, convert, decoded, differing, llama, llama_perplexity, load, perplexity, run

OUT = ["f16", "int8-row", "int4-g64", "int8-absmax", "int4-g32", "ggml-q8_0", "ggml-q4_0", "ggml-q4_1", "ggml-q5_0",
       "ggml-q5_1", "ggml-iq4_nl", "nf4", "int4-g128"]
# llama-quantize's names. MXFP4 is for experts there, so the file is Q8_0 with the MLPs overridden.
IN = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_M", "Q5_K_M", "Q6_K", "Q3_K_M", "Q2_K", "IQ4_NL", "IQ4_XS", "MXFP4"]
PURE = ["q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl", "q4_k", "q5_k", "q6_k", "q3_k", "q2_k", "iq4_xs"]
MIXTURES = ["q2_k", "q3_k_s", "q3_k_m", "q3_k_l", "iq4_xs", "iq4_nl", "q4_0", "q4_1", "q4_k_s", "q4_k_m", "q5_0",
            "q5_1", "q5_k_s", "q5_k_m", "q6_k", "q8_0"]


def hf_names(layers):
    names = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
             "lm_head.weight": "output.weight"}
    parts = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
             "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
             "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
             "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    for layer in range(layers):
        for ours, theirs in parts.items():
            for kind in ("weight", "bias"):
                names[f"model.layers.{layer}.{ours}.{kind}"] = f"blk.{layer}.{theirs}.{kind}"
    return names


def unpermuted(values, heads):
    """Rows of q and k from llama's interleaved order to Hugging Face's."""
    return values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def gguf_decoded(file, config):
    """Every tensor of a file as gguf-py decodes it, by its name in Hugging Face's directories."""
    import gguf
    import numpy
    import torch

    names = {v: k for k, v in hf_names(config["num_hidden_layers"]).items()}
    out = {}
    for tensor in gguf.GGUFReader(file).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        values = values.reshape([int(n) for n in reversed(tensor.shape)])
        if config["model_type"] == "llama" and (part := re.search(r"attn_([qk])\.", tensor.name)):
            values = unpermuted(values, config[{"q": "num_attention_heads", "k": "num_key_value_heads"}[part[1]]])
        out[names.get(tensor.name, tensor.name)] = torch.from_numpy(numpy.array(values, dtype=numpy.float32))
    return out


def types(file):
    """How many matrices have which type."""
    import gguf

    count = collections.Counter(t.tensor_type.name for t in gguf.GGUFReader(file).tensors if len(t.shape) > 1)
    return ", ".join(f"{n} {name}" for name, n in count.most_common())


def listing(args, file):
    """Whether `qinspect tensors` and gguf-py list the same: what differs, of how many tensors and keys."""
    import gguf

    done = run([args.bin / "qinspect", "tensors", file, "--json", "--metadata"])
    ours = json.loads(done.stdout)
    reader = gguf.GGUFReader(file)
    mine = {t["stored_name"]: (t["type"].upper(), tuple(t["shape"]), t["bytes"]) for t in ours["tensors"]}
    theirs = {t.name: (t.tensor_type.name, tuple(int(n) for n in reversed(t.shape)), int(t.n_bytes)) for t in reader.tensors}
    odd = [n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n)]

    def shown(field):
        # qinspect shows the first elements of an array.
        value = field.contents(slice(8)) if field.types[0] == gguf.GGUFValueType.ARRAY else field.contents()
        length = len(field.data) if field.types[0] == gguf.GGUFValueType.ARRAY else None
        return (length, value)

    fields = {k: shown(f) for k, f in reader.fields.items() if not k.startswith("GGUF.")}
    keys = {m["key"]: (m["length"], m["value"]) for m in ours["metadata"]}
    odd += [k for k in fields.keys() | keys.keys() if not alike(fields.get(k), keys.get(k))]
    return f"{len(odd)} of {len(theirs)} tensors and {len(fields)} keys listed otherwise" + (f": {odd[:3]}" if odd else "")


def alike(a, b):
    """Equal, where a float may have been written with fewer digits than its F32."""
    import numpy

    if a is None or b is None or a[0] != b[0]:
        return False
    if isinstance(a[1], float):
        return numpy.float32(a[1]) == numpy.float32(b[1])
    return a[1] == b[1]


def tokenization(args, file, folder):
    """Texts that llama.cpp, from this file, and tokenizers, from this folder, split otherwise."""
    import tokenizers

    own = tokenizers.Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
    odd = 0
    for text in [pathlib.Path(args.text).read_text()] + PROMPTS:
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as source:
            source.write(text)
            source.flush()
            done = subprocess.run([str(llama(args, "llama-tokenize")), "-m", str(file), "-f", source.name, "--ids",
                                   "--no-bos", "--log-disable"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        odd += json.loads(done.stdout[done.stdout.index("["):]) != own.encode(text, add_special_tokens=False).ids
    return f"{odd} of {1 + len(PROMPTS)} texts split otherwise"


def score(args, table, name, file):
    """Rows with perplexities; none where llama.cpp refuses the file."""
    there = llama_perplexity(args, file)
    if isinstance(there, str):
        table.row(name, "GGUF", "llama.cpp", f"refuses: {there}")
    else:
        table.perplexities(name, "GGUF", "llama.cpp", {m: perplexity(args, file, m) for m in ("exact", "llama.cpp")}, there)


def ours(args, work, table):
    """Files that qconvert writes."""
    for scheme in args.chosen(OUT):
        file = work / "artifact.gguf"
        if refusal := convert(args, args.model, file, "--scheme", scheme, "--to", "gguf"):
            table.row(scheme, "GGUF", "qconvert", refusal)
            continue
        back, config = decoded(args, file, work)
        # The packed layout's tensors are no ggml type: gguf-py lists them and decodes none.
        packed = any(t["stored_name"].endswith(".codes") for t in json.loads(
            run([args.bin / "qinspect", "tensors", file, "--json"]).stdout)["tensors"])
        decode = "packed layout" if packed else differing(back, gguf_decoded(file, config))
        table.row(scheme, "GGUF", "gguf-py", listing(args, file), decode)
        if args.scored(scheme):
            score(args, table, scheme, file)
        if scheme == "f16":
            table.row(scheme, "GGUF", "llama-tokenize", tokenization(args, file, args.model))


def theirs(args, work, table):
    """Files that llama-quantize writes, read here."""
    source, file = work / "f16.gguf", work / "theirs.gguf"
    run([args.bin / "qconvert", args.model, "--scheme", "f16", "--to", "gguf", "-o", source, "--overwrite"])
    for name in args.chosen(IN):
        options = ["--tensor-type", "ffn_=mxfp4"] if name == "MXFP4" else []
        done = run([llama(args, "llama-quantize"), *options, source, file, "Q8_0" if options else name, 2], check=False)
        if done.returncode:
            table.row(name, "GGUF in", "llama-quantize", f"refuses: {done.stdout.strip().splitlines()[-1][:90]}")
            continue
        back, config = decoded(args, file, work)
        table.row(name, "GGUF in", "gguf-py", types(file), differing(back, gguf_decoded(file, config)))
        if args.scored(name):
            score(args, table, name, file)


def pure(args, work, table):
    """ggml types written here and by `llama-quantize --pure`, byte for byte."""
    beside_llama_quantize(args, work, table, [(f"ggml-{name}", name, ["--include", "*"], ["--pure"]) for name in args.chosen(PURE)])


def mixtures(args, work, table):
    """llama-quantize's mixtures, byte for byte."""
    beside_llama_quantize(args, work, table, [(name, name, [], []) for name in args.chosen(MIXTURES)])


def beside_llama_quantize(args, work, table, kinds):
    """Kinds are our scheme, llama-quantize's name of it, and options for each."""
    import gguf
    import numpy

    narrow = work / "narrow"
    cut(args.model, narrow)
    for model, what in [(args.model, "whole model"), (narrow, "cut to rows of whole blocks of 256")]:
        source, mine, other = work / "f16.gguf", work / "mine.gguf", work / "other.gguf"
        run([args.bin / "qconvert", model, "--scheme", "f16", "--to", "gguf", "-o", source, "--overwrite"])
        for scheme, name, ours, theirs in kinds:
            engine = " ".join(["llama-quantize", *theirs])
            refusal = convert(args, model, mine, "--scheme", scheme, "--to", "gguf", *ours)
            if refusal:
                table.row(scheme, "GGUF", engine, f"{what}: we refuse it")
                continue
            run([llama(args, "llama-quantize"), *theirs, source, other, name.upper(), 2])
            a = {t.name: t for t in gguf.GGUFReader(mine).tensors}
            b = {t.name: t for t in gguf.GGUFReader(other).tensors}
            odd = [n for n in a.keys() | b.keys()
                   if not (n in a and n in b and a[n].tensor_type == b[n].tensor_type and numpy.array_equal(a[n].data, b[n].data))]
            numbers = [int(gguf.GGUFReader(f).fields["general.file_type"].contents()) for f in (mine, other)]
            if numbers[0] != numbers[1]:
                odd.append("general.file_type")
            table.row(scheme, "GGUF", engine, f"{what}: {types(other)}", f"{len(odd)} of {len(b)}")


def cut(model, folder):
    """A model of the real one's weights whose rows are whole blocks of 256: not a sensible model, but sensible numbers."""
    import safetensors.torch

    config = json.loads((pathlib.Path(model) / "config.json").read_text())
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    dim = config.get("head_dim") or hidden // heads
    hidden = hidden // 256 * 256
    heads = hidden // dim
    kv = next(n for n in range(config["num_key_value_heads"], 0, -1) if heads % n == 0)
    wide = config["intermediate_size"] // 256 * 256
    layers = min(config["num_hidden_layers"], 8)
    limits = {"q_proj": (heads * dim, hidden), "k_proj": (kv * dim, hidden), "v_proj": (kv * dim, hidden),
              "o_proj": (hidden, heads * dim), "gate_proj": (wide, hidden), "up_proj": (wide, hidden),
              "down_proj": (hidden, wide), "embed_tokens": (None, hidden), "lm_head": (None, hidden)}
    tensors = {}
    for name, values in load(model).items():
        block = re.match(r"model\.layers\.(\d+)\.", name)
        if block and int(block[1]) >= layers:
            continue
        rows, columns = limits.get(name.split(".")[-2], (hidden, None))
        tensors[name] = (values[:rows, :columns] if values.dim() == 2 else values[:rows]).contiguous()
    folder.mkdir()
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config |= {"hidden_size": hidden, "num_attention_heads": heads, "num_key_value_heads": kv, "intermediate_size": wide,
               "num_hidden_layers": layers, "head_dim": dim}
    if "layer_types" in config:
        config["layer_types"] = config["layer_types"][:layers]
    (folder / "config.json").write_text(json.dumps(config))
    for side in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (pathlib.Path(model) / side).exists():
            (folder / side).write_bytes((pathlib.Path(model) / side).read_bytes())


def split(args, work, table):
    """Models in several files: llama-gguf-split's read here, ours merged there."""
    import gguf
    import numpy

    tool, whole = llama(args, "llama-gguf-split"), work / "whole.gguf"
    if not tool.exists():
        table.row("f16", "GGUF parts", "llama-gguf-split", "is not there: run scripts/peers again")
        return
    run([args.bin / "qconvert", args.model, "--scheme", "f16", "--to", "gguf", "-o", whole, "--overwrite"])
    # llama-gguf-split refuses a size that the first tensor exceeds.
    size = max(100, 1 + max(int(t.n_bytes) for t in gguf.GGUFReader(whole).tensors) // 1_000_000)
    run([tool, "--split", "--split-max-size", f"{size}M", whole, work / "theirs"])
    parts = sorted(work.glob("theirs-*-of-*.gguf"))
    again = decoded(args, parts[0], work, "f16")[0]
    table.row("f16", "GGUF parts", "llama-gguf-split", f"{len(parts)} files of theirs", differing(decoded(args, whole, work, "f16")[0], again))
    run([args.bin / "qconvert", args.model, "--scheme", "f16", "--to", "gguf", "--max-shard-size", f"{size}MB", "-o", work / "parts", "--overwrite"])
    first = sorted((work / "parts").glob("*.gguf"))[0]
    merged = work / "merged.gguf"
    run([tool, "--merge", first, merged])
    a, b = (gguf.GGUFReader(f) for f in (whole, merged))
    left, right = ({t.name: t for t in r.tensors} for r in (a, b))
    odd = [n for n in left.keys() | right.keys() if not (n in left and n in right and numpy.array_equal(left[n].data, right[n].data))]
    keys = {k for k in a.fields.keys() ^ b.fields.keys() if not k.startswith("GGUF.")}
    table.row("f16", "GGUF parts", "llama-gguf-split", f"{len(list((work / 'parts').glob('*.gguf')))} files of ours merged, other keys: "
              f"{', '.join(sorted(keys)) or 'none'}", f"{len(odd)} of {len(left)}")
