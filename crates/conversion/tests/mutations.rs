//! Verification against damaged artifacts: whatever an encoder or a writer might do wrong is found.

use conversion::{Job, Layout, Settings, Source, Target, convert, verify};
use half::{bf16, f16};
use progress::Silent;
use schemes::{FloatType, Scheme};
use std::path::{Path, PathBuf};
use store::{DType, Tensor};

mod common;
use common::{SyntheticModel, write_model};

/// Bytes that a faulty encoder might have written instead of a tensor's; the tensor's own where that changes nothing.
type Mutation = fn(&Tensor) -> Vec<u8>;

const MUTATIONS: [(&str, Mutation); 6] = [
    ("the first row in every row", |t| t.data[..row_bytes(t)].repeat(t.data.len() / row_bytes(t))),
    ("rows read with a stride that is one too long", |t| {
        let row = row_bytes(t);
        let mut out = t.data.to_vec();
        out.rotate_left(row.min(t.data.len()) / 2 + 1);
        out
    }),
    ("nibbles swapped", |t| t.data.iter().map(|b| b.rotate_left(4)).collect()),
    ("the last row cut off", |t| {
        let mut out = t.data.to_vec();
        let kept = out.len() - row_bytes(t);
        out[kept..].fill(0);
        out
    }),
    ("a wrong scale", |t| map_floats(t, |v| v * 1.5)),
    ("a wrong conversion of types", |t| match t.dtype {
        // Rounded to the other type on the way, or cut instead of rounded.
        DType::F16 => map_floats(t, |v| bf16::from_f32(v).to_f32()),
        DType::BF16 => map_floats(t, |v| f32::from_bits((v.to_bits() & 0xFFFF_0000) ^ 0x0001_0000)),
        _ => map_floats(t, |v| f16::from_f32(v).to_f32()),
    }),
];

fn row_bytes(t: &Tensor) -> usize {
    let rows = t.shape.first().copied().unwrap_or(1).max(1);
    (t.data.len() / rows).max(1)
}

fn map_floats(t: &Tensor, change: impl Fn(f32) -> f32) -> Vec<u8> {
    let Some(ty) = t.dtype.float() else {
        // Of codes every third is off by one.
        return t.data.iter().enumerate().map(|(i, b)| if i % 3 == 0 { b ^ 1 } else { *b }).collect();
    };
    let bytes = |v: f32| match ty {
        FloatType::F32 => v.to_le_bytes().to_vec(),
        FloatType::F16 => f16::from_f32(v).to_le_bytes().to_vec(),
        FloatType::BF16 => bf16::from_f32(v).to_le_bytes().to_vec(),
    };
    (0..t.data.len() / ty.size()).flat_map(|i| bytes(change(ty.get(&t.data, i)))).collect()
}

/// An artifact, and what it was made from.
struct Made<'a> {
    source: &'a Source<'a>,
    job: Job,
    plan: conversion::Plan,
}

impl Made<'_> {
    fn verify(&self) -> Result<verify::Verified, conversion::Error> {
        verify::verify(&self.job.destination, self.source, &self.plan, &self.job.settings, &Silent)
    }

    /// The file of weights.
    fn file(&self) -> PathBuf {
        match self.job.settings.target {
            Target::Gguf => self.job.destination.clone(),
            Target::Safetensors => self.job.destination.join("model.safetensors"),
        }
    }
}

fn make<'a>(source: &'a Source<'a>, scheme: &str, target: Target, layout: Option<Layout>, dir: &Path) -> Made<'a> {
    let mut settings = Settings::new(target);
    settings.layout = layout;
    settings.calibration = Some(common::fake_calibration(source));
    let destination = dir.join(format!("{scheme}-{target:?}-{layout:?}.gguf"));
    let job =
        Job { scheme: scheme.parse::<Scheme>().expect("known"), settings, destination, existing: Default::default() };
    let made = convert(source, std::slice::from_ref(&job), &Silent).unwrap_or_else(|e| panic!("{scheme}: {e}"));
    Made { source, plan: made.into_iter().next().expect("one").plan, job }
}

/// Offset of the tensor's bytes in the file.
fn find(file: &[u8], bytes: &[u8]) -> usize {
    file.windows(bytes.len()).position(|w| w == bytes).expect("the tensor's bytes are in the file")
}

