//! `qdistill plant-outliers`.

use distillation::outliers;
use std::path::PathBuf;

/// Arguments of `qdistill plant-outliers`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model: a Llama in F16 that `pretrain` wrote.
    model: PathBuf,
    /// The folder to write.
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Seed that chooses the channels.
    #[arg(long, default_value_t = 0, value_name = "S")]
    seed: u64,
    /// Treatment of an existing folder.
    #[command(flatten)]
    overwrite: cli::OverwriteArgs,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args) -> anyhow::Result<String> {
    outliers::plant(&args.model, &args.output, args.overwrite.existing(), &outliers::Plan::default(), args.seed)?;
    Ok(format!("{}: written\n", args.output.display()))
}
