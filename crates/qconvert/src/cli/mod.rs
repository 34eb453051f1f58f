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
    match run(&args, &bars) {
        Ok((text, code)) => match report::print_result(&text) {
            Ok(()) => code,
            Err(e) => fail(&anyhow::Error::from(e).context("cannot print the result")),
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

fn run(args: &Args, progress: &dyn Progress) -> Result<(String, ExitCode)> {
    let request = jobs::request(args)?;
    let model = store::open(&args.model)?;
    let mut source = Source::new(&model)?;
    let wanted = jobs::wanted(args, &request, &source)?;
    let place = runtime::place(&args.compute.place.device, &args.compute.dtype, Math::Exact)?;
    if args.dry_run {
        return dry_run(args, &request, &source, &wanted);
    }
    let mut settings = request.settings;
    settings.verify_on = Some(place.0.clone()).filter(|device| args.verify && !device.is_cpu());
    if let Some(path) = &args.calibration_text {
        settings.calibration = Some(calibrate(args, path, &model, &place, progress)?);
    }
    if let Some(few) = settings.calibration.as_ref().filter(|c| c.tokens < FEW_TOKENS) {
        source.warnings.push(format!(
            "the calibration saw {} tokens, too few to find outliers by: use {FEW_TOKENS} at the very least",
            few.tokens
        ));
    }
    let folder = jobs::Folder::make(args, wanted.len(), &source)?;
    let jobs: Vec<Job> = wanted
        .into_iter()
        .map(|w| Job { scheme: w.scheme, settings: settings.clone(), destination: w.destination })
        .collect();
    let made = crate::convert(&source, &jobs, progress)?;
    drop(folder);
    Ok((present(args, &source, &made), ExitCode::SUCCESS))
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

/// Shows the plans; the code is 1 where one doesn't fit, as it is of the conversion. The model is not
/// run: what a calibration would add is said to be missing.
fn dry_run(args: &Args, request: &Request, source: &Source<'_>, wanted: &[Wanted]) -> Result<(String, ExitCode)> {
    if let Some(path) = &args.calibration_text {
        std::fs::metadata(path).with_context(|| format!("cannot read {}", path.display()))?;
    }
    let mut rows = Vec::with_capacity(wanted.len());
    for w in wanted {
        crate::container::check(source, &w.plan, &request.settings)?;
        let calibration = match (jobs::needs_calibration(w.scheme, &request.settings), args) {
            (false, _) | (_, Args { calibration: Some(_), .. }) => render::Statistics::Known,
            (_, Args { calibration_text: Some(_), .. }) => render::Statistics::NotRun,
            _ => render::Statistics::Needed,
        };
        rows.push(render::Dry { plan: &w.plan, calibration });
    }
    let fit = rows.iter().all(|r| r.plan.misfits.is_empty());
    let text = if args.json { render::plans_json(source, &rows) } else { render::plans_table(source, &rows) };
    Ok((text, ExitCode::from(u8::from(!fit))))
}
