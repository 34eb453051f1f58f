//! Checkpoint in, quantized artifact out: plan, stream, verify.
//!
//! [`Source::plan`] says what becomes of each weight before any work; [`convert`] carries any
//! number of plans out in one pass over the source; [`verify::verify`] re-opens an artifact and
//! compares its decode with the source.

pub mod cli;
mod config;
mod container;
mod cross_check;
mod encode;
mod error;
pub mod layout;
mod plan;
mod rules;
mod source;
mod stream;
pub mod verify;

pub use encode::Encoding;
pub use error::{Error, Misfit, Result};
pub use layout::Layout;
pub use plan::{Plan, PlannedWeight, Settings, Source, Target};
pub use rules::{Recipe, Rules};
pub use source::{Values, Weight};
pub use stream::Errors;

use schemes::Scheme;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use store::Progress;

/// One artifact to make.
#[derive(Debug, Clone)]
pub struct Job {
    /// The scheme.
    pub scheme: Scheme,
    /// Everything else.
    pub settings: Settings,
    /// The GGUF file or the directory to write.
    pub destination: PathBuf,
}

/// One artifact made.
#[derive(Debug)]
pub struct Made {
    /// Where it is.
    pub path: PathBuf,
    /// The plan that was carried out.
    pub plan: Plan,
    /// Bytes of the weight files.
    pub bytes: u64,
    /// What each quantized weight lost.
    pub errors: Errors,
}

/// Makes artifacts in one pass over the source. Nothing appears at a destination until its
/// artifact is whole.
///
/// # Errors
/// Before any work when something doesn't fit ([`Error::Misfits`]), is asked for wrongly, or
/// when an output is the input.
pub fn convert(source: &Source<'_>, jobs: &[Job], progress: &dyn Progress) -> Result<Vec<Made>> {
    let mut wide = HashSet::new();
    loop {
        let plans = plan_all(source, jobs, &wide)?;
        let mut artifacts = Vec::with_capacity(jobs.len());
        for (plan, job) in plans.iter().zip(jobs) {
            artifacts.push(container::prepare(source, plan, job)?);
        }
        let pairs: Vec<_> = plans.iter().zip(&artifacts).collect();
        let overflow = jobs.first().map(|j| j.settings.overflow).unwrap_or_default();
        match stream::pass(source, &pairs, overflow, progress) {
            Ok(passed) => {
                let mut made = Vec::with_capacity(jobs.len());
                for (((artifact, plan), job), errors) in artifacts.into_iter().zip(plans).zip(jobs).zip(passed.errors) {
                    let bytes = artifact.finish(&passed.source_hash)?;
                    made.push(Made { path: job.destination.clone(), plan, bytes, errors });
                }
                return Ok(made);
            }
            Err(stream::Stop::Failed(e)) => return Err(e),
            // Every weight is widened at most once, so this ends.
            Err(stream::Stop::Widen(more)) => wide.extend(more),
        }
    }
}

fn plan_all(source: &Source<'_>, jobs: &[Job], wide: &HashSet<String>) -> Result<Vec<Plan>> {
    let mut plans = Vec::with_capacity(jobs.len());
    for job in jobs {
        let plan = source.plan(job.scheme, &job.settings, wide)?;
        if !plan.misfits.is_empty() {
            return Err(Error::Misfits(plan.misfits));
        }
        plans.push(plan);
    }
    Ok(plans)
}

/// Runs a model over the first `tokens` tokens of a text, in windows of 512, and gives the
/// activation statistics that `int8-outlier` and `w8a8-static` need.
///
/// # Errors
/// When the model has no tokenizer, can't be run, or the text is empty.
pub fn calibrate(
    model: &store::Model,
    text: &str,
    tokens: usize,
    progress: &dyn Progress,
) -> Result<observe::Calibration> {
    let tokenizer = model.tokenizer()?;
    let encoding = tokenizer
        .encode(text, false)
        .map_err(|e| Error::Request(format!("the tokenizer refuses the calibration text: {e}")))?;
    let ids = encoding.get_ids();
    let device = runtime::cpu();
    let transformer = runtime::Transformer::load(model, &device)?;
    Ok(observe::Calibration::collect(&transformer, &ids[..ids.len().min(tokens)], CALIBRATION_WINDOW, progress)?)
}

/// Tokens of one window of calibration text.
const CALIBRATION_WINDOW: usize = 512;

/// Refuses destinations that are, or hold, the source.
///
/// # Errors
/// [`store::Error::SameFile`].
pub fn refuse_source(destination: &Path, source: &Source<'_>) -> Result<()> {
    let mut inputs: Vec<&Path> = vec![&source.model.path];
    inputs.extend(source.model.tensors.values().map(|t| t.file.as_path()));
    inputs.dedup();
    Ok(store::output::refuse_same_file(destination, &inputs)?)
}
