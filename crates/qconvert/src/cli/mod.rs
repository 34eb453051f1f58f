//! The program: arguments in, artifacts out, one report.

mod args;
mod jobs;
mod render;

use crate::{Job, Made, Source};
use anyhow::{Context, Result};
use args::Args;
use candle_core::Device;
use jobs::{Request, Wanted};
use observe::Calibration;
use runtime::{Math, Options};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use store::Progress;

/// Runs the program: exit code 0 when all went well, 1 on failure, 2 on wrong usage.
pub fn main() -> ExitCode {
    let args = match report::arguments::<Args>() {
        Ok(args) => args,
        Err(code) => return code,
    };
    let bars = report::progress::Bars::new();
    let done = runtime::instruction_set().map_err(Into::into).and_then(|_| run(&args, &bars));
    match done {
        Ok(Outcome { text, error }) => match (report::print_result(&text), error) {
            (Ok(()), None) => ExitCode::SUCCESS,
            (Ok(()), Some(e)) => fail(&e),
            (Err(e), _) => fail(&anyhow::Error::from(e).context("cannot print the result")),
        },
        Err(e) => {
            bars.finish();
            fail(&e)
        }
    }
}

fn fail(e: &anyhow::Error) -> ExitCode {
    let usage = matches!(e.downcast_ref::<crate::Error>(), Some(crate::Error::Request(_)))
        || e.downcast_ref().is_some_and(runtime::Error::is_usage)
        || e.is::<Usage>();
    let _ = writeln!(std::io::stderr(), "qconvert: {}", report::error_line(e.as_ref()));
    ExitCode::from(if usage { 2 } else { 1 })
}

/// A mistake on the command line that clap can't see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

/// What goes to standard output, and what went wrong.
struct Outcome {
    text: String,
    error: Option<anyhow::Error>,
}

/// Runs a conversion, or rehearses it: both go the same way, and only the last step differs. So a dry
/// run fails as the conversion would.
fn run(args: &Args, progress: &dyn Progress) -> Result<Outcome> {
    let request = jobs::request(args)?;
    let model = store::open(&args.model)?;
    let mut source = Source::new(&model)?;
    let (wanted, obstacle) = jobs::wanted(args, &request, &source)?;
    match obstacle {
        Some(e) if args.dry_run => {
            let rows: Vec<_> = wanted.iter().map(|w| unfinished(args, &request, w)).collect();
            return Ok(Outcome { text: plans(args, &source, &rows), error: Some(e) });
        }
        Some(e) => return Err(e),
        None => {}
    }
    let jobs = ready(args, request, &model, &mut source, wanted, progress)?;
    let folder = jobs::Folder::make(args, jobs.len(), &source)?;
    let text = if args.dry_run {
        let rehearsed = crate::rehearse(&source, &jobs, progress)?;
        let rows: Vec<_> =
            rehearsed.iter().map(|plan| render::Dry { plan, uncalibrated: false, needs_calibration: false }).collect();
        plans(args, &source, &rows)
    } else {
        present(args, &source, &crate::convert(&source, &jobs, progress)?)
    };
    drop(folder);
    Ok(Outcome { text, error: None })
}

/// A plan that can't be carried out as it is.
fn unfinished<'a>(args: &Args, request: &Request, wanted: &'a Wanted) -> render::Dry<'a> {
    let uncalibrated =
        request.settings.calibration.is_none() && jobs::needs_calibration(wanted.scheme, &request.settings);
    let needs_calibration = uncalibrated && args.calibration_text.is_none();
    render::Dry { plan: &wanted.plan, uncalibrated, needs_calibration }
}

/// The jobs with all that they need: a device, and statistics of activations.
fn ready(
    args: &Args,
    request: Request,
    model: &store::Model,
    source: &mut Source<'_>,
    wanted: Vec<Wanted>,
    progress: &dyn Progress,
) -> Result<Vec<Job>> {
    let place = runtime::place(&args.compute.place.device, &args.compute.dtype, Math::Exact)?;
    let mut settings = request.settings;
    settings.verify_on = Some(place.0.clone()).filter(|device| args.verify && !device.is_cpu());
    if let Some(path) = &args.calibration_text {
        settings.calibration = Some(calibrate(args, path, model, &place, progress)?);
    }
    if let Some(few) = settings.calibration.as_ref().filter(|c| c.tokens < FEW_TOKENS) {
        source.warnings.push(format!(
            "the calibration saw {} tokens, too few to find outliers by: use {FEW_TOKENS} at the very least",
            few.tokens
        ));
    }
    let existing = args.overwrite.existing();
    let job = |w: Wanted| Job { scheme: w.scheme, settings: settings.clone(), destination: w.destination, existing };
    Ok(wanted.into_iter().map(job).collect())
}

/// Fewer tokens of calibration than this get a warning.
const FEW_TOKENS: usize = 128;

fn present(args: &Args, source: &Source<'_>, made: &[Made]) -> String {
    if args.json { render::made_json(source, made) } else { render::made_table(source, made) }
}

fn calibrate(
    args: &Args,
    path: &Path,
    model: &store::Model,
    (device, options): &(Device, Options),
    progress: &dyn Progress,
) -> Result<Calibration> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    crate::calibrate(model, &text, args.calibration_tokens, (device, options), progress)
        .with_context(|| format!("calibrating on {}", path.display()))
}

/// Shows plans.
fn plans(args: &Args, source: &Source<'_>, rows: &[render::Dry<'_>]) -> String {
    if args.json { render::plans_json(source, rows) } else { render::plans_table(source, rows) }
}
