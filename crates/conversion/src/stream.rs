//! Carries plans out: one pass over the source for any number of artifacts.
//!
//! Every byte's place in every output is known from the plan, so rows are decoded, encoded and
//! written in parallel, each chunk straight to its offset. Memory is bounded by a chunk for
//! each thread (and, for double-quantized NF4, one scale for each 64 weights of a matrix).

use crate::container::{Artifact, Sink};
use crate::encode::{Chunk, Encoding, Prepass};
use crate::error::{Error, Result};
use crate::finite;
use crate::layout::Content;
use crate::plan::{Plan, PlannedWeight, Source};
use crate::source::{self, Values, Weight};
use progress::{Progress, Unit};
use rayon::prelude::*;
use schemes::{FloatType, Overflow, RowOrder, measure::WeightError, nf4};
use std::cell::RefCell;
use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;
use store::{DType, Tensor};

/// Weights decoded at a time by one thread: with their codes and what these decode to, they stay
/// in the second-level cache.
const CHUNK: usize = 1 << 16;

/// Bytes copied at a time by one thread.
const COPY: usize = 1 << 22;

/// Errors of one artifact's weights, by name.
pub type Errors = BTreeMap<String, WeightError>;

/// Results of a pass over the source.
#[derive(Debug)]
pub struct Passed {
    /// BLAKE3 over name, type, shape and bytes of every source tensor, in hex.
    pub source_hash: String,
    /// For each artifact, what its weights lost.
    pub losses: Vec<Losses>,
}

/// Errors of the weights of one artifact.
#[derive(Debug, Clone, Default)]
pub struct Losses {
    /// The error of each quantized weight.
    pub quantized: Errors,
    /// The error of each weight rounded to a float type that is not its own.
    pub rounded: Errors,
    /// Number of values of each weight that were too large for their float type, and clamped.
    pub clamped: BTreeMap<String, u64>,
}

/// Errors and counts of some rows.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    error: WeightError,
    clamped: u64,
}

/// The reason that a pass stopped.
#[derive(Debug)]
pub enum Stop {
    /// Scales of these weights don't fit f16: plan again with f32 for them.
    Widen(HashSet<String>),
    /// An error.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Failed(e)
    }
}

/// Encodes every weight of `source` into every artifact.
///
/// # Errors
/// [`Stop::Widen`] after a whole pass when f16 can't carry some scales; else the first error.
pub fn pass(
    source: &Source<'_>,
    artifacts: &[(&Plan, &Artifact, Overflow)],
    progress: &dyn Progress,
) -> Result<Passed, Stop> {
    let total: u64 = source.weights.iter().map(|w| w.stored_bytes() as u64).sum();
    progress.start("converting", Some(total), Unit::Bytes);
    let state = State {
        losses: artifacts.iter().map(|_| Mutex::new(Losses::default())).collect(),
        hashes: Mutex::new(BTreeMap::new()),
        wide: Mutex::new(HashSet::new()),
    };
    source.weights.par_iter().enumerate().try_for_each(|(index, weight)| {
        let jobs: Vec<Job<'_>> = artifacts
            .iter()
            .enumerate()
            .filter_map(|(a, &(plan, artifact, overflow))| {
                let at = plan.weights.iter().position(|w| w.index == index)?;
                Some(Job { artifact: a, planned: &plan.weights[at], sink: artifact.sink(at), overflow })
            })
            .collect();
        let done = convert(source, weight, &jobs, &state);
        hash(source, &weight.main, &state);
        weight.release();
        progress.advance(weight.stored_bytes() as u64);
        done
    })?;
    progress.finish();
    for name in source.model.tensors.keys() {
        hash(source, name, &state);
    }
    let wide = state.wide.into_inner().unwrap_or_else(|e| e.into_inner());
    if !wide.is_empty() {
        return Err(Stop::Widen(wide));
    }
    let losses = state.losses.into_iter().map(|m| m.into_inner().unwrap_or_else(|e| e.into_inner())).collect();
    Ok(Passed { source_hash: store::combined_blake3(locked(&state.hashes).values()), losses })
}

struct State {
    losses: Vec<Mutex<Losses>>,
    hashes: Mutex<BTreeMap<String, blake3::Hash>>,
    wide: Mutex<HashSet<String>>,
}

