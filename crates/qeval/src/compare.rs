//! Everything together: any number of artifacts against one reference.

use crate::model::LanguageModel;
use crate::rows::{Comparison, CorpusInfo, Row, TextScores, VERSION};
use crate::size::{Errors, Size};
use crate::stats::{BLOCK, Bootstrap};
use crate::text::{Cut, difference};
use crate::verdict::{self, Verdict};
use crate::{Corpus, Encoder, Protocol, Result, agreement, battery, choices, score, speed};
use store::{Progress, Unit};

mod alone;
mod texts;

pub use alone::{CorpusPerplexity, Perplexities, perplexity};

/// A model to be scored.
pub struct Subject<'a> {
    /// Its path.
    pub artifact: String,
    /// The model.
    pub model: &'a dyn LanguageModel,
    /// Its tokenizer.
    pub encoder: &'a Encoder,
    /// Tokens that end a text.
    pub end: Vec<u32>,
    /// Its sizes.
    pub size: Size,
    /// Bytes of weights in memory.
    pub resident_bytes: u64,
    /// Error of its weights; none for the reference.
    pub weight_error: Option<Errors>,
    /// What a reader should know of it.
    pub warnings: Vec<String>,
}

/// A battery with its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Battery {
    /// What tables call it.
    pub name: String,
    /// Its questions.
    pub items: Vec<battery::Item>,
}

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// How texts become windows.
    pub protocol: Protocol,
    /// The texts; the first decides the verdict.
    pub corpora: Vec<Corpus>,
    /// Questions to ask.
    pub battery: Option<Battery>,
    /// Multiple-choice items.
    pub choices: Option<Vec<choices::Item>>,
    /// Whether to measure speed.
    pub speed: bool,
    /// Seed of the bootstrap.
    pub seed: u64,
}

/// One model's state during a comparison.
struct Contestant<'a> {
    subject: &'a Subject<'a>,
    row: Row,
}

impl<'a> Contestant<'a> {
    fn new(subject: &'a Subject<'a>, reference: Option<&Subject<'_>>) -> Self {
        let differs = |r: &Subject<'_>| {
            if std::ptr::eq(r.encoder, subject.encoder) { None } else { difference(r.encoder, subject.encoder) }
        };
        let row = Row {
            scheme: subject.size.scheme.clone(),
            artifact: subject.artifact.clone(),
            is_reference: reference.is_none(),
            scores: TextScores::default(),
            corpora: Vec::new(),
            agreement: None,
            battery: None,
            choices: None,
            bpw: subject.size.bpw,
            file_bpw: subject.size.file_bpw,
            size_bytes: subject.size.bytes,
            parameters: subject.size.parameters,
            resident_bytes: subject.resident_bytes,
            weight_error: subject.weight_error.clone(),
            prefill_tokens_per_s: None,
            decode_tokens_per_s: None,
            verdict: if reference.is_none() { Verdict::Reference } else { Verdict::Unscored },
            problem: None,
            not_comparable: reference.and_then(differs),
        };
        Contestant { subject, row }
    }

    /// Whether it is scored token by token beside the reference.
    fn is_paired(&self) -> bool {
        self.row.problem.is_none() && self.row.not_comparable.is_none()
    }

    /// Runs a step, unless an earlier one has failed. What fails marks the row.
    fn step<T>(&mut self, run: impl FnOnce(&Subject<'a>) -> Result<T>) -> Option<T> {
        if self.row.problem.is_some() {
            return None;
        }
        run(self.subject).map_err(|e| self.row.problem = Some(e.to_string())).ok()
    }
}

