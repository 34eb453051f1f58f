//! Everything together: any number of artifacts against one reference.

use crate::model::LanguageModel;
use crate::rows::{Comparison, CorpusInfo, Limits, VERSION, smallest_within};
use crate::size::{Errors, Size};
use crate::stats::Bootstrap;
use crate::text::Cut;
use crate::verdict::Margin;
use crate::{Corpus, Encoder, Error, Protocol, Result, agreement, battery, choices, score, speed};
use progress::{Progress, Unit};

mod contestant;
mod label;
mod notes;
mod perplexity;
mod texts;

use contestant::Contestant;
pub use perplexity::{CorpusPerplexity, Perplexities, perplexity};

/// A model to be scored.
pub struct Subject<'a> {
    /// Path of the model.
    pub artifact: String,
    /// The model.
    pub model: &'a dyn LanguageModel,
    /// Tokenizer of the model.
    pub encoder: &'a Encoder,
    /// Tokens that end a text.
    pub end: Vec<u32>,
    /// Sizes of the model's files and weights.
    pub size: Size,
    /// Bytes of weights in memory.
    pub resident_bytes: u64,
    /// Positions that it was trained for.
    pub max_position: usize,
    /// Error of its weights, or why they can't be compared; none for the reference.
    pub weight_error: Option<Result<Errors, String>>,
    /// Warnings about the model that a reader of the table needs.
    pub warnings: Vec<String>,
    /// The texts that it was trained on here.
    pub trained_on: store::TrainedOn,
}

/// An artifact on its way into a comparison.
pub enum Entrant<'a> {
    /// A model that can be scored.
    Ready(Subject<'a>),
    /// A model that could not be opened. Its row in the table holds the reason.
    Failed {
        /// Path of the model.
        artifact: String,
        /// Reason, on one line.
        error: String,
    },
}

impl Entrant<'_> {
    /// Gives it another name than its path.
    pub fn rename(&mut self, name: String) {
        match self {
            Entrant::Ready(subject) => subject.artifact = name,
            Entrant::Failed { artifact, .. } => *artifact = name,
        }
    }
}

/// A battery with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Battery {
    /// Name in tables.
    pub name: String,
    /// Questions of the battery.
    pub items: Vec<battery::Item>,
}

/// Everything that a comparison measures.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Rule that cuts texts into windows.
    pub protocol: Protocol,
    /// The texts; the first decides the verdict.
    pub corpora: Vec<Corpus>,
    /// Questions to ask.
    pub battery: Option<Battery>,
    /// Multiple-choice items.
    pub choices: Option<Vec<choices::Item>>,
    /// Switch for token agreement.
    pub agreement: bool,
    /// Switch for measuring speed.
    pub speed: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
    /// The difference that is accepted.
    pub margin: Margin,
    /// Limits for the choice of an artifact.
    pub limits: Limits,
}

