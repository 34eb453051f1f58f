//! `qeval sweep`: a model in every scheme, compared.

use super::args::SweepArgs;
use super::{Outcome, Usage, builtin, run};
use crate::compare;
use crate::load::Loaded;
use anyhow::{Context, Result, bail};
use candle_core::Device;
use qconvert::{Job, Layout, Settings, Source, Target};
use schemes::Scheme;
use std::path::{Path, PathBuf};
use store::Progress;
use tempfile::TempDir;

/// What the built-in model is called.
const BUILT_IN: &str = "built-in fixture";

/// `qeval sweep`.
pub fn sweep(args: &SweepArgs, progress: &dyn Progress) -> Result<Outcome> {
    let schemes = schemes(&args.scheme)?;
    let inputs: Vec<&Path> = args.model.iter().map(PathBuf::as_path).collect();
    run::check(&args.output, &inputs)?;
    let request = run::request(&args.text, &args.measure)?;
    let device = run::device(&args.text)?;
    let work = TempDir::with_prefix("qeval-sweep-").context("cannot create a folder for the artifacts")?;
    let model = match &args.model {
        Some(path) => path.clone(),
        None => {
            let folder = work.path().join("reference");
            std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
            builtin::write_fixture(&folder)?;
            folder
        }
    };
    let reference = Loaded::open(&model, &device, None)?;
    let target = args.keep.as_deref().unwrap_or(work.path());
    let artifacts = convert(args, &reference, &schemes, target, &device, progress)?;

    let mut known = reference.subject(None)?;
    if args.model.is_none() {
        known.artifact = BUILT_IN.into();
    }
    let mut subjects = Vec::with_capacity(artifacts.len());
    for artifact in &artifacts {
        let mut subject = artifact.subject(Some(&reference))?;
        if args.keep.is_none() {
            // The folder will be gone: its name says all.
            subject.artifact = subject.size.scheme.clone();
        }
        subjects.push(subject);
    }
    let comparison = compare::compare(&known, &subjects, &request, progress)?;
    run::present(&comparison, &args.output)
}

fn schemes(names: &[String]) -> Result<Vec<Scheme>> {
    let mut out: Vec<Scheme> = Vec::new();
    for name in names {
        let more = match name.as_str() {
            "all" => Scheme::all(),
            name => vec![name.parse().map_err(|e: schemes::Error| Usage(e.to_string()))?],
        };
        out.extend(more.into_iter().filter(|s| !out.contains(s)).collect::<Vec<_>>());
    }
    if out.is_empty() {
        bail!(Usage("name a scheme, or 'all'".into()));
    }
    Ok(out)
}

/// Converts the reference in one pass, in the packed layout: it holds every scheme at its true
/// bits per weight.
fn convert(
    args: &SweepArgs,
    reference: &Loaded,
    schemes: &[Scheme],
    target: &Path,
    device: &Device,
    progress: &dyn Progress,
) -> Result<Vec<Loaded>> {
    let source = Source::new(&reference.files)?;
    let mut settings = Settings::new(Target::Safetensors);
    settings.layout = Some(Layout::Packed);
    if schemes.iter().any(|s| s.needs_calibration()) {
        let text = match &args.calibration_text {
            Some(path) => builtin::read(path)?,
            None => builtin::CALIBRATION.into(),
        };
        let calibration = qconvert::calibrate(&reference.files, &text, args.calibration_tokens, progress);
        settings.calibration = Some(calibration.context("calibrating")?);
    }
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut jobs = Vec::with_capacity(schemes.len());
    for &scheme in schemes {
        let destination = target.join(scheme.to_string());
        qconvert::refuse_source(&destination, &source)?;
        jobs.push(Job { scheme, settings: settings.clone(), destination });
    }
    let made = qconvert::convert(&source, &jobs, progress)?;
    made.iter().map(|m| Ok(Loaded::open(&m.path, device, Some(reference))?)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_named_once() {
        let names = |list: &[&str]| schemes(&list.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        assert_eq!(names(&["all"]).expect("known").len(), Scheme::all().len());
        assert_eq!(names(&["nf4", "nf4", "int8-row"]).expect("known").len(), 2);
        assert!(names(&["int5-row"]).is_err_and(|e| e.is::<Usage>()));
    }
}