/// Scores a reference and its artifacts.
///
/// An artifact that fails on the way has its row marked with the reason; the others stand.
///
/// # Errors
/// When a text or protocol makes no sense, or the reference fails.
pub fn compare(
    reference: &Subject<'_>,
    artifacts: &[Subject<'_>],
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
    let mut others: Vec<Contestant<'_>> = artifacts.iter().map(|a| Contestant::new(a, Some(reference))).collect();
    for (corpus, cut) in request.corpora.iter().zip(&cuts) {
        texts::score(&mut first, &mut others, corpus, cut, request, &bootstrap, progress)?;
    }
    ask(&mut first, &mut others, request, &bootstrap, progress)?;
    if request.speed {
        time(&mut first, &mut others, &cuts, progress);
    }
    let notes = notes(reference, artifacts);
    let mut rows = Vec::with_capacity(1 + others.len());
    for contestant in std::iter::once(first).chain(others) {
        rows.push(finish(contestant.row));
    }
    Ok(Comparison {
        version: VERSION,
        tool: concat!("qeval ", env!("CARGO_PKG_VERSION")).into(),
        reference: reference.artifact.clone(),
        protocol: request.protocol,
        corpora: infos(&request.corpora, &cuts),
        battery: request.battery.as_ref().map(|b| b.name.clone()),
        seed: request.seed,
        methods: methods(request, &bootstrap),
        notes,
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

/// The scores of the first text and the verdict.
fn finish(mut row: Row) -> Row {
    row.scores = row.corpora.first().cloned().unwrap_or_default();
    if let (false, Some(change), Some(kl)) = (row.is_reference, row.scores.change, row.scores.kl) {
        row.verdict = Verdict::of(change.ratio, change.ci95, kl.mean);
    }
    row
}

/// Agreement, battery and choices.
fn ask(
    first: &mut Contestant<'_>,
    others: &mut [Contestant<'_>],
    request: &Request,
    bootstrap: &Bootstrap,
    progress: &dyn Progress,
) -> Result<()> {
    let bos = request.protocol.bos;
    let reference = first.subject;
    progress.start("agreement", Some(1 + others.len() as u64), Unit::Items);
    let written = agreement::write(reference.model, reference.encoder, &agreement::PROMPTS, bos)?;
    progress.advance(1);
    for other in others.iter_mut() {
        if other.is_paired() {
            let prompts = other.step(|s| agreement::agree(s.model, &written));
            other.row.agreement = prompts.map(|p| agreement::Score::new(&p, bootstrap));
        }
        progress.advance(1);
    }
    progress.finish();
    if let Some(battery) = &request.battery {
        let ask = |s: &Subject<'_>| {
            let rules = battery::Rules { bos, end: &s.end };
            battery::ask(s.model, s.encoder, &battery.items, rules, progress)
        };
        let known = ask(reference)?;
        first.row.battery = Some(battery::Score::new(&known, None));
        for other in others.iter_mut() {
            other.row.battery = other.step(ask).map(|right| battery::Score::new(&right, Some(&known)));
        }
    }
    if let Some(items) = &request.choices {
        let answer = |s: &Subject<'_>| choices::answer(s.model, s.encoder, items, bos, progress);
        let known = answer(reference)?;
        first.row.choices = Some(choices::Score::new(&known, None));
        for other in others.iter_mut() {
            other.row.choices = other.step(answer).map(|right| choices::Score::new(&right, Some(&known)));
        }
    }
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
        let speed = contestant.step(|s| speed::measure(s.model, &tokens));
        contestant.row.prefill_tokens_per_s = speed.map(|s| s.prefill);
        contestant.row.decode_tokens_per_s = speed.map(|s| s.decode);
        progress.advance(1);
    }
    progress.finish();
}

fn notes(reference: &Subject<'_>, artifacts: &[Subject<'_>]) -> Vec<String> {
    let mut notes = Vec::new();
    for subject in std::iter::once(reference).chain(artifacts) {
        for warning in &subject.warnings {
            let note = if subject.artifact == reference.artifact {
                format!("reference: {warning}")
            } else {
                format!("{}: {warning}", subject.size.scheme)
            };
            // An artifact repeats what its source said.
            if !notes.iter().any(|n: &String| n.ends_with(warning.as_str())) {
                notes.push(note);
            }
        }
    }
    notes
}

/// How intervals come about, in sentences.
fn methods(request: &Request, bootstrap: &Bootstrap) -> Vec<String> {
    let mut out = vec![
        format!(
            "Intervals (95%) of perplexity, its change and KL: paired block bootstrap over blocks of {BLOCK} neighbouring \
             tokens within windows, {} resamples, the same blocks for all models, expanded percentiles, seed {}.",
            bootstrap.resamples, bootstrap.seed
        ),
        "KL: KL(reference || artifact) in nats over the whole vocabulary; p99: 99th percentile over tokens.".into(),
        format!(
            "Agreement: the reference continues {} prompts by {} tokens greedily, through any end token; the artifact \
             sees the same text. Interval: Wilson, trials divided by the design effect of prompts.",
            agreement::PROMPTS.len(),
            agreement::LENGTH
        ),
        "The names of special tokens in a text are read as ordinary text.".into(),
        verdict::RULE.into(),
    ];
    if let Some(battery) = &request.battery {
        out.push(format!(
            "Battery {}: greedy, up to {} tokens; right if the continuation (lower-cased, without leading punctuation \
             and article) starts with an accepted answer that ends at a word boundary. Wilson intervals; p: exact \
             McNemar test against the reference.",
            battery.name,
            battery::LIMIT
        ));
    }
    if request.choices.is_some() {
        out.push(
            "Choices: highest log-likelihood of the choice after its context; acc_norm divides it by the choice's bytes."
                .into(),
        );
    }
    if request.speed {
        out.push(format!(
            "Speed: medians of {} runs; prefill is one pass over the first window, decode {} tokens after a prompt of {}.",
            speed::RUNS,
            speed::WRITTEN,
            speed::PROMPT
        ));
    }
    out
}

#[cfg(test)]
mod tests;
