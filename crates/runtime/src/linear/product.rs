//! The matrix product, shared out: tasks of some rows of weights for all tokens.
//!
//! The order of every sum depends on the number of columns alone; neither the number of
//! tokens, nor the batch, nor the threads change a bit of the result.

use super::{codes::Codes, float::Float, integer::Integer, panel::Packed, quantized::Quantized, weights::Weights};
use crate::simd::{Isa, Kernel, Simd};
use rayon::prelude::*;
use std::{
    cell::{Cell, RefCell},
    marker::PhantomData,
};

/// Tasks have a multiple of this many rows: those of the largest register tile.
const ROWS: usize = 32;

/// Rows that one task computes at most.
pub const MAX_TASK: usize = 64;

/// Bytes of weights that are fetched from memory ahead of their decoding, at least.
const AHEAD: usize = 4 * 1024;

/// At most: they are to stay in the second-level cache.
const MOST_AHEAD: usize = 256 * 1024;

/// One product to add to the output.
#[derive(Debug, Clone, Copy)]
pub enum Term<'a> {
    /// Weights decoded to f32, with activations packed for the instruction set that runs.
    Float(Weights<'a>, &'a Packed),
    /// Integer codes with integer codes.
    Integer(Codes<'a>, &'a Quantized),
}

/// The output columns of one matrix: the sum of its terms, and the bias.
#[derive(Debug, Clone)]
pub struct Job<'a> {
    /// Terms of the sum.
    pub terms: Vec<Term<'a>>,
    /// Added to each token.
    pub bias: Option<&'a [f32]>,
    /// Output features.
    pub rows: usize,
}

/// Writes the outputs of `jobs` side by side into `out [tokens, stride]`, or adds them to
/// what stands there.
pub fn multiply(isa: Isa, jobs: &[Job<'_>], tokens: usize, accumulate: bool, out: &mut [f32]) {
    let total: usize = jobs.iter().map(|j| j.rows).sum();
    assert_eq!(out.len(), tokens * total, "one output for each token and row");
    if out.is_empty() {
        return;
    }
    // Several tasks a thread even out their speeds; which rows share a task changes nothing else.
    let per_task = total.div_ceil(8 * rayon::current_num_threads()).next_multiple_of(ROWS).min(MAX_TASK);
    let out = SharedOut::new(out, total);
    let mut tasks = Vec::new();
    let mut first = 0;
    for job in jobs {
        let starts = (0..job.rows).step_by(per_task);
        tasks.extend(starts.map(|start| {
            let end = job.rows.min(start + per_task);
            Task { job, first_column: first, start, end, tokens, accumulate, out: &out, one_thread: PhantomData }
        }));
        first += job.rows;
    }
    tasks.into_par_iter().for_each(|task| SCRATCH.with_borrow_mut(|scratch| isa.run(Run(task, scratch))));
}

/// Working memory, kept from task to task.
#[derive(Default)]
pub struct Scratch {
    /// Decoded weights, or scales and sums.
    pub floats: Vec<f32>,
    /// Codes.
    pub codes: Vec<i16>,
    /// Scales as they are stored.
    pub halves: Vec<[u8; 2]>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// The first `n` elements on a cache line's boundary, made where there are fewer: vectors that
/// straddle cache lines cost twice.
pub fn aligned<T: Copy + Default>(vec: &mut Vec<T>, n: usize) -> &mut [T] {
    let most = 64 / size_of::<T>();
    if vec.len() < n + most {
        vec.resize(n + most, T::default());
    }
    let offset = vec.as_ptr().align_offset(64).min(most);
    &mut vec[offset..offset + n]
}

/// Asks for what will be decoded some time later than the `len` bytes at `at`: about `ahead` bytes
/// further on. The processor does so by itself, but only to the end of a page.
#[inline(always)]
pub fn fetch<S: Simd>(s: S, data: &[u8], at: usize, len: usize, ahead: usize) {
    let at = at + ahead.clamp(AHEAD, MOST_AHEAD);
    for line in data.get(at..at + len).unwrap_or_default().chunks(64) {
        s.prefetch(&line[0]);
    }
}

/// An output that tasks write to at the same time, each to columns of its own.
struct SharedOut<'a> {
    cells: &'a [Cell<f32>],
    tokens: usize,
    stride: usize,
}

// SAFETY: cells are reached through tasks alone. `multiply` makes tasks of disjoint columns, and a task can be neither
// copied nor shared between threads, so no cell is reached from two threads.
unsafe impl Sync for SharedOut<'_> {}

impl<'a> SharedOut<'a> {
    fn new(out: &'a mut [f32], stride: usize) -> Self {
        let tokens = out.len() / stride;
        SharedOut { cells: Cell::from_mut(out).as_slice_of_cells(), tokens, stride }
    }
}

/// Some rows of one job, for all tokens. It is the only one with these rows, and stays on one thread.
pub struct Task<'a> {
    /// Product that the task belongs to.
    pub job: &'a Job<'a>,
    /// The job's first output column.
    first_column: usize,
    /// First row.
    pub start: usize,
    /// Past the last row.
    pub end: usize,
    /// Tokens.
    pub tokens: usize,
    accumulate: bool,
    out: &'a SharedOut<'a>,
    /// Makes a task movable to another thread, but not shareable (see [`SharedOut`]).
    one_thread: PhantomData<Cell<()>>,
}

impl<'a> Task<'a> {
    /// The outputs of one token at rows `row..row + rows` of the job.
    ///
    /// # Panics
    /// When the rows are not this task's.
    #[inline(always)]
    pub fn out(&self, token: usize, row: usize, rows: usize) -> &'a [Cell<f32>] {
        assert!(self.start <= row && row + rows <= self.end && token < self.out.tokens, "outputs of another task");
        &self.out.cells[token * self.out.stride + self.first_column + row..][..rows]
    }

    /// Writes `sums` of one token from row `row` on.
    #[inline(always)]
    pub fn write(&self, token: usize, row: usize, sums: &[f32], prior: Prior) {
        let out = self.out(token, row, sums.len());
        let bias = self.job.bias.map_or(&[][..], |b| &b[row..row + sums.len()]);
        match prior {
            Prior::Bias => out.iter().zip(sums).for_each(|(o, v)| o.set(*v)),
            _ => out.iter().zip(sums).for_each(|(o, v)| o.set(o.get() + v)),
        }
        if prior != Prior::Output {
            out.iter().zip(bias).for_each(|(o, b)| o.set(o.get() + b));
        }
    }
}

struct Run<'a>(Task<'a>, &'a mut Scratch);

/// Values that sums are added to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Prior {
    /// The bias, instead of what stands there.
    Bias,
    /// The bias and what stands there.
    BiasAndOutput,
    /// The output's present values.
    Output,
}

impl Kernel for Run<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Run(task, scratch) = self;
        let mut prior = if task.accumulate { Prior::BiasAndOutput } else { Prior::Bias };
        for term in &task.job.terms {
            match *term {
                Term::Float(weights, x) => Float { task: &task, weights, x, prior }.run(s, scratch),
                Term::Integer(codes, x) => Integer { task: &task, codes, x, prior }.run(s, scratch),
            }
            prior = Prior::Output;
        }
    }
}

#[cfg(test)]
#[path = "product_tests.rs"]
mod tests;