/// Scores a reference and its artifacts.
///
/// An artifact that fails on the way has its row marked with the reason; the others stand.
///
/// # Errors
/// When a text or protocol makes no sense, or the reference fails.
pub fn compare(
    reference: &Subject<'_>,
    artifacts: &[Entrant<'_>],
    request: &Request,
    progress: &dyn Progress,
) -> Result<Comparison> {
    // All texts are cut before any of them is scored.
    let cuts = request
        .corpora
        .iter()
        .map(|corpus| reference.encoder.windows(corpus, &request.protocol))
        .collect::<Result<Vec<Cut>>>()?;
    let bootstrap = Bootstrap::new(request.seed);
    let mut first = Contestant::new(reference, None);
    let ready = artifacts.iter().filter_map(|a| match a {
        Entrant::Ready(subject) => Some(subject),
        Entrant::Failed { .. } => None,
    });
    let mut others: Vec<Contestant<'_>> = ready.map(|a| Contestant::new(a, Some(reference))).collect();
    let longest = cuts.iter().map(|c| c.windows.longest()).max().unwrap_or(0);
    std::iter::once(&mut first).chain(&mut others).for_each(|c| c.check_context(longest));
    for contestant in std::iter::once(&mut first).chain(&mut others) {
        contestant.check_training(&request.corpora)?;
    }
    for (corpus, cut) in request.corpora.iter().zip(&cuts) {
        texts::score(&mut first, &mut others, corpus, cut, request, &bootstrap, progress)?;
    }
    ask(&mut first, &mut others, request, progress)?;
    if request.speed {
        time(&mut first, &mut others, &cuts, progress);
    }
    let (rows, remarks) = contestant::finish(first, others, artifacts, &cuts, request.margin);
    Ok(Comparison {
        version: VERSION,
        reference: reference.artifact.clone(),
        protocol: request.protocol,
        corpora: infos(&request.corpora, &cuts),
        battery: request.battery.as_ref().map(|b| b.name.clone()),
        choices: request.choices.as_ref().map(Vec::len),
        agreement: request.agreement,
        speed: request.speed,
        seed: request.seed,
        margin: request.margin,
        smallest_within_margin: smallest_within(&rows).map(|row| row.artifact.clone()),
        limits: request.limits,
        smallest_within_limits: request.limits.smallest(&rows).map(|row| row.artifact.clone()),
        methods: notes::methods(request, &bootstrap),
        notes: notes::notes(&rows, &remarks),
        rows,
    })
}

fn infos(corpora: &[Corpus], cuts: &[Cut]) -> Vec<CorpusInfo> {
    let info = |(corpus, cut): (&Corpus, &Cut)| CorpusInfo {
        name: corpus.name.clone(),
        rule: cut.windows.rule.clone(),
        tokens_scored: cut.windows.scored(),
        bytes_scored: cut.bytes,
    };
    corpora.iter().zip(cuts).map(info).collect()
}

/// Agreement, battery and choices.
fn ask(
    first: &mut Contestant<'_>,
    others: &mut [Contestant<'_>],
    request: &Request,
    progress: &dyn Progress,
) -> Result<()> {
    let bos = request.protocol.bos;
    let reference = first.subject;
    let broken = |e: Error| e.of_reference(&reference.artifact);
    if request.agreement {
        agree(reference, others, bos, progress).map_err(broken)?;
    }
    if let Some(battery) = &request.battery {
        let ask = |s: &Subject<'_>| {
            let rules = battery::Rules { bos, end: &s.end };
            battery::ask(s.model, s.encoder, &battery.items, rules, progress)
        };
        let known = ask(reference).map_err(broken)?;
        first.row.battery = Some(battery::Score::new(&known, None));
        for other in others.iter_mut() {
            other.row.battery = other.step(ask).map(|right| battery::Score::new(&right, Some(&known)));
        }
    }
    if let Some(items) = &request.choices {
        let answer = |s: &Subject<'_>| choices::answer(s.model, s.encoder, items, bos, progress);
        let known = answer(reference).map_err(broken)?;
        first.row.choices = Some(choices::Score::new(&known, None));
        for other in others.iter_mut() {
            other.row.choices = other.step(answer).map(|right| choices::Score::new(&right, Some(&known)));
        }
    }
    Ok(())
}

/// Token agreement of the artifacts with the reference's continuations.
fn agree(
    reference: &Subject<'_>,
    others: &mut [Contestant<'_>],
    bos: store::Bos,
    progress: &dyn Progress,
) -> Result<()> {
    progress.start("agreement", Some(1 + others.len() as u64), Unit::Items);
    progress.message(&reference.artifact);
    let written = agreement::write(reference.model, reference.encoder, &agreement::PROMPTS, bos)?;
    progress.advance(1);
    for other in others.iter_mut() {
        progress.message(&other.subject.artifact);
        if other.is_paired() {
            let prompts = other.step(|s| agreement::agree(s.model, &written));
            other.row.agreement = prompts.map(|p| agreement::Score::new(&p));
        }
        progress.advance(1);
    }
    progress.finish();
    Ok(())
}

/// Speeds of all models, each on the first window of the first text.
fn time<'a>(first: &mut Contestant<'a>, others: &mut [Contestant<'a>], cuts: &[Cut], progress: &dyn Progress) {
    let window = cuts.first().and_then(|c| c.windows.windows.first()).map(|w| w.tokens.as_slice());
    let Some(tokens) = window else { return };
    progress.start("speed", Some(1 + others.len() as u64), Unit::Items);
    for contestant in std::iter::once(first).chain(others) {
        let vocab = contestant.subject.model.vocab_size();
        // Under another tokenizer the tokens mean something else, but take as long.
        let tokens: Vec<u32> = tokens.iter().map(|t| t % vocab.max(1) as u32).collect();
        let speed = contestant.step(|s| speed::measure(s.model.timed().unwrap_or(s.model), &tokens));
        contestant.row.prefill_tokens_per_s = speed.map(|s| s.prefill.median);
        contestant.row.prefill_range = speed.map(|s| s.prefill.range);
        contestant.row.decode_tokens_per_s = speed.map(|s| s.decode.median);
        contestant.row.decode_range = speed.map(|s| s.decode.range);
        progress.advance(1);
    }
    progress.finish();
}

#[cfg(test)]
mod tests;
