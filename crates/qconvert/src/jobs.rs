//! Artifacts that the arguments ask for, and their destinations.

use super::args::{Args, To};
use anyhow::{Context, Error, Result, bail};
use cli::Usage;
use conversion::{Choice, Plan, Recipe, Rules, Settings, Source, Target};
use observe::Calibration;
use schemes::{Overflow, Scheme};
use std::path::{Path, PathBuf};

/// Request, before a model is looked at.
pub struct Request {
    /// The schemes and mixtures, each for one artifact.
    pub schemes: Vec<Choice>,
    /// Everything else.
    pub settings: Settings,
}

/// Reads the arguments, and the recipe that they name.
pub fn request(args: &Args) -> Result<Request> {
    let recipe = args.recipe.as_deref().map(read_recipe).transpose()?;
    let schemes = schemes(args, recipe.as_ref())?;
    let mut settings = Settings::new(if args.to == To::Gguf { Target::Gguf } else { Target::Safetensors });
    settings.layout = args.layout;
    settings.emulate = args.emulate;
    settings.max_shard = args.max_shard_size;
    settings.overflow = if args.overflow == super::args::OnOverflow::Clamp { Overflow::Clamp } else { Overflow::Error };
    settings.rules = Rules::new(&args.include, &args.exclude, recipe)?;
    settings.verify = args.verify;
    settings.calibration = args.calibration.as_deref().map(Calibration::load).transpose()?;
    Ok(Request { schemes, settings })
}

