//! `qdistill train`.

use crate::progress::Bar;
use crate::train_page::{self, Log};
use anyhow::{Result, bail};
use clap::ValueEnum;
use cli::{Bars, DeviceArgs, OverwriteArgs, Provenance};
use distillation::checkpoint::{self, Output};
use distillation::distill::Text;
use distillation::labels::{Kind as LabelKind, Labels};
use distillation::model::Student;
use distillation::ops::{Divergence, Objective};
use distillation::recipe::{DistillRecipe, TrainRecipe};
use distillation::resume::fields;
use distillation::student::{self, Spec};
use distillation::teacher::{Model, Online};
use distillation::train::{Finished, Job, train};
use distillation::{Error, Teacher, Windows};
use report::format;
use report::page::Fact;
use schemars::JsonSchema;
use schemes::FloatType;
use serde::Serialize;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Instant;
use store::TrainedOn;
use store::output::{Form, WorkFolder, check_file};

const COMMAND: &str = "qdistill train";

/// Arguments of `qdistill train`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The teacher: a checkpoint or an artifact. The student gets its tokenizer and what is cut from it.
    #[arg(long, value_name = "MODEL")]
    teacher: PathBuf,
    /// Soft labels that `label` wrote, with the text in them; without them the teacher runs beside the student.
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    labels: Option<PathBuf>,
    /// Text files, a document each.
    #[arg(long, num_args = 1.., value_name = "FILE", required_unless_present = "labels")]
    text: Vec<PathBuf>,
    /// The student: FILE.toml (a shape, with random weights), layers:0,2,5 (blocks of the teacher),
    /// width:hidden=384,heads=6,kv_heads=2,intermediate=1024 (the teacher, narrower), or a model to go on from.
    #[arg(long, value_name = "STUDENT")]
    student: String,
    /// The folder to write. Nothing may be in it, but with --overwrite or --resume.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Weights that stay as they are.
    #[arg(long, value_enum, value_name = "WHAT")]
    freeze: Option<Freeze>,
    /// TOML file with settings, in the tables loss and train. Flags win over the file.
    #[arg(long = "recipe", alias = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// The weight of the soft labels: 0 is the text alone, 1 the teacher alone [default: 0.5].
    #[arg(long, value_name = "A")]
    alpha: Option<f64>,
    /// Logits are divided by it in the soft loss [default: 2].
    #[arg(long, value_parser = super::temperature, value_name = "T")]
    temperature: Option<f64>,
    /// The soft loss: KL(teacher || student), KL(student || teacher), or Jensen-Shannon [default: forward].
    #[arg(long, value_enum, value_name = "D")]
    divergence: Option<Kind>,
    /// Optimizer steps [default: 1000].
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Windows in a batch [default: 8].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Parts of a batch that are computed one after another: more need less memory [default: 2, or 1 of an odd batch].
    #[arg(long, value_name = "N")]
    parts: Option<usize>,
    /// Tokens in a window; labels have theirs already [default: 256].
    #[arg(long = "ctx", alias = "context", value_name = "N", conflicts_with = "labels")]
    context: Option<usize>,
    /// The learning rate after the warm-up [default: 0.001].
    #[arg(long, value_name = "R")]
    learning_rate: Option<f64>,
    /// Steps of linear warm-up [default: 50].
    #[arg(long, value_name = "N")]
    warmup: Option<usize>,
    /// Seed of random weights, batches and what is held out [default: 0].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// The share of the windows that is held out [default: 0.03].
    #[arg(long, value_name = "SHARE")]
    validation_share: Option<f64>,
    /// Steps between two validations; DIR holds the model with the lowest objective so far (at --alpha 1 the soft loss
    /// alone) [default: 100].
    #[arg(long, value_name = "N")]
    validate_every: Option<usize>,
    /// Stop after so many validations without a better one.
    #[arg(long, value_name = "N")]
    patience: Option<usize>,
    /// Type of the student's stored weights.
    #[arg(long, value_enum, default_value = "f16", value_name = "TYPE")]
    dtype: Stored,
    /// Go on where an interrupted training stopped; everything else must be as it was.
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Treatment of an existing folder.
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// JSON output.
    #[command(flatten)]
    json: cli::JsonArgs,
    /// Also write a self-contained HTML page with settings, curves and validations.
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    html: Option<PathBuf>,
    /// Device to train on.
    #[command(flatten)]
    place: DeviceArgs,
}

