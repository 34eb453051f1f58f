//! `qeval compare` and `qeval perplexity`.

use super::args::{CompareArgs, KvArg, MeasureArgs, PerplexityArgs, TextArgs};
use super::open::{self, Opened};
use super::{Outcome, Usage, builtin, output, table};
use crate::compare::{self, Entrant, Request, Subject};
use crate::load::{Compute, Loaded};
use crate::{Corpus, choices};
use anyhow::{Result, bail};
use std::path::Path;
use store::Progress;

/// `qeval compare`.
pub fn compare(args: &CompareArgs, progress: &dyn Progress) -> Result<Outcome> {
    let mut inputs: Vec<&Path> = std::iter::once(&args.reference).chain(&args.artifacts).map(|p| p.as_path()).collect();
    inputs.extend(texts(&args.text, &args.measure));
    output::check(&args.output, &inputs)?;
    let request = request(&args.text, &args.measure)?;
    let compute = args.text.compute()?;
    let reference = Loaded::open(&args.reference, &compute.of_reference(), None)?;
    let artifacts: Vec<Opened> = args.artifacts.iter().map(|path| Opened::open(path, &compute, &reference)).collect();
    let entrants: Vec<Entrant<'_>> = artifacts.iter().map(|artifact| artifact.entrant(&reference)).collect();
    if let Some(reasons) = open::all_failed(&entrants) {
        bail!(reasons);
    }
    let mut comparison = compare::compare(&reference.subject(None)?, &entrants, &request, progress)?;
    comparison.notes.splice(..0, notes(&args.text, &compute));
    output::present(&comparison, &args.output)
}

/// What a reader must know of how it was computed.
pub fn notes(args: &TextArgs, compute: &Compute) -> Vec<String> {
    let (math, cache) = (args.engine.engine_math.note(), args.kv.map(KvArg::note));
    compute.note().into_iter().chain(math).chain(cache).collect()
}

/// The files that texts and questions come from.
pub fn texts<'a>(text: &'a TextArgs, measure: &'a MeasureArgs) -> Vec<&'a Path> {
    let questions = Some(Path::new(&measure.battery)).filter(|file| file.exists());
    text.corpus.iter().chain(&measure.choices).map(|p| p.as_path()).chain(questions).collect()
}

/// What the arguments ask for.
pub fn request(text: &TextArgs, measure: &MeasureArgs) -> Result<Request> {
    let protocol = text.protocol();
    protocol.check()?;
    let choices = match &measure.choices {
        Some(path) => Some(choices::parse(path, &builtin::read(path)?)?),
        None => None,
    };
    Ok(Request {
        protocol,
        corpora: corpora(text)?,
        battery: builtin::battery(&measure.battery)?,
        choices,
        speed: !measure.no_speed,
        seed: measure.seed,
        margin: measure.margin,
    })
}

fn corpora(args: &TextArgs) -> Result<Vec<Corpus>> {
    if args.corpus.is_empty() {
        return Ok(vec![builtin::prose()]);
    }
    let mut corpora: Vec<Corpus> = Vec::with_capacity(args.corpus.len());
    for path in &args.corpus {
        let file = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy()).into_owned();
        let is_taken = |name: &str| corpora.iter().any(|c| c.name == name);
        let name = if is_taken(&file) { path.display().to_string() } else { file };
        if is_taken(&name) {
            bail!(Usage(format!("--corpus {name} is given twice")));
        }
        corpora.push(Corpus { name, text: builtin::read(path)? });
    }
    Ok(corpora)
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
    let text = if args.json { scored.to_json()? } else { table::perplexity(&scored) };
    Ok(Outcome { text, problems: Vec::new() })
}
