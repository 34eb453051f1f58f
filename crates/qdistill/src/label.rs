//! `qdistill label`.

use anyhow::{Result, bail};
use cli::{Bars, ComputeArgs, OverwriteArgs, Provenance};
use distillation::labels::{Kind, Plan, Settings};
use distillation::teacher::Model;
use report::format;
use schemars::JsonSchema;
use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use store::output::{Form, ResumableFile};

/// Arguments of `qdistill label`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The teacher: a checkpoint or an artifact.
    #[arg(long, value_name = "MODEL")]
    teacher: PathBuf,
    /// Text files, a document each.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    text: Vec<PathBuf>,
    /// The labels file to write. While it is made it is called FILE.partial; the same command goes on with that.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Part of each distribution to keep: the K most likely tokens and the mass of the rest (topk:K), N draws
    /// (sampled:N), or everything (full).
    #[arg(long, default_value = "topk:64", value_name = "KIND")]
    labels: Kind,
    /// Temperatures that trainings may use, separated by commas.
    #[arg(
        long = "temperature",
        alias = "temperatures",
        value_delimiter = ',',
        value_parser = super::temperature,
        default_value = "1,2,4",
        value_name = "T"
    )]
    temperatures: Vec<f64>,
    /// Tokens of a window, the most that student and teacher see at once.
    #[arg(long = "ctx", alias = "context", default_value_t = 512, value_name = "N")]
    context: usize,
    /// Use only the first N tokens of each file.
    #[arg(long, value_parser = super::some, value_name = "N")]
    tokens: Option<usize>,
    /// Seed of the draws.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Treatment of an existing file.
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// JSON output.
    #[command(flatten)]
    json: cli::JsonArgs,
    /// Device and precision of the teacher.
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Result as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Labelled {
    /// The file of labels.
    labels: PathBuf,
    /// Its size.
    bytes: u64,
    /// Kind of the labels: `full`, `top-K` or `sampled-K`.
    kind: String,
    /// Temperatures of the distributions that top-K labels hold.
    temperatures: Vec<f64>,
    /// Texts.
    documents: usize,
    /// Windows that the texts are cut into.
    windows: usize,
    /// Predictions that have a label.
    predictions: usize,
    /// Predictions that an interrupted run had labelled.
    resumed_predictions: usize,
    /// Predictions that were labelled again from the first damaged one on.
    damaged_predictions: usize,
    /// Time of this run.
    seconds: f64,
    /// Predictions of this run per second.
    tokens_per_s: f64,
    /// Name of the teacher.
    teacher: String,
    /// BLAKE3 of the teacher's tensors.
    teacher_blake3: String,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args, bars: &Bars) -> Result<String> {
    let inputs: Vec<&Path> = args.text.iter().chain([&args.teacher]).map(PathBuf::as_path).collect();
    if args.output.is_dir() {
        bail!("{}: is a folder; give a file for the labels", args.output.display());
    }
    ResumableFile::check(&args.output, Form::Labels, args.overwrite.existing(), &inputs)?;
    let teacher = Model::open(&args.teacher, &args.compute.place.device, &args.compute.dtype)?;
    let windows = teacher.windows(&args.text, args.context, args.tokens)?;
    let settings = Settings { kind: args.labels, temperatures: args.temperatures.clone(), seed: args.seed };
    let plan = Plan::new(&args.output, &teacher, &windows, settings)?;
    let size = format::bytes(plan.file_len());
    let predictions = format::count(windows.predictions() as u64);
    // Nothing is left to do about a closed standard error.
    let _ = writeln!(
        std::io::stderr(),
        "{}: {predictions} predictions in {} windows of up to {} tokens, {}: {size}",
        args.output.display(),
        format::count(windows.windows.len() as u64),
        args.context,
        args.labels,
    );
    let written = plan.write(args.overwrite.existing(), bars)?;
    let rate = written.made as f64 / written.seconds.max(1e-9);
    let mut resumed = match written.resumed {
        0 => String::new(),
        n => format!(", {} of them by an interrupted run", format::count(n as u64)),
    };
    if written.damaged > 0 {
        let again = format::count(written.damaged as u64);
        resumed += &format!(", {again} made again from the first that an interrupted run left damaged");
    }
    let speed = format!("{} tokens/s", format::significant(rate, 3));
    let (file, time) = (args.output.display(), format::duration(written.seconds));
    let provenance =
        Provenance::on(&args.compute.place.device).model("teacher", &args.teacher).files("text", &args.text);
    let fields = || {
        Ok(serde_json::to_value(Labelled {
            labels: args.output.clone(),
            bytes: plan.file_len(),
            kind: args.labels.to_string(),
            temperatures: args.temperatures.clone(),
            documents: windows.documents.len(),
            windows: windows.windows.len(),
            predictions: windows.predictions(),
            resumed_predictions: written.resumed,
            damaged_predictions: written.damaged,
            seconds: written.seconds,
            tokens_per_s: rate,
            teacher: teacher.name(),
            teacher_blake3: plan.teacher_hash().into(),
        })?)
    };
    let text = || Ok(format!("{file}: {predictions} predictions{resumed}, {size}, {time} at {speed}\n"));
    args.json.emit(("qdistill label", &provenance, args.overwrite), fields, text)
}
