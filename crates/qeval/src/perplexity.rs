//! `qeval perplexity`.

use crate::args::TextArgs;
use crate::comparison::table;
use crate::request::{corpora, notes};
use anyhow::Result;
use clap::Args;
use cli::{Outcome, output};
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
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
}

/// `qeval perplexity`.
pub fn perplexity(args: &PerplexityArgs, progress: &dyn Progress) -> Result<Outcome> {
    let protocol = args.text.protocol();
    protocol.check()?;
    let corpora = corpora(&args.text)?;
    let compute = args.text.compute()?;
    let loaded = Loaded::open(&args.model, &compute, None)?;
    let subject: Subject<'_> = loaded.subject(None)?;
    let mut scored = compare::perplexity(&subject, &corpora, &protocol, args.seed, progress)?;
    scored.notes.splice(..0, notes(&args.text, &compute));
    let text = if args.json {
        output::json_with_header("qeval perplexity", serde_json::to_value(&scored)?)?
    } else {
        table::perplexity(&scored)
    };
    Ok(text.into())
}
