//! Decoding and encoding of ggml blocks against files made by gguf-py (golden/make_ggml.py).

use proptest::prelude::*;
use schemes::{GgmlType, Matrix, RowOrder, Storage, ggml};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn check(ty: GgmlType, file: &[u8]) {
    let count = file.len() / (ty.block_bytes() + 4 * ty.block_len());
    let (blocks, weights) = file.split_at(count * ty.block_bytes());
    let want = floats(weights);
    assert_eq!(want.len(), count * ty.block_len(), "{ty}");
    let mut got = vec![f32::NAN; want.len()];
    ggml::decode(ty, blocks, &mut got);
    for (i, (g, w)) in got.iter().zip(&want).enumerate() {
        assert_eq!(g.to_bits(), w.to_bits(), "{ty}: weight {i} is {g}, not {w}");
    }
}

#[test]
fn decoding_equals_gguf_py_to_the_bit() {
    macro_rules! types {
        ($($name:literal),*) => {
            $(check($name.parse().expect("a type"), include_bytes!(concat!("golden/ggml_", $name, ".bin")));)*
        };
    }
    types!(
        "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "iq4_nl", "mxfp4", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_xs",
        "tq1_0", "tq2_0", "nvfp4", "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "q8_k", "q1_0",
        "q2_0"
    );
}

#[test]
fn encoding_equals_gguf_py_to_the_bit() {
    for (ty, file) in [
        (GgmlType::Q8_0, &include_bytes!("golden/ggml_encode_q8_0.bin")[..]),
        (GgmlType::Q4_0, &include_bytes!("golden/ggml_encode_q4_0.bin")[..]),
    ] {
        let (weights, want) = file.split_at(64 * 32 * 4);
        let mut got = Vec::new();
        ggml::encode_rows(ty, &floats(weights), 64, 0, &mut got).expect("finite");
        for (b, (g, w)) in got.chunks(ty.block_bytes()).zip(want.chunks(ty.block_bytes())).enumerate() {
            assert_eq!(g, w, "{ty}: block {b}");
        }
        assert_eq!(got.len(), want.len());
    }
}

/// Every type, and whether random bytes of it can be decoded.
fn decodable() -> Vec<GgmlType> {
    GgmlType::all().filter(|t| t.is_decodable()).collect()
}

proptest! {
    #[test]
    fn any_bytes_decode(which in 0usize..64, bytes in prop::collection::vec(any::<u8>(), 4 * 210)) {
        let types = decodable();
        let ty = types[which % types.len()];
        let blocks = bytes.len() / ty.block_bytes();
        let mut out = vec![0f32; blocks * ty.block_len()];
        ggml::decode(ty, &bytes[..blocks * ty.block_bytes()], &mut out);
    }

    #[test]
    fn own_rules_stay_within_half_a_step(src in prop::collection::vec(-5f32..5.0, 96)) {
        for (ty, levels) in [(GgmlType::Q8_0, 127.0f32), (GgmlType::Q4_0, 8.0)] {
            let mut bytes = Vec::new();
            ggml::encode_rows(ty, &src, 96, 0, &mut bytes).expect("finite");
            let matrix = Matrix::new(1, 96, Storage::Ggml(ty, bytes), RowOrder::Natural).expect("whole blocks");
            for (block, back) in src.chunks(32).zip(matrix.decode_all().chunks(32)) {
                let step = block.iter().fold(0f32, |m, x| m.max(x.abs())) / levels;
                for (x, b) in block.iter().zip(back) {
                    // The last positive code of q4_0 is 7, one step short of the maximum.
                    let room = if ty == GgmlType::Q4_0 { 1.01 } else { 0.51 };
                    prop_assert!((x - b).abs() <= step * room + 1e-3 * step * levels, "{ty}: {x} {b} {step}");
                }
            }
        }
    }
}
