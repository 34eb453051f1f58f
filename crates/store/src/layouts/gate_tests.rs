//! Tests of the layout gate: companions of weights, odd shapes, and models made of random tensors.

use super::{Gate, Layout};
use crate::{Bytes, Container, DType, Linear, Model, Tensor, open, testing::*};
use proptest::prelude::*;
use schemes::{Activation, GgmlType, RowOrder};
use serde_json::{Value, json};
use std::path::PathBuf;

const P: &str = "model.layers.0.mlp.down_proj";

fn named(suffix: &str) -> String {
    format!("{P}{suffix}")
}

fn linear(config: &Value, parts: &[Part]) -> Result<Linear, String> {
    let dir = folder(config, parts, &[]);
    open(dir.path()).and_then(|model| model.linear(P)).map_err(|e| e.to_string())
}

/// E4M3 codes of 1, 1.125, 2 and -1.
const FLOATS: [u8; 4] = [0x38, 0x39, 0x40, 0xB8];

fn float8() -> Part {
    part(&named(".weight"), DType::F8E4M3, &[2, 2], FLOATS)
}

fn int8() -> [Part; 2] {
    [part(&named(".weight"), DType::I8, &[2, 2], [1, 2, 3, 4]), f32s(&named(".weight_scale"), &[2, 1], &[1.0, 10.0])]
}

#[test]
fn scales_under_other_names_are_applied() {
    for suffix in [".weight_scale", ".weight_scale_inv", ".scale_weight", ".scale"] {
        for shape in [&[1][..], &[]] {
            let layer = linear(&config(), &[float8(), f32s(&named(suffix), shape, &[0.5])]).expect(suffix);
            assert_eq!(layer.matrix.decode_all(), [0.5, 0.5625, 1.0, -0.5], "{suffix}");
        }
    }
    // DeepSeek's own checkpoints: blocks of 128 x 128, whatever config.json says or doesn't.
    let codes = part(&named(".weight"), DType::F8E4M3, &[129, 1], [0x38; 129]);
    let layer = linear(&config(), &[codes, f32s(&named(".scale"), &[2, 1], &[2.0, 3.0])]).expect("a layer");
    assert_eq!(layer.matrix.decode_all()[126..], [2.0, 2.0, 3.0]);
    let [codes, scale] = int8();
    let pre = f32s(&named(".pre_quant_scale"), &[2], &[0.5, 2.0]);
    let layer = linear(&config(), &[codes, scale, pre]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [0.5, 4.0, 15.0, 80.0]);
}

