//! The command line of qeval.

use super::bench::BenchArgs;
use super::generate::GenerateArgs;
use super::schedule::ScheduleArgs;
use super::selftest::SelfTestArgs;
use super::speculate::SpeculateArgs;
use crate::load::Compute;
use crate::verdict::Margin;
use crate::{Bos, Protocol, Style};
use clap::{Args, Parser, Subcommand, ValueEnum};
use report::ComputeArgs;
use runtime::{KvType, Math};
use std::path::PathBuf;

/// Score quantized models against the checkpoint that they were made from.
///
/// Size, perplexity with intervals, KL divergence, a battery of facts, token agreement and
/// speed, of any number of artifacts against one reference, in one table.
#[derive(Debug, Parser)]
#[command(name = "qeval", version, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const EXAMPLES: &str = "Examples:
  qeval sweep
  qeval sweep models/smollm2 --html smollm2.html
  qeval compare --reference models/smollm2 a.gguf b.gguf --corpus book.txt --tokens 2048
  qeval perplexity model.gguf --protocol llama.cpp
  qeval generate model.gguf --prompt 'The capital of France is' --max-tokens 20
  qeval bench models/smollm2 a.gguf --html bench.html
  qeval speculate --target models/smollm2 --draft a.gguf --gamma 1..8
  qeval schedule --slots 8 --html schedule.html

Exit codes: 0 all went well; 1 something failed, or a row of the table is marked as failed (the others stand); 2 wrong
usage.";

/// What qeval does.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare artifacts with the checkpoint that they were made from.
    Compare(CompareArgs),
    /// Convert a model into every scheme and compare them all.
    Sweep(SweepArgs),
    /// The perplexity of one model.
    Perplexity(PerplexityArgs),
    /// Continue a prompt, to see what a scheme does to a model.
    Generate(GenerateArgs),
    /// What serving costs: prefill, decoding, cache, batches, beside the machine's ceilings.
    Bench(BenchArgs),
    /// Speculative decoding: a draft proposes, the target decides.
    Speculate(SpeculateArgs),
    /// Static against continuous batching, over a trace of requests.
    Schedule(ScheduleArgs),
    /// Write the logits of one sequence of tokens, to compare with another engine's.
    Logits(LogitsArgs),
    /// Whether a device computes what the CPU does: kernels, products, models in every scheme.
    Selftest(SelfTestArgs),
}

/// `qeval compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The checkpoint to compare with: a Hugging Face directory, a safetensors or a GGUF file.
    #[arg(long, value_name = "MODEL")]
    pub reference: PathBuf,
    /// The artifacts.
    #[arg(required = true, value_name = "ARTIFACT")]
    pub artifacts: Vec<PathBuf>,
    /// Texts and windows.
    #[command(flatten)]
    pub text: TextArgs,
    /// What else is measured.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval sweep`.
#[derive(Debug, Args)]
pub struct SweepArgs {
    /// The checkpoint; by default the small model that is built into this program.
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Schemes, separated by commas; 'all' for every one.
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "SCHEME")]
    pub scheme: Vec<String>,
    /// Text for the schemes that need activation statistics; by default one that is built in.
    #[arg(long, value_name = "FILE")]
    pub calibration_text: Option<PathBuf>,
    /// Tokens of that text to use.
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub calibration_tokens: usize,
    /// Where to keep the artifacts, one folder (for ggml types one file) for each scheme; by default they are removed.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Texts and windows.
    #[command(flatten)]
    pub text: TextArgs,
    /// What else is measured.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval perplexity`.
