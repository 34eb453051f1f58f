use super::*;
use crate::selftest::matrices::{int, storages, values};
use crate::selftest::products::reference;
use schemes::{Activation, FloatType, Grouping, IntStorage, Matrix, Packing, RowOrder, ScaleArray, ScaleUse, Storage};
use store::Bytes;

#[test]
fn every_form_multiplies_as_it_decodes() {
    for (rows, cols) in [(13, 192), (30, 1537), (6, 577), (70, 64)] {
        let mut cases: Vec<_> = storages(rows, cols).into_iter().map(|s| (s, RowOrder::Natural)).collect();
        if rows == 30 {
            cases.extend(storages(rows, cols).into_iter().map(|s| (s, RowOrder::Interleaved { head_dim: 10 })));
        }
        for (storage, order) in cases {
            let what = format!("{storage:?} {order:?} {rows} x {cols}").chars().take(200).collect::<String>();
            let matrix = Matrix::new(rows, cols, storage, order).expect("lengths fit");
            for activation in
                [Activation::Float, Activation::Int8Token, Activation::Int8Tensor, Activation::Int8Static(0.004)]
            {
                for isa in Isa::available() {
                    check(isa, &matrix, activation, &format!("{isa:?} {what}"));
                }
            }
        }
    }
}

/// Eight tokens in sequences of four.
fn check(isa: Isa, matrix: &Matrix<Bytes>, activation: Activation, what: &str) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let (x, bias) = (values(8 * cols, 11), values(rows, 12));
    let linear = Linear { matrix: matrix.clone(), bias: Some(bias.clone()), activation };
    let layers = [PackedLinear::new("test", Arc::new(linear), Math::Exact)];
    let mut out = vec![0f32; 8 * rows];
    Project { layers: &layers, sequences: &[4, 4], accumulate: false }.run_on(isa, &x, &mut out);
    let largest = matrix.decode_all().iter().fold(0f32, |m, v| m.max(v.abs()));
    // Integer kernels take activations as 16-bit codes, off by 2^-16 of their block's largest at
    // most, which here is below 1: the sum's error has a deviation of a third of this.
    let step = if activation == Activation::Float { 2.0 / 65536.0 } else { 1e-6 };
    for (t, (x_t, got)) in x.chunks(cols).zip(out.chunks(rows)).enumerate() {
        let over = if activation == Activation::Int8Tensor { &x[t / 4 * 4 * cols..][..4 * cols] } else { x_t };
        for (got, want) in got.iter().zip(reference(matrix, x_t, &bias, activation, over)) {
            let tolerance = step * f64::from(largest) * (cols as f64).sqrt() + 1e-5;
            assert!((f64::from(*got) - want).abs() < tolerance, "{what} {activation:?} token {t}: {got} {want}");
        }
    }
}

#[test]
fn integer_sums_are_exact() {
    // The largest codes in every place; all partial sums are integers below 2^24.
    for tokens in [1, 3, 7, 40] {
        let cols = 1024;
        let codes = Bytes::from(vec![127u8; 5 * cols]);
        let one = Bytes::from(1f32.to_le_bytes().to_vec());
        let scales = ScaleArray { ty: FloatType::F32, usage: ScaleUse::Multiply, data: one };
        let int = IntStorage { packing: Packing::I8, row_bytes: cols, codes, grouping: Grouping::Tensor, scales };
        let matrix = Matrix::new(5, cols, Storage::Int(int), RowOrder::Natural).expect("fits");
        let linear = Linear { matrix, bias: None, activation: Activation::Int8Static(1.0) };
        let layers = [PackedLinear::new("test", Arc::new(linear), Math::Exact)];
        let mut x = vec![127f32; tokens * cols];
        x[1000] = 126.0;
        for isa in Isa::available() {
            let mut out = vec![0f32; tokens * 5];
            Project { layers: &layers, sequences: &vec![1; tokens], accumulate: false }.run_on(isa, &x, &mut out);
            let exact = (127 * 127 * 1024) as f32;
            assert_eq!(out[..5], [exact - 127.0; 5]);
            assert!(out[5..].iter().all(|v| *v == exact));
        }
    }
}

#[test]
fn a_token_alone_is_a_token_among_many_in_integers() {
    for (rows, cols) in [(13, 192), (70, 577), (33, 1536)] {
        for storage in storages(rows, cols) {
            let matrix = Matrix::new(rows, cols, storage, RowOrder::Natural).expect("lengths fit");
            let linear = Linear { matrix, bias: Some(values(rows, 12)), activation: Activation::Float };
            let layers = [PackedLinear::new("test", Arc::new(linear), Math::Exact)];
            let project = Project { layers: &layers, sequences: &[], accumulate: false };
            let x = values(29 * cols, 11);
            for isa in Isa::available() {
                let mut all = vec![0f32; 29 * rows];
                project.run_on(isa, &x, &mut all);
                for few in [1, 2, 3, 4, 5, 12, 13] {
                    let mut out = vec![0f32; few * rows];
                    project.run_on(isa, &x[..few * cols], &mut out);
                    assert_eq!(out, all[..few * rows], "{isa:?}: {few} tokens, {rows} x {cols}");
                }
            }
        }
    }
}

