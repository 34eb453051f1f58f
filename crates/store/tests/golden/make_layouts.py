#!/usr/bin/env python3
"""Makes the golden files of tests/layouts.rs: one layer in each layout, written by its own tool.

    PEERS/bin/python make_layouts.py AUTOGPTQ AUTOAWQ

PEERS is what scripts/peers installs. AUTOGPTQ and AUTOAWQ are folders with the unpacked wheel of auto-gptq 0.7.1 and
the unpacked source of autoawq 0.2.9 (pip download --no-deps); only their packing code runs, none of their kernels.

Each case is a folder with config.json and model.safetensors. Beside the tool's tensors the file holds `expected`
[O, I] in F32: the tool's own dequantization, computed in f32.
"""

import importlib.util
import json
import pathlib
import sys
import types

import bitsandbytes.functional as bnb
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

OUT, IN, GROUP = 32, 256, 64
P = "model.layers.0.mlp.down_proj"
HERE = pathlib.Path(__file__).parent
MODEL = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 8, "hidden_size": OUT,
         "intermediate_size": IN, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
         "max_position_embeddings": 16, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
         "tie_word_embeddings": True}


def save(case, tensors, expected, quantization):
    folder = HERE / case
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(MODEL | {"quantization_config": quantization}, indent=1) + "\n")
    tensors = {f"{P}.{name}": t.contiguous() for name, t in tensors.items()}
    save_file(tensors | {"expected": expected.float().contiguous()}, folder / "model.safetensors")
    print(case, {n: (str(t.dtype), list(t.shape)) for n, t in tensors.items()})


def weights(seed, shift=0.0):
    return torch.randn(OUT, IN, generator=torch.Generator().manual_seed(seed)) * 0.05 + shift


def affine(w, bits, group, symmetric):
    """Codes, scales (F16) and zero points [O, groups], as GPTQ's tools choose them."""
    parts = w.reshape(OUT, -1, group)
    top, low = parts.amax(2).clamp(min=0), parts.amin(2).clamp(max=0)
    levels = 2**bits - 1
    if symmetric:
        top = torch.maximum(top, -low)
        low = -top
    scales = ((top - low) / levels).half()
    zeros = torch.full_like(top, 2 ** (bits - 1)) if symmetric else torch.round(-low / scales.float())
    codes = torch.clamp(torch.round(parts / scales.float()[..., None]) + zeros[..., None], 0, levels)
    decoded = (codes - zeros[..., None]) * scales.float()[..., None]
    return scales, zeros, decoded.reshape(OUT, IN)


def module(name, path, **stubs):
    for stub, value in stubs.items():
        sys.modules[stub] = value
    spec = importlib.util.spec_from_file_location(name, path)
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def gptq(folder):
    code = (pathlib.Path(folder) / "auto_gptq/nn_modules/qlinear/qlinear_cuda_old.py").read_text()
    # Only `pack` is wanted: the rest of the module looks for CUDA extensions.
    start = code.index("    def pack(")
    end = code.index("    def forward(", start)
    scope = {"torch": torch, "nn": torch.nn, "np": __import__("numpy"), "transformers": __import__("transformers")}
    exec("class Packer:\n" + code[start:end], scope)

    def pack(decoded, scales, zeros, bits, group):
        packer = scope["Packer"]()
        packer.infeatures, packer.group_size, packer.bits = IN, group, bits
        linear = torch.nn.Linear(IN, OUT, bias=False)
        linear.weight.data = decoded
        packer.pack(linear, scales.float(), zeros.clone(), None)
        return {"qweight": packer.qweight, "qzeros": packer.qzeros, "scales": packer.scales.half()}

    for case, bits, symmetric, ordered in [("gptq-int4-sym", 4, True, False), ("gptq-int4-asym", 4, False, False),
                                           ("gptq-int8-sym", 8, True, False), ("gptq-int4-act-order", 4, False, True)]:
        scales, zeros, decoded = affine(weights(1, 0.01), bits, GROUP, symmetric)
        tensors = pack(decoded, scales, zeros, bits, GROUP)
        g_idx = torch.arange(IN, dtype=torch.int32) // GROUP
        if ordered:
            # A column keeps its codes and its group and goes elsewhere, as activation order has it.
            order = torch.randperm(IN, generator=torch.Generator().manual_seed(5))
            g_idx, decoded = g_idx[order], decoded[:, order]
            rows = tensors["qweight"]
            codes = torch.stack([(rows >> s) & 15 for s in range(0, 32, 4)], 1).reshape(IN, OUT)[order]
            words = torch.zeros_like(rows)
            for i in range(8):
                words |= codes[i::8] << (4 * i)
            tensors["qweight"] = words
        save(case, tensors | {"g_idx": g_idx}, decoded,
             {"quant_method": "gptq", "bits": bits, "group_size": GROUP, "desc_act": ordered, "sym": symmetric,
              "checkpoint_format": "gptq"})


