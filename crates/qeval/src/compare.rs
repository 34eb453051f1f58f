//! `qeval compare`.

use crate::args::{MeasureArgs, TextArgs};
use crate::artifact::{self, Opened};
use crate::comparison::{self, table::Measures};
use crate::gate::GateArgs;
use crate::request::{notes, provenance, request, texts};
use anyhow::{Result, bail};
use clap::Args;
use cli::{Outcome, OutputArgs, output};
use progress::Progress;
use scoring::compare::{self, Entrant};
use scoring::load::Loaded;
use std::path::{Path, PathBuf};

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
    /// Other measures.
    #[command(flatten)]
    pub measure: MeasureArgs,
    /// Conditions on the result.
    #[command(flatten)]
    pub gates: GateArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval compare`.
pub fn compare(args: &CompareArgs, progress: &dyn Progress) -> Result<Outcome> {
    let mut inputs: Vec<&Path> = std::iter::once(&args.reference).chain(&args.artifacts).map(|p| p.as_path()).collect();
    inputs.extend(texts(&args.text, &args.measure));
    output::check(&args.output, &inputs)?;
    let request = request(&args.text, &args.measure, &args.gates)?;
    args.gates.check(&Measures::of_request(&request).column_keys())?;
    let compute = args.text.compute()?;
    let reference = Loaded::open(&args.reference, &compute.of_reference(), None)?;
    let artifacts: Vec<Opened> = args.artifacts.iter().map(|path| Opened::open(path, &compute, &reference)).collect();
    let entrants: Vec<Entrant<'_>> = artifacts.iter().map(|artifact| artifact.entrant(&reference)).collect();
    if let Some(reasons) = artifact::all_failed(&entrants) {
        bail!(reasons);
    }
    let mut comparison = compare::compare(&reference.subject(None)?, &entrants, &request, progress)?;
    comparison.notes.splice(..0, notes(&args.text, &compute));
    let provenance = provenance(&compute, &request.corpora)
        .files("battery", &args.measure.battery_file())
        .files("choices", &args.measure.choices)
        .model("reference", &args.reference)
        .models("artifact", &args.artifacts);
    comparison::present(comparison, &args.output, &args.gates, &provenance)
}
