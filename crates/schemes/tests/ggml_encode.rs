//! Encoding of ggml blocks: against ggml's own library (golden/make_ggml_library.py), and what holds for any rows.

use proptest::prelude::*;
use schemes::{Error, GgmlType, ggml};

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn encodable() -> Vec<GgmlType> {
    GgmlType::all().filter(|t| t.is_encodable()).collect()
}

fn encoded(ty: GgmlType, src: &[f32], cols: usize) -> Vec<u8> {
    let mut out = Vec::new();
    ggml::encode_rows(ty, src, cols, 0, &mut out).expect("finite rows");
    out
}

#[test]
fn blocks_equal_ggml_s_to_the_byte() {
    let rows = floats(include_bytes!("golden/ggml_rows.bin"));
    let mut seen = Vec::new();
    macro_rules! types {
        ($($name:literal),*) => {
            $(
                let ty: GgmlType = $name.parse().expect("a type");
                let want = include_bytes!(concat!("golden/ggml_quantize_", $name, ".bin"));
                let got = encoded(ty, &rows, 256);
                assert_eq!(got.len(), want.len(), "{ty}");
                let blocks = got.chunks(ty.block_bytes()).zip(want.chunks(ty.block_bytes()));
                for (b, (got, want)) in blocks.enumerate() {
                    assert_eq!(got, want, "{ty}: block {b}, row {}", b * ty.block_len() / 256);
                }
                seen.push(ty);
            )*
        };
    }
    types!("q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs");
    assert_eq!(seen, encodable());
}

/// The largest root mean square error over that of the weights that any such row may have.
fn bound(ty: GgmlType) -> f64 {
    match ty {
        GgmlType::Q2_K => 0.40,
        GgmlType::Q3_K => 0.20,
        GgmlType::Q4_0 | GgmlType::Q4_1 | GgmlType::Q4_K | GgmlType::IQ4_NL | GgmlType::IQ4_XS => 0.10,
        GgmlType::Q5_0 | GgmlType::Q5_1 | GgmlType::Q5_K => 0.05,
        GgmlType::Q6_K => 0.025,
        GgmlType::Q8_0 => 0.006,
        other => panic!("no bound for {other}"),
    }
}

proptest! {
    #[test]
    fn errors_are_bounded(src in prop::collection::vec(-5f32..5.0, 512), exponent in -8i32..10, shift in -3f32..3.0) {
        let src: Vec<f32> = src.iter().map(|x| (x + shift) * 2f32.powi(exponent)).collect();
        for ty in encodable() {
            let mut back = vec![0f32; src.len()];
            ggml::decode(ty, &encoded(ty, &src, 256), &mut back);
            let error: f64 = src.iter().zip(&back).map(|(x, b)| f64::from(x - b).powi(2)).sum();
            let size: f64 = src.iter().map(|x| f64::from(*x).powi(2)).sum();
            let relative = (error / size).sqrt();
            prop_assert!(relative < bound(ty), "{ty}: {relative}");
        }
    }

    /// Blocks that are searched together don't influence each other.
    #[test]
    fn rows_are_independent(src in prop::collection::vec(-5f32..5.0, 5 * 256), which in 0usize..64) {
        let types = encodable();
        let ty = types[which % types.len()];
        let apart: Vec<u8> = src.chunks(256).flat_map(|row| encoded(ty, row, 256)).collect();
        prop_assert_eq!(&encoded(ty, &src, 256), &apart);
        prop_assert_eq!(&encoded(ty, &src, 5 * 256), &apart);
    }

    #[test]
    fn any_floats_encode_or_are_refused(bits in prop::collection::vec(any::<u32>(), 512), which in 0usize..64) {
        let types = encodable();
        let ty = types[which % types.len()];
        let any: Vec<f32> = bits.iter().map(|b| f32::from_bits(*b)).collect();
        // Also floats of which most are in the range of f16.
        let tame: Vec<f32> = bits.iter().map(|b| f32::from_bits(b & 0x87FF_FFFF | 0x3800_0000)).collect();
        for src in [any, tame] {
            let mut out = vec![7];
            match ggml::encode_rows(ty, &src, 256, 3, &mut out) {
                Ok(()) => {
                    let mut back = vec![0f32; 512];
                    ggml::decode(ty, &out[1..], &mut back);
                    prop_assert!(back.iter().all(|b| b.is_finite()));
                }
                Err(Error::NotFinite { row, col, .. }) => prop_assert!(!src[(row - 3) * 256 + col].is_finite()),
                Err(Error::ScaleRange { row, .. }) => prop_assert!(row == 3 || row == 4),
                Err(e) => prop_assert!(false, "{e}"),
            }
            prop_assert!(out[0] == 7 && [1, 1 + 512 / ty.block_len() * ty.block_bytes()].contains(&out.len()));
        }
    }
}

#[test]
fn one_bad_weight_is_named() {
    for ty in encodable() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut src = vec![0.5f32; 4 * 256];
            src[2 * 256 + 200] = bad;
            let e = ggml::encode_rows(ty, &src, 256, 10, &mut Vec::new());
            assert!(matches!(e, Err(Error::NotFinite { row: 12, col: 200, .. })), "{ty}: {e:?}");
        }
    }
}

#[test]
fn names_and_bits() {
    for (name, bits) in [
        ("q4_1", 5.0),
        ("q5_0", 5.5),
        ("q5_1", 6.0),
        ("q2_k", 2.625),
        ("q3_k", 3.4375),
        ("q4_k", 4.5),
        ("q5_k", 5.5),
        ("q6_k", 6.5625),
        ("iq4_nl", 4.5),
        ("iq4_xs", 4.25),
    ] {
        let scheme: schemes::Scheme = format!("ggml-{name}").parse().expect("a scheme");
        assert_eq!(scheme.to_string(), format!("ggml-{name}"));
        assert_eq!(scheme.total_bits(3, 512, 0, schemes::FloatType::F16), bits * 3.0 * 512.0, "{name}");
        let ty: GgmlType = name.parse().expect("a type");
        assert_eq!(ty.row_bytes(512 + 32).is_none(), ty.block_len() == 256, "{name}");
    }
}