def awq(folder):
    root = pathlib.Path(folder)
    utils = types.ModuleType("awq.utils.utils")
    utils.get_best_device = lambda: "cpu"
    code = (root / "awq/modules/linear/gemm.py").read_text()
    start = code.index("    @classmethod\n    def from_linear")
    end = code.index("    def forward(", start)
    scope = {"torch": torch, "get_best_device": utils.get_best_device}
    exec("class Packer:\n    def __init__(self, *given):\n        self.w_bit, self.group_size, self.in_features, self.out_features = given[:4]\n"
         + code[start:end], scope)
    scales, zeros, decoded = affine(weights(2, -0.02), 4, GROUP, False)
    linear = torch.nn.Linear(IN, OUT, bias=False)
    linear.weight.data = decoded
    made = scope["Packer"].from_linear(linear, 4, GROUP, scales=scales.float().t().contiguous(), zeros=zeros.t().contiguous())
    save("awq-int4", {"qweight": made.qweight, "qzeros": made.qzeros, "scales": made.scales}, decoded,
         {"quant_method": "awq", "bits": 4, "group_size": GROUP, "zero_point": True, "version": "gemm",
          "modules_to_not_convert": None})


def compressed():
    base = dict(num_bits=4, type="int", symmetric=False, strategy="group", group_size=GROUP)
    for case, form, arguments, ordered in [
        ("ct-int4-asym-group", "pack-quantized", base, False),
        ("ct-int4-act-order", "pack-quantized", base | {"symmetric": True}, True),
        ("ct-int8-asym-channel", "pack-quantized", base | {"num_bits": 8, "strategy": "channel", "group_size": None}, False),
        ("ct-int8-asym-int", "int-quantized", base | {"num_bits": 8, "strategy": "channel", "group_size": None}, False),
        ("ct-fp8-channel", "float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="channel"), False),
        ("ct-fp8-tensor", "float-quantized", dict(num_bits=8, type="float", symmetric=True, strategy="tensor"), False),
    ]:
        args = QuantizationArgs(**arguments)
        w = weights(3, 0.01)
        g_idx = (torch.randperm(IN, generator=torch.Generator().manual_seed(5)) // GROUP).int() if ordered else None
        parts = {"tensor": w.reshape(1, -1), "channel": w, "group": w.reshape(OUT, -1, GROUP)}[str(args.strategy)]
        scale, zero = calculate_qparams(parts.amin(-1, keepdim=str(args.strategy) != "group"),
                                        parts.amax(-1, keepdim=str(args.strategy) != "group"), args)
        if str(args.strategy) == "tensor":
            scale, zero = scale.reshape(1), zero.reshape(1)
        scheme = QuantizationScheme(targets=["Linear"], weights=args, format=form)
        state = {"weight": w, "weight_scale": scale, "weight_zero_point": zero}
        codes = quantize(w, scale, zero, args)
        expected = dequantize(codes, scale, zero, args)
        if args.symmetric:
            state.pop("weight_zero_point")
        compressor = BaseCompressor.get_value_from_registry(form)
        state = compressor.compress(state, scheme)
        if ordered:
            # Older versions wrote such files: columns keep their codes and group and stand elsewhere.
            order = torch.argsort(torch.argsort(g_idx, stable=True), stable=True)
            state["weight_packed"] = pack_to_int32(codes[:, order].to(torch.int8), 4)
            state["weight_g_idx"] = g_idx
            expected = expected[:, order]
        weights_json = {k: v for k, v in json.loads(args.model_dump_json()).items() if v is not None}
        save(case, state, expected,
             {"quant_method": "compressed-tensors", "format": form, "quantization_status": "compressed",
              "ignore": ["lm_head"],
              "config_groups": {"group_0": {"targets": ["Linear"], "format": form, "weights": weights_json,
                                            "input_activations": None, "output_activations": None}}})


def fp8():
    w = weights(4)
    # transformers' own rule: blocks of 128 x 128, here one and a bit of rows and two of columns.
    block = [20, 128]
    scale = torch.empty(-(-OUT // block[0]), IN // block[1])
    codes = torch.empty(OUT, IN, dtype=torch.float8_e4m3fn)
    expected = torch.empty(OUT, IN)
    for r in range(scale.shape[0]):
        for c in range(scale.shape[1]):
            rows, cols = slice(r * block[0], (r + 1) * block[0]), slice(c * block[1], (c + 1) * block[1])
            scale[r, c] = w[rows, cols].abs().max() / 448
            codes[rows, cols] = (w[rows, cols] / scale[r, c]).to(torch.float8_e4m3fn)
            expected[rows, cols] = codes[rows, cols].float() * scale[r, c]
    save("fp8-block", {"weight": codes, "weight_scale_inv": scale}, expected,
         {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": block})


def fp4():
    w = weights(6)
    for case, nested in [("bnb-fp4", False), ("bnb-fp4-dq", True)]:
        codes, state = bnb.quantize_4bit(w, blocksize=64, compress_statistics=nested, quant_type="fp4")
        expected = bnb.dequantize_4bit(codes, state)
        tensors = {"weight": codes} | {f"weight.{k}": v for k, v in state.as_dict(packed=True).items()}
        save(case, tensors, expected,
             {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False, "bnb_4bit_quant_type": "fp4",
              "bnb_4bit_use_double_quant": nested, "bnb_4bit_compute_dtype": "float32", "bnb_4bit_quant_storage": "uint8"})


if __name__ == "__main__":
    gptq(sys.argv[1])
    awq(sys.argv[2])
    compressed()
    fp8()
    fp4()