#[test]
fn companions_that_are_not_known_are_refused_by_name() {
    let [codes, scale] = int8();
    let one = |suffix: &str| f32s(&named(suffix), &[1], &[1.0]);
    for (parts, want) in [
        (vec![float8()], "has no scale"),
        (vec![float8(), one(".weight_scale"), one(".scale_weight")], "down_proj.scale_weight: stands beside"),
        (vec![codes.clone(), one(".scale")], "weight_scale: is missing"),
        (vec![codes.clone(), scale.clone(), one(".scale")], "down_proj.scale: stands beside quantized weights"),
        (vec![codes.clone(), scale.clone(), one(".adapter.weight")], "adapter.weight: stands beside"),
        (vec![codes.clone(), scale.clone(), one(".pre_quant_scale")], "1 factors, which must be finite, for 2"),
        (vec![codes.clone(), scale.clone(), one(".weight_scale_2")], "ModelOpt"),
        (vec![float8(), one(".weight_scale"), one(".comfy_quant")], "ComfyUI"),
        (
            vec![f32s(&named(".weight"), &[1, 2], &[1.0; 2]), one(".scale_weight")],
            "scale_weight: stands beside weights",
        ),
    ] {
        let error = linear(&config(), &parts).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
    let infinite = f32s(&named(".pre_quant_scale"), &[2], &[1.0, f32::INFINITY]);
    assert!(linear(&config(), &[codes.clone(), scale.clone(), infinite]).is_err());
    // Scales of activations change no weight; a note says that they are not used.
    let dir = folder(&config(), &[codes, scale, one(".input_scale")], &[]);
    let model = open(dir.path()).expect("opens");
    assert!(model.linear(P).is_ok());
    assert!(model.warnings.iter().any(|w| w.contains("down_proj.input_scale")), "{:?}", model.warnings);
    assert_eq!(model.describe(P).expect("fine").expect("there").unneeded, [named(".input_scale")]);
}

#[test]
fn plain_8_bit_floats_need_a_configuration_that_says_so() {
    let plain = config_with(json!({"torch_dtype": "float8_e4m3fn"}));
    assert_eq!(linear(&plain, &[float8()]).expect("a layer").matrix.decode_all(), [1.0, 1.125, 2.0, -1.0]);
}

#[test]
fn empty_and_mismatched_zero_points_are_errors() {
    let codes = part(&named(".weight"), DType::I8, &[2, 3], [1; 6]);
    let scale = |shape: &[usize]| f16s(&named(".weight_scale"), shape, &vec![1.0; shape.iter().product()]);
    let zeros = |dtype, shape: &[usize]| {
        let n: usize = shape.iter().product();
        part(&named(".weight_zero_point"), dtype, shape, vec![0u8; n * if dtype == DType::I8 { 1 } else { 4 }])
    };
    for (scale, zeros) in [
        (scale(&[1]), zeros(DType::I32, &[0])),
        (scale(&[1]), zeros(DType::I32, &[1])),
        (scale(&[]), zeros(DType::I32, &[0])),
        (scale(&[2, 1]), zeros(DType::I32, &[0])),
        (scale(&[2, 0]), zeros(DType::I32, &[0])),
        (scale(&[2, 1]), zeros(DType::I8, &[0])),
        (scale(&[1]), zeros(DType::I8, &[2])),
    ] {
        let error = linear(&config(), &[codes.clone(), scale, zeros]).expect_err("refused");
        assert!(error.contains(P), "{error}");
    }
    let one = linear(&config(), &[codes, scale(&[1]), zeros(DType::I8, &[1])]).expect("one zero point for all");
    assert_eq!(one.matrix.decode_all(), [1.0; 6]);
    for shape in [[0, 3], [3, 0], [0, 0]] {
        let error = linear(&config(), &[f32s(&named(".weight"), &shape, &[])]).expect_err("refused");
        assert!(error.contains("holds no weights"), "{error}");
    }
}

/// GPTQ: eight rows and columns, all codes 1.
fn gptq(quantization: Value, zeros: u32) -> Result<Vec<f32>, String> {
    let mut config = json!({"quant_method": "gptq", "bits": 4, "group_size": -1, "sym": false});
    config.as_object_mut().expect("an object").extend(quantization.as_object().cloned().unwrap_or_default());
    let parts = [
        part(&named(".qweight"), DType::I32, &[1, 8], [0x11; 32]),
        part(&named(".qzeros"), DType::I32, &[1, 1], zeros.to_le_bytes()),
        f16s(&named(".scales"), &[1, 8], &[1.0; 8]),
    ];
    linear(&config_with(json!({"quantization_config": config})), &parts)
        .map(|layer| layer.matrix.decode_all().into_iter().step_by(8).collect())
}

#[test]
fn stored_zero_points_wrap_within_the_bits_of_a_code() {
    let rest = [-7.0; 7];
    let rows = |first: f32| [&[first][..], &rest].concat();
    // 15 is what is left of 0 less one, as AutoGPTQ, ExLlama and vLLM read it.
    assert_eq!(gptq(json!({}), 0x7777_777F), Ok(rows(1.0)));
    assert_eq!(gptq(json!({}), u32::MAX), Ok(vec![1.0; 8]));
    // GPTQModel subtracts from the word: 0 borrows from the zero point 9 beside it, which is stored as 7.
    let own = json!({"meta": {"quantizer": ["gptqmodel:7.7.0"]}});
    let mut want = rows(1.0);
    want[1] = -8.0;
    assert_eq!(gptq(own, 0x8888_8890u32.wrapping_sub(0x1111_1111)), Ok(want));
    assert_eq!(gptq(json!({"checkpoint_format": "gptq_v2"}), 0x8888_8880), Ok(rows(1.0)));
}

#[test]
fn a_method_whose_layout_no_tensor_has_is_refused() {
    for method in ["gptq", "awq", "bitsandbytes"] {
        let config = config_with(json!({"quantization_config": {"quant_method": method, "bits": 4}}));
        let error = linear(&config, &[f32s(&named(".weight"), &[1, 2], &[1.0; 2])]).expect_err("refused");
        assert!(error.contains(&format!("says {method}, and no tensor has its layout")), "{error}");
    }
}

#[test]
fn rules_of_gptq_for_single_modules() {
    // The first rule that matches at the start of the name holds.
    let rules = json!({"+:.*gate_proj": {"bits": 8}, "+:model\\.layers\\.0\\.": {"bits": 8}, ".*": {"bits": 4}});
    let parts = [
        part(&named(".qweight"), DType::I32, &[1, 2], [200, 128, 128, 128, 128, 128, 128, 129]),
        part(&named(".qzeros"), DType::I32, &[1, 1], [127; 4]),
        f16s(&named(".scales"), &[1, 2], &[1.0, 2.0]),
    ];
    let config = |dynamic: Value| {
        config_with(json!({"quantization_config":
            {"quant_method": "gptq", "bits": 4, "group_size": 128, "dynamic": dynamic}}))
    };
    let layer = linear(&config(rules), &parts).expect("a layer of 8 bits");
    assert_eq!(layer.matrix.decode_all(), [72.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0]);
    for (rules, want) in [
        (json!({"-:.*down": {}}), "says that it isn't quantized"),
        (json!({"+:(?=x)": {}}), "is not understood"),
        (json!({".*": {"bits": 2}}), "GPTQ with 2 bits"),
        (json!({".*": {"pack_dtype": "int16"}}), "pack_dtype \"int16\""),
        (json!([1]), "not an object of rules"),
    ] {
        let error = linear(&config(rules), &parts).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn targets_of_groups_rank_by_how_close_they_are() {
    let group = |target: &str, strategy: &str| {
        json!({"targets": [target], "weights": {"num_bits": 8, "type": "int"},
            "input_activations": {"num_bits": 8, "strategy": strategy, "dynamic": true}})
    };
    let run = |groups: Value| {
        let quantization = json!({"quant_method": "compressed-tensors", "config_groups": groups});
        linear(&config_with(json!({"quantization_config": quantization})), &int8()).map(|layer| layer.activation)
    };
    // A name goes before a pattern, and a pattern before a class, wherever they stand.
    let pattern = group("re:.*down_proj", "token");
    assert_eq!(run(json!({"a": pattern, "b": group(P, "tensor")})), Ok(Activation::Int8Tensor));
    assert_eq!(run(json!({"a": group("Linear", "tensor"), "b": pattern})), Ok(Activation::Int8Token));
    let error = run(json!({"a": group("re:.*gate_proj", "token")})).expect_err("refused");
    assert!(error.contains("no group of config.json targets it"), "{error}");
    let outputs = json!({"a": {"targets": ["Linear"], "output_activations": {"num_bits": 8}}});
    assert!(run(outputs).expect_err("refused").contains("output_activations"));
}

/// Suffixes that layouts, known ones and others, put behind a module's name: for random modules here and in the fuzz
/// target.
fn suffixes() -> Vec<&'static str> {
    include_str!("suffixes.txt").lines().collect()
}

/// The parts of layouts, so that most models have what their layout asks for.
const TOGETHER: [&[usize]; 9] = [
    &[0],
    &[0, 13],
    &[0, 13, 15],
    &[11, 12, 13, 15, 16],
    &[24, 25, 26, 27],
    &[24, 26],
    &[0, 22],
    &[0, 4, 18, 20],
    &[2, 3],
];

const TYPES: [DType; 8] =
    [DType::F32, DType::F16, DType::I8, DType::U8, DType::I32, DType::I64, DType::F8E4M3, DType::Ggml(GgmlType::NVFP4)];

fn config_of(kind: usize) -> Option<Value> {
    let q = match kind {
        0 => return None,
        1 => json!({"quant_method": "gptq", "bits": 4, "group_size": 2, "sym": true}),
        2 => json!({"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": false, "desc_act": true}),
        3 => json!({"quant_method": "awq", "bits": 4, "group_size": 0}),
        4 => json!({"quant_method": "fp8", "weight_block_size": [2, 1]}),
        5 => json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
            "weights": {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 2}}}}),
        _ => json!({"quant_method": "compressed-tensors", "config_groups": {"g": {"targets": ["Linear"],
            "weights": {"num_bits": 8, "type": "int", "symmetric": false}}}}),
    };
    Some(json!({"quantization_config": q}))
}

