//! Finding NaN and infinities in what is only copied or rounded, at the speed of memory.

use crate::error::{Error, Result};
use crate::source::{Values, Weight};
use crate::stream::RowsView;
use rayon::prelude::*;
use schemes::RowOrder;
use store::{DType, Model};

/// Bytes between two looks at what was found, so that loops stay simple enough to vectorize.
const RUN: usize = 4096;

/// The index of the first value of a plain float type that is not finite.
pub fn first_stored(dtype: DType, bytes: &[u8]) -> Option<usize> {
    // All exponent bits set: infinite or NaN. As signed numbers, which have a vector maximum
    // everywhere, nothing else is as large once the sign is off.
    match dtype {
        DType::F16 => first::<2>(bytes, |b| i16::from_le_bytes(b) & 0x7C00, 0x7C00),
        DType::BF16 => first::<2>(bytes, |b| i16::from_le_bytes(b) & 0x7F80, 0x7F80),
        DType::F32 => first::<4>(bytes, |b| i32::from_le_bytes(b) & 0x7F80_0000, 0x7F80_0000),
        DType::F64 => first::<8>(bytes, |b| i64::from_le_bytes(b) & 0x7FF0_0000_0000_0000, 0x7FF0_0000_0000_0000),
        _ => None,
    }
}

#[inline(always)]
fn first<const N: usize>(
    bytes: &[u8],
    exponent: impl Fn([u8; N]) -> <[u8; N] as Exponent>::Bits + Copy,
    full: <[u8; N] as Exponent>::Bits,
) -> Option<usize>
where
    [u8; N]: Exponent,
{
    let none = <[u8; N] as Exponent>::Bits::default();
    for (run, bytes) in bytes.chunks(RUN).enumerate() {
        let values = bytes.as_chunks::<N>().0;
        if values.iter().fold(none, |most, b| most.max(exponent(*b))) == full {
            let at = values.iter().position(|b| exponent(*b) == full)?;
            return Some(run * (RUN / N) + at);
        }
    }
    None
}

/// The integer that holds a float's bits.
trait Exponent {
    type Bits: Ord + Copy + Default;
}

impl Exponent for [u8; 2] {
    type Bits = i16;
}

impl Exponent for [u8; 4] {
    type Bits = i32;
}

impl Exponent for [u8; 8] {
    type Bits = i64;
}

/// The index of the first value that is not finite.
pub fn first_value(values: &[f32]) -> Option<usize> {
    // Zero times a finite number is zero; times anything else it is NaN, and stays it in a sum.
    let mut lanes = [0f32; 16];
    let (chunks, rest) = values.as_chunks::<16>();
    for chunk in chunks {
        lanes.iter_mut().zip(chunk).for_each(|(lane, v)| *lane += v * 0.0);
    }
    let sum: f32 = lanes.into_iter().chain(rest.iter().map(|v| v * 0.0)).sum();
    if sum == 0.0 { None } else { values.iter().position(|v| !v.is_finite()) }
}

/// Looks through a weight in ggml blocks, whose scales may be what is not finite.
pub fn check_blocks(model: &Model, weight: &Weight) -> Result<()> {
    let Values::Matrix(matrix) = &weight.values else { return Ok(()) };
    let view = RowsView::with_multiple(weight, matrix.order(), |_| 1);
    view.chunks().into_par_iter().try_for_each(|rows| {
        let mut values = Vec::new();
        view.decode(rows.clone(), &mut values);
        match first_value(&values) {
            Some(at) => Err(error(model, weight, view.order, rows.start * view.cols + at, values[at])),
            None => Ok(()),
        }
    })
}

/// The error for value number `at` of a weight, counted with its rows in `order`.
pub fn error(model: &Model, weight: &Weight, order: RowOrder, at: usize, value: f32) -> Error {
    let mut index = vec![0; weight.shape.len()];
    let mut rest = at;
    for (i, size) in index.iter_mut().zip(&weight.shape).rev() {
        *i = rest % size.max(&1);
        rest /= size.max(&1);
    }
    if let Some(row) = index.first_mut() {
        *row = order.natural(*row);
    }
    let file = model.tensors.get(&weight.main).map_or(&model.path, |t| &t.file);
    Error::NotFinite { file: file.clone(), weight: weight.name.clone(), index, value }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use schemes::{FloatType, decode_floats};

    proptest! {
        #[test]
        fn as_looking_at_each(mut bytes in prop::collection::vec(any::<u8>(), 0..20_000), seldom in any::<bool>(), at in any::<usize>()) {
            for ty in [FloatType::F16, FloatType::BF16, FloatType::F32] {
                let size = ty.size();
                bytes.truncate(bytes.len() / size * size);
                if seldom {
                    // Mostly finite: an exponent without its top bit.
                    bytes.chunks_mut(size).for_each(|b| b[size - 1] &= 0xBF);
                    let n = bytes.len() / size;
                    if n > 0 && at % 3 > 0 {
                        bytes[at % n * size..][..size].fill(0xFF);
                    }
                }
                let mut values = vec![0f32; bytes.len() / size];
                decode_floats(ty, &bytes, &mut values);
                let want = values.iter().position(|v| !v.is_finite());
                prop_assert_eq!(first_stored(ty.into(), &bytes), want, "{}", ty);
                prop_assert_eq!(first_value(&values), want);
            }
        }
    }
}
