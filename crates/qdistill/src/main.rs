//! `qdistill`: trains small models.

mod progress;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use qdistill::recipe::Recipe;
use qdistill::{Texts, outliers, pretrain};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Trains small language models.
#[derive(Debug, Parser)]
#[command(name = "qdistill", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Train a small Llama and its tokenizer from text, into a Hugging Face directory.
    Pretrain(PretrainArgs),
    /// Give a model the outlier channels that large models have, without changing what it computes.
    PlantOutliers(PlantArgs),
}

#[derive(Debug, clap::Args)]
struct PretrainArgs {
    /// Running text to train on.
    #[arg(long, required = true, num_args = 1.., value_name = "FILE")]
    text: Vec<PathBuf>,
    /// Sentences, one a line, shuffled and mixed in as often as the recipe's sentence_share says.
    #[arg(long, num_args = 1.., value_name = "FILE")]
    sentences: Vec<PathBuf>,
    /// The recipe: shape, tokenizer and training, in TOML.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// The folder to write; it must not hold anything yet.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Optimizer steps, instead of the recipe's.
    #[arg(long, value_name = "N")]
    steps: Option<usize>,
    /// Seed, instead of the recipe's.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct PlantArgs {
    /// The model: a Llama in F16 that `pretrain` wrote.
    model: PathBuf,
    /// The folder to write; it must not hold anything yet.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Which channels are chosen.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        Command::Pretrain(args) => run_pretrain(&args),
        Command::PlantOutliers(args) => run_plant(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing is left to do about a closed standard error.
            let _ = writeln!(std::io::stderr(), "qdistill: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_pretrain(args: &PretrainArgs) -> Result<()> {
    let mut recipe = Recipe::read(&args.config)?;
    recipe.train.steps = args.steps.unwrap_or(recipe.train.steps);
    recipe.train.seed = args.seed.unwrap_or(recipe.train.seed);
    let texts = Texts { running: read_all(&args.text)?, sentences: read_all(&args.sentences)? };
    let best = pretrain(&recipe, &texts, &args.output, &mut progress::Bar::new())?;
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "{}: validation loss {:.4} (perplexity {:.3}) at step {}",
        args.output.display(),
        best.loss,
        best.loss.exp(),
        best.step
    )?;
    Ok(())
}

fn run_plant(args: &PlantArgs) -> Result<()> {
    outliers::plant(&args.model, &args.output, &outliers::Plan::default(), args.seed)?;
    writeln!(std::io::stdout().lock(), "{}: written", args.output.display())?;
    Ok(())
}

fn read_all(paths: &[PathBuf]) -> Result<Vec<String>> {
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| path.display().to_string());
    paths.iter().map(|path| read(path)).collect()
}