fn schemes(args: &Args, recipe: Option<&Recipe>) -> Result<Vec<Choice>> {
    let default = recipe.and_then(|r| r.default);
    if let (Some(default), Some(path), [first, ..]) = (default, &args.recipe, &args.scheme[..]) {
        bail!(Usage(format!(
            "{} has default = \"{default}\", and --scheme {first} would be another: drop --scheme, or the default",
            path.display()
        )));
    }
    let mut out: Vec<Choice> = Vec::new();
    let mut named: Vec<Choice> = Vec::new();
    for name in &args.scheme {
        if name == "all" {
            out.extend(Scheme::all().into_iter().map(Choice::from).filter(|s| !out.contains(s)).collect::<Vec<_>>());
            continue;
        }
        let scheme: Choice = name.parse().map_err(|e: conversion::Error| Usage(e.to_string()))?;
        if named.contains(&scheme) {
            bail!(Usage(format!("--scheme names {scheme} twice: name it once")));
        }
        named.push(scheme);
        if !out.contains(&scheme) {
            out.push(scheme);
        }
    }
    if out.is_empty() {
        let float = (args.to == To::Hf).then_some(Scheme::Float(schemes::FloatType::F16));
        out.extend(default.or(float).map(Choice::from));
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
    Ok(Recipe::parse(&path.file_name().unwrap_or_default().to_string_lossy(), &text)?)
}

/// An artifact to make, and the plan that says early what can't work.
pub struct Wanted {
    /// The scheme or the mixture.
    pub choice: Choice,
    /// Plan of the artifact, as if no column were an outlier where the statistics that tell are not there yet.
    pub plan: Plan,
    /// Destination of the artifact.
    pub destination: PathBuf,
}

/// Plans every scheme, before a calibration is run. What keeps the plans from being carried out comes
/// with them, so that a dry run can show them beside it.
pub fn wanted(args: &Args, request: &Request, source: &Source<'_>) -> Result<(Vec<Wanted>, Option<Error>)> {
    let mut obstacle = None;
    match plan_all(args, request, source, &mut obstacle) {
        Ok(wanted) => Ok((wanted, obstacle)),
        // What was found first is said.
        Err(e) => Err(obstacle.unwrap_or(e)),
    }
}

fn plan_all(args: &Args, request: &Request, source: &Source<'_>, obstacle: &mut Option<Error>) -> Result<Vec<Wanted>> {
    let mut settings = request.settings.clone();
    let needs = |choice: &Choice| needs_calibration(choice.scheme, &settings);
    if let Some(scheme) = request.schemes.iter().find(|s| needs(s))
        && settings.calibration.is_none()
    {
        if args.calibration_text.is_none() {
            let what =
                format!("{scheme} needs activation statistics: give --calibration-text FILE or --calibration FILE");
            obstacle.get_or_insert(Usage(what).into());
        }
        settings.calibration = Some(no_outliers(source));
    }
    let mut wanted: Vec<Wanted> = Vec::with_capacity(request.schemes.len());
    for &choice in &request.schemes {
        settings.mix = choice.mix;
        let plan = source.plan(choice.scheme, &settings, &Default::default())?;
        if !plan.misfits.is_empty() {
            obstacle.get_or_insert_with(|| conversion::Error::Misfits(plan.misfits.clone()).into());
        }
        if wanted.iter().any(|w| w.plan.label == plan.label) {
            bail!(Usage(format!("{choice} gives the artifact {} a second time: name it once", plan.label)));
        }
        let destination = destination(args, request, &plan);
        if args.output.is_some() {
            check_destination(args, request, &destination, source)?;
        }
        wanted.push(Wanted { choice, plan, destination });
    }
    Ok(wanted)
}

/// Returns whether a scheme, or the recipe, needs activation statistics.
pub fn needs_calibration(scheme: Scheme, settings: &Settings) -> bool {
    let recipe = settings.rules.recipe();
    scheme.needs_calibration() || recipe.is_some_and(|r| r.schemes().any(Scheme::needs_calibration))
}

/// Stands in for statistics in a plan that comes before them: no column is an outlier.
fn no_outliers(source: &Source<'_>) -> Calibration {
    let matrices = source.weights.iter().filter(|w| w.shape.len() == 2);
    Calibration::new(matrices.map(|w| (w.module().to_string(), vec![0.0; w.shape[1]])), 0)
}

fn destination(args: &Args, request: &Request, plan: &Plan) -> PathBuf {
    let Some(output) = args.output.clone() else { return PathBuf::new() };
    match (request.schemes.len(), args.to) {
        (1, _) => output,
        (_, To::Gguf) => output.join(format!("{}.gguf", plan.label)),
        _ => output.join(&plan.label),
    }
}

fn check_destination(args: &Args, request: &Request, destination: &Path, source: &Source<'_>) -> Result<()> {
    if args.to == To::Gguf && destination.as_os_str().to_string_lossy().ends_with('/') {
        bail!(Usage(format!(
            "{} names a folder, and one GGUF file is to be written: name it, such as {}model.gguf",
            destination.display(),
            destination.display()
        )));
    }
    let existing = args.overwrite.existing();
    // The folder of several schemes is made when the work begins.
    if let Some(output) = args.output.as_deref().filter(|output| *output != destination && !output.exists()) {
        let name = destination.file_name().unwrap_or_default().to_string_lossy();
        return Ok(store::output::check_folder::<&Path>(output, existing, &[&*name], &[])?);
    }
    Ok(conversion::check_destination(source, &request.settings, destination, existing)?)
}

/// The folder that holds the artifacts of several schemes; one that was made for them is removed
/// again unless something is in it.
pub struct Folder(Option<PathBuf>);

impl Folder {
    /// Makes the folder where several schemes need one. Its parent must be there, as that of a
    /// single artifact must.
    pub fn make(args: &Args, count: usize, source: &Source<'_>) -> Result<Self> {
        let Some(output) = args.output.as_deref().filter(|_| count > 1) else { return Ok(Folder(None)) };
        conversion::refuse_source(output, source)?;
        match std::fs::create_dir(output) {
            Ok(()) => Ok(Folder(Some(output.into()))),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists && output.is_dir() => Ok(Folder(None)),
            Err(e) => Err(e).with_context(|| format!("cannot create {}", output.display())),
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if let Some(made) = &self.0 {
            // Refused, as it should be, when it holds artifacts.
            let _ = std::fs::remove_dir(made);
        }
    }
}
