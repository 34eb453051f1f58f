use super::*;
use schemes::{
    Activation, AffineStorage, Float8Storage, FloatType, GgmlType, Grouping, IntStorage, Matrix, Nf4Absmax, Nf4Storage,
    OutlierStorage, Packing, RowOrder, ScaleArray, ScaleUse, Storage,
};
use store::Bytes;

/// Bytes that look random.
fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..n).map(|_| next()).collect()
}

fn values(n: usize, seed: u64) -> Vec<f32> {
    noise(2 * n, seed).chunks(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
}

fn halves(values: &[f32]) -> Bytes {
    Bytes::from(values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>())
}

fn scales(n: usize) -> ScaleArray<Bytes> {
    let data = halves(&(0..n).map(|i| 0.01 + (i % 7) as f32 * 0.002).collect::<Vec<_>>());
    ScaleArray { ty: FloatType::F16, usage: ScaleUse::Multiply, data }
}

fn int(rows: usize, cols: usize, packing: Packing, grouping: Grouping, pad: usize) -> IntStorage<Bytes> {
    let row_bytes = packing.row_bytes(cols) + pad;
    let codes = Bytes::from(noise(rows * row_bytes, 5));
    IntStorage { packing, row_bytes, codes, grouping, scales: scales(grouping.count(rows, cols)) }
}

/// Every packed form that fits the shape.
fn storages(rows: usize, cols: usize) -> Vec<Storage<Bytes>> {
    let weights = values(rows * cols, 3);
    let mut all = vec![
        Storage::Float(FloatType::F16, halves(&weights)),
        Storage::Float(FloatType::F32, Bytes::from(weights.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>())),
        Storage::Float(
            FloatType::BF16,
            Bytes::from(weights.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect::<Vec<_>>()),
        ),
    ];
    for packing in [Packing::I8, Packing::Offset8, Packing::Nibble] {
        for grouping in
            [Grouping::Tensor, Grouping::Row, Grouping::Group(128), Grouping::Group(50), Grouping::Group(32)]
        {
            all.push(Storage::Int(int(rows, cols, packing, grouping, usize::from(packing == Packing::Nibble))));
        }
    }
    for (packing, grouping) in [
        (Packing::Nibble, Grouping::Group(128)),
        (Packing::Nibble, Grouping::Group(32)),
        (Packing::I8, Grouping::Row),
        (Packing::Nibble, Grouping::Group(50)),
    ] {
        let codes = int(rows, cols, packing, grouping, 0);
        let zeros = (0..grouping.count(rows, cols)).map(|i| (i % 16) as i16 - 8).collect();
        all.push(Storage::Affine(AffineStorage { int: codes, zeros, groups: None }));
    }
    let ordered = int(rows, cols, Packing::Nibble, Grouping::Group(32), 0);
    let per_row = cols.div_ceil(32) as u32;
    let groups = Some((0..cols as u32).map(|c| c * 7 % per_row).collect());
    all.push(Storage::Affine(AffineStorage { int: ordered, zeros: vec![3; rows * per_row as usize], groups }));
    let codes = Bytes::from(noise(rows * cols, 21).into_iter().map(|b| b & 0xBF).collect::<Vec<u8>>());
    all.push(Storage::Float8(Float8Storage {
        codes,
        block: (4, 128),
        scales: scales(rows.div_ceil(4) * cols.div_ceil(128)),
    }));
    let mut bnb = int(rows, cols, Packing::I8, Grouping::Row, 0);
    bnb.scales.usage = ScaleUse::Absmax127;
    all.push(Storage::Int(bnb));
    all.push(Storage::Nf4(Nf4Storage {
        codes: Bytes::from(noise((rows * cols).div_ceil(2), 8)),
        block: 64,
        absmax: Nf4Absmax::Plain(scales((rows * cols).div_ceil(64))),
        levels: schemes::nf4::LEVELS,
    }));
    for columns in [vec![], vec![0u32, 5, 6, cols as u32 - 1], (0..cols as u32).collect()] {
        let inner = int(rows, cols - columns.len(), Packing::I8, Grouping::Row, 0);
        let outliers = halves(&values(rows * columns.len(), 9));
        all.push(Storage::Outlier(OutlierStorage { inner, columns, outliers }));
    }
    if cols.is_multiple_of(32) {
        for ty in [GgmlType::Q8_0, GgmlType::Q4_0] {
            let len = ty.row_bytes(cols).expect("whole blocks");
            let mut data = noise(rows * len, 10);
            for block in data.chunks_mut(ty.block_bytes()) {
                block[..2].copy_from_slice(&half::f16::from_f32(0.02).to_le_bytes());
            }
            all.push(Storage::Ggml(ty, Bytes::from(data)));
        }
    }
    all
}

/// What the layer should give for one token, in f64; `columns` in f32 beside int8 codes.
fn reference(matrix: &Matrix<Bytes>, x: &[f32], bias: &[f32], activation: Activation, scale_of: &[f32]) -> Vec<f64> {
    let outliers: &[u32] = match matrix.storage() {
        Storage::Outlier(o) => &o.columns,
        _ => &[],
    };
    let kept = |c: usize| !outliers.contains(&(c as u32));
    let absmax = scale_of.iter().enumerate().filter(|(c, _)| kept(c % x.len())).fold(0f32, |m, (_, v)| m.max(v.abs()));
    let scale = match activation {
        Activation::Int8Static(s) => s,
        _ => absmax / 127.0,
    };
    let round = |v: f32| if scale == 0.0 { 0.0 } else { (v / scale).round_ties_even().clamp(-127.0, 127.0) * scale };
    let seen =
        |(c, v): (usize, &f32)| f64::from(if activation == Activation::Float || !kept(c) { *v } else { round(*v) });
    let x: Vec<f64> = x.iter().enumerate().map(seen).collect();
    let rows = matrix.decode_all();
    let product = |w: &[f32]| w.iter().zip(&x).map(|(w, x)| f64::from(*w) * x).sum::<f64>();
    rows.chunks(matrix.cols()).zip(bias).map(|(w, b)| product(w) + f64::from(*b)).collect()
}

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
            // What is left of a row without the large value shows whether the small ones are whole.
            let large = matrix.decode_all().chunks(cols).map(|w| (w[5] * rounded[5]).abs()).fold(0f32, f32::max);
            for (got, want) in out.iter().zip(want) {
                assert!((f64::from(*got) - want).abs() < 3e-7 * f64::from(large) + 1e-3, "{math:?}: {got} {want}");
            }
            seen += 1;
        }
    }
    assert!(seen >= 5, "F16, BF16, two of ggml and bitsandbytes: {seen}");
}
