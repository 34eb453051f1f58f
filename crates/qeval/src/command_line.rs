//! The command line of qeval: its commands, and examples of each.

use crate::bench::BenchArgs;
use crate::compare::CompareArgs;
use crate::generate::GenerateArgs;
use crate::logits::LogitsArgs;
use crate::perplexity::PerplexityArgs;
use crate::schedule::ScheduleArgs;
use crate::selftest::SelfTestArgs;
use crate::speculate::SpeculateArgs;
use crate::sweep::SweepArgs;
use clap::{Parser, Subcommand};
use cli::{CommonArgs, HasCommon};

/// Score quantized models against the checkpoint that they were made from.
///
/// Size, perplexity with intervals, KL divergence, a battery of facts, token agreement and
/// speed, of any number of artifacts against one reference, in one table.
#[derive(Debug, Parser)]
#[command(name = "qeval", version, after_help = EXAMPLES)]
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
  qeval sweep
  qeval sweep models/smollm2 --html smollm2.html
  qeval compare --reference models/smollm2 a.gguf b.gguf --text book.txt --tokens 2048
  qeval compare --reference models/smollm2 a.gguf --fail-if 'kl > 0.05' --fail-if 'change > 1%'
  qeval perplexity model.gguf --protocol llama.cpp
  qeval generate model.gguf --prompt 'The capital of France is' --max-tokens 20
  qeval bench models/smollm2 a.gguf --html bench.html
  qeval speculate --target models/smollm2 --draft a.gguf --gamma 1..8
  qeval schedule --slots 8 --html schedule.html

Exit codes:
  0  success
  1  failure, or a row of the table is marked as failed (the others stand)
  2  wrong usage
  3  a result fails a gate (--fail-if, --max-kl, --max-size)";

/// Commands of qeval.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Compare artifacts with the checkpoint that they were made from.
    Compare(CompareArgs),
    /// Convert a model into every scheme and compare them all.
    Sweep(SweepArgs),
    /// Print the perplexity of one model.
    Perplexity(PerplexityArgs),
    /// Continue a prompt, to see what a scheme does to a model.
    Generate(GenerateArgs),
    /// Measure prefill, decoding, cache and batches beside the machine's ceilings.
    Bench(BenchArgs),
    /// Measure speculative decoding: a draft proposes, the target decides.
    Speculate(SpeculateArgs),
    /// Compare static with continuous batching over a trace of requests.
    Schedule(ScheduleArgs),
    /// Write the logits of one sequence of tokens, to compare with another engine's.
    Logits(LogitsArgs),
    /// Check that a device computes what the CPU computes: kernels, products, models in every scheme.
    Selftest(SelfTestArgs),
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;
    use std::path::PathBuf;

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
