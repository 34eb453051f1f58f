//! The command line of qconvert.

use clap::{Parser, ValueEnum};
use schemes::FloatType;
use std::path::PathBuf;

/// Turn an FP16/BF16 checkpoint into quantized GGUF or safetensors artifacts.
///
/// MODEL is a Hugging Face directory, a .safetensors file or a GGUF file. With one scheme, -o
/// names the GGUF file or the directory to write; with several, a directory that will hold one
/// artifact for each scheme. The folder that it is to be in must be there.
#[derive(Debug, Parser)]
#[command(name = "qconvert", version, after_help = EXAMPLES)]
// What a calibration finds, and so what is written, should not depend on the machine unasked.
#[command(mut_arg("device", |device| device.default_value("cpu")))]
pub struct Args {
    /// The model to convert.
    pub model: PathBuf,

    /// Schemes, separated by commas: int8-row, int4-g128, nf4, ... or 'all'; f16, bf16 and f32
    /// too. Default: f16 with --to hf.
    #[arg(long, value_delimiter = ',')]
    pub scheme: Vec<String>,

    /// The container: gguf, safetensors (a Hugging Face directory), or hf (the same; dequantizes to f16 unless a scheme is named).
    #[arg(long, value_enum)]
    pub to: To,

    /// File or directory to write.
    #[arg(short, long, required_unless_present = "dry_run")]
    pub output: Option<PathBuf>,

    /// Layout of quantized weights: packed, compressed-tensors, bitsandbytes, ggml.
    /// By default the one that other engines load, where one holds the scheme.
    #[arg(long, value_parser = clap::value_parser!(conversion::Layout))]
    pub layout: Option<conversion::Layout>,

    /// Write quantized weights as what they decode to, in f16, bf16 or f32: any engine can then score
    /// the scheme. Activations that a scheme quantizes are not part of it.
    #[arg(long, value_name = "TYPE", value_parser = parse_float, conflicts_with = "layout")]
    pub emulate: Option<FloatType>,

    /// Also quantize the modules that match this glob, such as 'lm_head' (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Don't quantize the modules that match this glob, such as '*.0.mlp.down_proj' (repeatable).
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// TOML file with a scheme for each pattern.
    ///
    /// default = "int4-g64" is the scheme of the projections that no rule names; without it, that
    /// of --scheme. Each rule has match, a glob over module names such as "*.mlp.down_proj",
    /// and scheme, a scheme's name or "keep". Of the rules that match, the last one wins; it
    /// overrules --include, and --exclude overrules it.
    #[arg(long, value_name = "FILE")]
    pub recipe: Option<PathBuf>,

    /// Activation statistics for int8-outlier and w8a8-static.
    #[arg(long, value_name = "FILE", conflicts_with = "calibration_text")]
    pub calibration: Option<PathBuf>,

    /// Text to run the model on to get those statistics.
    #[arg(long, value_name = "FILE")]
    pub calibration_text: Option<PathBuf>,

    /// Tokens of the calibration text to use.
    #[arg(long, default_value_t = 2048, value_name = "N")]
    pub calibration_tokens: usize,

    /// Values that the float type can't hold: stop, or store the largest that it can (and count
    /// them).
    #[arg(long, value_enum, default_value_t = OnOverflow::Error)]
    pub overflow: OnOverflow,

    /// Tensors of a file, such as 2GB or 500MiB; larger models are split. Headers come on top, and a larger
    /// tensor has a file of its own. The parts of a GGUF model lie in the folder that -o names, under
    /// the names that llama.cpp knows.
    #[arg(long, value_name = "SIZE", value_parser = cli::size::parse)]
    pub max_shard_size: Option<u64>,

    /// Do all that the conversion does but write: show what would be written, or what doesn't fit and why.
    ///
    /// Destinations are checked where -o is given, every weight is read and encoded, and the exit code and the error
    /// are the conversion's.
    #[arg(long)]
    pub dry_run: bool,

    /// Read each artifact again before it is put in place, and compare it.
    ///
    /// Weights must decode, bit for bit, to what the definition of their scheme makes of the source; metadata (in
    /// GGUF in their order) and the files that travel along must be what was to be written; an independent reader must see the same tensors in a GGUF file. If anything differs, what
    /// was at the destination stays.
    #[arg(long)]
    pub verify: bool,

    /// Treatment of an existing destination.
    #[command(flatten)]
    pub overwrite: cli::OverwriteArgs,

    /// JSON output.
    #[command(flatten)]
    pub json: cli::JsonArgs,

    /// Device that runs the calibration text; with --verify, a GPU also decodes every weight as it would run it.
    #[command(flatten)]
    pub compute: cli::ComputeArgs,

    /// Options of every program.
    #[command(flatten)]
    pub common: cli::CommonArgs,
}

impl cli::HasCommon for Args {
    fn common(&self) -> &cli::CommonArgs {
        &self.common
    }
}

const EXAMPLES: &str = "Examples:
  qconvert models/smollm2 --scheme int8-row --to gguf -o smollm2-int8.gguf
  qconvert models/smollm2 --scheme int4-g64,nf4 --to safetensors -o artifacts --verify
  qconvert model.gguf --to hf -o model-f16
  qconvert models/smollm2 --scheme int4-g128 --to safetensors --dry-run

Exit codes:
  0  success
  1  failure
  2  wrong usage";

/// Containers as the command line names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum To {
    /// One GGUF file.
    Gguf,
    /// A Hugging Face directory.
    Safetensors,
    /// A Hugging Face directory, dequantized.
    Hf,
}

/// Treatment of values out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OnOverflow {
    /// Stop with an error that names the tensor.
    Error,
    /// Store the largest finite value.
    Clamp,
}

fn parse_float(text: &str) -> Result<FloatType, String> {
    let types = [FloatType::F16, FloatType::BF16, FloatType::F32];
    types.into_iter().find(|ty| ty.to_string() == text).ok_or_else(|| "give f16, bf16 or f32".into())
}
