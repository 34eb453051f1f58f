//! Re-opens an artifact and compares what it decodes to, bit for bit, with what the scheme's definition makes of the source.

use crate::config::HASH_KEY;
use crate::container::{Beside, Finished};
use crate::encode::Encoding;
use crate::error::{Error, Result};
use crate::layout::{Content, Layout, OutTensor};
use crate::plan::{Plan, PlannedWeight, Settings, Source};
use crate::reference::{self, Rows};
use crate::source::{Values, Weight};
use candle_core::Device;
use indexmap::IndexMap;
use progress::{Progress, Unit};
use rayon::prelude::*;
use schemes::{Matrix, Overflow};
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use store::output::provenance::SEAL_KEY;
use store::{Model, Tensor, gguf};

/// Results of a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verified {
    /// Weights compared.
    pub weights: usize,
    /// Values compared.
    pub values: u64,
}

/// Compares a finished artifact with everything that was to be written: the weights, the
/// metadata in their order, and every file that travels along, byte for byte.
pub(crate) fn finished(
    artifact: &Finished,
    source: &Source<'_>,
    plan: &Plan,
    settings: &Settings,
    source_hash: &str,
    progress: &dyn Progress,
) -> Result<()> {
    let path = artifact.path();
    verify(path, source, plan, settings, progress)?;
    match &artifact.beside {
        Beside::Gguf { metadata, extra, first } => {
            let first = first.as_ref().map(|name| path.join(name));
            gguf_beside(path, first.as_deref().unwrap_or(path), metadata, extra, source_hash)
        }
        Beside::Directory(metadata, texts) => directory_beside(path, source, metadata, texts, source_hash),
    }
}

fn gguf_beside(
    path: &Path,
    first: &Path,
    metadata: &[(String, gguf::Value)],
    extra: &[gguf::ExtraTensor],
    source_hash: &str,
) -> Result<()> {
    let differs = |what: String| Err(Error::CrossCheck { path: path.into(), what });
    let bytes = store::Bytes::map(first)?;
    let mut written = gguf::parse(first, &bytes)?;
    // It is of the header as it is, and no part of what was planned.
    written.metadata.shift_remove(SEAL_KEY);
    if written.metadata.len() != metadata.len() {
        return differs(format!("has {} keys, {} were to be written", written.metadata.len(), metadata.len()));
    }
    let hash = gguf::Value::from(source_hash);
    for (i, ((key, value), (found, its))) in metadata.iter().zip(&written.metadata).enumerate() {
        if key != found {
            return differs(format!("key {i} is {found}, {key} was to be written"));
        }
        let value = if key == HASH_KEY { &hash } else { value };
        if value != its {
            return differs(format!("the value of key {key} is not what was to be written"));
        }
    }
    if extra.is_empty() {
        return Ok(());
    }
    let artifact = store::open(path)?;
    for tensor in extra {
        let values: Vec<u8> = tensor.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        if artifact.tensors.get(&tensor.name).map(|t| &t.data[..]) != Some(&values[..]) {
            return differs(format!("tensor {} is not what was to be written", tensor.name));
        }
    }
    Ok(())
}

fn directory_beside(
    path: &Path,
    source: &Source<'_>,
    metadata: &IndexMap<String, String>,
    texts: &[(String, String)],
    source_hash: &str,
) -> Result<()> {
    let artifact = store::open(path)?;
    for (key, value) in metadata {
        let value = if key == HASH_KEY { source_hash } else { value };
        if artifact.metadata.get(key).map(String::as_str) != Some(value) {
            let what = format!("metadata {key} is not what was to be written");
            return Err(Error::CrossCheck { path: path.into(), what });
        }
    }
    let side_files = source.model.side_files.iter().map(|f| (f.name.as_str(), &f.data[..]));
    // A file made for the artifact replaces one of that name.
    let side_files = side_files.filter(|(name, _)| !texts.iter().any(|t| t.0 == *name));
    for (name, data) in side_files.chain(texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes()))) {
        let file = path.join(name);
        if *store::Bytes::map(&file)? != *data {
            return Err(Error::CrossCheck { path: file, what: "is not what was to be written".into() });
        }
    }
    Ok(())
}

/// Compares the weights of the artifact at `path` with the source that `plan` encoded.
///
/// # Errors
/// [`Error::Verify`] with the first value that differs, or [`Error::CrossCheck`] when an
/// independent GGUF reader sees other tensors.
pub fn verify(
    path: &Path,
    source: &Source<'_>,
    plan: &Plan,
    settings: &Settings,
    progress: &dyn Progress,
) -> Result<Verified> {
    let artifact = store::open(path)?;
    if artifact.container == store::Container::Gguf {
        let files: BTreeSet<&Path> = artifact.tensors.values().map(|t| t.file.as_path()).collect();
        files.into_iter().try_for_each(crate::cross_check::gguf)?;
    }
    let total = source.weights.iter().map(|w| w.stored_bytes() as u64).sum();
    progress.start("verifying", Some(total), Unit::Bytes);
    let by_name = artifact.tensors.values().map(|t| (t.stored_name.as_str(), t)).collect();
    let mut values = 0;
    for planned in &plan.weights {
        let weight = &source.weights[planned.index];
        let written = compare(weight, planned, (&artifact, &by_name), settings.overflow)?;
        if let (Some(device), Values::Matrix(matrix)) = (&settings.verify_on, &written.values) {
            on_device(device, &weight.name, matrix)?;
        }
        weight.release();
        values += weight.count() as u64;
        progress.advance(weight.stored_bytes() as u64);
    }
    progress.finish();
    Ok(Verified { weights: plan.weights.len(), values })
}

