//! `--overwrite`: the same argument for all programs.

use clap::Args;
use store::output::Existing;

/// Treatment of a destination that exists.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OverwriteArgs {
    /// Replace a destination that exists, as far as one of these programs wrote it and nobody edited it since; every
    /// other file in a folder is kept. By default a destination that exists is refused.
    #[arg(long)]
    pub overwrite: bool,
}

impl OverwriteArgs {
    /// For `store`.
    pub fn existing(self) -> Existing {
        if self.overwrite { Existing::Overwrite } else { Existing::Refuse }
    }
}
