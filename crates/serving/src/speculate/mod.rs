//! Speculative decoding, measured beside what its arithmetic predicts.
//!
//! The target continues prompts alone, which gives its own speed and, greedily, the text that
//! speculation must give too. Each draft then speculates with every number of drafted tokens.

mod decode;
mod formula;

pub use decode::{Choice, Decoded, decode, distribution};
pub use formula::{best_gamma, expected_tokens, speed_up, speed_up_with};

use progress::{Progress, Unit};
use runtime::KvType;
use schemars::JsonSchema;
use scoring::model::{Continuation, argmax};
use scoring::stats::quantile;
use scoring::{Error, Failed, Packed, Result};
use serde::Serialize;
use std::path::Path;
use std::time::Instant;

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// Definitions of the words in reports.
pub const DEFINITIONS: [&str; 6] = [
    "Acceptance: of the drafted tokens that the target judged, the share that it accepted; what follows a rejected \
     token is not judged.",
    "Agreement: shown the target's own text in one pass, how often the draft would have written the same token (as in \
     qeval compare, over these prompts); sampled, how much the two distributions overlap, sum of min(p, q). It \
     predicts the acceptance.",
    "Tokens a pass: tokens made for each pass of the target; expected: (1 - a^(g+1)) / (1 - a) with a the \
     agreement. The last pass over a prompt drafts only what is still wanted of its tokens, which the expected figure \
     doesn't know: with few tokens, or a large gamma, what is measured stays below it.",
    "Draft cost c: time of a drafted token as a share of one of the target's, both decoding alone. Pass cost: time of \
     a target pass over g + 1 tokens as a multiple of one over a single token.",
    "Speed-up: tokens/s as a multiple of the target's alone, prompts not counted. Predicted: E / (g c + 1), which takes \
     a pass to cost one token. Predicted with the pass cost p: E / (g c + p). Both from the agreement.",
    "Every prompt is continued by the same number of tokens, through any end token.",
];

/// Settings of a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Setting {
    /// Tokens that every prompt is continued by.
    pub tokens: usize,
    /// Numbers of drafted tokens in a pass.
    pub gammas: Vec<usize>,
    /// 0 for the most likely token, else sampled.
    pub temperature: f64,
    /// Seed of what is sampled.
    pub seed: u64,
    /// Type of stored keys and values: `f16` or `int8`.
    #[serde(serialize_with = "crate::bench::kv_name")]
    #[schemars(with = "String")]
    pub kv: KvType,
    /// Engine whose rounding of activations is reproduced, as `--engine-math` names it.
    pub engine_math: String,
}

impl Setting {
    fn choice(&self) -> Choice {
        Choice::new(self.temperature, self.seed)
    }

    /// # Errors
    /// [`Error::Protocol`] in one line.
    fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Protocol(what));
        if self.tokens < 2 {
            return wrong(format!("{} tokens are too few to speculate; take at least 2", self.tokens));
        }
        if self.gammas.is_empty() || self.gammas.iter().any(|g| !(1..=MAX_GAMMA).contains(g)) {
            return wrong(format!("gamma must be between 1 and {MAX_GAMMA}"));
        }
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return wrong(format!("a temperature of {} makes no sense; it is 0 or more", self.temperature));
        }
        Ok(())
    }
}

/// Drafted tokens that a pass may have.
pub const MAX_GAMMA: usize = 64;

/// A model that drafts.
#[derive(Debug, Clone, Copy)]
pub struct Draft<'a> {
    /// Name in tables.
    pub name: &'a str,
    /// The model.
    pub model: &'a Packed,
}

/// Results of a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Speculation {
    /// Version of this structure.
    pub version: u32,
    /// The target.
    pub target: String,
    /// Settings of the run.
    pub setting: Setting,
    /// Prompts that were continued.
    pub prompts: usize,
    /// Milliseconds of a token of the target alone: the median over prompts.
    pub target_ms_per_token: f64,
    /// The drafts, in the order given.
    pub drafts: Vec<Drafted>,
    /// Drafts that couldn't be opened or run, or don't suit the target.
    pub failed: Vec<Failed>,
    /// Definitions of the words in reports.
    pub definitions: Vec<String>,
}

/// Results of one draft.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Drafted {
    /// Name of the draft.
    pub name: String,
    /// Share of tokens on which draft and target agree: the acceptance that is predicted.
    pub agreement: f64,
    /// Milliseconds of one of its tokens alone: the median over prompts.
    pub ms_per_token: f64,
    /// Time of a draft's step as a share of the target's.
    pub cost: f64,
    /// The number of drafted tokens that is predicted to be best: the most of `E / (g c + p)`.
    pub best_predicted: usize,
    /// The one that was.
    pub best_measured: usize,
    /// One for each number of drafted tokens.
    pub runs: Vec<Speculated>,
}

