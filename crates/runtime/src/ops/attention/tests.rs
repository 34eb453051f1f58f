use super::*;

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, tokens: usize, past: usize, capacity: usize) -> Shape {
    Shape { heads, kv_heads, head_dim, tokens, past, capacity }
}

/// Everything from one piece, in f64.
fn reference(s: Shape, qkv: &[f32]) -> Vec<f64> {
    let (d, row) = (s.head_dim, s.row());
    let mut out = Vec::new();
    for sequence in qkv.chunks(s.tokens * row) {
        for (t, head) in (0..s.tokens).flat_map(|t| (0..s.heads).map(move |h| (t, h))) {
            let kv = head / s.group();
            let q = &sequence[t * row + head * d..][..d];
            let at = |j: usize, section: usize| &sequence[j * row + (section + kv) * d..][..d];
            let dot = |j| q.iter().zip(at(j, s.heads)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
            let scores: Vec<f64> = (0..=t).map(|j| dot(j) / (d as f64).sqrt()).collect();
            let top = scores.iter().copied().fold(f64::MIN, f64::max);
            let e: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
            let total: f64 = e.iter().sum();
            let mix = |i: usize| (0..=t).map(|j| e[j] / total * f64::from(at(j, s.heads + s.kv_heads)[i])).sum::<f64>();
            out.extend((0..d).map(mix));
        }
    }
    out
}

fn attend<E: Element>(s: Shape, sequences: usize, qkv: &[f32], store: &mut [E]) -> Vec<f32> {
    let mut out = vec![0f32; sequences * s.tokens * s.heads * s.head_dim];
    StoreKeys(s).run(qkv, store);
    Attend(s).run(qkv, store, &mut out);
    out
}

#[test]
fn as_in_f64_whatever_the_shape() {
    for (heads, kv_heads, d, n, sequences) in [
        (1, 1, 2, 1, 1),
        (6, 2, 16, 70, 2),
        (9, 3, 64, 131, 1),
        (4, 4, 80, 65, 2),
        (7, 1, 6, 129, 3),
        (2, 1, 128, 64, 1),
    ] {
        let s = shape(heads, kv_heads, d, n, 0, n);
        let qkv: Vec<f32> = values(sequences * n * s.row(), 7).iter().map(|v| v * 3.0).collect();
        let got = attend(s, sequences, &qkv, &mut vec![0f32; sequences * kv_heads * 2 * s.plane()]);
        for (i, (got, want)) in got.iter().zip(reference(s, &qkv)).enumerate() {
            assert!((f64::from(*got) - want).abs() < 1e-5, "{s:?} {i}: {got} {want}");
        }
    }
}

#[test]
fn what_comes_later_and_beside_changes_nothing() {
    let (s, n) = (shape(6, 2, 16, 150, 0, 150), 150);
    let qkv = values(2 * n * s.row(), 3);
    let both = attend(s, 2, &qkv, &mut vec![0f32; 2 * 2 * 2 * s.plane()]);
    let width = 6 * 16;
    for prefix in [1, 5, 64, 65, 100] {
        let short = shape(6, 2, 16, prefix, 0, prefix);
        let second = &qkv[n * s.row()..][..prefix * s.row()];
        let alone = attend(short, 1, second, &mut vec![0f32; 2 * 2 * short.plane()]);
        assert_eq!(alone, both[n * width..][..prefix * width]);
    }
}

#[test]
fn the_store_is_continued_in_pieces() {
    let (n, capacity) = (100, 103);
    let whole = shape(4, 2, 32, n, 0, capacity);
    let qkv = values(n * whole.row(), 9);
    let room = 2 * 2 * whole.plane();
    let at_once = attend(whole, 1, &qkv, &mut vec![f16::ZERO; room]);
    let mut store = vec![f16::ZERO; room];
    let (mut past, mut pieces) = (0, Vec::new());
    for take in [1, 1, 40, 20, 3, 35] {
        let s = Shape { tokens: take, past, ..whole };
        pieces.extend(attend(s, 1, &qkv[past * s.row()..][..take * s.row()], &mut store));
        past += take;
    }
    assert_eq!(pieces, at_once);
    let exact = reference(whole, &qkv);
    assert!(at_once.iter().zip(exact).all(|(a, b)| (f64::from(*a) - b).abs() < 2e-3));
}
