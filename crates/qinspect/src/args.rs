//! The command line of qinspect.

use clap::{Args, Parser, Subcommand, ValueEnum};
use cli::{BosArg, CommonArgs, ComputeArgs, HasCommon, OutputArgs};
use inspection::layers::By;
use inspection::text::Cut;
use std::path::PathBuf;

/// See why a model is hard to quantize.
///
/// Its tensors, the outliers of its weights and activations, the parts that a scheme hurts most, the memory it needs,
/// and its differences from another model.
#[derive(Debug, Parser)]
#[command(name = "qinspect", version, after_help = EXAMPLES)]
pub struct Cli {
    /// Command to run.
    #[command(subcommand)]
    pub command: Command,
    /// Options of every command.
    #[command(flatten)]
    pub common: CommonArgs,
}

impl HasCommon for Cli {
    fn common(&self) -> &CommonArgs {
        &self.common
    }
}

const EXAMPLES: &str = "Examples:
  qinspect tensors model.gguf --metadata
  qinspect weights models/smollm2 --html weights.html
  qinspect activations models/smollm2 --text book.txt --save calibration.safetensors
  qinspect layers models/smollm2 --scheme int4-g64 --target-bpw 4.6 --write-recipe mixed.toml
  qinspect memory --params 13B --layers 40 --kv-heads 40 --head-dim 128
  qinspect diff models/smollm2 smollm2-int8.gguf

Exit codes:
  0  success
  1  failure, or models that differ (diff --exit-code)
  2  wrong usage";

/// Commands of qinspect.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// List the tensors of a model: names, types, shapes, bytes, schemes, totals.
    Tensors(TensorsArgs),
    /// Show the outliers of each weight matrix, and the error of each scheme.
    Weights(WeightsArgs),
    /// Show activations on a text: large dimensions, their tokens, INT8 levels in use.
    Activations(ActivationsArgs),
    /// Rank blocks by what a scheme costs them, and propose a recipe that keeps the worst in more bits.
    Layers(LayersArgs),
    /// Compute what fits into the memory of a device, by scheme: weights, context, users.
    Memory(MemoryArgs),
    /// Compare two models: each tensor, configuration, metadata.
    Diff(DiffArgs),
}

