//! The largest magnitude of a row.

/// The largest absolute value; NaN when any value is NaN.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"))]
pub fn absmax(values: &[f32]) -> f32 {
    // A maximum over bit patterns without the sign: vectorizes, and NaN comes out on top.
    let mut lanes = [0u32; 16];
    let (parts, rest) = values.as_chunks::<16>();
    for part in parts {
        for (m, v) in lanes.iter_mut().zip(part) {
            *m = (*m).max(v.to_bits() & 0x7FFF_FFFF);
        }
    }
    for (m, v) in lanes.iter_mut().zip(rest) {
        *m = (*m).max(v.to_bits() & 0x7FFF_FFFF);
    }
    // In four steps, which is shorter than one after the other.
    let eight: [u32; 8] = std::array::from_fn(|i| lanes[i].max(lanes[i + 8]));
    let four: [u32; 4] = std::array::from_fn(|i| eight[i].max(eight[i + 4]));
    f32::from_bits(four[0].max(four[2]).max(four[1].max(four[3])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_magnitude_and_nan() {
        let mut row: Vec<f32> = (0..100).map(|i| (i as f32 - 60.0) / 7.0).collect();
        assert_eq!(absmax(&row), 60.0 / 7.0);
        assert_eq!((absmax(&[]), absmax(&row[60..61])), (0.0, 0.0));
        for at in [0, 17, 99] {
            let kept = std::mem::replace(&mut row[at], f32::NAN);
            assert!(absmax(&row).is_nan());
            row[at] = kept;
        }
    }
}
