//! Attention over the paged cache (`attend.cu`).

use super::case::{Arg, Case, Kind, Output, bytes};
use super::kv::{Store, Stored, shape_args};
use super::samples::Samples;
use super::warp_sum;
use crate::gpu::attention::Plan;
use crate::ops::attention::{Batch, Shape, Span};
use rowmath::exp;

/// Keys of a step of the softmax.
const KEYS: usize = 32;

/// Threads that have two of a step's keys each.
const SIDE: usize = 16;

/// One query's softmax over a stretch of keys.
#[derive(Debug, Clone)]
struct Part {
    /// Sums of values, under the largest score.
    sums: Vec<f32>,
    top: f32,
    total: f32,
}

/// Keys and values that a query sees, in order.
struct Seen {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Seen {
    /// Prepares the `n` first tokens of a span.
    fn new(store: &Store, span: &Span, head: usize, n: usize) -> Seen {
        let block = store.shape.block;
        let slot = |p: usize| span.blocks[p / block] as usize * block + p % block;
        let [keys, values] = [0, 1].map(|which| (0..n).map(|p| store.read(slot(p), head, which)).collect());
        Seen { keys, values }
    }

    /// Keys `begin..end`: the scores, then the values of 32 at a time.
    fn part(&self, q: &[f32], begin: usize, end: usize) -> Part {
        let mut part = Part { sums: vec![0.0; q.len()], top: f32::NEG_INFINITY, total: 0.0 };
        let scale = 1.0 / (q.len() as f32).sqrt();
        let q: Vec<f32> = q.iter().map(|x| x * scale).collect();
        let end = end.min(self.keys.len());
        for start in (begin..end).step_by(KEYS) {
            let keys = start..end.min(start + KEYS);
            let score = |key: &Vec<f32>| q.iter().zip(key).fold(0f32, |sum, (q, k)| q.mul_add(*k, sum));
            let scores: Vec<f32> = self.keys[keys.clone()].iter().map(score).collect();
            let top = scores.iter().fold(part.top, |m, s| m.max(*s));
            let shrink = if part.top == f32::NEG_INFINITY { 0.0 } else { exp(part.top - top) };
            let weights: Vec<f32> = scores.iter().map(|s| exp(s - top)).collect();
            let weight = |i: usize| weights.get(i).copied().unwrap_or(0.0);
            let lanes: [f32; SIDE] = std::array::from_fn(|i| weight(i) + weight(i + SIDE));
            (part.total, part.top) = (part.total * shrink + warp_sum(lanes), top);
            part.sums.iter_mut().for_each(|s| *s *= shrink);
            for (p, value) in weights.iter().zip(&self.values[keys]) {
                part.sums.iter_mut().zip(value).for_each(|(s, v)| *s = p.mul_add(*v, *s));
            }
        }
        part
    }

    fn exact(&self, q: &[f32]) -> Vec<f64> {
        let dot = |key: &Vec<f32>| q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
        let scores: Vec<f64> = self.keys.iter().map(|k| dot(k) / (q.len() as f64).sqrt()).collect();
        let top = scores.iter().copied().fold(f64::MIN, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - top).exp()).collect();
        let total: f64 = weights.iter().sum();
        let mix = |c: usize| weights.iter().zip(&self.values).map(|(w, v)| w / total * f64::from(v[c])).sum();
        (0..q.len()).map(mix).collect()
    }
}

/// One output out of parts, in the order of their keys.
fn combined(parts: &[Part]) -> Vec<f32> {
    let top = parts.iter().fold(f32::NEG_INFINITY, |m, p| m.max(p.top));
    let total = parts.iter().fold(0f32, |sum, p| p.total.mul_add(exp(p.top - top), sum));
    let sum = |c: usize| parts.iter().fold(0f32, |sum, p| p.sums[c].mul_add(exp(p.top - top), sum));
    (0..parts[0].sums.len()).map(|c| sum(c) / total).collect()
}

/// A batch and its cache, as they are when attention begins.
struct Problem {
    shape: Shape,
    spans: Vec<Span>,
    qkv: Vec<f32>,
    store: Store,
}

impl Problem {
    /// Sequences of `[past, new]` tokens.
    fn new(samples: &mut Samples, shape: Shape, kind: Stored, lengths: &[[usize; 2]]) -> Problem {
        let blocks_of = |[past, new]: [usize; 2]| (past + new).div_ceil(shape.block);
        let blocks: usize = lengths.iter().map(|l| blocks_of(*l)).sum();
        let (mut store, mut free) = (Store::new(samples, shape, kind, blocks), samples.shuffled(blocks));
        let (mut spans, mut qkv) = (Vec::new(), Vec::new());
        for &[past, new] in lengths {
            let blocks = free.split_off(free.len() - blocks_of([past, new]));
            let slot = |p: usize| (blocks[p / shape.block] as usize * shape.block + p % shape.block) as i32;
            let all: Vec<f32> = samples.floats((past + new) * shape.row()).iter().map(|v| 2.0 * v).collect();
            store.store(&all, &(0..past + new).map(slot).collect::<Vec<_>>());
            let first = qkv.len() / shape.row();
            qkv.extend_from_slice(&all[past * shape.row()..]);
            spans.push(Span { rows: first..first + new, past, blocks });
        }
        Problem { shape, spans, qkv, store }
    }

