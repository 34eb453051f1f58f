//! Texts, questions and protocol that `compare`, `sweep` and `perplexity` score.

use crate::args::{KvArg, MeasureArgs, TextArgs};
use crate::builtin;
use crate::gate::GateArgs;
use anyhow::{Result, bail};
use cli::{Provenance, Usage};
use scoring::compare::Request;
use scoring::load::Compute;
use scoring::{Corpus, choices};
use std::path::Path;

/// Tokens of each text that `--quick` scores.
const QUICK_TOKENS: usize = 512;

/// Notes on how the results were computed.
pub fn notes(args: &TextArgs, compute: &Compute) -> Vec<String> {
    let (math, kv) = (args.engine.engine_math.note(), args.kv.map(KvArg::note));
    let kept = compute.cache.as_ref().and_then(|cache| cache.note());
    compute.note().into_iter().chain(math).chain(kv).chain(kept).collect()
}

/// The files that texts and questions come from.
pub fn texts<'a>(text: &'a TextArgs, measure: &'a MeasureArgs) -> Vec<&'a Path> {
    let questions = Some(Path::new(&measure.battery)).filter(|file| file.exists());
    text.corpus.iter().chain(&measure.choices).map(|p| p.as_path()).chain(questions).collect()
}

/// Builds the request from the arguments.
pub fn request(text: &TextArgs, measure: &MeasureArgs, gates: &GateArgs) -> Result<Request> {
    let mut protocol = text.protocol();
    if measure.quick {
        protocol.tokens = Some(QUICK_TOKENS);
    }
    protocol.check()?;
    let choices = match &measure.choices {
        Some(path) => Some(choices::parse(path, &builtin::read(path)?)?),
        None => None,
    };
    Ok(Request {
        protocol,
        corpora: corpora(text)?,
        battery: builtin::battery(measure.battery_name())?,
        choices,
        agreement: measure.measures_agreement(),
        speed: !(measure.no_speed || measure.quick),
        seed: measure.seed,
        margin: measure.margin,
        limits: gates.limits(),
    })
}

/// The provenance of scores: the device, and the scored texts. Models are added by the caller.
pub fn provenance(compute: &Compute, corpora: &[Corpus]) -> Provenance {
    let on = Provenance::on(runtime::device_name(&compute.device));
    corpora.iter().fold(on, |all, corpus| all.bytes("text", &corpus.name, corpus.text.as_bytes()))
}

/// The texts that the arguments name, or the built-in one.
pub fn corpora(args: &TextArgs) -> Result<Vec<Corpus>> {
    if args.corpus.is_empty() {
        return Ok(vec![builtin::prose()]);
    }
    let mut corpora: Vec<Corpus> = Vec::with_capacity(args.corpus.len());
    for path in &args.corpus {
        let file = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy()).into_owned();
        let is_taken = |name: &str| corpora.iter().any(|c| c.name == name);
        let name = if is_taken(&file) { path.display().to_string() } else { file };
        if is_taken(&name) {
            bail!(Usage(format!("--text {name} is given twice")));
        }
        corpora.push(Corpus { name, text: builtin::read(path)? });
    }
    Ok(corpora)
}
