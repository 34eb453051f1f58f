//! Checkpoint in, quantized artifact out: plan, stream, verify.
//!
//! [`Source::plan`] says what becomes of each weight before any work; [`convert`] carries any
//! number of plans out in one pass over the source, and verifies what it wrote before putting it
//! in place where [`Settings::verify`] says so.

mod artifact_checks;
mod completeness;
mod config;
mod container;
mod cross_check;
mod encode;
#[cfg(test)]
mod encoder_mutations;
mod error;
mod finite;
pub mod layout;
mod loaders;
mod mix;
mod plan;
mod reference;
pub mod roles;
mod rules;
mod source;
mod stream;
pub mod verify;
mod wording;

pub use completeness::check as check_whole;
pub use container::check as check_destination;
pub use encode::Encoding;
pub use error::{Error, Misfit, Result};
pub use layout::Layout;
pub use mix::{Choice, Mix};
pub use plan::{Plan, PlannedWeight, Settings, Source, Target};
pub use rules::{Recipe, Rules};
pub use source::{Values, Weight};
pub use stream::{Errors, Losses};
pub use wording::counted;

use candle_core::Device;
use progress::Progress;
use runtime::Options;
use schemes::Scheme;
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use store::output::Existing;
use store::{Bos, Cut};

/// One artifact to make.
#[derive(Debug, Clone)]
pub struct Job {
    /// The scheme.
    pub scheme: Scheme,
    /// Everything else.
    pub settings: Settings,
    /// The GGUF file or the directory to write.
    pub destination: PathBuf,
    /// Treatment of a destination that exists.
    pub existing: Existing,
}

/// One artifact made.
#[derive(Debug)]
pub struct Made {
    /// Path of the artifact.
    pub path: PathBuf,
    /// The plan that was carried out.
    pub plan: Plan,
    /// Bytes of the weight files.
    pub bytes: u64,
    /// Errors of the artifact's weights.
    pub losses: Losses,
    /// True if the artifact was verified.
    pub verified: bool,
}

/// Makes artifacts in one pass over the source. Nothing appears at a destination until every
/// artifact is whole and, where the job says so, verified.
///
/// # Errors
/// Before any work when something doesn't fit ([`Error::Misfits`]), is asked for wrongly, or
/// when an output is the input. After it, [`Error::Unverified`].
pub fn convert(source: &Source<'_>, jobs: &[Job], progress: &dyn Progress) -> Result<Vec<Made>> {
    let Encoded { plans, artifacts, passed } = encode_all(source, jobs, container::prepare, progress)?;
    put_in_place(source, jobs, plans, artifacts, passed, progress)
}

/// Does all that [`convert`] does but write: plans, checks the destinations, reserves room there for
/// as long as it takes, reads and encodes every weight. A job with an empty destination has none that
/// could be checked. Gives the plans that would be carried out.
///
/// # Errors
/// As [`convert`], except for what only the writing, `verify` and the final renaming can find.
pub fn rehearse(source: &Source<'_>, jobs: &[Job], progress: &dyn Progress) -> Result<Vec<Plan>> {
    Ok(encode_all(source, jobs, container::rehearse, progress)?.plans)
}

/// Results of a pass over the source.
struct Encoded {
    plans: Vec<Plan>,
    artifacts: Vec<container::Artifact>,
    passed: stream::Passed,
}

/// Plans every job, prepares its files and encodes every weight.
fn encode_all(
    source: &Source<'_>,
    jobs: &[Job],
    prepare: impl Fn(&Source<'_>, &Plan, &Job) -> Result<container::Artifact>,
    progress: &dyn Progress,
) -> Result<Encoded> {
    let mut wide = HashSet::new();
    loop {
        let plans = plan_all(source, jobs, &wide)?;
        let mut artifacts = Vec::with_capacity(jobs.len());
        for (plan, job) in plans.iter().zip(jobs) {
            artifacts.push(prepare(source, plan, job)?);
        }
        let parts = plans.iter().zip(&artifacts).zip(jobs);
        let parts: Vec<_> = parts.map(|((plan, artifact), job)| (plan, artifact, job.settings.overflow)).collect();
        match stream::pass(source, &parts, progress) {
            Ok(passed) => return Ok(Encoded { plans, artifacts, passed }),
            Err(stream::Stop::Failed(e)) => return Err(e),
            // Every weight is widened at most once, since a layout without f32 scales refuses it: this ends.
            Err(stream::Stop::Widen(more)) => wide.extend(more),
        }
    }
}

/// Finishes and verifies every artifact, then puts all of them in place.
fn put_in_place(
    source: &Source<'_>,
    jobs: &[Job],
    plans: Vec<Plan>,
    artifacts: Vec<container::Artifact>,
    passed: stream::Passed,
    progress: &dyn Progress,
) -> Result<Vec<Made>> {
    let mut finished = Vec::with_capacity(jobs.len());
    for ((artifact, plan), job) in artifacts.into_iter().zip(&plans).zip(jobs) {
        let artifact = artifact.finish(&passed.source_hash)?;
        if job.settings.verify {
            verify::finished(&artifact, source, plan, &job.settings, &passed.source_hash, progress)
                .map_err(|e| Error::Unverified { path: job.destination.clone(), source: Box::new(e) })?;
        }
        finished.push(artifact);
    }
    let mut made = Vec::with_capacity(jobs.len());
    for (((mut artifact, mut plan), job), losses) in finished.into_iter().zip(plans).zip(jobs).zip(passed.losses) {
        plan.notes.append(&mut artifact.notes);
        let (path, verified) = (job.destination.clone(), job.settings.verify);
        made.push(Made { path, plan, bytes: artifact.persist()?, losses, verified });
    }
    Ok(made)
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

/// Runs a model over the first `tokens` tokens of a text and gives the activation statistics that `int8-outlier` and
/// `w8a8-static` need. Sequences have [`Cut::CTX`] positions and begin with BOS where the tokenizer adds one, as
/// qinspect's do. The last bits of the statistics depend on the device.
///
/// # Errors
/// When the model has no tokenizer, can't be run, or the text is empty.
pub fn calibrate(
    model: &store::Model,
    text: &str,
    tokens: usize,
    (device, options): (&Device, &Options),
    progress: &dyn Progress,
) -> Result<observe::Calibration> {
    let sequences = calibration_sequences(model, text, tokens)?;
    let transformer = runtime::Transformer::load_with(model, device, options)?;
    Ok(observe::Calibration::collect(&transformer, &sequences, progress)?)
}

/// The sequences that [`calibrate`] runs.
///
/// # Errors
/// When the model has no tokenizer, or it refuses the text.
pub fn calibration_sequences(model: &store::Model, text: &str, tokens: usize) -> Result<Vec<Vec<u32>>> {
    let tokenizer = model.text_tokenizer()?;
    let ids = tokenizer.encode(text);
    let ids = ids.map_err(|e| Error::Request(format!("the tokenizer refuses the calibration text: {e}")))?;
    let cut = Cut { tokens, ctx: Cut::CTX, bos: Bos::Auto };
    Ok(cut.sequences(&ids, tokenizer.bos()))
}

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
