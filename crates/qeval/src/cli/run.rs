//! `qeval compare` and `qeval perplexity`.

use super::args::{CompareArgs, MeasureArgs, OutputArgs, PerplexityArgs, TextArgs};
use super::{Outcome, Usage, builtin, page, table};
use crate::compare::{self, Request, Subject};
use crate::load::Loaded;
use crate::rows::Comparison;
use crate::{Corpus, choices};
use anyhow::{Context, Result, bail};
use candle_core::Device;
use std::path::Path;
use store::Progress;
use store::output::{OutputFile, refuse_same_file};

/// `qeval compare`.
pub fn compare(args: &CompareArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<&Path> = std::iter::once(&args.reference).chain(&args.artifacts).map(|p| p.as_path()).collect();
    check(&args.output, &inputs)?;
    let request = request(&args.text, &args.measure)?;
    let device = device(&args.text)?;
    let reference = Loaded::open(&args.reference, &device, None)?;
    let mut artifacts = Vec::with_capacity(args.artifacts.len());
    for path in &args.artifacts {
        artifacts.push(Loaded::open(path, &device, Some(&reference))?);
    }
    let mut subjects = Vec::with_capacity(artifacts.len());
    for artifact in &artifacts {
        let named = || artifact.path.display().to_string();
        subjects.push(artifact.subject(Some(&reference)).with_context(named)?);
    }
    let comparison = compare::compare(&reference.subject(None)?, &subjects, &request, progress)?;
    present(&comparison, &args.output)
}

/// Where to compute.
pub fn device(args: &TextArgs) -> Result<Device> {
    runtime::device(&args.device).map_err(|e| Usage(e.to_string()).into())
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
    })
}

fn corpora(args: &TextArgs) -> Result<Vec<Corpus>> {
    if args.corpus.is_empty() {
        return Ok(vec![builtin::prose()]);
    }
    let mut corpora: Vec<Corpus> = Vec::with_capacity(args.corpus.len());
    for path in &args.corpus {
        let file = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy()).into_owned();
        let is_taken = corpora.iter().any(|c| c.name == file);
        let name = if is_taken { path.display().to_string() } else { file };
        corpora.push(Corpus { name, text: builtin::read(path)? });
    }
    Ok(corpora)
}

/// Checks what is asked of the output before any work.
pub fn check(args: &OutputArgs, inputs: &[&Path]) -> Result<()> {
    if args.formats() > 1 {
        bail!(Usage("only one of --json, --markdown and --csv can be printed; --json=FILE writes a file".into()));
    }
    let files = args.json.iter().flatten().chain(&args.html);
    for file in files.map(|f| f.as_path()) {
        refuse_same_file(file, inputs)?;
        // Nobody wants to wait for scores that can't be written.
        drop(OutputFile::create(file, None)?);
    }
    Ok(())
}

/// Writes the files, and gives what is printed.
pub fn present(comparison: &Comparison, args: &OutputArgs) -> Result<Outcome> {
    if let Some(Some(path)) = &args.json {
        write(path, comparison.to_json()?.as_bytes())?;
    }
    if let Some(path) = &args.html {
        write(path, page::page(comparison)?.render()?.as_bytes())?;
    }
    let text = match args {
        args if args.prints_json() => comparison.to_json()?,
        args if args.markdown => table::table(comparison)?.to_markdown(),
        args if args.csv => table::table(comparison)?.to_csv(),
        _ => report::stdout_form().render(&table::table(comparison)?),
    };
    let marked = comparison.rows.iter().filter_map(|r| Some((r, r.problem.as_ref()?)));
    let problems = marked.map(|(row, problem)| format!("{} ({}): {problem}", row.artifact, row.scheme)).collect();
    Ok(Outcome { text, problems })
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = OutputFile::create(path, None)?;
    file.write_all_at(bytes, 0)?;
    Ok(file.persist()?)
}

/// `qeval perplexity`.
pub fn perplexity(args: &PerplexityArgs, progress: &dyn Progress) -> Result<Outcome> {
    let protocol = args.text.protocol();
    protocol.check()?;
    let corpora = corpora(&args.text)?;
    let loaded = Loaded::open(&args.model, &device(&args.text)?, None)?;
    let subject: Subject<'_> = loaded.subject(None)?;
    let scored = compare::perplexity(&subject, &corpora, &protocol, args.seed, progress)?;
    let text = if args.json { scored.to_json()? } else { table::perplexity(&scored) };
    Ok(Outcome { text, problems: Vec::new() })
}
