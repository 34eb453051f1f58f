//! `qdistill pretrain`.

use crate::progress::Bar;
use anyhow::Result;
use cli::Bars;
use cli::{DeviceArgs, OverwriteArgs};
use distillation::data::read_text;
use distillation::recipe::Recipe;
use distillation::{Texts, checkpoint, pretrain};
use std::path::{Path, PathBuf};

/// Arguments of `qdistill pretrain`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Running text to train on.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Sentences, one a line, shuffled and mixed in as often as the recipe's sentence_share says.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    sentences: Vec<PathBuf>,
    /// The recipe: shape, tokenizer and training, in TOML.
    #[arg(long = "recipe", alias = "config", value_name = "FILE")]
    config: PathBuf,
    /// The folder to write. Nothing may be in it, but with --overwrite or --resume.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Optimizer steps, instead of the recipe's.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed, instead of the recipe's.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Go on where an interrupted training stopped.
    #[arg(long, conflicts_with = "overwrite")]
    resume: bool,
    /// Treatment of an existing folder.
    #[command(flatten)]
    overwrite: OverwriteArgs,
    /// Device to train on.
    #[command(flatten)]
    place: DeviceArgs,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args, bars: &Bars) -> Result<String> {
    let mut recipe = Recipe::read(&args.config)?;
    let inputs: Vec<&Path> =
        args.text.iter().chain(&args.sentences).chain([&args.config]).map(PathBuf::as_path).collect();
    let work = checkpoint::begin(&args.output, super::begin(args.resume, args.overwrite), &inputs)?;
    let device = super::device(&args.place)?;
    recipe.train.steps = args.steps.unwrap_or(recipe.train.steps);
    recipe.train.seed = args.seed.unwrap_or(recipe.train.seed);
    let read_all = |paths: &[PathBuf]| paths.iter().map(|path| read_text(path)).collect::<Result<_, _>>();
    let texts = Texts { running: read_all(&args.text)?, sentences: read_all(&args.sentences)? };
    let best = pretrain(&recipe, &texts, &device, work, &mut Bar::new(bars, "KL".into()))?.best;
    Ok(format!(
        "{}: validation loss {:.4} (perplexity {:.3}) at step {}\n",
        args.output.display(),
        best.loss,
        best.perplexity,
        best.step
    ))
}