struct Job<'a> {
    artifact: usize,
    planned: &'a PlannedWeight,
    sink: Sink<'a>,
    overflow: Overflow,
}

fn locked<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(|e| e.into_inner())
}

fn convert(source: &Source<'_>, weight: &Weight, jobs: &[Job<'_>], state: &State) -> Result<()> {
    for job in jobs {
        for (t, tensor) in job.planned.laid.tensors.iter().enumerate() {
            if let Content::Constant(bytes) = &tensor.content {
                job.sink.write(t, 0, bytes)?;
            }
        }
    }
    let (copies, encodes): (Vec<&Job<'_>>, Vec<&Job<'_>>) =
        jobs.iter().partition(|j| j.planned.laid.encoding == Encoding::Copy);
    if !copies.is_empty() {
        copy(source, weight, &copies)?;
    }
    if encodes.is_empty() {
        return Ok(());
    }
    let view = RowsView::new(weight, encodes[0].planned.order, &encodes);
    let needed: Result<Vec<Prepass>, _> =
        encodes.iter().map(|job| prepass(&view, &job.planned.laid.encoding)).collect();
    let prepasses = match needed {
        Err(schemes::Error::ScaleRange { row, value, ty }) => return widen(weight, row, value, ty, state),
        other => other.map_err(|e| codec(weight, e))?,
    };
    let work = Work { source, view: &view, jobs: &encodes, prepasses: &prepasses, state };
    let parts: Vec<Vec<Part>> = view.chunks().into_par_iter().map(|rows| work.chunk(rows)).collect::<Result<_>>()?;
    for (i, job) in encodes.iter().enumerate() {
        record(weight, job, parts.iter().map(|part| part[i]), state);
    }
    Ok(())
}

/// Adds up what a weight lost in one artifact; in the order of its rows, so that the figures
/// don't depend on the threads.
fn record(weight: &Weight, job: &Job<'_>, parts: impl Iterator<Item = Part>, state: &State) {
    let mut sum = Part::default();
    for part in parts {
        sum.error.merge(&part.error);
        sum.clamped += part.clamped;
    }
    let mut losses = locked(&state.losses[job.artifact]);
    if sum.clamped > 0 {
        losses.clamped.insert(weight.name.clone(), sum.clamped);
    }
    if job.planned.scheme.is_some() {
        losses.quantized.insert(weight.name.clone(), sum.error);
    } else if is_measured(weight, job.planned) {
        losses.rounded.insert(weight.name.clone(), sum.error);
    }
}

/// Returns whether the weight's error is worth measuring: it is quantized, or rounded to another type than its own. F32
/// holds every other type.
fn is_measured(weight: &Weight, planned: &PlannedWeight) -> bool {
    match planned.laid.encoding {
        Encoding::Float(ty) => ty != FloatType::F32 && weight.float != Some(ty),
        _ => planned.scheme.is_some(),
    }
}

thread_local! {
    /// Decoded weights, and what their codes decode to; kept from chunk to chunk.
    static BUFFERS: RefCell<(Vec<f32>, Vec<f32>)> = RefCell::default();
}

/// A weight that is encoded for some artifacts.
struct Work<'a> {
    source: &'a Source<'a>,
    view: &'a RowsView<'a>,
    jobs: &'a [&'a Job<'a>],
    prepasses: &'a [Prepass],
    state: &'a State,
}