/// A draft with one number of drafted tokens.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Speculated {
    /// Drafted tokens in a pass.
    pub gamma: usize,
    /// Share of judged drafts that were accepted; none where none was judged.
    pub acceptance: Option<f64>,
    /// Tokens made for each pass of the target.
    pub tokens_per_pass: f64,
    /// Tokens a pass that the agreement predicts.
    pub expected_per_pass: f64,
    /// Time of a pass over gamma + 1 tokens, as a multiple of one over a single token.
    pub pass_cost: f64,
    /// `E / (g c + 1)`.
    pub predicted: f64,
    /// `E / (g c + p)`, with the pass cost.
    pub predicted_with_pass: f64,
    /// Tokens/s as a multiple of the target's.
    pub measured: f64,
    /// True if the tokens are the target's own, as they must be where it is batch-invariant; none where they were
    /// sampled.
    pub equal: Option<bool>,
}

/// A prompt as the target alone continued it.
struct Alone {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    seconds: f64,
}

/// Measures drafts for a target. All have the tokenizer of the prompts. A draft that fails, or with which greedy
/// speculation does not give the target's own tokens, is among those that failed; the others stand.
///
/// # Errors
/// [`Error::Protocol`] for a setting that makes no sense; when the target fails.
pub fn speculate(
    target: Draft<'_>,
    drafts: &[Draft<'_>],
    prompts: &[Vec<u32>],
    setting: &Setting,
    progress: &dyn Progress,
) -> Result<Speculation> {
    setting.check()?;
    let runs = prompts.len() * (1 + drafts.len() * (1 + setting.gammas.len()));
    progress.start("speculating", Some((runs * setting.tokens) as u64), Unit::Tokens);
    let alone = continue_alone(target.model, prompts, setting, progress)?;
    let target_seconds = median(alone.iter().map(|a| a.seconds / a.tokens.len() as f64));
    let passes = setting.gammas.iter().map(|&g| pass_cost(target.model, &alone, g));
    let passes = passes.collect::<Result<Vec<f64>>>()?;
    let (mut measured, mut failed) = (Vec::with_capacity(drafts.len()), Vec::new());
    for draft in drafts {
        progress.message(draft.name);
        match drafted(target, *draft, &alone, setting, (target_seconds, &passes), progress) {
            Ok(drafted) => measured.push(drafted),
            Err(e) => failed.push(Failed::new(Path::new(draft.name), &e)),
        }
    }
    progress.finish();
    Ok(Speculation {
        version: VERSION,
        target: target.name.into(),
        setting: setting.clone(),
        prompts: prompts.len(),
        target_ms_per_token: 1e3 * target_seconds,
        drafts: measured,
        failed,
        definitions: DEFINITIONS.map(str::to_string).into(),
    })
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    quantile(&mut values.collect::<Vec<f64>>(), 0.5).unwrap_or(f64::NAN)
}

/// Continues every prompt with one model. The time doesn't hold the prompt.
fn continue_alone(
    model: &Packed,
    prompts: &[Vec<u32>],
    setting: &Setting,
    progress: &dyn Progress,
) -> Result<Vec<Alone>> {
    let mut choice = setting.choice();
    let one = |prompt: &Vec<u32>| {
        let mut session = model.session(prompt.len() + setting.tokens)?;
        let mut tokens = Vec::with_capacity(setting.tokens);
        let last = prompt.split_last().map(|(last, read)| (*last, read));
        let Some((mut next, read)) = last else { return Err(Error::Model("a prompt is empty".into())) };
        if !read.is_empty() {
            session.extend(read, 0)?;
        }
        let start = Instant::now();
        while tokens.len() < setting.tokens {
            next = choice.choose(&session.extend(&[next], 1)?)?;
            tokens.push(next);
        }
        progress.advance(tokens.len() as u64);
        Ok(Alone { prompt: prompt.clone(), tokens, seconds: start.elapsed().as_secs_f64() })
    };
    prompts.iter().map(one).collect()
}

/// The median time of a pass over `gamma + 1` tokens, over that of a single token, each measured
/// once for every prompt.
fn pass_cost(target: &Packed, alone: &[Alone], gamma: usize) -> Result<f64> {
    let (mut single, mut many) = (Vec::new(), Vec::new());
    for a in alone {
        let mut session = target.session(a.prompt.len() + gamma + 1)?;
        let tokens = vec![a.tokens[0]; gamma + 1];
        session.extend(&a.prompt, 0)?;
        for (tokens, times) in [(&tokens[..1], &mut single), (&tokens[..], &mut many)] {
            let start = Instant::now();
            session.extend(tokens, tokens.len())?;
            times.push(start.elapsed().as_secs_f64());
            session.truncate(a.prompt.len());
        }
    }
    Ok(median(many.into_iter()) / median(single.into_iter()))
}

fn drafted(
    target: Draft<'_>,
    draft: Draft<'_>,
    alone: &[Alone],
    setting: &Setting,
    (target_seconds, passes): (f64, &[f64]),
    progress: &dyn Progress,
) -> Result<Drafted> {
    let prompts: Vec<Vec<u32>> = alone.iter().map(|a| a.prompt.clone()).collect();
    let own = continue_alone(draft.model, &prompts, setting, progress)?;
    let seconds = median(own.iter().map(|a| a.seconds / a.tokens.len() as f64));
    let (agreement, cost) = (agreement(target.model, draft.model, alone, setting)?, seconds / target_seconds);
    let mut runs = Vec::with_capacity(setting.gammas.len());
    for (&gamma, &pass_cost) in setting.gammas.iter().zip(passes) {
        let (all, seconds) = run(target.model, draft.model, alone, setting, gamma, progress)?;
        let equal = (setting.temperature == 0.0).then(|| all.tokens.iter().eq(alone.iter().flat_map(|a| &a.tokens)));
        if equal == Some(false) && target.model.transformer().is_batch_invariant() {
            let what = format!("{}: with {gamma} drafted tokens the target's own text did not come out", draft.name);
            return Err(Error::Model(what));
        }
        let before: f64 = alone.iter().map(|a| a.seconds).sum();
        runs.push(Speculated {
            gamma,
            acceptance: all.acceptance(),
            tokens_per_pass: all.tokens.len() as f64 / all.passes as f64,
            expected_per_pass: expected_tokens(agreement, gamma),
            pass_cost,
            predicted: speed_up(agreement, gamma, cost),
            predicted_with_pass: speed_up_with(agreement, gamma, cost, pass_cost),
            measured: before / seconds,
            equal,
        });
    }
    let best = |of: fn(&Speculated) -> f64| {
        runs.iter().reduce(|best, run| if of(run) > of(best) { run } else { best }).map_or(0, |run| run.gamma)
    };
    Ok(Drafted {
        name: draft.name.into(),
        agreement,
        ms_per_token: 1e3 * seconds,
        cost,
        best_predicted: best(|run| run.predicted_with_pass),
        best_measured: best(|run| run.measured),
        runs,
    })
}

/// Speculates on every prompt; and the seconds that it took, prompts aside.
fn run(
    target: &Packed,
    draft: &Packed,
    alone: &[Alone],
    setting: &Setting,
    gamma: usize,
    progress: &dyn Progress,
) -> Result<(Decoded, f64)> {
    let vocab = common_vocab(target, draft);
    let (mut all, mut seconds, mut choice) = (Decoded::default(), 0.0, setting.choice());
    for Alone { prompt, .. } in alone {
        let capacity = prompt.len() + setting.tokens + gamma;
        let (mut t, mut d) = (target.session(capacity)?, draft.session(capacity)?);
        if let Some(read) = prompt.split_last().map(|(_, read)| read).filter(|read| !read.is_empty()) {
            t.extend(read, 0)?;
            d.extend(read, 0)?;
        }
        let start = Instant::now();
        all.add(&decode((&mut t, &mut d), vocab, prompt, setting.tokens, gamma, &mut choice)?);
        seconds += start.elapsed().as_secs_f64();
        progress.advance(setting.tokens as u64);
    }
    Ok((all, seconds))
}

/// Entries that both vocabularies have; what one has beyond them only pads it.
fn common_vocab(target: &Packed, draft: &Packed) -> usize {
    target.transformer().config().vocab_size.min(draft.transformer().config().vocab_size)
}

/// Tokens whose logits are held at a time.
const CHUNK: usize = 64;

/// The mean chance that a drafted token is accepted, where both see the target's own text.
fn agreement(target: &Packed, draft: &Packed, alone: &[Alone], setting: &Setting) -> Result<f64> {
    let vocab = common_vocab(target, draft);
    let (mut sum, mut count) = (0.0, 0usize);
    for Alone { prompt, tokens, .. } in alone {
        let (mut t, mut d) =
            (target.session(prompt.len() + tokens.len())?, draft.session(prompt.len() + tokens.len())?);
        let mut unread = prompt.clone();
        for chunk in tokens.chunks(CHUNK) {
            unread.extend(&chunk[..chunk.len() - 1]);
            let (p, q) = (t.extend(&unread, chunk.len())?, d.extend(&unread, chunk.len())?);
            unread = chunk[chunk.len() - 1..].to_vec();
            let width = |rows: &[f32]| rows.len() / chunk.len();
            for ((p, q), token) in p.chunks_exact(width(&p)).zip(q.chunks_exact(width(&q))).zip(chunk) {
                sum += match setting.temperature {
                    0.0 => f64::from(argmax(&q[..vocab])? == *token),
                    t => overlap(&distribution(&p[..vocab], t)?, &distribution(&q[..vocab], t)?),
                };
            }
            count += chunk.len();
        }
    }
    Ok(sum / count.max(1) as f64)
}

/// Returns the overlap of two distributions: the chance that a draw from one is accepted as one from the other.
fn overlap(p: &[f64], q: &[f64]) -> f64 {
    p.iter().zip(q).map(|(p, q)| p.min(*q)).sum()
}
