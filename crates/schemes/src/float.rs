//! Float types of checkpoints and the conversions between them.

use crate::Error;
use half::{bf16, f16, slice::HalfFloatSliceExt};
use std::{fmt, str::FromStr};

/// A float type that a checkpoint may store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FloatType {
    /// IEEE single.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
}

impl FloatType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            FloatType::F32 => 4,
            FloatType::F16 | FloatType::BF16 => 2,
        }
    }

    /// `x` rounded to this type, to nearest even.
    pub fn round(self, x: f32) -> f32 {
        match self {
            FloatType::F32 => x,
            FloatType::F16 => f16::from_f32(x).to_f32(),
            FloatType::BF16 => bf16::from_f32(x).to_f32(),
        }
    }

    /// The largest finite value.
    pub fn max(self) -> f32 {
        match self {
            FloatType::F32 => f32::MAX,
            FloatType::F16 => f16::MAX.to_f32(),
            FloatType::BF16 => bf16::MAX.to_f32(),
        }
    }

    /// Element `i` of little-endian `bytes`. Panics when out of range, as slices do.
    pub fn get(self, bytes: &[u8], i: usize) -> f32 {
        match self {
            FloatType::F32 => {
                let b = &bytes[4 * i..4 * i + 4];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            FloatType::F16 => f16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
            FloatType::BF16 => bf16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]).to_f32(),
        }
    }
}

impl fmt::Display for FloatType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FloatType::F32 => "f32",
            FloatType::F16 => "f16",
            FloatType::BF16 => "bf16",
        })
    }
}

impl FromStr for FloatType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        match s {
            "f32" => Ok(FloatType::F32),
            "f16" => Ok(FloatType::F16),
            "bf16" => Ok(FloatType::BF16),
            _ => Err(Error::UnknownScheme(s.to_string())),
        }
    }
}

/// Treatment of a finite value that the target type cannot hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// Stop with [`Error::Overflow`].
    #[default]
    Error,
    /// Store the largest finite value of the same sign.
    Clamp,
}

/// Elements converted at a time, so that scratch stays on the stack.
const CHUNK: usize = 512;

/// Decodes `out.len()` little-endian elements from the start of `bytes`.
///
/// Panics when `bytes` is too short; callers slice to the exact length.
pub fn decode_floats(ty: FloatType, bytes: &[u8], out: &mut [f32]) {
    let bytes = &bytes[..out.len() * ty.size()];
    match ty {
        FloatType::F32 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
            }
        }
        FloatType::BF16 => {
            for (o, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                *o = f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16);
            }
        }
        FloatType::F16 => {
            // half's slice conversion uses F16C where the processor has it.
            let mut halves = [f16::ZERO; CHUNK];
            for (o, b) in out.chunks_mut(CHUNK).zip(bytes.chunks(2 * CHUNK)) {
                let halves = &mut halves[..o.len()];
                for (h, b) in halves.iter_mut().zip(b.chunks_exact(2)) {
                    *h = f16::from_le_bytes([b[0], b[1]]);
                }
                halves.convert_to_f32_slice(o);
            }
        }
    }
}

/// Appends `src`, rounded to `ty` (to nearest even), to `out` in little-endian order.
///
/// # Errors
/// [`Error::Overflow`] with the index in `src` of the first finite value that `ty` cannot
/// hold, unless `overflow` says to clamp. NaN and infinities pass through unchanged.
pub fn encode_floats(ty: FloatType, src: &[f32], overflow: Overflow, out: &mut Vec<u8>) -> Result<(), Error> {
    out.reserve(src.len() * ty.size());
    let mut index = 0;
    for chunk in src.chunks(CHUNK) {
        let mut values = [0f32; CHUNK];
        let values = &mut values[..chunk.len()];
        values.copy_from_slice(chunk);
        if ty != FloatType::F32 {
            limit(ty, values, overflow, index)?;
        }
        match ty {
            FloatType::F32 => values.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            FloatType::F16 => {
                let mut halves = [f16::ZERO; CHUNK];
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                halves.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes()));
            }
            FloatType::BF16 => values.iter().for_each(|v| out.extend_from_slice(&bf16::from_f32(*v).to_le_bytes())),
        }
        index += chunk.len();
    }
    Ok(())
}

fn limit(ty: FloatType, values: &mut [f32], overflow: Overflow, base: usize) -> Result<(), Error> {
    let max = ty.max();
    if values.iter().all(|v| v.abs() <= max) {
        return Ok(());
    }
    for (i, v) in values.iter_mut().enumerate() {
        if v.is_finite() && ty.round(*v).is_infinite() {
            match overflow {
                Overflow::Error => return Err(Error::Overflow { index: base + i, value: *v, ty }),
                Overflow::Clamp => *v = max.copysign(*v),
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn overflow_is_an_error_or_a_choice() {
        let mut out = Vec::new();
        for v in [7e4f32, 1e5, 3e38, -1e5] {
            let e = encode_floats(FloatType::F16, &[0.0, v], Overflow::Error, &mut out);
            assert_eq!(e, Err(Error::Overflow { index: 1, value: v, ty: FloatType::F16 }));
            out.clear();
            encode_floats(FloatType::F16, &[v], Overflow::Clamp, &mut out).expect("clamps");
            assert_eq!(FloatType::F16.get(&out, 0), 65504f32.copysign(v));
            out.clear();
        }
    }

    #[test]
    fn subnormals_and_signed_zero_are_kept() {
        let src = [1e-40f32, -0.0, 5.96e-8, f32::INFINITY];
        let mut out = Vec::new();
        encode_floats(FloatType::BF16, &src, Overflow::Error, &mut out).expect("fits");
        assert!(FloatType::BF16.get(&out, 0) > 0.0);
        assert_eq!(FloatType::BF16.get(&out, 1).to_bits(), (-0f32).to_bits());
        out.clear();
        encode_floats(FloatType::F16, &src, Overflow::Error, &mut out).expect("fits");
        assert_eq!(FloatType::F16.get(&out, 2), f16::from_f32(5.96e-8).to_f32());
        assert_eq!(FloatType::F16.get(&out, 3), f32::INFINITY);
    }

    proptest! {
        #[test]
        fn decode_undoes_encode(bits in prop::collection::vec(any::<u16>(), 0..1500), wide in any::<bool>()) {
            let ty = if wide { FloatType::BF16 } else { FloatType::F16 };
            let raw: Vec<u8> = bits.iter().flat_map(|b| b.to_le_bytes()).collect();
            let mut values = vec![0f32; bits.len()];
            decode_floats(ty, &raw, &mut values);
            for (i, v) in values.iter().enumerate() {
                let got = ty.get(&raw, i);
                prop_assert!(got.to_bits() == v.to_bits() || (got.is_nan() && v.is_nan()));
            }
            // NaNs need not keep their payload: only their being NaN.
            let numbers: Vec<usize> = (0..bits.len()).filter(|&i| !values[i].is_nan()).collect();
            let mut back = Vec::new();
            encode_floats(ty, &values, Overflow::Error, &mut back).expect("representable");
            prop_assert_eq!(raw.len(), back.len());
            prop_assert!(numbers.iter().all(|&i| raw[2 * i..2 * i + 2] == back[2 * i..2 * i + 2]));
        }
    }
}