impl Work<'_> {
    /// Converts some rows for every job and measures what each lost.
    fn chunk(&self, rows: Range<usize>) -> Result<Vec<Part>> {
        // Nothing in here runs another chunk on this thread.
        BUFFERS.with_borrow_mut(|(values, decoded)| {
            self.view.decode(rows.clone(), values);
            decoded.resize(values.len(), 0.0);
            self.check_finite(&rows, values)?;
            let input = Chunk { first_row: rows.start, cols: self.view.cols, values };
            let jobs = self.jobs.iter().zip(self.prepasses);
            jobs.map(|(job, prepass)| self.encode(job, prepass, input, rows.clone(), decoded)).collect()
        })
    }

    /// Integer and NF4 codecs look for themselves; floats would pass.
    fn check_finite(&self, rows: &Range<usize>, values: &[f32]) -> Result<()> {
        let passes = |e: &Encoding| matches!(e.codes(), Encoding::Float(_) | Encoding::Outlier { .. });
        if self.jobs.iter().any(|j| passes(&j.planned.laid.encoding))
            && let Some(at) = finite::first_value(values)
        {
            return Err(self.not_finite(rows.start * self.view.cols + at, values[at]));
        }
        Ok(())
    }

    fn not_finite(&self, at: usize, value: f32) -> Error {
        finite::error(self.source.model, self.view.weight, self.view.order, at, value)
    }

    /// Encodes some rows for one job, writes them, and measures what was lost.
    fn encode(
        &self,
        job: &Job<'_>,
        prepass: &Prepass,
        input: Chunk<'_>,
        rows: Range<usize>,
        decoded: &mut [f32],
    ) -> Result<Part> {
        let (weight, cols) = (self.view.weight, self.view.cols);
        let mut part = Part::default();
        let encoding = &job.planned.laid.encoding;
        let codes = match encoding.encode(input, prepass, job.overflow) {
            Err(schemes::Error::ScaleRange { row, value, ty }) => {
                return widen(weight, row, value, ty, self.state).map(|()| part);
            }
            Err(schemes::Error::NotFinite { row, col, value }) => return Err(self.not_finite(row * cols + col, value)),
            other => other.map_err(|e| codec(weight, e))?,
        };
        #[cfg(test)]
        let codes = {
            let mut codes = codes;
            crate::encoder_mutations::damage(&weight.name, cols, &mut codes);
            codes
        };
        let tensors = &job.planned.laid.tensors;
        codes.emit(encoding, rows.clone(), cols, prepass, &mut |stream, offset, bytes| {
            let tensor = tensors.iter().position(|t| t.content == Content::Stream(stream));
            tensor.map_or(Ok(()), |t| job.sink.write(t, offset, bytes))
        })?;
        if job.overflow == Overflow::Clamp {
            part.clamped = encoding.clamped(input);
        }
        if is_measured(weight, job.planned) {
            codes.decode(encoding, rows, cols, prepass, decoded);
            part.error.add(input.values, decoded);
        }
        Ok(part)
    }
}

/// A scale that f16 can't carry: remember the weight. That f32 can't carry is an error.
fn widen(weight: &Weight, row: usize, value: f32, ty: schemes::FloatType, state: &State) -> Result<()> {
    if ty != schemes::FloatType::F16 {
        return Err(codec(weight, schemes::Error::ScaleRange { row, value, ty }));
    }
    locked(&state.wide).insert(weight.name.clone());
    Ok(())
}

fn codec(weight: &Weight, source: schemes::Error) -> Error {
    Error::Codec { weight: weight.name.clone(), source }
}

fn stored_data(weight: &Weight) -> Result<&store::Bytes> {
    match &weight.values {
        Values::Tensor(t) => Ok(&t.data),
        Values::Matrix(m) => match m.storage() {
            schemes::Storage::Float(_, b) | schemes::Storage::Ggml(_, b) => Ok(b),
            _ => Err(Error::Request(format!("{}: cannot be copied as it is stored", weight.name))),
        },
    }
}

/// Copies a weight into artifacts, looking for what is not finite on the way.
fn copy(source: &Source<'_>, weight: &Weight, jobs: &[&Job<'_>]) -> Result<()> {
    let data = stored_data(weight)?;
    let (dtype, order) = match (&weight.values, source::plain_dtype(weight)) {
        (Values::Matrix(m), Some(dtype)) => (dtype, m.order()),
        (Values::Tensor(t), _) => (t.dtype, t.order),
        (Values::Matrix(m), None) => (DType::U8, m.order()),
    };
    if matches!(dtype, DType::Ggml(_)) {
        finite::check_blocks(source.model, weight)?;
    }
    let size = dtype.size().unwrap_or(1);
    (0..data.len().div_ceil(COPY)).into_par_iter().try_for_each(|i| {
        let range = i * COPY..((i + 1) * COPY).min(data.len());
        let bytes = &data[range.clone()];
        // First the writing: the kernel copies bytes that lie in this core's cache at half the speed.
        jobs.iter().try_for_each(|job| job.sink.write(0, range.start as u64, bytes))?;
        if let Some(at) = finite::first_stored(dtype, bytes) {
            let value = match dtype.float() {
                Some(ty) => ty.get(bytes, at),
                None => f32::NAN,
            };
            return Err(finite::error(source.model, weight, order, range.start / size + at, value));
        }
        Ok(())
    })
}

