//! `qeval sweep`: a model in every scheme, compared.

use crate::args::{MeasureArgs, TextArgs};
use crate::artifact::Opened;
use crate::comparison::{self, table::Measures};
use crate::gate::GateArgs;
use crate::{builtin, request};
use anyhow::{Context, Result, bail};
use clap::Args;
use cli::{Outcome, OutputArgs, Usage, output};
use conversion::{Choice, Job, Layout, Settings, Source, Target};
use progress::Progress;
use runtime::Options;
use schemes::Scheme;
use scoring::compare::{self, Entrant};
use scoring::load::Loaded;
use std::path::{Component, Path, PathBuf};
use store::output::{Existing, Form, check_file, check_folder};
use tempfile::TempDir;

/// Name of the built-in model.
const BUILT_IN: &str = "built-in fixture";

/// A folder with this file is a model's.
const CONFIG: &str = "config.json";

/// `qeval sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The checkpoint; by default the small model that is built into this program.
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Schemes, separated by commas; 'all' for every one.
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "SCHEME")]
    pub scheme: Vec<String>,
    /// Text for the schemes that need activation statistics; by default one that is built in.
    #[arg(long, value_name = "FILE")]
    pub calibration_text: Option<PathBuf>,
    /// Tokens of that text to use.
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub calibration_tokens: usize,
    /// Folder to keep the artifacts in, one folder (for ggml types one file) for each scheme. By default they are
    /// removed.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Texts and windows.
    #[command(flatten)]
    pub text: TextArgs,
    /// Other measures.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Conditions on the result.
    #[command(flatten)]
    pub gates: GateArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval sweep`.
pub fn sweep(args: &SweepArgs, progress: &dyn Progress) -> Result<Outcome> {
    let schemes = choices(&args.scheme)?;
    let mut inputs: Vec<&Path> = args.model.iter().chain(&args.calibration_text).map(PathBuf::as_path).collect();
    inputs.extend(request::texts(&args.text, &args.measure));
    output::check(&args.output, &inputs)?;
    if let (Some(keep), Some(model)) = (&args.keep, &args.model) {
        refuse_model_folder(keep, model)?;
    }
    let existing = args.output.overwrite.existing();
    if let Some(keep) = args.keep.as_deref().filter(|keep| keep.exists()) {
        schemes.iter().try_for_each(|scheme| check_kept(keep, scheme, existing))?;
    }
    let request = request::request(&args.text, &args.measure, &args.gates)?;
    args.gates.check(&Measures::of_request(&request).column_keys())?;
    let compute = args.text.compute()?;
    let work = Work::new(args.model.as_deref())?;
    let reference = Loaded::open(&work.model, &compute.of_reference(), None)?;
    let target = args.keep.as_deref().unwrap_or(work.folder());
    let text = match &args.calibration_text {
        Some(path) => builtin::read(path)?,
        None => builtin::CALIBRATION.into(),
    };
    let calibration = Calibration { text, tokens: args.calibration_tokens };
    let paths = convert(&reference, &schemes, (target, existing), &calibration, progress)?;
    let artifacts: Vec<Opened> = paths.iter().map(|path| Opened::open(path, &compute, &reference)).collect();

    let mut known = reference.subject(None)?;
    if args.model.is_none() {
        known.artifact = BUILT_IN.into();
    }
    let mut entrants: Vec<Entrant<'_>> = artifacts.iter().map(|a| a.entrant(&reference)).collect();
    for (entrant, scheme) in entrants.iter_mut().zip(&schemes) {
        if args.keep.is_none() {
            // The folder will be gone: its name says all.
            entrant.rename(scheme.to_string());
        }
    }
    let mut comparison = compare::compare(&known, &entrants, &request, progress)?;
    comparison.notes.splice(..0, request::notes(&args.text, &compute));
    comparison.notes.extend(args.scheme.iter().any(|name| name == "all").then(Scheme::all_note));
    let provenance = request::provenance(&compute, &request.corpora)
        .files("battery", &args.measure.battery_file())
        .files("choices", &args.measure.choices)
        .model("reference", &work.model)
        .bytes("calibration", "calibration text", calibration.text.as_bytes());
    comparison::present(comparison, &args.output, &args.gates, &provenance)
}

/// A folder for artifacts, which are removed with it, and the model that they are made from.
pub struct Work {
    _transient: store::output::Transient,
    folder: TempDir,
    /// The model: the one that is named, else the one that is built in.
    pub model: PathBuf,
}

impl Work {
    /// # Errors
    /// When a folder can't be made, or this build has no model of its own.
    pub fn new(model: Option<&Path>) -> Result<Self> {
        let made = store::output::Transient::folder("qeval-sweep-");
        let (folder, transient) = made.context("cannot create a folder for the artifacts")?;
        let model = match model {
            Some(path) => path.into(),
            None => {
                let folder = folder.path().join("reference");
                std::fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
                builtin::write_fixture(&folder)?;
                folder
            }
        };
        Ok(Work { _transient: transient, folder, model })
    }

    /// Path of the folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Text for schemes that need calibration.
pub struct Calibration {
    /// The text.
    pub text: String,
    /// Number of tokens of it.
    pub tokens: usize,
}

/// The schemes and mixtures of some names.
///
/// # Errors
/// [`Usage`] for a name that is none, and for no names.
pub fn choices(names: &[String]) -> Result<Vec<Choice>> {
    let out = Choice::named(names.iter().map(String::as_str)).map_err(|e| Usage(e.to_string()))?;
    if out.is_empty() {
        bail!(Usage("name a scheme, or 'all'".into()));
    }
    Ok(out)
}

/// Refuses to keep artifacts in the folder of the model, or in one inside it: whoever lists or
/// moves the model would take them for a part of it.
fn refuse_model_folder(keep: &Path, model: &Path) -> Result<()> {
    let beside = model.parent().filter(|folder| !model.is_dir() && folder.join(CONFIG).exists());
    let Ok(folder) = beside.unwrap_or(model).canonicalize() else { return Ok(()) };
    if real(keep).starts_with(&folder) {
        return Err(store::Error::SameFile { path: keep.into(), input: model.into() })
            .context("--keep needs a folder outside the model's");
    }
    Ok(())
}

/// A path without links and `..`, of which only the first part need exist.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    for ancestor in path.ancestors() {
        if let (Ok(mut out), Ok(rest)) = (ancestor.canonicalize(), path.strip_prefix(ancestor)) {
            for part in rest.components() {
                match part {
                    Component::ParentDir => out = out.parent().map_or(PathBuf::new(), Path::to_path_buf),
                    part => out.push(part),
                }
            }
            return out;
        }
    }
    path
}

/// Path of a scheme's artifact, and whether it is a GGUF file.
fn artifact_path(target: &Path, choice: Choice) -> (PathBuf, bool) {
    let ggml = matches!(choice.scheme, Scheme::Ggml(_));
    (target.join(if ggml { format!("{choice}.gguf") } else { choice.to_string() }), ggml)
}

/// Checks the place of an artifact that is kept, before any work.
fn check_kept(keep: &Path, choice: &Choice, existing: Existing) -> Result<()> {
    match artifact_path(keep, *choice) {
        (file, true) => Ok(check_file::<&Path>(&file, Form::Gguf, existing, &[])?),
        (folder, false) => Ok(check_folder::<&Path>(&folder, existing, &[], &[])?),
    }
}

/// Converts the reference: to the packed layout, which holds every scheme at its true bits per weight, and to GGUF
/// where the scheme is one of ggml's types. One pass for each of the two. Gives the artifacts' paths.
pub fn convert(
    reference: &Loaded,
    schemes: &[Choice],
    (target, existing): (&Path, Existing),
    calibration: &Calibration,
    progress: &dyn Progress,
) -> Result<Vec<PathBuf>> {
    let source = Source::new(&reference.files)?;
    let mut packed = Settings::new(Target::Safetensors);
    packed.layout = Some(Layout::Packed);
    if schemes.iter().any(|s| s.scheme.needs_calibration()) {
        // On the CPU whatever scores: the artifacts are then the same on every machine.
        let place = (&runtime::cpu(), &Options::default());
        let calibration =
            conversion::calibrate(&reference.files, &calibration.text, calibration.tokens, place, progress);
        packed.calibration = Some(calibration.context("calibrating")?);
    }
    std::fs::create_dir_all(target).with_context(|| format!("cannot create {}", target.display()))?;
    let mut jobs = Vec::with_capacity(schemes.len());
    for &choice in schemes {
        let (destination, ggml) = artifact_path(target, choice);
        conversion::refuse_source(&destination, &source)?;
        let settings = if ggml { Settings { mix: choice.mix, ..Settings::new(Target::Gguf) } } else { packed.clone() };
        jobs.push(Job { scheme: choice.scheme, settings, destination, existing });
    }
    let paths: Vec<PathBuf> = jobs.iter().map(|job| job.destination.clone()).collect();
    let (ggml, packed): (Vec<Job>, Vec<Job>) = jobs.into_iter().partition(|job| job.settings.target == Target::Gguf);
    for jobs in [packed, ggml] {
        if !jobs.is_empty() {
            conversion::convert(&source, &jobs, progress)?;
        }
    }
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemes_are_named_once() {
        let names = |list: &[&str]| choices(&list.iter().map(|s| s.to_string()).collect::<Vec<_>>());
        assert_eq!(names(&["all"]).expect("known").len(), Scheme::all().len());
        assert_eq!(names(&["nf4", "nf4", "q4_k_m", "Q4_K_M"]).expect("known").len(), 2);
        assert!(names(&["int5-row"]).is_err_and(|e| e.is::<Usage>()));
    }

    #[test]
    fn artifacts_are_not_kept_in_the_model() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::fs::create_dir_all(at("model/inner")).expect("created");
        for file in ["model/config.json", "model/model.safetensors", "alone.gguf"] {
            std::fs::write(at(file), "").expect("written");
        }
        std::os::unix::fs::symlink(at("model"), at("link")).expect("linked");
        for keep in ["model", "model/", "model/inner", "model/new", "model/new/deep", "link/new", "other/../model/x"] {
            for model in ["model", "link", "model/model.safetensors"] {
                assert!(refuse_model_folder(&at(keep), &at(model)).is_err(), "{keep} {model}");
            }
        }
        for keep in ["kept", "model2", "."] {
            for model in ["model", "model/model.safetensors", "alone.gguf"] {
                assert!(refuse_model_folder(&at(keep), &at(model)).is_ok(), "{keep} {model}");
            }
        }
    }
}
