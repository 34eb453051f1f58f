use super::*;
use crate::linear::weights::Weights;
use proptest::prelude::*;
use schemes::{FloatType, Matrix, RowOrder, Storage};
use store::Bytes;

fn random(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..n).map(|_| next()).collect()
}

fn floats(rows: usize, cols: usize, seed: u32) -> Matrix<Bytes> {
    let bytes: Vec<u8> = random(rows * cols, seed).iter().flat_map(|v| v.to_le_bytes()).collect();
    let storage = Storage::Float(FloatType::F32, Bytes::from(bytes));
    Matrix::new(rows, cols, storage, RowOrder::Natural).expect("a whole matrix")
}

/// Two matrices side by side: outputs of `isa`.
fn product(isa: Isa, w: [&Matrix<Bytes>; 2], x: &[f32], bias: &[f32], accumulate: bool, out: &mut [f32]) {
    let (cols, tokens) = (w[0].cols(), x.len() / w[0].cols());
    let x = Packed::new(x, cols, isa.tile());
    let jobs = w.map(|w| Job {
        terms: vec![Term::Float(Weights::Matrix(w), &x)],
        bias: Some(&bias[..w.rows()]),
        rows: w.rows(),
    });
    multiply(isa, &jobs, tokens, accumulate, out);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn as_in_f64_whatever_the_shape(
        tokens in 1usize..40, rows in 1usize..90, more in 1usize..20,
        cols in prop_oneof![1usize..40, 250usize..270, 1020usize..1030, 2040usize..2060],
        accumulate in any::<bool>(), seed in any::<u32>(),
    ) {
        let w = [floats(rows, cols, seed), floats(more, cols, seed ^ 1)];
        let (x, bias) = (random(tokens * cols, seed ^ 2), random(rows.max(more), seed ^ 3));
        let before = random(tokens * (rows + more), seed ^ 4);
        for isa in Isa::available() {
            let mut out = before.clone();
            product(isa, [&w[0], &w[1]], &x, &bias, accumulate, &mut out);
            for (t, out) in out.chunks(rows + more).enumerate() {
                for (r, got) in out.iter().enumerate() {
                    let (m, r) = if r < rows { (&w[0], r) } else { (&w[1], r - rows) };
                    let mut row = vec![0f32; cols];
                    m.decode_row(r, &mut row);
                    let terms = row.iter().zip(&x[t * cols..]).map(|(a, b)| f64::from(*a) * f64::from(*b));
                    let start = if accumulate { f64::from(before[t * (rows + more) + (if std::ptr::eq(m, &w[0]) { r } else { rows + r })]) } else { 0.0 };
                    let want = terms.sum::<f64>() + f64::from(bias[r]) + start;
                    prop_assert!((f64::from(*got) - want).abs() < 2e-5, "{isa:?} token {t} row {r}: {got} {want}");
                }
            }
        }
    }

    #[test]
    fn a_token_alone_is_a_token_among_many(tokens in 2usize..30, cols in 1usize..1500, seed in any::<u32>()) {
        let w = [floats(37, cols, seed), floats(3, cols, seed ^ 1)];
        let (x, bias) = (random(tokens * cols, seed ^ 2), random(37, seed ^ 3));
        for isa in Isa::available() {
            let mut all = vec![0f32; tokens * 40];
            product(isa, [&w[0], &w[1]], &x, &bias, false, &mut all);
            for (x, all) in x.chunks(cols).zip(all.chunks(40)) {
                let mut one = vec![0f32; 40];
                product(isa, [&w[0], &w[1]], x, &bias, false, &mut one);
                prop_assert_eq!(&one[..], all);
            }
        }
    }
}

#[test]
fn many_tokens_pass_in_blocks_and_threads_change_nothing() {
    let cols = 1024;
    let w = [floats(70, cols, 1), floats(9, cols, 2)];
    let (x, bias) = (random(300 * cols, 3), vec![0f32; 70]);
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("threads");
        let mut out = vec![0f32; 300 * 79];
        pool.install(|| product(Isa::active(), [&w[0], &w[1]], &x, &bias, false, &mut out));
        out
    };
    let one = run(1);
    assert_eq!(one, run(3));
    let mut last = vec![0f32; 79];
    product(Isa::active(), [&w[0], &w[1]], &x[299 * cols..], &bias, false, &mut last);
    assert_eq!(last, one[299 * 79..]);
}
