//! The program: arguments in, artifacts out, one report.

mod args;
mod render;

use crate::{Job, Made, Plan, Recipe, Rules, Settings, Source, Target, verify};
use anyhow::{Context, Result, bail};
use args::{Args, OnOverflow, To};
use clap::Parser;
use observe::Calibration;
use schemes::{Overflow, Scheme};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use store::Progress;

/// Runs the program: exit code 0 when all went well, 1 on failure, 2 on wrong usage.
pub fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // A closed pipe while printing help is no failure.
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    let bars = report::progress::Bars::new();
    match run(&args, &bars) {
        Ok(text) => match std::io::stdout().lock().write_all(text.as_bytes()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                fail(&anyhow::Error::from(e).context("cannot print the result"))
            }
            _ => ExitCode::SUCCESS,
        },
        Err(e) => {
            bars.finish();
            fail(&e)
        }
    }
}

fn fail(e: &anyhow::Error) -> ExitCode {
    let usage = matches!(e.downcast_ref::<crate::Error>(), Some(crate::Error::Request(_))) || e.is::<Usage>();
    let _ = writeln!(std::io::stderr(), "qconvert: {}", report::error_line(e.as_ref()));
    ExitCode::from(if usage { 2 } else { 1 })
}

/// A mistake on the command line that clap can't see.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Usage(String);

fn run(args: &Args, progress: &dyn Progress) -> Result<String> {
    let schemes = schemes(args)?;
    let recipe = args.recipe.as_deref().map(read_recipe).transpose()?;
    let rules = Rules::new(&args.include, &args.exclude, recipe)?;
    let model = store::open(&args.model)?;
    let source = Source::new(&model)?;
    let mut settings = Settings::new(if args.to == To::Gguf { Target::Gguf } else { Target::Safetensors });
    settings.layout = args.layout;
    settings.max_shard = args.max_shard_size;
    settings.overflow = if args.overflow == OnOverflow::Clamp { Overflow::Clamp } else { Overflow::Error };
    settings.rules = rules;
    if args.dry_run && args.calibration_text.is_some() {
        bail!(Usage("--dry-run does no work: give --calibration FILE instead of --calibration-text".into()));
    }
    let jobs = jobs(args, &schemes, &settings, &source)?;
    if let Some(calibration) = calibration(args, &model, progress)? {
        settings.calibration = Some(calibration);
    }
    let jobs: Vec<Job> =
        jobs.into_iter().map(|(scheme, destination)| Job { scheme, settings: settings.clone(), destination }).collect();
    if args.dry_run {
        return dry_run(args, &source, &jobs);
    }
    let made = crate::convert(&source, &jobs, progress)?;
    if args.verify {
        for m in &made {
            verify::verify(&m.path, &source, &m.plan, settings.overflow, progress)
                .with_context(|| format!("verifying {}", m.path.display()))?;
        }
    }
    Ok(present(args, &source, &made))
}

fn present(args: &Args, source: &Source<'_>, made: &[Made]) -> String {
    let warnings = &source.model.warnings;
    if args.json {
        render::made_json(source, made, args.verify, warnings)
    } else {
        render::made_table(source, made, args.verify, warnings)
    }
}

fn schemes(args: &Args) -> Result<Vec<Scheme>> {
    let mut out: Vec<Scheme> = Vec::new();
    for name in &args.scheme {
        let more = if name == "all" {
            Scheme::all()
        } else {
            vec![name.parse().map_err(|e: schemes::Error| Usage(e.to_string()))?]
        };
        out.extend(more.into_iter().filter(|s| !out.contains(s)).collect::<Vec<_>>());
    }
    if out.is_empty() {
        match (args.to, &args.recipe) {
            (To::Hf, _) => out.push(Scheme::Float(schemes::FloatType::F16)),
            (_, Some(path)) => out.extend(read_recipe(path)?.default),
            _ => {}
        }
    }
    if out.is_empty() {
        bail!(Usage(
            "name a scheme: --scheme int8-row, --scheme int4-g128,nf4, --scheme all (or a recipe with a default)"
                .into()
        ));
    }
    Ok(out)
}

fn read_recipe(path: &Path) -> Result<Recipe> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read the recipe {}", path.display()))?;
    Recipe::parse(&text).with_context(|| path.display().to_string())
}

/// The schemes with their destinations; refuses those that are the source.
fn jobs(args: &Args, schemes: &[Scheme], settings: &Settings, source: &Source<'_>) -> Result<Vec<(Scheme, PathBuf)>> {
    let mut jobs = Vec::with_capacity(schemes.len());
    for &scheme in schemes {
        // A plan without calibration says early what can't work at all.
        if !scheme.needs_calibration() {
            let plan = source.plan(scheme, settings, &Default::default())?;
            if !plan.misfits.is_empty() && !args.dry_run {
                bail!(crate::Error::Misfits(plan.misfits));
            }
        } else if args.calibration.is_none() && args.calibration_text.is_none() {
            bail!(Usage(format!(
                "{scheme} needs activation statistics: give --calibration-text FILE or --calibration FILE"
            )));
        }
        let output = args.output.clone().unwrap_or_default();
        let destination = match (schemes.len(), args.to) {
            (1, _) => output,
            (_, To::Gguf) => output.join(format!("{scheme}.gguf")),
            _ => output.join(scheme.to_string()),
        };
        if !args.dry_run {
            crate::refuse_source(&destination, source)?;
        }
        jobs.push((scheme, destination));
    }
    if schemes.len() > 1 && !args.dry_run {
        let output = args.output.as_deref().unwrap_or(Path::new("."));
        crate::refuse_source(output, source)?;
        std::fs::create_dir_all(output).with_context(|| format!("cannot create {}", output.display()))?;
    }
    Ok(jobs)
}

fn calibration(args: &Args, model: &store::Model, progress: &dyn Progress) -> Result<Option<Calibration>> {
    if let Some(path) = &args.calibration {
        return Ok(Some(Calibration::load(path)?));
    }
    let Some(path) = &args.calibration_text else { return Ok(None) };
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    crate::calibrate(model, &text, args.calibration_tokens, progress)
        .with_context(|| format!("calibrating on {}", path.display()))
        .map(Some)
}

fn dry_run(args: &Args, source: &Source<'_>, jobs: &[Job]) -> Result<String> {
    let plans: Vec<Plan> =
        jobs.iter().map(|j| source.plan(j.scheme, &j.settings, &Default::default())).collect::<crate::Result<_>>()?;
    Ok(if args.json { render::plans_json(source, &plans) } else { render::plans_table(source, &plans) })
}
