//! An encoder that is broken on purpose, in tests only: verification must find every fault.

use crate::encode::Codes;
use crate::{Job, Layout, Settings, Source, Target, convert};
use progress::Silent;
use schemes::{FloatType, Scheme};
use std::collections::HashMap;
use std::path::Path;

/// Faults, each in weights whose module begins with its name.
const FAULTS: [&str; 5] = ["row_stride", "scale", "nibbles", "last_row", "type"];

/// Breaks the codes of a weight in the way that its name asks for.
pub fn damage(weight: &str, cols: usize, codes: &mut Codes) {
    let Some(fault) = FAULTS.iter().find(|f| weight.starts_with(&format!("{f}."))) else { return };
    match codes {
        Codes::Int(q) | Codes::Outlier(q, _) => damage_integers(fault, cols, &mut q.codes, &mut q.scales),
        Codes::Nf4(q) => {
            let mut signed: Vec<i8> = q.codes.iter().map(|c| *c as i8).collect();
            damage_integers(fault, cols, &mut signed, &mut q.absmax);
            q.codes = signed.iter().map(|c| *c as u8).collect();
        }
        Codes::Float(ty, bytes) => damage_bytes(fault, cols * ty.size(), *ty, bytes),
        Codes::Ggml(ty, bytes) => {
            let row = ty.row_bytes(cols).unwrap_or(1);
            damage_bytes(fault, row, FloatType::F16, bytes);
        }
    }
}

fn damage_integers(fault: &str, cols: usize, codes: &mut [i8], scales: &mut [f32]) {
    let first: Vec<i8> = codes.iter().take(cols).copied().collect();
    match fault {
        "row_stride" => codes.chunks_mut(cols).for_each(|row| row.copy_from_slice(&first[..row.len()])),
        "nibbles" => codes.chunks_exact_mut(2).for_each(|pair| pair.swap(0, 1)),
        "last_row" => codes.iter_mut().rev().take(cols).for_each(|c| *c = 0),
        // One scale of a matrix is not among these: the codes are doubled or halved instead.
        _ if scales.is_empty() => codes.iter_mut().for_each(|c| *c /= 2),
        "scale" => scales.iter_mut().for_each(|s| *s *= 2.0),
        _ => scales.iter_mut().for_each(|s| *s = FloatType::BF16.round(*s * 1.01)),
    }
}

fn damage_bytes(fault: &str, row: usize, ty: FloatType, bytes: &mut [u8]) {
    let first: Vec<u8> = bytes.iter().take(row).copied().collect();
    match fault {
        "row_stride" => bytes.chunks_mut(row).for_each(|b| b.copy_from_slice(&first[..b.len()])),
        "nibbles" => bytes.iter_mut().for_each(|b| *b = b.rotate_left(4)),
        "last_row" => bytes.iter_mut().rev().take(row).for_each(|b| *b = 0),
        // The exponent's lowest bit, or the lowest bit of the mantissa.
        "scale" => bytes.chunks_exact_mut(ty.size()).for_each(|b| b[ty.size() - 1] ^= 4),
        _ => bytes.chunks_exact_mut(ty.size()).for_each(|b| b[0] ^= 1),
    }
}

fn write_model(path: &Path) {
    let data: HashMap<String, Vec<u8>> = FAULTS
        .iter()
        .enumerate()
        .map(|(f, fault)| {
            let value = |i: usize| ((i * 7919 + f * 31) % 2003) as f32 / 1001.5 - 1.0;
            let bytes = (0..64 * 128).flat_map(|i| value(i).to_le_bytes()).collect();
            (format!("{fault}.layers.0.mlp.up_proj.weight"), bytes)
        })
        .collect();
    let tensor = |bytes| safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![64, 128], bytes);
    let views = data.iter().map(|(name, bytes)| (name, tensor(bytes).expect("fits")));
    std::fs::write(path, safetensors::serialize(views, None).expect("serializes")).expect("writes");
}

#[test]
fn verification_finds_every_fault_of_an_encoder() {
    let dir = tempfile::tempdir().expect("temp dir");
    let path = dir.path().join("model.safetensors");
    write_model(&path);
    let model = store::open(&path).expect("opens");
    let source = Source::new(&model).expect("lists");
    let packed = Some(Layout::Packed);
    let cases = [
        ("f16", None),
        ("bf16", None),
        ("int8-row", None),
        ("int4-g32", None),
        ("int8-absmax", packed),
        ("int4-g64", packed),
        ("nf4", None),
        ("nf4", packed),
        ("int8-row", Some(Layout::Bitsandbytes)),
        ("w8a8-token", None),
    ];
    for (scheme, layout) in cases {
        for fault in FAULTS {
            let mut settings = Settings::new(Target::Safetensors);
            (settings.layout, settings.verify) = (layout, true);
            let others: Vec<String> = FAULTS.iter().filter(|f| **f != fault).map(|f| format!("{f}.*")).collect();
            settings.rules = crate::Rules::new(&[], &others, None).expect("rules");
            let destination = dir.path().join("out");
            let scheme = scheme.parse::<Scheme>().expect("known");
            let job = Job { scheme, settings, destination: destination.clone(), existing: Default::default() };
            let e = convert(&source, &[job], &Silent).expect_err("broken");
            assert!(e.to_string().contains(fault), "{scheme} {layout:?} {fault}: {e}");
            assert!(!destination.exists());
        }
    }
}
