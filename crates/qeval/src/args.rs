//! Groups of options that several commands of qeval share.

use clap::{Args, ValueEnum};
use cli::{BosArg, ComputeArgs};
use runtime::{KvType, Math};
use scoring::load::Compute;
use scoring::verdict::Margin;
use scoring::{Protocol, Style};
use std::path::PathBuf;

/// Arithmetic and device of a run.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Round activations as another engine does, to see what it will really give.
    #[arg(long, value_enum, default_value_t = EngineMath::Exact, value_name = "ENGINE")]
    pub engine_math: EngineMath,
    /// Device to run on.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

impl EngineArgs {
    /// Device and arithmetic of models whose keys and values go through a cache of type `kv`, if any.
    pub fn compute(&self, kv: Option<KvType>) -> anyhow::Result<Compute> {
        let ComputeArgs { place, dtype } = &self.compute;
        Ok(Compute::on(&place.device, dtype, self.engine_math.math(), kv)?)
    }
}

/// Texts and windows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// Text to score, or - for standard input (repeatable: each text has its own column). By default prose that is
    /// built in.
    #[arg(long = "text", alias = "corpus", value_name = "FILE")]
    pub corpus: Vec<PathBuf>,
    /// Use only the first N tokens of each text.
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Context length in tokens per window.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub ctx: usize,
    /// Distance from one window to the next in tokens. By default windows don't overlap.
    #[arg(long, value_name = "N")]
    pub stride: Option<usize>,
    /// Begin every window and prompt with BOS: where the tokenizer adds one, always, or never.
    #[arg(long, value_enum, default_value_t = BosArg::Auto)]
    pub bos: BosArg,
    /// Tokens of a window that are scored: default (all that have a predecessor) or llama.cpp (as llama-perplexity).
    #[arg(long, value_enum, default_value_t = ProtocolArg::Default)]
    pub protocol: ProtocolArg,
    /// Score artifacts through a KV cache of this type (default: no cache).
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv: Option<KvArg>,
    /// Keep every forward pass in a folder, and take from it what earlier runs kept there: after an interruption, or
    /// with more artifacts, the same command goes on [default folder: qeval-cache].
    #[arg(
        long,
        visible_alias = "resume",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "qeval-cache",
        value_name = "DIR"
    )]
    pub cache: Option<PathBuf>,
    /// Arithmetic and device.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl TextArgs {
    /// Device and arithmetic of the models.
    pub fn compute(&self) -> anyhow::Result<Compute> {
        let compute = self.engine.compute(self.kv.map(KvArg::ty))?;
        Ok(compute.with_cache(self.cache.as_deref())?)
    }

    /// Rule that cuts texts into windows.
    pub fn protocol(&self) -> Protocol {
        Protocol {
            style: match self.protocol {
                ProtocolArg::Default => Style::Plain,
                ProtocolArg::LlamaCpp => Style::LlamaCpp,
            },
            ctx: self.ctx,
            stride: self.stride,
            bos: self.bos.into(),
            tokens: self.tokens,
        }
    }
}

/// Options for measures besides perplexity and KL.
#[derive(Debug, Args)]
#[command(next_help_heading = "Measures")]
pub struct MeasureArgs {
    /// Questions: '16' or 'facts' (built in), 'none', or a JSON lines file (./16 for one of that name).
    #[arg(long, default_value = "16", value_name = "NAME|FILE")]
    pub battery: String,
    /// Multiple-choice items to score by log-likelihood: a JSON lines file.
    #[arg(long, value_name = "FILE")]
    pub choices: Option<PathBuf>,
    /// Measure no token agreement. It is left out as well under --battery none --no-speed, which leaves perplexity and KL.
    #[arg(long)]
    pub no_agreement: bool,
    /// Measure no speed.
    #[arg(long)]
    pub no_speed: bool,
    /// First look in seconds to minutes: at most 512 tokens of each text, no battery, no agreement, no speed. The
    /// verdicts are mostly inconclusive.
    #[arg(long, conflicts_with = "tokens")]
    pub quick: bool,
    /// Difference from the reference's perplexity that is accepted, in percent. The verdict says whether an artifact
    /// is shown to lie within it, in perplexity and in mean KL (ln(1 + margin) nats).
    #[arg(long, default_value_t = Margin::default(), value_name = "PERCENT")]
    pub margin: Margin,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

impl MeasureArgs {
    /// Name of the battery to ask; `none` under `--quick`.
    pub fn battery_name(&self) -> &str {
        if self.quick { "none" } else { &self.battery }
    }

    /// The battery's file, where it is no built-in one.
    pub fn battery_file(&self) -> Option<PathBuf> {
        let name = self.battery_name();
        (!matches!(name, "none" | "16" | "facts")).then(|| PathBuf::from(name))
    }

    /// Returns whether token agreement is measured.
    pub fn measures_agreement(&self) -> bool {
        let only_text = self.battery_name() == "none" && self.no_speed;
        !(self.no_agreement || self.quick || only_text)
    }
}

/// `--engine-math`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineMath {
    /// Activations as the scheme says, and otherwise not rounded.
    Exact,
    /// 8 bits in ggml's blocks for quantized layers, F16 or BF16 for layers of that type.
    #[value(name = "llama.cpp")]
    LlamaCpp,
    /// INT8 by token at absmax/127.5 where the scheme quantizes activations.
    CompressedTensors,
    /// LLM.int8 with outlier columns found at run time, for bitsandbytes int8 layers.
    Bitsandbytes,
}

impl EngineMath {
    /// For the runtime.
    pub fn math(self) -> Math {
        match self {
            EngineMath::Exact => Math::Exact,
            EngineMath::LlamaCpp => Math::LlamaCpp,
            EngineMath::CompressedTensors => Math::CompressedTensors,
            EngineMath::Bitsandbytes => Math::Bitsandbytes,
        }
    }

    /// Its name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }

    /// Note for a reader of the results, if one is needed.
    pub fn note(self) -> Option<String> {
        let how = match self {
            EngineMath::Exact => return None,
            EngineMath::LlamaCpp => {
                "llama.cpp rounds them: 8 bits in blocks of 32 or 256, F16 or BF16 layers to that type"
            }
            EngineMath::CompressedTensors => "compressed-tensors rounds them: INT8 by token, scale absmax/127.5",
            EngineMath::Bitsandbytes => {
                "bitsandbytes rounds them: INT8 by token beside outlier columns found at run time"
            }
        };
        Some(format!("activations, the reference's too, are rounded as {how} (--engine-math)"))
    }
}

/// `--kv`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum KvArg {
    /// In f16.
    F16,
    /// In 8-bit codes, with an f16 scale for each token and head.
    Int8,
}

impl KvArg {
    /// For the runtime.
    pub fn ty(self) -> KvType {
        match self {
            KvArg::F16 => KvType::F16,
            KvArg::Int8 => KvType::Int8,
        }
    }

    /// Note for a reader of the results.
    pub fn note(self) -> String {
        let ty = self.ty();
        format!("keys and values go through an {ty} cache, those of a comparison's reference excepted (--kv)")
    }
}

/// `--protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProtocolArg {
    /// Every token that has a predecessor in its window.
    Default,
    /// The second half of disjoint chunks, as llama-perplexity.
    #[value(name = "llama.cpp")]
    LlamaCpp,
}
