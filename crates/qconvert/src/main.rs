//! `qconvert`: turns a checkpoint into quantized artifacts.

mod args;
mod jobs;
mod json;
mod render;

use anyhow::{Context, Result};
use args::Args;
use candle_core::Device;
use cli::{Outcome, Provenance};
use conversion::{Job, Made, Settings, Source};
use jobs::{Request, Wanted};
use observe::Calibration;
use progress::Progress;
use runtime::{Math, Options};
use schemes::Scheme;
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run("qconvert", |args: &Args, bars| run(args, bars))
}

/// Runs a conversion, or rehearses it: both go the same way, and only the last step differs. So a dry
/// run fails as the conversion would.
fn run(args: &Args, progress: &dyn Progress) -> Result<Outcome> {
    args.json.check(args.overwrite, &[&args.model])?;
    let request = jobs::request(args)?;
    let model = store::open(&args.model)?;
    let mut source = Source::new(&model)?;
    if args.scheme.iter().any(|name| name == "all") {
        source.warnings.push(Scheme::all_note());
    }
    let (wanted, obstacle) = jobs::wanted(args, &request, &source)?;
    match obstacle {
        Some(e) if args.dry_run => {
            let rows: Vec<_> = wanted.iter().map(|w| unfinished(args, &request, w)).collect();
            return Ok(Outcome { error: Some(e), ..plans(args, &source, &rows)?.into() });
        }
        Some(e) => return Err(e),
        None => {}
    }
    let jobs = ready(args, request, &model, &mut source, wanted, progress)?;
    let folder = jobs::Folder::make(args, jobs.len(), &source)?;
    let text = if args.dry_run {
        let rehearsed = conversion::rehearse(&source, &jobs, progress)?;
        let rows: Vec<_> =
            rehearsed.iter().map(|plan| render::Dry { plan, uncalibrated: false, needs_calibration: false }).collect();
        plans(args, &source, &rows)?
    } else {
        present(args, &source, &conversion::convert(&source, &jobs, progress)?)?
    };
    drop(folder);
    Ok(text.into())
}

/// A plan that can't be carried out as it is.
fn unfinished<'a>(args: &Args, request: &Request, wanted: &'a Wanted) -> render::Dry<'a> {
    let uncalibrated =
        request.settings.calibration.is_none() && jobs::needs_calibration(wanted.choice.scheme, &request.settings);
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
    let place = runtime::device_and_options(&args.compute.place.device, &args.compute.dtype, Math::Exact)?;
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
    let job = |w: Wanted| {
        let settings = Settings { mix: w.choice.mix, ..settings.clone() };
        Job { scheme: w.choice.scheme, settings, destination: w.destination, existing }
    };
    Ok(wanted.into_iter().map(job).collect())
}

/// Fewer tokens of calibration than this get a warning.
const FEW_TOKENS: usize = 128;

fn present(args: &Args, source: &Source<'_>, made: &[Made]) -> Result<String> {
    emit(args, || json::made(source, made), || render::made_table(source, made))
}

/// The result as JSON where that is asked for, else as text.
fn emit(args: &Args, json: impl FnOnce() -> json::Converted, text: impl FnOnce() -> String) -> Result<String> {
    let provenance = Provenance::default()
        .model("source", &args.model)
        .files("recipe", &args.recipe)
        .files("calibration", &args.calibration)
        .files("calibration text", &args.calibration_text);
    args.json.emit(("qconvert", &provenance, args.overwrite), || Ok(serde_json::to_value(json())?), || Ok(text()))
}

fn calibrate(
    args: &Args,
    path: &Path,
    model: &store::Model,
    (device, options): &(Device, Options),
    progress: &dyn Progress,
) -> Result<Calibration> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    conversion::calibrate(model, &text, args.calibration_tokens, (device, options), progress)
        .with_context(|| format!("calibrating on {}", path.display()))
}

/// The plans of a dry run, to be shown.
fn plans(args: &Args, source: &Source<'_>, rows: &[render::Dry<'_>]) -> Result<String> {
    emit(args, || json::planned(source, rows), || render::plans_table(source, rows))
}
