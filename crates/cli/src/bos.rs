//! `--bos`.

use clap::ValueEnum;
use store::Bos;

/// When sequences begin with BOS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BosArg {
    /// BOS where the tokenizer adds one.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

impl From<BosArg> for Bos {
    fn from(arg: BosArg) -> Self {
        match arg {
            BosArg::Auto => Bos::Auto,
            BosArg::Always => Bos::Always,
            BosArg::Never => Bos::Never,
        }
    }
}
