"""Hugging Face directories, ours and theirs, in transformers, bitsandbytes, compressed-tensors and safetensors."""

import gc
import json
import pathlib
import shutil

import safetensors.torch
import torch
import transformers

from tools import PROMPTS, WINDOW, convert, decoded, differing, linear_modules, load, perplexity, run

# Scheme, layout, our arithmetic that does as transformers does.
OUT = [("f16", None, "exact"), ("int8-row", None, "exact"), ("int8-absmax", None, "exact"), ("int8-g64", None, "exact"),
       ("int4-row", None, "exact"), ("int4-g64", None, "exact"), ("w8a8-token", None, "compressed-tensors"),
       ("nf4", None, "exact"), ("nf4-dq", None, "exact"), ("int8-row", "bitsandbytes", "bitsandbytes"),
       ("int4-g64", "packed", None), ("nf4-dq", "packed", None)]
BITSANDBYTES = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "nf4-dq": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "int8": dict(load_in_8bit=True),
}
INT = dict(type="int", symmetric=True)
COMPRESSED = {
    "int8-channel": ("pack-quantized", INT | dict(num_bits=8, strategy="channel")),
    "int8-tensor": ("pack-quantized", INT | dict(num_bits=8, strategy="tensor")),
    "int8-channel, unpacked": ("int-quantized", INT | dict(num_bits=8, strategy="channel")),
    "int8-tensor, unpacked": ("int-quantized", INT | dict(num_bits=8, strategy="tensor")),
    "int8-channel, zero points": ("pack-quantized", INT | dict(num_bits=8, strategy="channel", symmetric=False)),
    "int4-group": ("pack-quantized", INT | dict(num_bits=4, strategy="group", group_size=64)),
    "int4-group, zero points": ("pack-quantized", INT | dict(num_bits=4, strategy="group", group_size=64, symmetric=False)),
    "fp8-channel": ("float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="channel")),
    "fp8-tensor": ("float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="tensor")),
}


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_grad_enabled(False)


def open_model(folder):
    """The model in f32 and what transformers says of its keys, or the reason why it refuses."""
    try:
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
    except Exception as error:  # whatever a peer raises is a result
        return None, f"refuses: {str(error).splitlines()[0][:90]}"
    for module in model.modules():
        # bitsandbytes computes 4-bit layers in F16, and in BF16 on processors that have it, unless told otherwise,
        # which hides what is compared.
        if hasattr(module, "compute_dtype"):
            module.support_avx512bf16_for_cpu = False
            module.compute_dtype, module.compute_type_is_set = torch.float32, True
            module.weight.quant_state.dtype = torch.float32
        # Whatever dtype says, the parts beside bitsandbytes' layers stay as the file has them.
        elif not hasattr(getattr(module, "weight", None), "SCB"):
            for part in module.parameters(recurse=False):
                part.data = part.data.float() if part.dtype == torch.float16 else part.data
    odd = [f"{len(info[k])} {k}" for k in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[k]]
    return model, ", ".join(odd) or "yes"


def logits_difference(args, model, folder, math, work):
    """The largest difference over the largest logit, on the prompts. Where activations are rounded to 8 bits, last bits
    decide between codes: what the peer's own logits do when its layers' outputs move by 1e-6 stands beside it."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    out, worst, own = work / "logits.safetensors", 0.0, 0.0
    for prompt in PROMPTS:
        ids = torch.tensor([tokenizer(prompt, add_special_tokens=False)["input_ids"]])
        there = model(ids).logits[0].float()
        run([args.bin / "qeval", "logits", folder, "--ids", ",".join(map(str, ids[0].tolist())), "--engine-math", math,
             "-o", out, "--overwrite"])
        here = safetensors.torch.load_file(out)["logits"]
        worst = max(worst, relative(here, there))
        if math != "exact":
            own = max(own, relative(moved(model, ids), there))
    return f"{worst:.1e}" + (f" (its own: {own:.1e})" if own else "")


def relative(logits, reference):
    return float((logits - reference).abs().max() / reference.abs().max())


def moved(model, ids):
    """The logits of a model whose linear layers are off by about 1e-6, as much as another order of sums makes."""
    noise = torch.Generator().manual_seed(0)
    hooks = [m.register_forward_hook(lambda _, __, out: out * (1 + 1e-6 * torch.randn(out.shape, generator=noise)))
             for m in model.modules() if isinstance(m, torch.nn.Linear)]
    logits = model(ids).logits[0].float()
    for hook in hooks:
        hook.remove()
    return logits


def perplexity_there(args, model, folder):
    """As llama-perplexity: disjoint windows, the second half of each scored."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    ids = tokenizer(pathlib.Path(args.text).read_text(), add_special_tokens=False)["input_ids"][:args.tokens]
    losses = []
    for start in range(0, len(ids) // WINDOW * WINDOW, WINDOW):
        window = torch.tensor(ids[start:start + WINDOW])
        logits = model(window[None]).logits[0, WINDOW // 2:-1].double()
        losses.append(torch.nn.functional.cross_entropy(logits, window[WINDOW // 2 + 1:], reduction="none"))
    return float(torch.cat(losses).mean().exp())


def compare(args, table, name, container, folder, math, work, scored=True):
    """Opens a folder in transformers: keys, logits, perplexity here and there."""
    model, loads = open_model(folder)
    if model is None:
        table.row(name, container, "transformers", loads)
        return
    table.row(name, container, "transformers", loads, "", logits_difference(args, model, folder, math, work), math)
    if scored:
        table.perplexities(name, container, "transformers", {math: perplexity(args, folder, math)},
                           perplexity_there(args, model, folder))
    del model
    gc.collect()


def listing(args, folder):
    """Whether `qinspect tensors` and safetensors' own reader list the same."""
    done = run([args.bin / "qinspect", "tensors", folder, "--json", "--metadata"])
    ours = json.loads(done.stdout)
    mine = {t["stored_name"]: (t["type"], t["shape"]) for t in ours["tensors"]}
    theirs, keys = {}, {}
    for shard in sorted(pathlib.Path(folder).glob("*.safetensors")):
        with safetensors.safe_open(shard, "pt") as file:
            keys.update(file.metadata() or {})
            for name in file.keys():
                part = file.get_slice(name)
                theirs[name] = (part.get_dtype(), part.get_shape())
    listed = {m["key"]: m["value"] for m in ours["metadata"]}
    odd = [n for n in mine.keys() | theirs.keys() if mine.get(n) != theirs.get(n)]
    odd += [k for k in keys.keys() | listed.keys() if keys.get(k) != listed.get(k)]
    return f"{len(odd)} of {len(theirs)} tensors and {len(keys)} keys listed otherwise" + (f": {odd[:3]}" if odd else "")


def vllm_rules(config):
    """What compressed-tensors' own parser makes of a quantization_config, and vLLM's rules, which its source states:
    weight-only has 4 or 8 bits by channel or group; W8A8 is dynamic by token or static by tensor."""
    from compressed_tensors.quantization import QuantizationConfig

    parsed = QuantizationConfig.model_validate(config)
    for group in parsed.config_groups.values():
        weights, inputs = group.weights, group.input_activations
        strategy = str(getattr(weights.strategy, "value", weights.strategy))
        if inputs is None:
            fits = weights.num_bits in (4, 8) and strategy in ("channel", "group")
        else:
            activations = str(getattr(inputs.strategy, "value", inputs.strategy))
            fits = strategy in ("channel", "tensor") and (activations, bool(inputs.dynamic)) in (("token", True), ("tensor", False))
        if not fits:
            return f"parsed; outside vLLM's set ({strategy})"
    return "parsed; in vLLM's set"


def ours(args, work, table):
    """Directories that qconvert writes."""
    for scheme, layout, math in [row for row in OUT if args.wants(row[0])]:
        folder = work / "st"
        shutil.rmtree(folder, ignore_errors=True)
        name = scheme + (f" ({layout})" if layout else "")
        refusal = convert(args, args.model, folder, "--scheme", scheme, "--to", "safetensors", *(["--layout", layout] if layout else []))
        if refusal:
            table.row(name, "safetensors", "qconvert", refusal)
            continue
        table.row(name, "safetensors", "safetensors", listing(args, folder))
        quantization = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
        if quantization.get("quant_method") == "compressed-tensors":
            table.row(name, "safetensors", "compressed-tensors", vllm_rules(quantization))
        if math:
            compare(args, table, name, "safetensors", folder, math, work, args.scored(name))


def bitsandbytes(args, work, table):
    """Files that transformers writes with bitsandbytes, read here."""
    from bitsandbytes import functional

    for name, options in BITSANDBYTES.items():
        if not args.wants(name):
            continue
        folder = work / "bnb"
        shutil.rmtree(folder, ignore_errors=True)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.float16, device_map="cpu", quantization_config=transformers.BitsAndBytesConfig(**options))
        model.save_pretrained(folder)
        transformers.AutoTokenizer.from_pretrained(args.model).save_pretrained(folder)
        theirs = {}
        for module, layer in model.named_modules():
            weight = getattr(layer, "weight", None)
            if getattr(weight, "quant_state", None) is not None:
                weight.quant_state.dtype = torch.float32
                theirs[f"{module}.weight"] = functional.dequantize_4bit(weight.data, weight.quant_state)
            elif getattr(weight, "SCB", None) is not None:
                theirs[f"{module}.weight"] = functional.int8_vectorwise_dequant(weight.data, weight.SCB)
        del model
        gc.collect()
        decode_row(args, table, name, "bitsandbytes", folder, theirs, work)
        compare(args, table, name, "bitsandbytes in", folder, "bitsandbytes" if name == "int8" else "exact", work, args.scored(name))


def decode_row(args, table, name, engine, folder, theirs, work):
    """Our decode of the modules that the peer quantized, bit for bit."""
    back = decoded(args, folder, work)[0]
    table.row(name, f"{engine} in", engine, f"{len(theirs)} matrices", differing({n: back[n] for n in theirs if n in back}, theirs))


def compressed(args, work, table):
    """Files that compressed-tensors packs, read here. GPTQ and AWQ have golden files only: their packages need CUDA."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.utils import calculate_qparams

    source = load(args.model)
    modules = linear_modules(source)
    for name, (form, arguments) in COMPRESSED.items():
        if not args.wants(name):
            continue
        quantization = QuantizationArgs(**arguments)
        scheme = QuantizationScheme(targets=["Linear"], weights=quantization, format=form)
        compressor = BaseCompressor.get_value_from_registry(form)
        tensors, theirs = dict(source), {}
        for module in modules:
            weight = tensors.pop(f"{module}.weight")
            scale, zero = parameters(weight, quantization, calculate_qparams)
            state = {"weight": weight, "weight_scale": scale} | ({} if quantization.symmetric else {"weight_zero_point": zero})
            state = compressor.compress(state, scheme)
            tensors |= {f"{module}.{k}": v.contiguous() for k, v in state.items()}
            state = state | {"weight_scale": state["weight_scale"].float()}  # so that it decodes to f32
            theirs[f"{module}.weight"] = compressor.decompress(state, scheme)["weight"]
        folder = work / "ct"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
        for side in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            if (pathlib.Path(args.model) / side).exists():
                shutil.copy(pathlib.Path(args.model) / side, folder)
        config = json.loads((pathlib.Path(args.model) / "config.json").read_text())
        weights = {k: v for k, v in json.loads(quantization.model_dump_json()).items() if v is not None}
        config["quantization_config"] = {
            "quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed", "ignore": ["lm_head"],
            "config_groups": {"group_0": {"targets": ["Linear"], "format": form, "weights": weights,
                                          "input_activations": None, "output_activations": None}}}
        (folder / "config.json").write_text(json.dumps(config))
        decode_row(args, table, name, "compressed-tensors", folder, theirs, work)
        compare(args, table, name, "compressed-tensors in", folder, "exact", work, args.scored(name))


def parameters(weight, quantization, calculate):
    """Scales and zero points as the library's own observer gets them, from minima and maxima."""
    strategy = str(getattr(quantization.strategy, "value", quantization.strategy))
    if strategy == "group":
        parts = weight.reshape(weight.shape[0], -1, quantization.group_size)
        return calculate(parts.amin(-1), parts.amax(-1), quantization)
    parts = weight.reshape(1, -1) if strategy == "tensor" else weight
    scale, zero = calculate(parts.amin(-1, keepdim=True), parts.amax(-1, keepdim=True), quantization)
    return (scale.reshape(1), zero.reshape(1)) if strategy == "tensor" else (scale, zero)
