//! `qinspect`: shows why a model is hard to quantize.

mod activations;
mod activations_page;
mod args;
mod diff;
mod layers;
mod memory;
#[cfg(test)]
mod schemas;
mod tensors;
mod texts;
mod weights;
mod weights_page;

use args::{Cli, Command};
use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run::<Cli>("qinspect", |cli, progress| match &cli.command {
        Command::Tensors(args) => tensors::run(args),
        Command::Weights(args) => weights::run(args, progress),
        Command::Activations(args) => activations::run(args, progress),
        Command::Layers(args) => layers::run(args, progress),
        Command::Memory(args) => memory::run(args),
        Command::Diff(args) => diff::run(args, progress),
    })
}