/// Compares what the artifact's weight decodes to on a device with what it is on the CPU.
fn on_device(device: &Device, weight: &str, matrix: &Matrix<store::Bytes>) -> Result<()> {
    match runtime::measure::difference(device, matrix)? {
        None => Ok(()),
        Some(d) => {
            Err(Error::Verify { weight: weight.into(), row: d.row, col: d.col, found: d.found, expected: d.expected })
        }
    }
}

/// The tensors of an artifact by their names in its files.
type ByName<'a> = HashMap<&'a str, &'a Tensor>;

/// Compares a weight with the artifact's, which it gives.
fn compare(
    weight: &Weight,
    planned: &PlannedWeight,
    (artifact, by_name): (&Model, &ByName<'_>),
    overflow: Overflow,
) -> Result<Weight> {
    let encoding = &planned.laid.encoding;
    let tensors = planned.laid.tensors.iter();
    let stored: Vec<&Tensor> = tensors.map(|t| stored(t, weight, artifact, by_name)).collect::<Result<_>>()?;
    let written = written(weight, planned, stored.first().copied(), artifact)?;
    if let (Encoding::Copy, &[tensor]) = (encoding, &stored[..]) {
        let differs = || store::Error::tensor(&tensor.file, &weight.name, "is not what the source stores");
        return if reference::same_bytes(weight, tensor) { Ok(written) } else { Err(differs().into()) };
    }
    let (ours, theirs) = (Rows::new(weight, planned.order), Rows::new(&written, planned.order));
    let whole = reference::whole(&ours, encoding);
    reference::chunks(&ours, encoding).into_par_iter().try_for_each(|rows| {
        let (values, found) = (ours.read(rows.clone()), theirs.read(rows.clone()));
        let expected = reference::expected(weight, encoding, (rows.start, ours.cols), &values, &whole, overflow)?;
        let differs = |(e, f): (&f32, &f32)| e.to_bits() != f.to_bits() && !(e.is_nan() && f.is_nan());
        let first = expected.iter().zip(&found).position(differs);
        let first = first.or_else(|| (!reference::is_near(encoding, &values, &found)).then_some(0));
        first.map_or(Ok(()), |i| {
            let cols = ours.cols;
            let (row, col) = (planned.order.natural(rows.start + i / cols), i % cols);
            Err(Error::Verify { weight: weight.name.clone(), row, col, found: found[i], expected: expected[i] })
        })
    })?;
    Ok(written)
}

/// The tensor of the artifact that was planned, with the planned type, shape and, where they were known, bytes.
fn stored<'a>(planned: &OutTensor, weight: &Weight, artifact: &Model, by_name: &ByName<'a>) -> Result<&'a Tensor> {
    let bad = |what: String| store::Error::tensor(&artifact.path, &planned.name, what);
    let found = by_name.get(planned.name.as_str()).copied();
    let found = found.ok_or_else(|| bad(format!("of {} is missing from the artifact", weight.name)))?;
    if (found.dtype, &found.shape) != (planned.dtype, &planned.shape) {
        return Err(bad(format!(
            "is {} {:?} in the artifact, {} {:?} was to be written",
            found.dtype, found.shape, planned.dtype, planned.shape
        ))
        .into());
    }
    match &planned.content {
        Content::Constant(bytes) if found.data[..] != bytes[..] => {
            Err(bad("is not what was to be written".into()).into())
        }
        _ => Ok(found),
    }
}

/// The weight as a reader of the artifact sees it: of one plain tensor the tensor itself, else the
/// matrix that the layout's tensors make.
fn written(weight: &Weight, planned: &PlannedWeight, first: Option<&Tensor>, artifact: &Model) -> Result<Weight> {
    let bad = |what: &str| store::Error::tensor(&artifact.path, &weight.name, what);
    let values = match (planned.laid.layout, first) {
        (Layout::Plain, Some(tensor)) => Values::Tensor(tensor.clone()),
        _ => Values::Matrix(artifact.linear(weight.module())?.matrix),
    };
    if let Values::Matrix(matrix) = &values
        && [matrix.rows(), matrix.cols()] != weight.shape[..]
    {
        return Err(bad("has another shape in the artifact").into());
    }
    Ok(Weight { values, ..weight.clone() })
}