#[derive(Debug, Clone, Copy, PartialEq, ValueEnum)]
enum Freeze {
    /// The embeddings and the output projection.
    Embeddings,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Kind {
    Forward,
    Reverse,
    JensenShannon,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Stored {
    F16,
    Bf16,
    F32,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args, bars: &Bars) -> Result<String> {
    let mut recipe = settings(args)?;
    let spec = Spec::parse(&args.student)?;
    let work = begin(args, &spec)?;
    let device = super::device(&args.place)?;
    // With labels only its files are needed.
    let beside = if args.labels.is_some() { "cpu" } else { &args.place.device };
    let teacher = Model::open(&args.teacher, beside, "f32")?;
    let labels = args.labels.as_deref().map(Labels::open).transpose()?;
    let cut;
    let windows: &Windows = match &labels {
        Some(labels) => {
            labels.expect_teacher(&teacher.files)?;
            labels.expect_tokenizer(&teacher.text)?;
            recipe.train.context = labels.windows().context;
            labels.windows()
        }
        None => {
            cut = teacher.windows(&args.text, recipe.train.context, None)?;
            &cut
        }
    };
    let DistillRecipe { loss: objective, train: settings } = &recipe;
    let sampled = labels.as_ref().is_some_and(|l| matches!(l.kind(), LabelKind::Sampled(_)));
    if sampled && objective.alpha > 0.0 && objective.divergence != Divergence::Forward {
        let what = "draws give the forward divergence only; leave out --divergence, or take labels of another kind";
        bail!(Error::Labels(what.into()));
    }
    let mut reader = labels.as_ref().map(|l| l.at(objective.temperature)).transpose()?;
    let mut online = Online::new(&teacher, windows, objective.temperature);
    let labelled: &mut dyn Teacher = match &mut reader {
        Some(reader) => reader,
        None => &mut online,
    };
    let frozen = args.freeze == Some(Freeze::Embeddings);
    let student = student::build(&spec, &teacher.files, frozen, settings.seed, &device)?;
    let float = match args.dtype {
        Stored::F16 => FloatType::F16,
        Stored::Bf16 => FloatType::BF16,
        Stored::F32 => FloatType::F32,
    };
    let teacher_hash = teacher.files.blake3();
    let mut output = Output::of_student(work, &teacher.files, &student, float)?;
    output.metadata.extend([
        ("qdistill.version".to_string(), env!("CARGO_PKG_VERSION").to_string()),
        ("qdistill.teacher".to_string(), teacher.name()),
        ("qdistill.teacher_blake3".to_string(), teacher_hash.clone()),
        ("qdistill.student".to_string(), args.student.clone()),
        ("qdistill.loss".to_string(), serde_json::to_string(objective)?),
        ("qdistill.best_by".to_string(), format!("lowest {objective} on the validation text")),
        (TrainedOn::KEY.to_string(), windows.trained_on(teacher.text.bos().is_some()).to_string()),
    ]);
    let kind = labels.as_ref().map(Labels::kind);
    // What differs is named by the first of these that does.
    let mut identity = fields(objective)?;
    identity.extend(fields(settings)?);
    identity.extend([
        ("student".into(), spec.to_string()),
        ("freeze".into(), frozen.to_string()),
        ("dtype".into(), float.to_string()),
        ("teacher".into(), teacher_hash),
        ("text".into(), hash_of(windows)),
        ("labels".into(), kind.map_or("none".into(), |kind| kind.to_string())),
    ]);
    let mut source = Text::new(windows, Some(labelled), &student, objective, settings)?;
    let mut job = Job {
        student: &student,
        source: &mut source,
        objective: *objective,
        recipe: settings,
        output: &output,
        tokenizer: teacher.text.tokenizer(),
        identity,
    };
    let began = Instant::now();
    let kl = match kind {
        Some(LabelKind::Sampled(_)) => "cross-entropy to the labels",
        _ => "KL to the teacher",
    };
    let kl = format!("{kl} at T = {}", objective.temperature);
    let mut bar = Bar::new(bars, kl.clone());
    let finished = train(&mut job, &mut bar)?;
    let log = Log::read(&args.output)?;
    log.write_plot(&args.output)?;
    let seconds = began.elapsed().as_secs_f64();
    let done = Done { finished: &finished, kl_name: &kl, recipe: &recipe, student: &student, log: &log, seconds };
    done.emit(args)
}

/// Locks the folder, before anything else is done.
fn begin(args: &Args, spec: &Spec) -> Result<WorkFolder> {
    let mut inputs: Vec<&Path> = vec![&args.teacher];
    inputs.extend(args.text.iter().chain(&args.labels).chain(&args.config).map(PathBuf::as_path));
    if let Spec::Model(path) = spec {
        inputs.push(path);
    }
    args.json.check(args.overwrite, &inputs)?;
    if let Some(file) = &args.html {
        check_file(file, Form::Page, args.overwrite.existing(), &inputs)?;
    }
    Ok(checkpoint::begin(&args.output, super::begin(args.resume, args.overwrite), &inputs)?)
}

/// The file's settings under the flags.
fn settings(args: &Args) -> Result<DistillRecipe> {
    let mut recipe = match &args.config {
        Some(path) => DistillRecipe::read(path)?,
        None => DistillRecipe::default(),
    };
    if args.labels.is_some() && recipe.train.context != TrainRecipe::default().context {
        bail!(Error::Recipe("labels have windows of their own: leave context out beside --labels".into()));
    }
    let Objective { alpha, temperature, divergence } = &mut recipe.loss;
    set(alpha, args.alpha);
    set(temperature, args.temperature);
    let named = args.divergence.map(|kind| match kind {
        Kind::Forward => Divergence::Forward,
        Kind::Reverse => Divergence::Reverse,
        Kind::JensenShannon => Divergence::JensenShannon,
    });
    set(divergence, named);
    let train = &mut recipe.train;
    set(&mut train.steps, args.steps);
    set(&mut train.batch, args.batch);
    train.parts = args.parts.or(train.parts);
    set(&mut train.context, args.context);
    set(&mut train.learning_rate, args.learning_rate);
    set(&mut train.warmup, args.warmup);
    set(&mut train.seed, args.seed);
    set(&mut train.validation_share, args.validation_share);
    set(&mut train.validate_every, args.validate_every);
    train.patience = args.patience.or(train.patience);
    recipe.check()?;
    Ok(recipe)
}

fn set<T>(place: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *place = given;
    }
}

fn hash_of(windows: &Windows) -> String {
    let mut hash = blake3::Hasher::new();
    for token in &windows.tokens {
        hash.update(&token.to_le_bytes());
    }
    for window in &windows.windows {
        hash.update(&(window.start as u64).to_le_bytes());
        hash.update(&(window.end as u64).to_le_bytes());
    }
    hash.finalize().to_string()
}

/// Result as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Trained {
    /// The student's folder.
    student: PathBuf,
    /// Weights of the student.
    weights: usize,
    /// Name of the device.
    device: String,
    /// The objective that the best model has the lowest of.
    best_by: String,
    #[serde(flatten)]
    finished: Finished,
}