#[derive(Debug, Args)]
pub struct PerplexityArgs {
    /// The model.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Texts and windows.
    #[command(flatten)]
    pub text: TextArgs,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `qeval logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The model.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Token ids, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "ID", required_unless_present = "prompt")]
    pub ids: Vec<u32>,
    /// A text instead, tokenized without BOS.
    #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
    pub prompt: Option<String>,
    /// Where to write: a safetensors file with `tokens` (I64, n) and `logits` (F32, n x vocabulary).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Whether an existing file is replaced.
    #[command(flatten)]
    pub overwrite: report::OverwriteArgs,
    /// Whose arithmetic, and where.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// Whose arithmetic, and where.
#[derive(Debug, Args)]
pub struct EngineArgs {
    /// Round activations as another engine does, to see what it will really give.
    #[arg(long, value_enum, default_value_t = EngineMath::Exact, value_name = "ENGINE")]
    pub engine_math: EngineMath,
    /// Where.
    #[command(flatten)]
    pub compute: ComputeArgs,
}

impl EngineArgs {
    /// The same for models, whose keys and values go through a cache of type `kv`, if any.
    pub fn compute(&self, kv: Option<KvType>) -> anyhow::Result<Compute> {
        let ComputeArgs { place, dtype } = &self.compute;
        Ok(Compute::on(&place.device, dtype, self.engine_math.math(), kv)?)
    }
}

/// Texts and windows.
#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// A text to score (repeatable: each has its own column); by default prose that is built in.
    #[arg(long, value_name = "FILE")]
    pub corpus: Vec<PathBuf>,
    /// Use only the first N tokens of each text.
    #[arg(long, value_name = "N")]
    pub tokens: Option<usize>,
    /// Positions of a window.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub ctx: usize,
    /// Tokens from one window to the next; by default windows don't overlap.
    #[arg(long, value_name = "N")]
    pub stride: Option<usize>,
    /// Begin every window and prompt with BOS: where the tokenizer adds one, always, or never.
    #[arg(long, value_enum, default_value_t = BosArg::Auto)]
    pub bos: BosArg,
    /// Which tokens of a window are scored: all that have a predecessor, or as llama-perplexity.
    #[arg(long, value_enum, default_value_t = ProtocolArg::Default)]
    pub protocol: ProtocolArg,
    /// Send keys and values through a cache of this type, of artifacts only; by default scores need none.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv: Option<KvArg>,
    /// Whose arithmetic, and where.
    #[command(flatten)]
    pub engine: EngineArgs,
}

impl TextArgs {
    /// Where and how models compute.
    pub fn compute(&self) -> anyhow::Result<Compute> {
        self.engine.compute(self.kv.map(KvArg::ty))
    }

    /// How texts become windows.
    pub fn protocol(&self) -> Protocol {
        Protocol {
            style: match self.protocol {
                ProtocolArg::Default => Style::Plain,
                ProtocolArg::LlamaCpp => Style::LlamaCpp,
            },
            ctx: self.ctx,
            stride: self.stride,
            bos: match self.bos {
                BosArg::Auto => Bos::Auto,
                BosArg::Always => Bos::Always,
                BosArg::Never => Bos::Never,
            },
            tokens: self.tokens,
        }
    }
}

/// What else is measured.
#[derive(Debug, Args)]
#[command(next_help_heading = "Measures")]
pub struct MeasureArgs {
    /// Questions: '16' or 'facts' (built in), 'none', or a JSON lines file (./16 for one of that name).
    #[arg(long, default_value = "16", value_name = "NAME|FILE")]
    pub battery: String,
    /// Multiple-choice items to score by log-likelihood: a JSON lines file.
    #[arg(long, value_name = "FILE")]
    pub choices: Option<PathBuf>,
    /// Don't measure speed.
    #[arg(long)]
    pub no_speed: bool,
    /// Difference from the reference's perplexity that is accepted, in percent. The verdict says whether an artifact
    /// is shown to lie within it, in perplexity and in mean KL (ln(1 + margin) nats).
    #[arg(long, default_value_t = Margin::default(), value_name = "PERCENT")]
    pub margin: Margin,
    /// Seed of the bootstrap.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
}

/// Output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print JSON instead of the table, or write it to a file beside it.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "FILE")]
    pub json: Option<Option<PathBuf>>,
    /// Print the table in Markdown.
    #[arg(long)]
    pub markdown: bool,
    /// Print the table as CSV.
    #[arg(long)]
    pub csv: bool,
    /// Print all rules below the table, not only their short form.
    #[arg(long)]
    pub verbose: bool,
    /// Also write one self-contained page with the table and plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Whether existing files are replaced.
    #[command(flatten)]
    pub overwrite: report::OverwriteArgs,
}

impl OutputArgs {
    /// Whether JSON goes to standard output.
    pub fn prints_json(&self) -> bool {
        matches!(self.json, Some(None))
    }

    /// How many formats are asked for on standard output.
    pub fn formats(&self) -> usize {
        usize::from(self.prints_json()) + usize::from(self.markdown) + usize::from(self.csv)
    }
}

/// `--bos`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum BosArg {
    /// Where the tokenizer adds one.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// `--engine-math`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineMath {
    /// As the scheme says, and otherwise not at all.
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

    /// What a reader must know, if anything.
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

    /// What a reader must know.
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn json_never_takes_an_artifact_for_its_file() {
        let parse = |args: &[&str]| Cli::try_parse_from(["qeval", "compare", "--reference", "r"].iter().chain(args));
        let Command::Compare(args) = parse(&["--json", "a.gguf", "b.gguf"]).expect("valid").command else {
            panic!("compare")
        };
        assert_eq!((args.artifacts.len(), args.output.prints_json()), (2, true));
        let Command::Compare(args) = parse(&["--json=out.json", "a.gguf"]).expect("valid").command else {
            panic!("compare")
        };
        assert_eq!(args.output.json, Some(Some(PathBuf::from("out.json"))));
        assert!(parse(&[]).is_err(), "no artifacts");
    }
}