    /// For each token and query head, what `of` makes of its query and what that sees.
    fn each<T>(&self, of: impl Fn(&[f32], &Seen) -> T) -> Vec<T> {
        let (d, group) = (self.shape.head_dim, self.shape.heads / self.shape.kv_heads);
        let mut all = Vec::new();
        for span in &self.spans {
            for row in span.rows.clone() {
                for head in 0..self.shape.heads {
                    let seen = Seen::new(&self.store, span, head / group, span.past + row - span.rows.start + 1);
                    all.push(of(&self.qkv[row * self.shape.row() + head * d..][..d], &seen));
                }
            }
        }
        all
    }

    /// The launches, on a GPU of so many multiprocessors.
    fn cases(&self, processors: usize) -> Vec<Case> {
        let (shape, d) = (self.shape, self.shape.head_dim);
        let plan = Plan::new(&Batch::new(shape, &self.spans), processors);
        let (tokens, splits) = (plan.slots.len(), plan.splits);
        let split = |s: usize| s * plan.split_keys..(s + 1) * plan.split_keys;
        let parts =
            self.each(|q, seen| (0..splits).map(|s| seen.part(q, split(s).start, split(s).end)).collect::<Vec<_>>());
        let exact: Vec<f64> = self.each(|q, seen| seen.exact(q)).concat();
        let nothing = vec![f32::NAN; tokens * shape.heads * d];
        let name = format!(
            "{} + {} heads of {d}, blocks of {}, {:?}, {splits} splits",
            shape.heads,
            shape.kv_heads,
            shape.block,
            self.spans.iter().map(|s| [s.past, s.rows.len()]).collect::<Vec<_>>()
        );
        let mut args = vec![Arg::buffer(&self.qkv), Arg::Buffer(self.store.bytes.clone())];
        let lists = [Arg::buffer(&plan.tiles), Arg::buffer(&plan.table), Arg::int(tokens)];
        let launch = plan.attend(self.store.kind.name(), shape);
        if splits == 1 {
            let out: Vec<f32> = parts.iter().flat_map(|p| p[0].sums.iter().map(|s| s / p[0].total)).collect();
            args.extend(
                [Arg::buffer(&nothing), Arg::Null, Arg::Null].into_iter().chain(lists).chain(shape_args(shape)),
            );
            args.push(Arg::int(plan.split_keys));
            return vec![Case::new(name, launch, args, vec![Output::floats(2, &out, exact, 1e-5)])];
        }
        let by_split = || (0..splits).flat_map(|s| parts.iter().map(move |p| &p[s]));
        let sums: Vec<f32> = by_split().flat_map(|p| p.sums.iter().copied()).collect();
        let stats: Vec<f32> = by_split().flat_map(|p| [p.top, p.total]).collect();
        let (no_sums, no_stats) = (vec![f32::NAN; sums.len()], vec![f32::NAN; stats.len()]);
        args.extend([Arg::Null, Arg::buffer(&no_sums), Arg::buffer(&no_stats)]);
        args.extend(lists.into_iter().chain(shape_args(shape)));
        args.push(Arg::int(plan.split_keys));
        let outputs = [(3, &sums), (4, &stats)].map(|(arg, v)| Output::bits(arg, Kind::F32, bytes(v)));
        let out: Vec<f32> = parts.iter().flat_map(|p| combined(p)).collect();
        let mut combine = vec![Arg::buffer(&sums), Arg::buffer(&stats), Arg::buffer(&nothing)];
        combine.extend([tokens, shape.heads, d, splits].map(Arg::int));
        let output = Output::floats(2, &out, exact, 1e-5);
        vec![
            Case::new(name.clone(), launch, args, outputs.into()),
            Case::new(name, plan.combine(shape), combine, vec![output]),
        ]
    }
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = Vec::new();
    for kind in Stored::ALL {
        for (heads, kv_heads, head_dim, block, lengths, processors) in [
            // One token of each sequence, with and without splits.
            (9, 3, 64, 16, &[[600, 1], [17, 1]][..], 132),
            (9, 3, 64, 16, &[[70, 1], [0, 1]], 1),
            // Prompts, and what comes after them; a group that tiles don't divide.
            (14, 2, 64, 32, &[[0, 37], [33, 5], [64, 1]], 1),
            (4, 4, 80, 7, &[[0, 65]], 1),
            (2, 1, 128, 16, &[[300, 20]], 132),
            (3, 1, 256, 5, &[[40, 3]], 1),
            (1, 1, 4, 1, &[[0, 1], [31, 2]], 1),
        ] {
            let shape = Shape { heads, kv_heads, head_dim, block };
            all.extend(Problem::new(samples, shape, kind, lengths).cases(processors));
        }
    }
    all
}
