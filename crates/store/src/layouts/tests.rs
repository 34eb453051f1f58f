use crate::{DType, Linear, open, testing::*};
use schemes::{Activation, Storage};
use serde_json::{Value, json};

/// The module under test.
const P: &str = "model.layers.0.mlp.down_proj";

fn named(suffix: &str) -> String {
    format!("{P}{suffix}")
}

fn linear(config: &Value, parts: &[Part], metadata: &[(&str, &str)]) -> Result<(Linear, String), String> {
    let dir = folder(config, parts, metadata);
    let model = open(dir.path()).map_err(|e| e.to_string())?;
    let layer = model.linear(P).map_err(|e| e.to_string())?;
    Ok((layer, model.declared_schemes()[P].clone()))
}

fn bytes(values: &[i8]) -> Vec<u8> {
    values.iter().map(|v| *v as u8).collect()
}

fn compressed(format: &str, weights: Value, input: Value) -> Value {
    config_with(json!({"quantization_config": {"quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "format": format, "weights": weights,
            "input_activations": input}}}}))
}

fn weights(bits: u64) -> Value {
    json!({"num_bits": bits, "type": "int", "symmetric": true, "strategy": "channel"})
}

#[test]
fn configurations_without_groups_are_refused() {
    for groups in [json!([]), json!({}), json!("Linear")] {
        let config = config_with(json!({"quantization_config": {"quant_method": "compressed-tensors",
            "format": "pack-quantized", "config_groups": groups}}));
        let error = linear(&config, &[], &[]).expect_err("refused");
        assert!(error.contains("config_groups has no groups"), "{error}");
    }
}

