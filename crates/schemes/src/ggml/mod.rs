//! The ggml block types: sizes, decoding, encoding, and the two that hold other schemes exactly.

mod decode;
mod encode;
mod grids;
mod kquants;
mod ternary;
mod types;

pub use encode::{encode_q4_0, encode_q8_0, encode_rows, is_encodable, write_q4_0, write_q8_0};
pub use types::GgmlType;

use crate::{FloatType, decode_floats};

/// Decodes whole blocks into `out`, whose length is a multiple of the type's block.
///
/// The arithmetic is gguf-py's, operation by operation in f32, so the results are equal to
/// the bit. Any bytes decode to something, if only to NaN.
///
/// Panics when the type is not [`GgmlType::is_decodable`] or the lengths don't match.
pub fn decode(ty: GgmlType, blocks: &[u8], out: &mut [f32]) {
    let decoder = decoder(ty).unwrap_or_else(|| panic!("ggml type {ty} cannot be decoded"));
    assert_eq!(Some(blocks.len()), ty.row_bytes(out.len()), "bytes of {} weights of type {ty}", out.len());
    decoder(blocks, out);
}

type Decoder = fn(&[u8], &mut [f32]);

fn decoder(ty: GgmlType) -> Option<Decoder> {
    Some(match ty {
        GgmlType::F32 => |b, o| decode_floats(FloatType::F32, b, o),
        GgmlType::F16 => |b, o| decode_floats(FloatType::F16, b, o),
        GgmlType::BF16 => |b, o| decode_floats(FloatType::BF16, b, o),
        GgmlType::Q4_0 => decode::q4_0,
        GgmlType::Q4_1 => decode::q4_1,
        GgmlType::Q5_0 => decode::q5_0,
        GgmlType::Q5_1 => decode::q5_1,
        GgmlType::Q8_0 => decode::q8_0,
        GgmlType::IQ4_NL => decode::iq4_nl,
        GgmlType::MXFP4 => decode::mxfp4,
        GgmlType::Q2_K => kquants::q2_k,
        GgmlType::Q3_K => kquants::q3_k,
        GgmlType::Q4_K => kquants::q4_k,
        GgmlType::Q5_K => kquants::q5_k,
        GgmlType::Q6_K => kquants::q6_k,
        GgmlType::IQ4_XS => kquants::iq4_xs,
        GgmlType::Q8_K => kquants::q8_k,
        GgmlType::NVFP4 => decode::nvfp4,
        GgmlType::TQ1_0 => ternary::tq1_0,
        GgmlType::TQ2_0 => ternary::tq2_0,
        GgmlType::Q1_0 => ternary::q1_0,
        GgmlType::Q2_0 => ternary::q2_0,
        GgmlType::IQ1_S => grids::iq1_s,
        GgmlType::IQ1_M => grids::iq1_m,
        GgmlType::IQ2_XXS => grids::iq2_xxs,
        GgmlType::IQ2_XS => grids::iq2_xs,
        GgmlType::IQ2_S => grids::iq2_s,
        GgmlType::IQ3_XXS => grids::iq3_xxs,
        GgmlType::IQ3_S => grids::iq3_s,
        _ => return None,
    })
}