/// A training that has ended, to be shown.
struct Done<'a> {
    finished: &'a Finished,
    /// Meaning of the validations' `kl`.
    kl_name: &'a str,
    recipe: &'a DistillRecipe,
    student: &'a Student,
    log: &'a Log,
    seconds: f64,
}

impl Done<'_> {
    /// Writes what is asked for; returns the text for standard output.
    fn emit(&self, args: &Args) -> Result<String> {
        let provenance = Provenance::on(runtime::device_name(self.student.device()))
            .model("teacher", &args.teacher)
            .files("text", &args.text)
            .files("labels", &args.labels);
        if let Some(file) = &args.html {
            let page = train_page::page(&self.facts(args), self.kl_name, self.log)?;
            cli::output::write_page(page, (COMMAND, &provenance.record()), file, args.overwrite.existing())?;
        }
        args.json.emit((COMMAND, &provenance, args.overwrite), || self.fields(args), || Ok(self.summary(args)))
    }

    fn fields(&self, args: &Args) -> Result<Value> {
        Ok(serde_json::to_value(Trained {
            student: args.output.clone(),
            weights: self.student.weights(),
            device: runtime::device_name(self.student.device()),
            best_by: self.recipe.loss.to_string(),
            finished: self.finished.clone(),
        })?)
    }

    fn facts(&self, args: &Args) -> Vec<Fact> {
        let (best, train) = (&self.finished.best, &self.recipe.train);
        let steps = format!(
            "{} of {}, {} windows of {} tokens each",
            self.finished.steps, train.steps, train.batch, train.context
        );
        let mut facts = vec![
            Fact::new(
                "Student",
                format!("{} ({} weights)", args.student, format::count(self.student.weights() as u64)),
            ),
            Fact::new("Teacher", args.teacher.display().to_string()),
            Fact::new("Objective", self.recipe.loss.to_string()),
            Fact::new("Steps", steps),
            Fact::new(
                "Best",
                format!("step {}, validation loss {:.4}, perplexity {:.3}", best.step, best.loss, best.perplexity),
            ),
        ];
        facts.extend(best.kl.map(|kl| Fact::new(self.kl_name, format!("{kl:.4} nats"))));
        facts.push(Fact::new("Time", format::duration(self.seconds)));
        facts
    }

    /// The result in a line.
    fn summary(&self, args: &Args) -> String {
        let (finished, best) = (self.finished, &self.finished.best);
        let kl = best.kl.map_or(String::new(), |kl| format!(", {} {kl:.4}", self.kl_name));
        let stopped = if finished.stopped_early { ", stopped early" } else { "" };
        format!(
            "{}: {} weights, validation loss {:.4} (perplexity {:.3}){kl} at step {} of {}{stopped}; the best by {}: \
             {:.4}; {}\n",
            args.output.display(),
            format::count(self.student.weights() as u64),
            best.loss,
            best.perplexity,
            best.step,
            finished.steps,
            self.recipe.loss,
            best.objective,
            format::duration(self.seconds),
        )
    }
}
