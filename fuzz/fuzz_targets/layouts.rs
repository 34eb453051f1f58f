//! Names, types and shapes of a module's tensors in every quantized layout, beside a configuration that may suit them.

#![no_main]

use arbitrary::{Arbitrary, Unstructured};
use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};

/// Names that layouts, known ones and others, give to the tensors of a module.
const SUFFIXES: &str = include_str!("../../crates/store/src/layouts/suffixes.txt");

const MODULES: [&str; 3] = ["model.layers.0.mlp.down_proj", "model.embed_tokens", "lm_head"];

/// Types of safetensors with their bits.
const TYPES: [(&str, usize); 14] = [
    ("F32", 32),
    ("F16", 16),
    ("BF16", 16),
    ("F64", 64),
    ("I8", 8),
    ("U8", 8),
    ("I16", 16),
    ("I32", 32),
    ("I64", 64),
    ("U32", 32),
    ("U64", 64),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("BOOL", 8),
];

/// Sides that suit some layout, and some that suit none.
const SIDES: [usize; 16] = [0, 1, 2, 3, 4, 7, 8, 16, 31, 32, 33, 64, 96, 128, 255, 256];

#[derive(Debug, Arbitrary)]
struct Part {
    module: u8,
    suffix: u8,
    dtype: u8,
    sides: Vec<u8>,
    fill: u8,
    state: bool,
}

#[derive(Debug, Arbitrary)]
struct Case {
    parts: Vec<Part>,
    method: u8,
    bits: u8,
    group: i16,
    switches: u16,
    entry: u8,
}

impl Case {
    fn on(&self, bit: u32) -> bool {
        self.switches >> bit & 1 == 1
    }

    /// The quantization block of config.json.
    fn quantization(&self) -> Value {
        let bits = [4, 8, 2, 3, 1, 0, 16, u64::MAX][usize::from(self.bits % 8)];
        let format = ["pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized"]
            [usize::from(self.bits / 8 % 5)];
        let strategy =
            ["channel", "tensor", "group", "token", "block", "tensor_group"][usize::from(self.bits / 40 % 6)];
        match self.method % 6 {
            0 => json!({"quant_method": "compressed-tensors", "format": format, "config_groups": {"group_0": {
                "targets": ["Linear"], "format": format, "weights": {
                    "num_bits": bits, "type": if self.on(0) { "float" } else { "int" }, "symmetric": self.on(1),
                    "strategy": strategy, "group_size": self.group, "actorder": if self.on(2) { json!("group") } else { Value::Null },
                    "block_structure": [self.group, 128]},
                "input_activations": if self.on(3) { json!({"num_bits": 8, "type": "int", "symmetric": true,
                    "strategy": if self.on(4) { "token" } else { "tensor" }, "dynamic": self.on(4)}) } else { Value::Null }}}}),
            1 => json!({"quant_method": "gptq", "bits": bits, "group_size": self.group, "sym": self.on(0),
                "desc_act": self.on(1), "checkpoint_format": if self.on(2) { "gptq" } else { "gptq_v2" }}),
            2 => json!({"quant_method": "awq", "bits": bits, "group_size": self.group, "zero_point": self.on(0),
                "version": "gemm"}),
            3 => json!({"quant_method": "bitsandbytes", "load_in_4bit": self.on(0), "load_in_8bit": self.on(1)}),
            4 => json!({"quant_method": "fp8", "weight_block_size": [self.group, self.group]}),
            _ => Value::Null,
        }
    }

    /// The file, whose header is well formed: only what the tensors mean is arbitrary.
    fn file(&self) -> Vec<u8> {
        let mut header = Map::new();
        let mut data = Vec::new();
        let mut entries = Map::new();
        let suffixes: Vec<&str> = SUFFIXES.lines().collect();
        for part in self.parts.iter().take(24) {
            let module = MODULES[usize::from(part.module) % MODULES.len()];
            let suffix = suffixes[usize::from(part.suffix) % suffixes.len()];
            let (dtype, width) = TYPES[usize::from(part.dtype) % TYPES.len()];
            let mut shape: Vec<usize> =
                part.sides.iter().take(3).map(|s| SIDES[usize::from(*s) % SIDES.len()]).collect();
            let state = suffix.contains("quant_state") && part.state;
            let bytes = if state {
                let sides = shape.get(..2).unwrap_or(&[64, 64]).to_vec();
                let state = json!({"quant_type": "nf4", "blocksize": self.group, "dtype": "float16", "shape": sides,
                    "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.5});
                let text = state.to_string().into_bytes();
                shape = vec![text.len()];
                text
            } else {
                let len = shape.iter().product::<usize>() * width / 8;
                if len > 1 << 20 {
                    continue;
                }
                (0..len).map(|i| part.fill.wrapping_mul(i as u8 | 1)).collect()
            };
            let begin = data.len();
            data.extend(bytes);
            let dtype = if state { "U8" } else { dtype };
            let tensor = json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, data.len()]});
            if header.insert(format!("{module}{suffix}"), tensor).is_some() {
                // A name that stands twice keeps its place, so the offsets would have a hole.
                return Vec::new();
            }
            let kind = ["int", "nf4", "nf4-dq", "outlier"][usize::from(self.entry % 4)];
            let scheme = ["int4-g128", "int8-row", "nf4", "int8-outlier", "\u{e9}"][usize::from(self.entry / 4 % 5)];
            entries.insert(
                format!("{module}.weight"),
                json!({"scheme": scheme, "shape": part.sides.iter().map(|s| SIDES[usize::from(*s) % SIDES.len()]).collect::<Vec<_>>(),
                    "kind": kind, "packing": if self.on(5) { "i8" } else { "nibble" }, "group": self.group,
                    "block": if self.on(6) { 64 } else { self.group }, "threshold": 6.0,
                    "activation": if self.on(7) { json!("int8-token") } else { Value::Null }}),
            );
        }
        let config = json!({"model_type": "llama", "quantization_config": self.quantization()}).to_string();
        header.insert(
            "__metadata__".into(),
            json!({"qconvert.hf.config.json": config, "qconvert.tensors": Value::Object(entries).to_string()}),
        );
        let header = Value::Object(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.extend(data);
        file
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Ok(case) = Case::arbitrary(&mut Unstructured::new(bytes)) else { return };
    fuzz::read_model(&fuzz::write("layouts.safetensors", &case.file()));
});