/// A weight as rows of f32, in the order of the output. Rows of a tensor of any rank run along its last dimension;
/// of a vector each value is a row.
pub(crate) struct RowsView<'a> {
    /// The weight.
    weight: &'a Weight,
    /// Order of the output's rows.
    pub(crate) order: RowOrder,
    rows: usize,
    /// Input features.
    pub(crate) cols: usize,
    chunk_rows: usize,
}

impl<'a> RowsView<'a> {
    fn new(weight: &'a Weight, order: RowOrder, jobs: &[&Job<'_>]) -> Self {
        Self::with_multiple(weight, order, |cols| {
            jobs.iter().map(|j| j.planned.laid.encoding.row_multiple(cols)).max().unwrap_or(1)
        })
    }

    /// A view whose chunks are multiples of what `multiple` says for the columns.
    pub(crate) fn with_multiple(weight: &'a Weight, order: RowOrder, multiple: impl Fn(usize) -> usize) -> Self {
        let (rows, cols) = match &weight.shape[..] {
            [outer @ .., last] if !outer.is_empty() => (outer.iter().product(), *last),
            _ => (weight.count(), 1),
        };
        let chunk_rows = (CHUNK / cols.max(1)).max(1).next_multiple_of(multiple(cols));
        RowsView { weight, order, rows, cols, chunk_rows }
    }

    /// The chunks, as ranges of output rows.
    pub(crate) fn chunks(&self) -> Vec<Range<usize>> {
        (0..self.rows).step_by(self.chunk_rows).map(|r| r..(r + self.chunk_rows).min(self.rows)).collect()
    }

    /// Decodes output rows `rows` into `out`.
    pub(crate) fn decode(&self, rows: Range<usize>, out: &mut Vec<f32>) {
        out.resize(rows.len() * self.cols, 0.0);
        if self.cols == 0 {
            return;
        }
        match &self.weight.values {
            Values::Tensor(t) if t.order == self.order => decode_values(t, rows.start * self.cols, out),
            Values::Tensor(t) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(self.cols)) {
                    decode_values(t, t.order.stored(self.order.natural(row)) * self.cols, out);
                }
            }
            Values::Matrix(m) => {
                for (row, out) in rows.zip(out.chunks_exact_mut(self.cols)) {
                    m.decode_row(self.order.natural(row), out);
                }
            }
        }
    }
}

/// Decodes `out.len()` values of a tensor from value number `first` on. F64 is rounded to the nearest f32.
fn decode_values(t: &Tensor, first: usize, out: &mut [f32]) {
    let Some(size) = t.dtype.size() else { return };
    let bytes = &t.data[first * size..(first + out.len()) * size];
    if let Some(ty) = t.dtype.float() {
        schemes::decode_floats(ty, bytes, out);
    } else if t.dtype == DType::F64 {
        for (o, b) in out.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *o = f64::from_le_bytes(*b) as f32;
        }
    }
}

/// Runs the first pass that an encoding may need.
pub(crate) fn prepass(view: &RowsView<'_>, encoding: &Encoding) -> Result<Prepass, schemes::Error> {
    if !encoding.needs_prepass() {
        return Ok(Prepass::default());
    }
    let block = if matches!(encoding.codes(), Encoding::Nf4Nested(_)) { nf4::BLOCK } else { view.cols.max(1) };
    let parts: Vec<Vec<f32>> = view
        .chunks()
        .into_par_iter()
        .map(|rows| {
            let mut values = Vec::new();
            view.decode(rows, &mut values);
            values.chunks(block).map(rowmath::absmax).collect()
        })
        .collect();
    encoding.prepass(&parts.concat())
}

fn hash(source: &Source<'_>, name: &str, state: &State) {
    if locked(&state.hashes).contains_key(name) {
        return;
    }
    if let Some(tensor) = source.model.tensors.get(name) {
        let hash = tensor.blake3(name);
        locked(&state.hashes).insert(name.to_string(), hash);
    }
}