/// `qinspect tensors`.
#[derive(Debug, Args)]
pub struct TensorsArgs {
    /// A Hugging Face directory, a safetensors or a GGUF file.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Show the metadata too.
    #[arg(long)]
    pub metadata: bool,
    /// A line for each tensor, not one for all blocks.
    #[arg(long)]
    pub all: bool,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qinspect weights`.
#[derive(Debug, Args)]
pub struct WeightsArgs {
    /// A Hugging Face directory, a safetensors or a GGUF file.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Count weights further than so many standard deviations from the mean.
    #[arg(long, default_value_t = 6.0, value_name = "N", allow_negative_numbers = true)]
    pub sigma: f64,
    /// Schemes whose loss is measured, separated by commas, or 'all'; by default one of each kind of code.
    #[arg(long, value_delimiter = ',', value_name = "SCHEME")]
    pub scheme: Vec<String>,
    /// Activation statistics, for int8-outlier (qinspect activations --save writes them).
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// A line for each matrix.
    #[arg(long)]
    pub all: bool,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qinspect activations`.
#[derive(Debug, Args)]
pub struct ActivationsArgs {
    /// A Hugging Face directory, a safetensors or a GGUF file.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Text.
    #[command(flatten)]
    pub text: TextArgs,
    /// Take out so many of the largest dimensions, to see what they cost.
    #[arg(long, default_value_t = 4, value_name = "K")]
    pub without: usize,
    /// List so many of the largest dimensions.
    #[arg(long, default_value_t = 3, value_name = "K")]
    pub top: usize,
    /// A line for the input of each linear layer.
    #[arg(long)]
    pub inputs: bool,
    /// Write the maxima of each linear layer's input, for qconvert --calibration.
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Device and precision of the model.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Text")]
pub struct TextArgs {
    /// The text to run the model on; by default one that is built in.
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// Use only the first N tokens of it.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub tokens: usize,
    /// Tokens of a sequence.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub ctx: usize,
    /// Begin every sequence with BOS: where the tokenizer adds one, always, or never.
    #[arg(long, value_enum, default_value_t = BosArg::Auto)]
    pub bos: BosArg,
}

impl TextArgs {
    /// Cut of the text into sequences.
    pub fn cut(&self) -> Cut {
        Cut { tokens: self.tokens, ctx: self.ctx, bos: self.bos.into() }
    }
}

/// `qinspect layers`.
#[derive(Debug, Args)]
pub struct LayersArgs {
    /// A Hugging Face directory, a safetensors or a GGUF file.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// The scheme.
    #[arg(long, value_name = "SCHEME")]
    pub scheme: String,
    /// Unit that is quantized at a time. By matrix the recipe is best, and takes longest to find.
    #[arg(long, value_enum, default_value_t = ByArg::Block)]
    pub by: ByArg,
    /// The scheme of what the recipe keeps in more bits.
    #[arg(long, default_value = "int8-row", value_name = "SCHEME")]
    pub keep: String,
    /// Bits per weight that the recipe may take; by default half a bit more than the scheme, and
    /// enough to keep one part.
    #[arg(long, value_name = "BITS", allow_negative_numbers = true)]
    pub target_bpw: Option<f64>,
    /// Write the recipe, for qconvert --recipe.
    #[arg(long = "write-recipe", alias = "recipe", value_name = "FILE")]
    pub recipe: Option<PathBuf>,
    /// Activation statistics, for schemes that need them (qinspect activations --save writes them).
    #[arg(long, value_name = "FILE")]
    pub calibration: Option<PathBuf>,
    /// Keep every forward pass in a folder, and take from it what earlier runs kept there [default folder: qeval-cache].
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "qeval-cache", value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Text.
    #[command(flatten)]
    pub text: TextArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--by`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ByArg {
    /// All projections of one block.
    Block,
    /// One kind of projection in all blocks.
    Kind,
    /// One matrix.
    Matrix,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Block => By::Block,
            ByArg::Kind => By::Kind,
            ByArg::Matrix => By::Matrix,
        }
    }
}

/// `qinspect memory`.
#[derive(Debug, Args)]
pub struct MemoryArgs {
    /// A model, whose real bytes count.
    #[arg(value_name = "MODEL", conflicts_with = "params")]
    pub model: Option<PathBuf>,
    /// A number of parameters instead, such as 13B: each counts at the scheme's nominal bits.
    #[arg(long, value_name = "N", requires_all = ["layers", "kv_heads", "head_dim"])]
    pub params: Option<String>,
    /// Blocks.
    #[arg(long, value_name = "N", requires = "params")]
    pub layers: Option<u64>,
    /// Key and value heads.
    #[arg(long, value_name = "N", requires = "params")]
    pub kv_heads: Option<u64>,
    /// Width of a head.
    #[arg(long, value_name = "N", requires = "params")]
    pub head_dim: Option<u64>,
    /// Memory of the devices in GiB, separated by commas.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "8,16,24,80",
        value_name = "GIB",
        allow_negative_numbers = true
    )]
    pub vram: Vec<f64>,
    /// Memory for everything besides weights and cache, in GiB.
    #[arg(long, default_value_t = 1.5, value_name = "GIB", allow_negative_numbers = true)]
    pub overhead: f64,
    /// Tokens of each user, where users are counted.
    #[arg(long = "ctx", alias = "context", default_value_t = 4096, value_name = "N")]
    pub context: u64,
    /// Schemes, separated by commas, or 'all'.
    #[arg(long, value_delimiter = ',', value_name = "SCHEME")]
    pub scheme: Vec<String>,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qinspect diff`.
#[derive(Debug, Args)]
pub struct DiffArgs {
    /// The model that errors are relative to.
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// The other model, in any layout.
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// A line for each tensor.
    #[arg(long)]
    pub all: bool,
    /// Exit with code 1 if the models differ in a tensor, the configuration or the metadata.
    #[arg(long)]
    pub exit_code: bool,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}
