//! Options that every command of every program takes.

use anyhow::{Result, anyhow};
use clap::{Args, ValueEnum};

/// Options that every command of every program takes.
#[derive(Debug, Clone, Copy, Default, Args)]
#[command(next_help_heading = "Common")]
pub struct CommonArgs {
    /// Show no progress on standard error. Warnings and errors are still shown.
    #[arg(long, short, global = true)]
    pub quiet: bool,
    /// Colour the output. By default (auto) a terminal is coloured, unless NO_COLOR is set.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN", hide_possible_values = true)]
    pub color: Color,
    /// Number of threads to compute with. By default one for each processor.
    #[arg(long, global = true, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub threads: Option<u16>,
}

/// `--color`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// Colour on a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Colour everywhere.
    Always,
    /// No colour.
    Never,
}

/// A program's arguments, which hold the common ones.
pub trait HasCommon {
    /// The common arguments.
    fn common(&self) -> &CommonArgs;
}

impl CommonArgs {
    /// Sets colours and threads for the rest of the process.
    ///
    /// # Errors
    /// When the threads can't be started.
    pub fn apply(&self) -> Result<()> {
        match self.color {
            Color::Auto => {}
            Color::Always => report::set_color(true),
            Color::Never => report::set_color(false),
        }
        let Some(threads) = self.threads else { return Ok(()) };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.into());
        pool.build_global().map_err(|e| anyhow!("cannot start {threads} threads: {e}"))
    }
}
