use super::*;
use half::f16;

fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..n).map(|_| next()).collect()
}

fn shape(heads: usize, kv_heads: usize, head_dim: usize, block: usize) -> Shape {
    Shape { heads, kv_heads, head_dim, block }
}

/// Sequences of `n` tokens from their beginning, each in one block.
fn whole(sequences: usize, n: usize) -> Vec<Span> {
    (0..sequences).map(|i| Span { rows: i * n..(i + 1) * n, past: 0, blocks: vec![i as u32] }).collect()
}

/// One sequence from its beginning, in f64.
fn reference(s: Shape, qkv: &[f32]) -> Vec<f64> {
    let (d, row) = (s.head_dim, s.row());
    let mut out = Vec::new();
    for (t, head) in (0..qkv.len() / row).flat_map(|t| (0..s.heads).map(move |h| (t, h))) {
        let kv = head / s.group();
        let q = &qkv[t * row + head * d..][..d];
        let at = |j: usize, section: usize| &qkv[j * row + (section + kv) * d..][..d];
        let dot = |j| q.iter().zip(at(j, s.heads)).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
        let scores: Vec<f64> = (0..=t).map(|j| dot(j) / (d as f64).sqrt()).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let e: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = e.iter().sum();
        let mix = |i: usize| (0..=t).map(|j| e[j] / total * f64::from(at(j, s.heads + s.kv_heads)[i])).sum::<f64>();
        out.extend((0..d).map(mix));
    }
    out
}

fn attend<E: Element>(shape: Shape, spans: &[Span], qkv: &[f32], store: &mut [E]) -> Vec<f32> {
    let batch = Batch::new(shape, spans);
    batch.check::<E>(qkv.len(), store.len()).expect("fits");
    let mut out = vec![0f32; qkv.len() / shape.row() * shape.heads * shape.head_dim];
    StoreKeys(batch).run(qkv, store);
    Attend(batch).run(qkv, store, &mut out);
    out
}

fn room<E: Element>(shape: Shape, blocks: usize) -> Vec<E> {
    vec![E::default(); blocks * shape.kv_heads * shape.plane::<E>()]
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
        let s = shape(heads, kv_heads, d, n);
        let qkv: Vec<f32> = values(sequences * n * s.row(), 7).iter().map(|v| v * 3.0).collect();
        let got = attend(s, &whole(sequences, n), &qkv, &mut room::<f32>(s, sequences));
        for (got, qkv) in got.chunks(n * heads * d).zip(qkv.chunks(n * s.row())) {
            for (i, (got, want)) in got.iter().zip(reference(s, qkv)).enumerate() {
                assert!((f64::from(*got) - want).abs() < 1e-5, "{s:?} {i}: {got} {want}");
            }
        }
    }
}

#[test]
fn what_comes_later_and_beside_changes_nothing() {
    let (s, n) = (shape(6, 2, 16, 150), 150);
    let qkv = values(2 * n * s.row(), 3);
    let both = attend(s, &whole(2, n), &qkv, &mut room::<f32>(s, 2));
    let width = 6 * 16;
    for prefix in [1, 5, 64, 65, 100] {
        let second = &qkv[n * s.row()..][..prefix * s.row()];
        let alone = attend(s, &whole(1, prefix), second, &mut room::<f32>(s, 1));
        assert_eq!(alone, both[n * width..][..prefix * width]);
    }
}

/// Two sequences in one store, piece by piece in steps that hold some of each, in blocks of
/// `block` tokens that are given out as they come.
fn in_pieces<E: Element>(block: usize, rows: &[Vec<f32>; 2], steps: &[[usize; 2]]) -> [Vec<f32>; 2] {
    let s = shape(6, 2, 16, block);
    let blocks = 2 * 100usize.div_ceil(block);
    let mut store = room::<E>(s, blocks);
    // From the last block to the first, so that a sequence's blocks lie apart and backwards.
    let mut unused = (0..blocks as u32).collect::<Vec<_>>();
    let (mut tables, mut held, mut out) = ([vec![], vec![]], [0; 2], [vec![], vec![]]);
    for step in steps {
        let (mut spans, mut qkv) = (Vec::new(), Vec::new());
        for i in (0..2).filter(|&i| step[i] > 0) {
            while tables[i].len() * block < held[i] + step[i] {
                tables[i].push(unused.pop().expect("enough"));
            }
            let first = qkv.len() / s.row();
            qkv.extend_from_slice(&rows[i][held[i] * s.row()..][..step[i] * s.row()]);
            spans.push(Span { rows: first..first + step[i], past: held[i], blocks: tables[i].clone() });
        }
        let mut made = &attend(s, &spans, &qkv, &mut store)[..];
        for i in 0..2 {
            let (now, later) = made.split_at(step[i] * 6 * 16);
            out[i].extend_from_slice(now);
            (made, held[i]) = (later, held[i] + step[i]);
        }
    }
    out
}

#[test]
fn blocks_and_pieces_change_nothing() {
    fn check<E: Element>(tolerance: f64) {
        let s = shape(6, 2, 16, 100);
        let rows = [9, 10].map(|seed| values(100 * s.row(), seed));
        let whole = in_pieces::<E>(100, &rows, &[[100, 0], [0, 100]]);
        for (rows, whole) in rows.iter().zip(&whole) {
            assert!(whole.iter().zip(reference(s, rows)).all(|(a, b)| (f64::from(*a) - b).abs() < tolerance));
        }
        for block in [1, 7, 16, 64, 103] {
            let steps = [[1, 30], [1, 1], [40, 1], [20, 0], [3, 3], [35, 1], [0, 64]];
            assert_eq!(in_pieces::<E>(block, &rows, &steps), whole, "{block}");
        }
    }
    check::<f32>(1e-5);
    check::<f16>(2e-3);
    check::<u8>(2e-2);
}

#[test]
fn what_does_not_fit_is_refused() {
    let s = shape(6, 2, 16, 8);
    let span = |past, blocks: &[u32]| Span { rows: 0..2, past, blocks: blocks.to_vec() };
    let check = |span| Batch::new(s, &[span]).check::<f16>(2 * s.row(), 3 * 2 * s.plane::<f16>());
    assert!(check(span(14, &[0, 2])).is_ok());
    assert!(check(span(15, &[0, 2])).is_err(), "no room");
    assert!(check(span(0, &[3])).is_err(), "no such block");
    assert!(check(Span { rows: 1..3, ..span(0, &[0]) }).is_err(), "a gap");
}
