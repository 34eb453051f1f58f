//! `qeval perplexity`.

use crate::args::TextArgs;
use crate::comparison::table;
use crate::request::{corpora, notes, provenance};
use anyhow::Result;
use clap::Args;
use cli::Outcome;
use progress::Progress;
use scoring::compare::{self, Subject};
use scoring::load::Loaded;
use std::path::PathBuf;

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
    /// JSON output.
    #[command(flatten)]
    pub json: cli::JsonArgs,
    /// Treatment of an existing file.
    #[command(flatten)]
    pub overwrite: cli::OverwriteArgs,
}

/// `qeval perplexity`.
pub fn perplexity(args: &PerplexityArgs, progress: &dyn Progress) -> Result<Outcome> {
    args.json.check(args.overwrite, &[&args.model])?;
    let protocol = args.text.protocol();
    protocol.check()?;
    let corpora = corpora(&args.text)?;
    let compute = args.text.compute()?;
    let loaded = Loaded::open(&args.model, &compute, None)?;
    let subject: Subject<'_> = loaded.subject(None)?;
    let mut scored = compare::perplexity(&subject, &corpora, &protocol, args.seed, progress)?;
    scored.notes.splice(..0, notes(&args.text, &compute));
    let provenance = provenance(&compute, &corpora).model("model", &args.model);
    let text = args.json.emit(
        ("qeval perplexity", &provenance, args.overwrite),
        || Ok(serde_json::to_value(&scored)?),
        || Ok(table::perplexity(&scored)),
    )?;
    Ok(text.into())
}
