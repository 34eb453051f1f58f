use super::*;
use crate::selftest::matrices::storages;
use schemes::e4m3;

/// What packed rows stand for, by the table of `cuda/README.md`.
pub fn decoded(p: &Packed) -> Vec<f32> {
    let groups = if p.group == 0 { 1 } else { p.cols.div_ceil(p.group) };
    let scale = |row: usize, col: usize| {
        let i = row * groups + col.checked_div(p.group).unwrap_or(0);
        match (p.scales.is_empty(), p.half_scales) {
            (true, _) => (1.0, 0.0),
            (_, half) => {
                let ty = if half { FloatType::F16 } else { FloatType::F32 };
                let zero = p.zeros.get(2 * i..2 * i + 2).map_or(0, |b| i16::from_le_bytes([b[0], b[1]]));
                (ty.get(&p.scales, i), f32::from(zero))
            }
        }
    };
    let mut out = Vec::with_capacity(p.rows * p.cols);
    for row in 0..p.rows {
        let bytes = &p.codes[row * p.row_bytes..(row + 1) * p.row_bytes];
        let nibble = |c: usize| bytes[c / 2] >> (c % 2 * 4) & 15;
        let mut values = vec![0f32; p.cols];
        match p.format {
            Format::Float(ty) => schemes::decode_floats(ty, &bytes[..p.cols * ty.size()], &mut values),
            Format::Q4K => ggml::decode(GgmlType::Q4_K, &bytes[..p.cols / 256 * 144], &mut values),
            Format::I8 => values.iter_mut().zip(bytes).for_each(|(v, b)| *v = f32::from(*b as i8)),
            Format::U4 => values.iter_mut().enumerate().for_each(|(c, v)| *v = f32::from(nibble(c)) - 8.0),
            Format::Lut4 => {
                let level = |c: usize| FloatType::F32.get(&p.levels, usize::from(nibble(c)));
                values.iter_mut().enumerate().for_each(|(c, v)| *v = level(c));
            }
        }
        for (col, value) in values.iter().enumerate() {
            let (scale, zero) = scale(row, col);
            out.push((value - zero) * scale);
        }
    }
    out
}

/// What all parts stand for.
fn whole(parts: &[Part], rows: usize, cols: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; rows * cols];
    for part in parts {
        let all: Vec<u32> = part.columns.clone().unwrap_or((0..cols as u32).collect());
        for (row, values) in decoded(&part.weights).chunks(all.len()).enumerate() {
            all.iter().zip(values).for_each(|(&c, v)| out[row * cols + c as usize] = *v);
        }
    }
    out
}

#[test]
fn nothing_is_lost_in_any_form_and_order() {
    let mut packed = 0;
    for (rows, cols) in [(13, 192), (30, 1537), (6, 577), (70, 64), (20, 512)] {
        let orders = [RowOrder::Natural, RowOrder::Interleaved { head_dim: 10 }];
        for order in orders.into_iter().filter(|o| *o == RowOrder::Natural || rows % 10 == 0) {
            for storage in storages(rows, cols) {
                let matrix = Matrix::new(rows, cols, storage, order).expect("lengths fit");
                let (parts, was_decoded) = parts(&matrix, ComputeType::F32);
                packed += usize::from(!was_decoded);
                let what =
                    || format!("{:?} {rows} x {cols}", parts.iter().map(|p| p.weights.format).collect::<Vec<_>>());
                for (found, want) in whole(&parts, rows, cols).iter().zip(matrix.decode_all()) {
                    // absmax / 127 is multiplied by the code in one step here and in two there.
                    assert!((found - want).abs() <= 2e-7 * want.abs(), "{} {found} {want}", what());
                }
                for part in &parts {
                    let w = &part.weights;
                    assert!(w.row_bytes.is_multiple_of(ALIGN) && w.codes.len() == w.rows * w.row_bytes, "{}", what());
                }
            }
        }
    }
    assert!(packed > 80, "{packed}");
}

#[test]
fn what_no_kernel_reads_is_decoded_to_what_is_computed_in() {
    let values: Vec<u8> = (0..64u8).map(|i| i & 0xBF).collect();
    let scales = ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: 1f32.to_le_bytes().to_vec().into() };
    let float8 = schemes::Float8Storage { codes: values.clone().into(), block: (4, 16), scales };
    let matrix = Matrix::new(4, 16, Storage::Float8(float8), RowOrder::Natural).expect("lengths fit");
    for (compute, ty) in
        [(ComputeType::F16, FloatType::F16), (ComputeType::BF16, FloatType::F16), (ComputeType::F32, FloatType::F32)]
    {
        let (parts, was_decoded) = parts(&matrix, compute);
        assert!(was_decoded);
        assert_eq!(parts[0].weights.format, Format::Float(ty));
        assert_eq!(decoded(&parts[0].weights), values.iter().map(|b| e4m3(*b)).collect::<Vec<_>>());
    }
}

#[test]
fn blocks_of_ggml_are_taken_apart() {
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::IQ4_NL, GgmlType::Q4_K] {
        let weights: Vec<f32> = (0..3 * 512).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.01).collect();
        let mut data = Vec::new();
        ggml::encode_rows(ty, &weights, 512, 0, &mut data).expect("finite");
        let matrix = Matrix::new(3, 512, Storage::Ggml(ty, Bytes::from(data)), RowOrder::Natural).expect("lengths fit");
        let (parts, was_decoded) = parts(&matrix, ComputeType::F16);
        assert!(!was_decoded, "{ty}");
        assert_eq!(decoded(&parts[0].weights), matrix.decode_all(), "{ty}");
    }
}

#[test]
fn nested_scales_and_rows_of_whole_blocks() {
    let absmax = Nf4Absmax::Nested {
        codes: Bytes::from((0..6u8).collect::<Vec<_>>()),
        map: Box::new(std::array::from_fn(|i| i as f32 / 255.0)),
        nested: Bytes::from(0.5f32.to_le_bytes().to_vec()),
        offset: 0.125,
    };
    let codes = Bytes::from((0..192u8).collect::<Vec<_>>());
    let nf4 = Nf4Storage { codes, block: 64, absmax, levels: schemes::nf4::LEVELS };
    for (rows, cols, reads) in [(3, 128, true), (6, 64, true), (4, 96, false)] {
        let matrix = Matrix::new(rows, cols, Storage::Nf4(nf4.clone()), RowOrder::Natural).expect("lengths fit");
        let (parts, was_decoded) = parts(&matrix, ComputeType::F32);
        assert_eq!(was_decoded, !reads);
        assert_eq!(decoded(&parts[0].weights), matrix.decode_all());
    }
}