/// A tensor of random bytes; none where the shape asks for more than a few.
fn tensor(dtype: DType, shape: Vec<usize>, seed: u8) -> Option<Tensor> {
    let elements = shape.iter().try_fold(1usize, |n, s| n.checked_mul(*s))?;
    let bytes = match dtype {
        DType::Ggml(ty) => {
            let (last, rest) = shape.split_last()?;
            ty.row_bytes(*last)?.checked_mul(rest.iter().try_fold(1usize, |n, s| n.checked_mul(*s))?)?
        }
        plain => elements.checked_mul(plain.size()?)?,
    };
    let data: Vec<u8> = (0..bytes.min(1 << 16)).map(|i| (i as u8).wrapping_mul(37) ^ seed).collect();
    (bytes <= 1 << 16).then(|| Tensor {
        dtype,
        shape,
        data: Bytes::from(data),
        order: RowOrder::Natural,
        file: PathBuf::from("random"),
        stored_name: String::new(),
    })
}

fn side() -> impl Strategy<Value = usize> {
    prop_oneof![8 => 0usize..5, 8 => Just(8usize), 2 => Just(16), 2 => Just(64), 1 => Just(usize::MAX), 1 => Just(1usize << 40)]
}

type Random = (usize, Vec<(usize, usize, Vec<usize>, u8)>, usize, bool);

