//! Matrices in every packed form, of numbers that look random.

use schemes::{
    Activation, AffineStorage, Float8Storage, FloatType, GgmlType, Grouping, IntStorage, Nf4Absmax, Nf4Storage,
    OutlierStorage, Packing, ScaleArray, ScaleUse, Storage,
};
use store::Bytes;

/// Bytes that look random.
pub fn noise(n: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    (0..n).map(|_| next()).collect()
}

/// Values in [-1, 1).
pub fn values(n: usize, seed: u64) -> Vec<f32> {
    noise(2 * n, seed).chunks(2).map(|b| f32::from(i16::from_le_bytes([b[0], b[1]])) / 32768.0).collect()
}

/// Converts values to f16.
pub fn halves(values: &[f32]) -> Bytes {
    Bytes::from(values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>())
}

/// Scales between 0.01 and 0.022.
pub fn scales(n: usize) -> ScaleArray<Bytes> {
    let data = halves(&(0..n).map(|i| 0.01 + (i % 7) as f32 * 0.002).collect::<Vec<_>>());
    ScaleArray { ty: FloatType::F16, usage: ScaleUse::Multiply, data }
}

/// Integer codes; rows have `pad` bytes more than they need.
pub fn int(rows: usize, cols: usize, packing: Packing, grouping: Grouping, pad: usize) -> IntStorage<Bytes> {
    let row_bytes = packing.row_bytes(cols) + pad;
    let codes = Bytes::from(noise(rows * row_bytes, 5));
    IntStorage { packing, row_bytes, codes, grouping, scales: scales(grouping.count(rows, cols)) }
}

/// Every packed form that fits the shape.
pub fn storages(rows: usize, cols: usize) -> Vec<Storage<Bytes>> {
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
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::IQ4_NL, GgmlType::Q4_K] {
        let Some(len) = ty.row_bytes(cols) else { continue };
        all.push(Storage::Ggml(ty, Bytes::from(ggml(ty, rows * len))));
    }
    all
}

/// Bytes of random blocks.
fn ggml(ty: GgmlType, len: usize) -> Vec<u8> {
    let mut data = noise(len, 10);
    // A block begins with its scale; that of Q4_K has one of its minima too.
    for block in data.chunks_mut(ty.block_bytes()) {
        block[..2].copy_from_slice(&half::f16::from_f32(0.02).to_le_bytes());
        if ty == GgmlType::Q4_K {
            block[..2].copy_from_slice(&half::f16::from_f32(0.001).to_le_bytes());
            block[2..4].copy_from_slice(&half::f16::from_f32(0.002).to_le_bytes());
        }
    }
    data
}

/// One matrix in the forms whose speed matters, by the names of their schemes; `cols` is a multiple of 256.
pub fn timed(rows: usize, cols: usize) -> Vec<(&'static str, Storage<Bytes>, Activation)> {
    let coded = |packing, grouping| Storage::Int(int(rows, cols, packing, grouping, 0));
    let blocks = |ty: GgmlType| Storage::Ggml(ty, Bytes::from(ggml(ty, rows * ty.row_bytes(cols).unwrap_or(0))));
    let nf4 = Nf4Storage {
        codes: Bytes::from(noise((rows * cols).div_ceil(2), 8)),
        block: 64,
        absmax: Nf4Absmax::Plain(scales((rows * cols).div_ceil(64))),
        levels: schemes::nf4::LEVELS,
    };
    let float = Activation::Float;
    vec![
        ("f16", Storage::Float(FloatType::F16, halves(&values(rows * cols, 7))), float),
        ("int8-row", coded(Packing::I8, Grouping::Row), float),
        ("int8-g128", coded(Packing::I8, Grouping::Group(128)), float),
        ("int4-row", coded(Packing::Nibble, Grouping::Row), float),
        ("int4-g128", coded(Packing::Nibble, Grouping::Group(128)), float),
        ("nf4", Storage::Nf4(nf4), float),
        ("ggml-q8_0", blocks(GgmlType::Q8_0), float),
        ("ggml-q4_0", blocks(GgmlType::Q4_0), float),
        ("ggml-q4_k", blocks(GgmlType::Q4_K), float),
        ("w8a8-token", coded(Packing::I8, Grouping::Row), Activation::Int8Token),
    ]
}