/// Damages each tensor of `modules` in each way and expects verification to fail. Gives the number of trials.
fn check(made: &Made<'_>, modules: &[&str]) -> usize {
    made.verify().unwrap_or_else(|e| panic!("{}: {e}", made.job.scheme));
    let file = made.file();
    let good = std::fs::read(&file).expect("reads");
    let artifact = store::open(&made.job.destination).expect("opens");
    // A copy: the map shows what is written to the file.
    let tensors: Vec<Tensor> = artifact
        .tensors
        .values()
        .filter(|t| modules.iter().any(|m| t.stored_name.starts_with(m)) && !t.data.is_empty())
        .map(|t| Tensor { data: t.data.to_vec().into(), ..t.clone() })
        .collect();
    drop(artifact);
    assert!(!tensors.is_empty(), "{modules:?}");
    let mut trials = 0;
    for tensor in &tensors {
        let at = find(&good, &tensor.data);
        for (what, mutation) in MUTATIONS {
            let bad = mutation(tensor);
            assert_eq!(bad.len(), tensor.data.len());
            if bad[..] == tensor.data[..] {
                continue;
            }
            let mut bytes = good.clone();
            bytes[at..at + bad.len()].copy_from_slice(&bad);
            // A new file: the old one may still be mapped.
            std::fs::remove_file(&file).expect("removes");
            std::fs::write(&file, &bytes).expect("writes");
            let found = made.verify();
            assert!(found.is_err(), "{}: {what} in {} is not found", made.job.scheme, tensor.stored_name);
            trials += 1;
        }
    }
    std::fs::remove_file(&file).expect("removes");
    std::fs::write(&file, &good).expect("writes");
    made.verify().expect("as it was");
    trials
}

#[test]
fn damage_in_any_layout_is_found() {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("model");
    write_model(&path, &SyntheticModel { hidden: 96, intermediate: 256, layers: 1, ..SyntheticModel::default() });
    let model = store::open(&path).expect("opens");
    let source = Source::new(&model).expect("whole");
    let (hf, gguf) = (["model.layers.0.mlp.down_proj"], ["blk.0.ffn_down"]);
    let packed = Some(Layout::Packed);
    let cases = [
        ("int8-row", None),
        ("int4-g32", None),
        ("int8-absmax", None),
        ("int4-g64", packed),
        ("int8-absmax", packed),
        ("nf4", packed),
        ("nf4-dq", packed),
        ("int8-outlier", packed),
        ("w8a8-token", None),
        ("w8a8-static", None),
        ("nf4", None),
        ("nf4-dq", None),
        ("int8-row", Some(Layout::Bitsandbytes)),
    ];
    let mut trials = 0;
    for (scheme, layout) in cases {
        trials += check(&make(&source, scheme, Target::Safetensors, layout, dir.path()), &hf);
    }
    let cases = [
        ("ggml-q8_0", None),
        ("ggml-q4_0", None),
        ("ggml-q5_1", None),
        ("ggml-q4_k", None),
        ("ggml-q6_k", None),
        ("int8-row", None),
        ("int4-g32", None),
        ("nf4", packed),
        ("int8-outlier", packed),
    ];
    for (scheme, layout) in cases {
        trials += check(&make_rules(&source, scheme, layout, dir.path()), &gguf);
    }
    assert!(trials > 250, "{trials}");
}

/// A GGUF file in which only down_proj is quantized: rows of 96 are no whole blocks of 256.
fn make_rules<'a>(source: &'a Source<'a>, scheme: &str, layout: Option<Layout>, dir: &Path) -> Made<'a> {
    let mut settings = Settings::new(Target::Gguf);
    settings.layout = layout;
    settings.calibration = Some(common::fake_calibration(source));
    settings.rules = conversion::Rules::new(&[], &["*_attn.*".into(), "*.gate_proj".into(), "*.up_proj".into()], None)
        .expect("rules");
    let destination = dir.join(format!("{scheme}-{layout:?}.gguf"));
    let job =
        Job { scheme: scheme.parse::<Scheme>().expect("known"), settings, destination, existing: Default::default() };
    let made = convert(source, std::slice::from_ref(&job), &Silent).unwrap_or_else(|e| panic!("{scheme}: {e}"));
    Made { source, plan: made.into_iter().next().expect("one").plan, job }
}

#[test]
fn damage_in_what_stays_float_is_found() {
    let dir = tempfile::tempdir().expect("temp dir");
    for (float, scheme) in
        [(FloatType::F32, "f16"), (FloatType::F32, "bf16"), (FloatType::F16, "f32"), (FloatType::F16, "int8-row")]
    {
        let path = dir.path().join(format!("{float}-{scheme}"));
        write_model(
            &path,
            &SyntheticModel { float, hidden: 96, intermediate: 128, layers: 1, ..SyntheticModel::default() },
        );
        let model = store::open(&path).expect("opens");
        let source = Source::new(&model).expect("whole");
        let hf = ["model.embed_tokens", "model.layers.0.input_layernorm", "model.norm"];
        check(&make(&source, scheme, Target::Safetensors, None, &path), &hf);
        // Rows of q are permuted there.
        let gguf = if scheme == "int8-row" {
            vec!["token_embd", "output_norm"]
        } else {
            vec!["token_embd", "output_norm", "blk.0.attn_q"]
        };
        check(&make(&source, scheme, Target::Gguf, None, &path), &gguf);
    }
}