fn random() -> impl Strategy<Value = Random> {
    let any_part = (0..suffixes().len(), 0..TYPES.len(), prop::collection::vec(side(), 0..4), any::<u8>());
    (0..TOGETHER.len(), prop::collection::vec(any_part, 1..8), 0usize..7, any::<bool>())
}

fn model(random: Random) -> Model {
    let (together, parts, kind, gguf) = random;
    let (mut tensors, suffixes) = (indexmap::IndexMap::new(), suffixes());
    let wanted = TOGETHER[together].iter().copied().map(Some).chain(std::iter::repeat(None));
    for ((suffix, dtype, shape, seed), wanted) in parts.into_iter().zip(wanted) {
        let name = named(suffixes[wanted.unwrap_or(suffix)]);
        if let Some(tensor) = tensor(TYPES[dtype], shape, seed) {
            tensors.insert(name.clone(), Tensor { stored_name: name, ..tensor });
        }
    }
    let entry = json!({named(".weight"): {"shape": [2, 4], "kind": "int", "packing": "nibble", "group": 2}});
    Model {
        path: PathBuf::from("random"),
        container: if gguf { Container::Gguf } else { Container::Directory },
        tensors,
        metadata: [("qconvert.tensors".to_string(), entry.to_string())].into_iter().collect(),
        config_json: config_of(kind),
        config_text: None,
        side_files: Vec::new(),
        warnings: Vec::new(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    /// Whatever a module is made of: it is described or refused, what is described opens as it was described, and
    /// one road to a description is like the other.
    #[test]
    fn random_modules_are_described_as_they_open(random in random()) {
        let model = model(random);
        let described = Gate::new(&model).describe(P);
        let indexed = Gate::indexed(&model).describe(P);
        prop_assert_eq!(described.is_ok(), indexed.is_ok());
        if let Ok(Some(description)) = described {
            let (rows, cols, scheme) = (description.rows, description.cols, description.scheme.clone());
            let bytes = description.packed_bytes;
            prop_assert!(rows > 0 && cols > 0);
            let scaled = description.scaling.factor.is_some() || description.scaling.columns.is_some();
            // The bias of a lone float matrix may be that of a transposed one; it is checked when it is opened.
            let opened = match description.layout {
                Layout::Plain => model.open_matrix(description),
                _ => model.open_layer(description).map(|layer| layer.matrix),
            };
            let matrix = opened.map_err(|e| TestCaseError::fail(format!("{scheme}: {e}")))?;
            prop_assert_eq!((matrix.rows(), matrix.cols()), (rows, cols));
            prop_assert!(scaled || matrix.packed_bytes() == bytes, "{}", scheme);
            prop_assert_eq!(matrix.decode_all().len(), rows * cols);
        }
    }
}