#[test]
fn floats_and_biases() {
    let w = f32s(&named(".weight"), &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let (layer, scheme) =
        linear(&config(), &[w.clone(), f16s(&named(".bias"), &[2], &[0.5, -1.0])], &[]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    assert_eq!((layer.bias, layer.activation, scheme.as_str()), (Some(vec![0.5, -1.0]), Activation::Float, "f32"));
    for (parts, want) in [
        (vec![], "tensor model.layers.0.mlp.down_proj.weight: is missing"),
        (vec![w.clone(), f32s(&named(".bias"), &[1], &[0.0])], "bias: 1 values for 2 rows"),
        (vec![w, part(&named(".bias"), DType::I8, &[2], [0, 0])], "type I8 where floats"),
        (vec![f32s(&named(".weight"), &[6], &[0.0; 6])], "shape [6] is not that of a matrix"),
        (vec![part(&named(".weight"), DType::U8, &[2, 2], [0; 4])], "weights of type U8"),
        (vec![part(&named(".weight"), DType::F8E5M2, &[2, 2], [0; 4])], "weights of type F8_E5M2"),
        (vec![part(&named(".qweight"), DType::I32, &[1], [0; 4])], "GPTQ or AWQ can't be told apart"),
    ] {
        let error = linear(&config(), &parts, &[]).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn compressed_int_quantized() {
    let w = part(&named(".weight"), DType::I8, &[2, 3], bytes(&[1, -2, 3, 127, -128, 0]));
    let row = f16s(&named(".weight_scale"), &[2, 1], &[0.5, 2.0]);
    let token = json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "token", "dynamic": true});
    let run = |parts: &[Part], input| linear(&compressed("int-quantized", weights(8), input), parts, &[]);
    let (layer, scheme) = run(&[w.clone(), row.clone()], token).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [0.5, -1.0, 1.5, 254.0, -256.0, 0.0]);
    assert_eq!((layer.activation, scheme.as_str()), (Activation::Int8Token, "w8a8-token"));

    let tensor = f32s(&named(".weight_scale"), &[1], &[2.0]);
    let (layer, scheme) = run(&[w.clone(), tensor], Value::Null).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [2.0, -4.0, 6.0, 254.0, -256.0, 0.0]);
    assert_eq!((layer.activation, scheme.as_str()), (Activation::Float, "int8-absmax"));

    let fixed = json!({"num_bits": 8, "type": "int", "symmetric": true, "strategy": "tensor", "dynamic": false});
    let scale = f32s(&named(".input_scale"), &[1], &[0.25]);
    let (layer, scheme) = run(&[w.clone(), row.clone(), scale], fixed.clone()).expect("a layer");
    assert_eq!((layer.activation, scheme.as_str()), (Activation::Int8Static(0.25), "w8a8-static"));

    for (parts, input, want) in [
        (vec![w.clone(), row.clone()], fixed, "input_scale: is missing"),
        (vec![w.clone()], Value::Null, "weight_scale: is missing"),
        (vec![w.clone(), f16s(&named(".weight_scale"), &[3, 1], &[1.0; 3])], Value::Null, "scales: 6 bytes where 4"),
        (
            vec![w.clone(), row.clone(), part(&named(".weight_zero_point"), DType::I8, &[3, 1], [0, 0, 0])],
            Value::Null,
            "3 zero points for 2 scales",
        ),
        (
            vec![w.clone(), row.clone()],
            json!({"num_bits": 8, "strategy": "group"}),
            "strategy \"group\" (dynamic: false) are not",
        ),
        (vec![w, row], json!({"num_bits": 8, "type": "float", "strategy": "token"}), "other than symmetric int8"),
    ] {
        let error = run(&parts, input).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn compressed_pack_quantized() {
    // Ten codes a row: one whole word and two codes of a second.
    let codes: Vec<i8> = (0..20).map(|i: i32| (i * 7 % 15 - 7) as i8).collect();
    let words: Vec<u8> = codes
        .chunks(10)
        .flat_map(|row| {
            let mut words = [0u32; 2];
            row.iter().enumerate().for_each(|(i, c)| words[i / 8] |= ((c + 8) as u32) << (4 * (i % 8)));
            words.into_iter().flat_map(u32::to_le_bytes)
        })
        .collect();
    let shape: Vec<u8> = [2i64, 10].iter().flat_map(|n| n.to_le_bytes()).collect();
    let parts = |groups: usize, words: Vec<u8>, shape: Vec<u8>| {
        [
            part(&named(".weight_packed"), DType::I32, &[2, 2], words),
            part(&named(".weight_shape"), DType::I64, &[2], shape),
            f16s(&named(".weight_scale"), &[2, groups], &(1..=2 * groups).map(|i| i as f32).collect::<Vec<_>>()),
        ]
    };
    let group = |n: u64| json!({"num_bits": 4, "type": "int", "strategy": "group", "group_size": n});
    let run = |weights, parts: &[Part]| linear(&compressed("pack-quantized", weights, Value::Null), parts, &[]);
    for (weights, groups, size, want) in
        [(weights(4), 1, 10, "int4-row"), (group(5), 2, 5, "int4-g5"), (group(4), 3, 4, "int4-g4")]
    {
        let (layer, scheme) = run(weights, &parts(groups, words.clone(), shape.clone())).expect("a layer");
        let decoded: Vec<f32> =
            (0..20).map(|i| f32::from(codes[i]) * (i / 10 * groups + i % 10 / size + 1) as f32).collect();
        assert_eq!(layer.matrix.decode_all(), decoded, "{want}");
        assert_eq!((scheme.as_str(), layer.activation), (want, Activation::Float));
    }
    let huge: Vec<u8> = [1i64 << 62, 1 << 62].iter().flat_map(|n| n.to_le_bytes()).collect();
    for (weights, parts, want) in [
        (group(3), parts(2, words.clone(), shape.clone()), "2 scales a row do not suit 10 columns"),
        (weights(8), parts(1, words.clone(), shape.clone()), "words do not hold 2 x 10 codes of 8 bits"),
        (weights(3), parts(1, words.clone(), shape.clone()), "3 bits are not supported"),
        (weights(4), parts(1, words.clone(), huge), "does not hold two sizes"),
        (weights(4), parts(1, words.clone(), vec![255; 16]), "does not hold two sizes"),
        (json!({"type": "float"}), parts(1, words.clone(), shape.clone()), "type 'float'"),
        (json!({"symmetric": false}), parts(1, words.clone(), shape.clone()), "weight_zero_point: is missing"),
        (json!({"strategy": "block"}), parts(1, words, shape), "strategy 'block'"),
    ] {
        let error = run(weights, &parts).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn compressed_groups_are_chosen_by_target() {
    let group = |targets: Value, strategy: &str| {
        json!({"targets": targets, "weights": {"num_bits": 8, "type": "int"},
            "input_activations": {"num_bits": 8, "strategy": strategy, "dynamic": true}})
    };
    let run = |special: &str| {
        let config = config_with(json!({"quantization_config": {"quant_method": "compressed-tensors",
            "config_groups": {"a": group(json!(["Linear"]), "token"), "b": group(json!([special]), "tensor")}}}));
        let parts =
            [part(&named(".weight"), DType::I8, &[1, 2], [1, 2]), f16s(&named(".weight_scale"), &[1, 1], &[1.0])];
        linear(&config, &parts, &[]).map(|(layer, _)| layer.activation)
    };
    assert_eq!(run("re:.*down_proj"), Ok(Activation::Int8Tensor));
    assert_eq!(run(P), Ok(Activation::Int8Tensor));
    assert_eq!(run("re:down_proj"), Ok(Activation::Int8Token), "patterns hold at the start of the name");
    assert!(run("re:(").expect_err("refused").contains("pattern"));
}

#[test]
fn methods_are_refused_by_name() {
    let run = |q: Value| linear(&config_with(json!({"quantization_config": q})), &[], &[]).expect_err("refused");
    for (q, want) in [
        (json!({"quant_method": "gptq", "bits": 3}), "GPTQ with 3 bits"),
        (json!({"quant_method": "gptq", "checkpoint_format": "marlin"}), "format 'marlin'"),
        (json!({"quant_method": "awq", "version": "gemv"}), "version 'gemv'"),
        (json!({"quant_method": "hqq"}), "'hqq' is not supported"),
        (json!({}), "names no quant_method"),
        (
            json!({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}),
            "format 'nvfp4-pack-quantized'",
        ),
        (json!({"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24"}}), "sparse-24"),
        (json!({"quant_method": "compressed-tensors", "transform_config": {"a": 1}}), "transform_config"),
    ] {
        let error = run(q);
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

fn bnb() -> Value {
    config_with(json!({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": true}}))
}

/// An NF4 layer of 3 x 2 with blocks of 4; `levels[i]` is i.
fn nf4(state: Value, absmax: Part) -> Vec<Part> {
    let state = state.to_string().into_bytes();
    let levels: Vec<f32> = (0..16).map(|i| i as f32).collect();
    vec![
        part(&named(".weight"), DType::U8, &[3, 1], [0x12, 0x34, 0x5F]),
        absmax,
        f32s(&named(".weight.quant_map"), &[16], &levels),
        part(&named(".weight.quant_state.bitsandbytes__nf4"), DType::U8, &[state.len()], state),
    ]
}

#[test]
fn bitsandbytes_nf4() {
    let state = json!({"quant_type": "nf4", "blocksize": 4, "dtype": "float16", "shape": [3, 2]});
    let absmax = || f32s(&named(".weight.absmax"), &[2], &[1.0, 10.0]);
    let (layer, scheme) = linear(&bnb(), &nf4(state.clone(), absmax()), &[]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [1.0, 2.0, 3.0, 4.0, 50.0, 150.0]);
    assert_eq!((layer.matrix.rows(), layer.matrix.cols(), scheme.as_str()), (3, 2, "nf4"));

    let mut nested = state.clone();
    nested["nested_blocksize"] = json!(256);
    nested["nested_offset"] = json!(0.5);
    let map: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let parts = |state: Value| {
        let mut parts = nf4(state, part(&named(".weight.absmax"), DType::U8, &[2], [1, 200]));
        parts.push(f32s(&named(".weight.nested_absmax"), &[1], &[2.0]));
        parts.push(f32s(&named(".weight.nested_quant_map"), &[256], &map));
        parts
    };
    let (layer, scheme) = linear(&bnb(), &parts(nested.clone()), &[]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [2.5, 5.0, 7.5, 10.0, 2002.5, 6007.5]);
    assert_eq!(scheme, "nf4-dq");

    let change = |state: &Value, key: &str, value: Value| {
        let mut state = state.clone();
        state[key] = value;
        state
    };
    for (parts, want) in [
        (nf4(change(&state, "quant_type", json!("fp4")), absmax()), "is not nf4"),
        (nf4(change(&state, "blocksize", json!(0)), absmax()), "blocksize"),
        (nf4(change(&state, "shape", json!([3])), absmax()), "shape is not two sizes"),
        (nf4(change(&state, "shape", json!([1u64 << 40, 1u64 << 40])), absmax()), "too many weights"),
        (nf4(json!(1), absmax()), "is not a JSON object"),
        (nf4(state.clone(), f32s(&named(".weight.absmax"), &[1], &[1.0])), "absmax: 4 bytes where 8"),
        (parts(change(&nested, "nested_blocksize", json!(64))), "nested_blocksize must be 256"),
        (parts(change(&nested, "nested_offset", json!("x"))), "nested_offset is not a number"),
        (
            vec![
                part(&named(".weight"), DType::U8, &[1, 1], [0]),
                part(&named(".weight.quant_state.bitsandbytes__fp4"), DType::U8, &[1], [0]),
            ],
            "is not a JSON object",
        ),
    ] {
        let error = linear(&bnb(), &parts, &[]).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn bitsandbytes_int8() {
    let w = part(&named(".weight"), DType::I8, &[2, 2], bytes(&[127, -127, 0, 64]));
    let parts = [w.clone(), f32s(&named(".SCB"), &[2], &[2.0, 1.0])];
    let (layer, scheme) = linear(&bnb(), &parts, &[]).expect("a layer");
    let inv = 1.0f32 / 127.0;
    assert_eq!(layer.matrix.decode_all(), [127.0 * 2.0 * inv, -127.0 * 2.0 * inv, 0.0, 64.0 * inv]);
    assert_eq!((scheme.as_str(), layer.activation), ("int8-row", Activation::Float));
    for (more, want) in [
        (vec![f16s(&named(".SCB"), &[2], &[1.0, 1.0])], "type F16 where F32"),
        (vec![f32s(&named(".SCB"), &[1], &[1.0])], "scales: 4 bytes where 8"),
        (
            vec![f32s(&named(".SCB"), &[2], &[1.0; 2]), part(&named(".weight_format"), DType::U8, &[], [1])],
            "only format 0",
        ),
    ] {
        let parts: Vec<Part> = [vec![w.clone()], more].concat();
        let error = linear(&bnb(), &parts, &[]).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

/// A packed layer with the entry `entry` and the tensors `parts`.
fn packed(entry: Value, parts: &[Part]) -> Result<(Linear, String), String> {
    let text = json!({"other.weight": {"scheme": [1, {"x": "}"}]}, named(".weight"): entry}).to_string();
    linear(&config(), parts, &[("qconvert.tensors", &text)])
}

#[test]
fn packed_integers() {
    let scales = |shape: &[usize], values: &[f32]| f16s(&named(".weight.scales"), shape, values);
    let nibble = part(&named(".weight.codes"), DType::I8, &[2, 2], [0x98, 0x07, 0xF1, 0x0A]);
    let entry =
        |group: i64| json!({"scheme": "int4-gX", "shape": [2, 3], "kind": "int", "packing": "nibble", "group": group});
    let (layer, scheme) = packed(entry(2), &[nibble.clone(), scales(&[2, 2], &[1.0, 2.0, 3.0, 4.0])]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [0.0, 1.0, -2.0, -21.0, 21.0, 8.0]);
    assert_eq!(scheme, "int4-gX", "what is declared stands");
    let (layer, _) = packed(entry(-1), &[nibble.clone(), scales(&[1], &[1.0])]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [0.0, 1.0, -1.0, -7.0, 7.0, 2.0]);

    let i8s = part(&named(".weight.codes"), DType::I8, &[1, 2], bytes(&[-5, 6]));
    let entry8 = |activation: Value| {
        json!({"scheme": "w8a8-static", "shape": [1, 2], "kind": "int", "packing": "i8", "group": 0,
            "activation": activation, "activation_scale": 0.125})
    };
    let (layer, _) =
        packed(entry8(json!("int8-static")), &[i8s.clone(), f32s(&named(".weight.scales"), &[1, 1], &[0.5])])
            .expect("a layer");
    assert_eq!((layer.matrix.decode_all(), layer.activation), (vec![-2.5, 3.0], Activation::Int8Static(0.125)));

    let one = scales(&[1, 1], &[1.0]);
    for (entry, parts, want) in [
        (Value::Null, vec![nibble.clone()], "there is none for this weight"),
        (entry(0), vec![nibble.clone()], "scales: is missing"),
        (entry(0), vec![nibble.clone(), one.clone()], "scales: 2 bytes where 4"),
        (entry(-2), vec![nibble.clone(), one.clone()], "group -2 is not"),
        (json!({"shape": [2, 3], "kind": "x"}), vec![nibble.clone()], "kind \"x\" is not known"),
        (json!({"kind": "int"}), vec![nibble.clone()], "shape is not two sizes"),
        (
            json!({"shape": [2, 9], "kind": "int", "packing": "nibble", "group": 0}),
            vec![nibble, scales(&[2, 1], &[1.0; 2])],
            "codes: 4 bytes where 10",
        ),
        (entry8(json!("int4")), vec![i8s, one], "activation \"int4\" is not known"),
    ] {
        let error = packed(entry, &parts).expect_err("refused");
        assert!(error.contains(want) && error.contains(P), "{error} has no '{want}'");
    }
}

#[test]
fn packed_nf4_and_outliers() {
    let codes = part(&named(".weight.codes"), DType::I8, &[2], [0xF0, 0x70]);
    let entry = |kind: &str| json!({"scheme": "nf4", "shape": [1, 3], "kind": kind, "block": 2});
    let absmax = f16s(&named(".weight.absmax"), &[2], &[2.0, 3.0]);
    let (layer, _) = packed(entry("nf4"), &[codes.clone(), absmax]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [2.0, -2.0, 0.0]);

    let map: Vec<f32> = (0..256).map(|i| i as f32).collect();
    let nested = [
        codes,
        part(&named(".weight.absmax_codes"), DType::I8, &[2], [200, 1]),
        f32s(&named(".weight.nested_absmax"), &[1], &[0.5]),
        f32s(&named(".weight.nested_map"), &[256], &map),
        f32s(&named(".weight.nested_offset"), &[1], &[0.25]),
    ];
    let (layer, _) = packed(entry("nf4-dq"), &nested).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [100.25, -100.25, 0.0]);

    let columns = |c: &[i32]| {
        part(
            &named(".weight.outlier_columns"),
            DType::I32,
            &[c.len()],
            c.iter().flat_map(|c| c.to_le_bytes()).collect::<Vec<_>>(),
        )
    };
    let codes = part(&named(".weight.codes"), DType::I8, &[2, 2], bytes(&[1, 2, 3, 4]));
    let scales = f16s(&named(".weight.scales"), &[2, 1], &[1.0, 2.0]);
    let outliers = f16s(&named(".weight.outliers"), &[2, 1], &[9.5, -9.5]);
    let entry = json!({"scheme": "int8-outlier", "shape": [2, 3], "kind": "outlier", "threshold": 6.0, "activation": "int8-token"});
    let (layer, scheme) =
        packed(entry.clone(), &[codes.clone(), scales.clone(), columns(&[1]), outliers.clone()]).expect("a layer");
    assert_eq!(layer.matrix.decode_all(), [1.0, 9.5, 2.0, 6.0, -9.5, 8.0]);
    assert_eq!((layer.activation, scheme.as_str()), (Activation::Int8Token, "int8-outlier"));
    let mut none = entry.clone();
    none["shape"] = json!([2, 2]);
    let (layer, _) = packed(none, &[codes.clone(), scales.clone()]).expect("no outliers: a layer");
    assert!(matches!(layer.matrix.storage(), Storage::Outlier(o) if o.columns.is_empty()));
    for (columns, want) in [
        (columns(&[3]), "must ascend and lie inside"),
        (columns(&[-1]), "must ascend and lie inside"),
        (columns(&[0, 1, 2, 3]), "4 columns of a matrix that has 3"),
    ] {
        let error =
            packed(entry.clone(), &[codes.clone(), scales.clone(), columns, outliers.clone()]).expect_err("refused");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn packed_metadata_may_be_wrong() {
    let codes = || part(&named(".weight.codes"), DType::I8, &[1, 2], [1, 2]);
    let run = |metadata: &[(&str, &str)]| linear(&config(), &[codes()], metadata).expect_err("refused");
    assert!(run(&[]).contains("the metadata have no qconvert.tensors"));
    assert!(run(&[("qconvert.tensors", "[")]).contains("metadata qconvert.tensors: "));
    let name = named(".weight");
    let twice = format!("{{\"{name}\":{{}},\"{name}\":{{}}}}");
    assert!(run(&[("qconvert.tensors", &twice)]).contains("stands twice"));
}

#[test]
fn declared_schemes_come_from_the_metadata_where_they_are() {
    let parts = [embedding(), f32s(&named(".weight"), &[1, 2], &[0.0; 2]), f32s("model.norm.weight", &[8], &[1.0; 8])];
    let said = json!({named(".weight"): "int4-g64"}).to_string();
    let dir = folder(&config(), &parts, &[("qconvert.tensor_schemes", &said)]);
    let schemes = open(dir.path()).expect("a model").declared_schemes();
    let want = [("model.embed_tokens", "f16"), (P, "int4-g64")];
    assert_eq!(schemes.len(), 2, "norms are no layers");
    assert!(want.iter().all(|(k, v)| schemes[*k] == *v), "{schemes:?}");
}
