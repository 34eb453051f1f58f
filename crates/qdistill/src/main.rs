//! `qdistill`: trains small students on a teacher's soft labels.

mod label;
mod plant;
mod pretrain;
mod progress;
#[cfg(test)]
mod schemas;
mod selftest;
mod show;
mod train;
mod train_page;

use candle_core::Device;
use clap::{Parser, Subcommand};
use cli::{CommonArgs, DeviceArgs, HasCommon, OverwriteArgs};
use distillation::soft::check_temperature;
use runtime::{ComputeType, Options};
use std::process::ExitCode;
use store::output::{Begin, Existing};

/// Trains small language models.
#[derive(Debug, Parser)]
#[command(name = "qdistill", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
    /// Options of every command.
    #[command(flatten)]
    common: CommonArgs,
}

impl HasCommon for Cli {
    fn common(&self) -> &CommonArgs {
        &self.common
    }
}

const EXAMPLES: &str = "Examples:
  qdistill show --teacher models/smollm2 'She poured the milk into the' --temperature 1,2,4
  qdistill label --teacher models/smollm2 --text book.txt --labels topk:512 -o book.labels
  qdistill train --teacher models/smollm2 --labels book.labels --student layers:0,1,14,28,29 -o student
  qdistill train --teacher models/smollm2 --text book.txt --student shape.toml -o student --resume
  qdistill pretrain --text prose.txt --recipe tiny.toml -o tiny
  qdistill selftest --device cuda

Exit codes:
  0  success
  1  failure
  2  wrong usage";

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a teacher's soft labels of a text to disk, for any number of trainings.
    Label(label::Args),
    /// Show what a teacher thinks comes next, at several temperatures.
    Show(show::Args),
    /// Train a student on a teacher's soft labels, into a Hugging Face directory.
    Train(Box<train::Args>),
    /// Train a small Llama and its tokenizer from text, into a Hugging Face directory.
    Pretrain(pretrain::Args),
    /// Hold a device's training to its definition in f64.
    Selftest(selftest::Args),
    /// Give a model the outlier channels that large models have, without changing what it computes.
    PlantOutliers(plant::Args),
}

/// A temperature that logits can be divided by.
fn temperature(text: &str) -> Result<f64, String> {
    text.parse().map_err(|_| "it must be a number".to_string()).and_then(check_temperature)
}

/// A number of things, at least one.
fn some(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|&n: &usize| n > 0).ok_or_else(|| "it must be a number of at least 1".into())
}

/// Start of a training in its folder.
fn begin(resume: bool, overwrite: OverwriteArgs) -> Begin {
    match overwrite.existing() {
        _ if resume => Begin::Resume,
        Existing::Overwrite => Begin::Overwrite,
        Existing::Refuse => Begin::New,
    }
}

/// Device of a training. Training computes in f32, and so does a teacher beside it.
fn device(place: &DeviceArgs) -> runtime::Result<Device> {
    runtime::device(&place.device, &Options { compute: ComputeType::F32, ..Options::default() })
}

fn main() -> ExitCode {
    cli::run::<Cli>("qdistill", |cli, bars| {
        let text = match &cli.command {
            Command::Label(args) => label::run(args, bars),
            Command::Show(args) => show::run(args),
            Command::Train(args) => train::run(args, bars),
            Command::Pretrain(args) => pretrain::run(args, bars),
            Command::Selftest(args) => selftest::run(args),
            Command::PlantOutliers(args) => plant::run(args),
        };
        Ok(text?.into())
    })
}
