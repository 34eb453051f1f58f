//! Layers in the layouts of other tools, as those tools wrote them (golden/make_layouts.py).

use schemes::Storage;
use std::{fs, path::Path};

/// Cases, and the schemes that they are recognized as.
const CASES: [(&str, &str); 14] = [
    ("gptq-int4-sym", "int4-g64"),
    ("gptq-int4-asym", "int4-g64 with zero points"),
    ("gptq-int4-act-order", "int4-g64 with zero points, activation order"),
    ("gptq-int8-sym", "int8-g64"),
    ("awq-int4", "int4-g64 with zero points"),
    ("ct-int4-asym-group", "int4-g64 with zero points"),
    ("ct-int4-act-order", "int4-g64 with zero points, activation order"),
    ("ct-int8-asym-channel", "int8-row with zero points"),
    ("ct-int8-asym-int", "int8-row with zero points"),
    ("ct-fp8-channel", "fp8-e4m3"),
    ("ct-fp8-tensor", "fp8-e4m3"),
    ("fp8-block", "fp8-e4m3"),
    ("bnb-fp4", "fp4"),
    ("bnb-fp4-dq", "fp4"),
];

const MODULE: &str = "model.layers.0.mlp.down_proj";

fn golden(case: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case)
}

#[test]
fn decoded_as_their_own_tools_decode_them() {
    for (case, scheme) in CASES {
        let model = store::open(&golden(case)).unwrap_or_else(|e| panic!("{case}: {e}"));
        let layer = model.linear(MODULE).unwrap_or_else(|e| panic!("{case}: {e}"));
        let expected = model.dense("expected").expect("floats").expect("there");
        let found = layer.matrix.decode_all();
        let differing = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        let first = found.iter().zip(&expected).find(|(a, b)| a != b);
        assert_eq!((found.len(), differing, first), (expected.len(), 0, None), "{case}");
        assert_eq!(model.declared_schemes()[MODULE], scheme, "{case}");
        assert!(!matches!(layer.matrix.storage(), Storage::Float(..)), "{case} stays packed");
        let noted = model.warnings.iter().any(|w| w.contains("8-bit floats"));
        assert_eq!(noted, case == "fp8-block", "{case}: {:?}", model.warnings);
    }
}

#[test]
fn every_tensor_is_needed_and_its_size_is_checked() {
    for (case, _) in CASES {
        let dir = tempfile::tempdir().expect("temp dir");
        for file in ["config.json", "model.safetensors"] {
            fs::copy(golden(case).join(file), dir.path().join(file)).expect("copies");
        }
        let weights = dir.path().join("model.safetensors");
        let bytes = fs::read(&weights).expect("reads");
        let header = u64::from_le_bytes(bytes[..8].try_into().expect("eight")) as usize;
        let text = String::from_utf8(bytes[8..8 + header].to_vec()).expect("JSON");
        let names: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).expect("JSON");
        for name in names.keys().filter(|n| n.starts_with(MODULE)) {
            // Absent: another name, as long. What may be absent changes the values or fails; nothing panics.
            let absent = text.replace(name.as_str(), &format!("x{}", &name[1..]));
            let mut changed = bytes.clone();
            changed[8..8 + header].copy_from_slice(absent.as_bytes());
            fs::write(&weights, changed).expect("writes");
            let model = store::open(dir.path()).expect("opens");
            // compressed-tensors' newer versions have an order without saying so in config.json.
            let optional = match name.trim_start_matches(MODULE) {
                ".weight_g_idx" => true,
                ".g_idx" => !case.ends_with("act-order"),
                ".qzeros" => case.ends_with("-sym"),
                _ => false,
            };
            match model.linear(MODULE) {
                Err(e) => assert!(e.to_string().contains(MODULE) && !optional, "{case}: {e}"),
                Ok(_) => assert!(optional, "{case} without {name}"),
            }
        }
    }
}