#[test]
fn integers_and_floats_agree_beside_outliers() {
    // Two tokens with one activation far beyond the others.
    for (rows, cols) in [(200usize, 576usize), (96, 1536)] {
        let tokens = 130;
        let coded =
            Matrix::new(rows, cols, Storage::Int(int(rows, cols, Packing::I8, Grouping::Row, 0)), RowOrder::Natural)
                .expect("fits");
        let bytes: Vec<u8> = coded.decode_all().iter().flat_map(|v| v.to_le_bytes()).collect();
        let plain = Matrix::new(rows, cols, Storage::Float(FloatType::F32, Bytes::from(bytes)), RowOrder::Natural)
            .expect("fits");
        let mut x = values(tokens * cols, 77);
        (x[5], x[100 * cols + 7]) = (60.0, -31.0);
        for (activation, tolerance) in [
            (Activation::Int8Tensor, 1e-6),
            (Activation::Int8Token, 1e-6),
            (Activation::Int8Static(0.3), 1e-6),
            // 16-bit codes: 2^-16 of the outlier in its block.
            (Activation::Float, 4e-4),
        ] {
            let [a, b] = [&coded, &plain].map(|matrix| {
                let linear = Linear { matrix: matrix.clone(), bias: None, activation };
                let layers = [PackedLinear::new("test", Arc::new(linear), Math::Exact)];
                let mut out = vec![0f32; tokens * rows];
                Project { layers: &layers, sequences: &[tokens], accumulate: false }.run(&x, &mut out);
                out
            });
            let worst = a.iter().zip(&b).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            let size = b.iter().fold(0f32, |m, v| m.max(v.abs()));
            assert!(worst <= tolerance * size, "{activation:?}: {worst} of {size}");
        }
    }
}

#[test]
fn large_channels_leave_the_others_whole() {
    // Channels of the first block that are up to 1e5 times larger, and whose weights are as much smaller: codes of 0.
    let (rows, cols) = (64, 256);
    for (tokens, large) in [(1, 1), (3, 8), (3, 40), (40, 8)] {
        let mut storage = int(rows, cols, Packing::I8, Grouping::Row, 0);
        let codes = storage.codes.iter().enumerate();
        let codes: Vec<u8> = codes.map(|(i, code)| if i % cols < large { 0 } else { *code }).collect();
        storage.codes = Bytes::from(codes);
        let matrix = Matrix::new(rows, cols, Storage::Int(storage), RowOrder::Natural).expect("fits");
        for tenth in 0..=20u8 {
            let factor = 10f32.powf(f32::from(tenth) / 4.0);
            let mut x = values(tokens * cols, 77);
            x.iter_mut().enumerate().filter(|(i, _)| i % cols < large).for_each(|(_, x)| *x *= factor);
            let linear = Linear { matrix: matrix.clone(), bias: None, activation: Activation::Float };
            let layers = [PackedLinear::new("test", Arc::new(linear), Math::Exact)];
            for isa in Isa::available() {
                let mut out = vec![0f32; tokens * rows];
                Project { layers: &layers, sequences: &[tokens], accumulate: false }.run_on(isa, &x, &mut out);
                let (mut error, mut size) = (0.0, 0.0);
                for (x, got) in x.chunks(cols).zip(out.chunks(rows)) {
                    for (got, want) in got.iter().zip(reference(&matrix, x, &vec![0.0; rows], Activation::Float, x)) {
                        error += (f64::from(*got) - want).powi(2);
                        size += want.powi(2);
                    }
                }
                let relative = (error / size).sqrt();
                assert!(relative < 1.2e-3, "{isa:?}, {large} channels of {factor}: {relative}");
            }
        }
    }
}

#[test]
fn what_an_engine_rounded_is_not_rounded_again() {
    let (rows, cols) = (30, 1536);
    let mut x = values(cols, 77);
    // 16-bit codes of its 128 columns have steps of 1, more than the others' values.
    x[5] = 30000.0;
    let mut seen = 0;
    for storage in storages(rows, cols) {
        let matrix = Matrix::new(rows, cols, storage, RowOrder::Natural).expect("lengths fit");
        for math in [Math::LlamaCpp, Math::Bitsandbytes] {
            let linear = Linear { matrix: matrix.clone(), bias: None, activation: Activation::Float };
            let Some(rounding) = math.rounding(&linear) else { continue };
            let rounded = rounding.round(&x, cols, &[1]);
            let want = reference(&matrix, &rounded, &vec![0.0; rows], Activation::Float, &x);
            let layers = [PackedLinear::new("test", Arc::new(linear), math)];
            let mut out = vec![0f32; rows];
            Project { layers: &layers, sequences: &[1], accumulate: false }.run(&x, &mut out);
            // Each lane adds up its share of the products, then the lanes are added: at most two roundings each of all
            // products' magnitude. Codes of 16 bits would be off by several times that.
            let roundings = 2 * cols.div_ceil(Isa::active().tile().lanes) + 16;
            for ((got, want), weights) in out.iter().zip(want).zip(matrix.decode_all().chunks(cols)) {
                let products = weights.iter().zip(&rounded).map(|(w, x)| f64::from(w * x).abs());
                let bound = roundings as f64 * 2f64.powi(-24) * products.sum::<f64>();
                assert!((f64::from(*got) - want).abs() <= bound, "{math:?}: {got} {want}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 5, "F16, BF16, two of ggml and bitsandbytes: {seen}");
}
