//! Tensors of every rank, name and float type, converted value by value.

#[path = "../../conversion/tests/common/mod.rs"]
mod common;
mod place;

use half::{bf16, f16};
use place::{Place, Stored, write_tensors};
use schemes::GgmlType;
use store::{DType, gguf};

/// Names and shapes: no dimension, one, two that are no `.weight`, three, four, and empty ones.
const TENSORS: [(&str, &[usize]); 14] = [
    ("temperature", &[]),
    ("layers.0.mixer.D", &[7]),
    ("layers.0.mixer.dt_bias", &[3]),
    ("layers.0.mixer.A_log", &[5, 3]),
    ("layers.0.ssm_a", &[4, 6]),
    ("layers.0.mlp.experts.gate_up_proj_bias", &[4, 10]),
    ("layers.0.mlp.experts.gate_up_proj", &[3, 5, 7]),
    ("layers.0.mixer.conv1d.weight", &[6, 1, 4]),
    ("patch.weight", &[2, 3, 4, 5]),
    ("layers.0.mlp.up_proj.weight", &[6, 8]),
    ("empty", &[0, 4]),
    ("rows_of_none", &[4, 0]),
    ("one", &[1]),
    ("column", &[9, 1]),
];

fn number(i: usize) -> f64 {
    // Different in every place, with halves to round, and exact in none of the 16-bit types.
    (i as f64 * 1.7 - 11.3) * if i.is_multiple_of(5) { 1e-3 } else { 1.0 } + f64::from(i as u32 % 7) * 1e-6
}

fn bytes(dtype: &str, values: &[f64]) -> Vec<u8> {
    let each = |v: &f64| -> Vec<u8> {
        match dtype {
            "F64" => v.to_le_bytes().to_vec(),
            "F32" => (*v as f32).to_le_bytes().to_vec(),
            "F16" => f16::from_f32(*v as f32).to_le_bytes().to_vec(),
            _ => bf16::from_f32(*v as f32).to_le_bytes().to_vec(),
        }
    };
    values.iter().flat_map(each).collect()
}

fn numbers(dtype: DType, data: &[u8]) -> Vec<f64> {
    let two = |b: &[u8]| [b[0], b[1]];
    match dtype {
        DType::F64 => data.chunks(8).map(|b| f64::from_le_bytes(b.try_into().expect("8"))).collect(),
        DType::F32 => data.chunks(4).map(|b| f32::from_le_bytes(b.try_into().expect("4")).into()).collect(),
        DType::F16 => data.chunks(2).map(|b| f16::from_le_bytes(two(b)).into()).collect(),
        DType::BF16 => data.chunks(2).map(|b| bf16::from_le_bytes(two(b)).into()).collect(),
        other => panic!("{other}"),
    }
}

fn rounded(dtype: &str, v: f64) -> f64 {
    match dtype {
        "f16" => f16::from_f32(v as f32).into(),
        "bf16" => bf16::from_f32(v as f32).into(),
        _ => (v as f32).into(),
    }
}

#[test]
fn every_rank_name_and_type_is_converted_value_by_value() {
    let place = Place::new();
    for from in ["F64", "F32", "F16", "BF16"] {
        let tensors: Vec<Stored> = TENSORS
            .iter()
            .map(|(name, shape)| {
                let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
                Stored { name: (*name).into(), dtype: from.into(), shape: shape.to_vec(), bytes: bytes(from, &values) }
            })
            .collect();
        std::fs::write(place.path("bare.safetensors"), write_tensors(&tensors)).expect("writes");
        for to in ["f16", "bf16", "f32"] {
            let out = format!("{from}-{to}");
            place.done(&["bare.safetensors", "--scheme", to, "--to", "safetensors", "--verify", "-o", &out]);
            let made = store::open(&place.path(&out)).expect("opens");
            assert_eq!(made.tensors.len(), TENSORS.len());
            for t in &tensors {
                let written = &made.tensors[&t.name];
                let source = match from {
                    "F64" => DType::F64,
                    "F32" => DType::F32,
                    "F16" => DType::F16,
                    _ => DType::BF16,
                };
                assert_eq!((written.dtype.to_string().to_lowercase(), &written.shape), (to.into(), &t.shape), "{out}");
                let want: Vec<f64> = numbers(source, &t.bytes).into_iter().map(|v| rounded(to, v)).collect();
                assert_eq!(numbers(written.dtype, &written.data), want, "{} {out}", t.name);
            }
        }
    }
}

#[test]
fn more_values_than_a_thread_takes_at_a_time() {
    let place = Place::new();
    let shapes: [(&str, &[usize]); 3] = [("bank", &[3, 500, 211]), ("table", &[1031, 257]), ("line", &[200_003])];
    let tensors: Vec<Stored> = shapes
        .iter()
        .map(|(name, shape)| {
            let values: Vec<f64> = (0..shape.iter().product()).map(|i: usize| number(i % 30_011)).collect();
            Stored { name: (*name).into(), dtype: "F32".into(), shape: shape.to_vec(), bytes: bytes("F32", &values) }
        })
        .collect();
    std::fs::write(place.path("bare.safetensors"), write_tensors(&tensors)).expect("writes");
    place.done(&["bare.safetensors", "--scheme", "bf16", "--to", "safetensors", "--verify", "-o", "out"]);
    let made = store::open(&place.path("out")).expect("opens");
    for t in &tensors {
        let want: Vec<f64> = numbers(DType::F32, &t.bytes).into_iter().map(|v| rounded("bf16", v)).collect();
        assert!(numbers(DType::BF16, &made.tensors[&t.name].data) == want, "{}", t.name);
    }
}

#[test]
fn tensors_of_a_gguf_file_are_converted_value_by_value() {
    let place = Place::new();
    let shapes: [(&str, &[usize]); 4] = [
        ("token_embd.weight", &[12, 8]),
        ("blk.0.ssm_a", &[8, 5]),
        ("blk.0.ssm_conv1d.weight", &[8, 4]),
        ("blk.0.ffn_gate_exps.weight", &[3, 6, 8]),
    ];
    let planned: Vec<gguf::PlannedTensor> =
        shapes.iter().map(|(name, shape)| gguf::PlannedTensor::new(name.to_string(), GgmlType::F32, shape)).collect();
    let path = place.path("x.gguf");
    let metadata = [("general.architecture".to_string(), gguf::Value::from("mamba"))];
    let plan = gguf::Plan::new(&path, &metadata, &planned).expect("plans");
    let mut file = vec![0u8; plan.file_len() as usize];
    file[..plan.header().len()].copy_from_slice(plan.header());
    for (i, (_, shape)) in shapes.iter().enumerate() {
        let values: Vec<f64> = (0..shape.iter().product()).map(number).collect();
        let data = bytes("F32", &values);
        let at = plan.offset(i) as usize;
        file[at..at + data.len()].copy_from_slice(&data);
    }
    std::fs::write(&path, file).expect("writes");
    let source = store::open(&path).expect("opens");
    for to in ["f16", "bf16", "f32"] {
        place.done(&["x.gguf", "--scheme", to, "--to", "safetensors", "--verify", "-o", to]);
        let made = store::open(&place.path(to)).expect("opens");
        assert_eq!(made.tensors.len(), shapes.len());
        for (name, t) in &source.tensors {
            let written = &made.tensors[name];
            let want: Vec<f64> = numbers(t.dtype, &t.data).into_iter().map(|v| rounded(to, v)).collect();
            assert_eq!((numbers(written.dtype, &written.data), &written.shape), (want, &t.shape), "{name} {to}");
        }
    }
}
