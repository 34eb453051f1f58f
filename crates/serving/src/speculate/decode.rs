//! Speculative decoding: a draft proposes, the target decides.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rowmath::logits as row_logits;
use scoring::model::{Continuation, argmax};
use scoring::{Error, Result};

/// Rule that chooses tokens.
#[derive(Debug, Clone)]
pub enum Choice {
    /// The most likely.
    Greedy,
    /// From the distribution at a temperature above 0.
    Sampled {
        /// The temperature.
        temperature: f64,
        /// Source of randomness.
        rng: Box<ChaCha8Rng>,
    },
}

impl Choice {
    /// The most likely token at a temperature of 0, else what this seed draws.
    pub fn new(temperature: f64, seed: u64) -> Self {
        match temperature {
            0.0 => Choice::Greedy,
            temperature => Choice::Sampled { temperature, rng: Box::new(ChaCha8Rng::seed_from_u64(seed)) },
        }
    }

    /// The next token.
    ///
    /// # Errors
    /// [`Error::Model`] when a logit is not finite.
    pub fn choose(&mut self, logits: &[f32]) -> Result<u32> {
        match self {
            Choice::Greedy => argmax(logits),
            Choice::Sampled { temperature, rng } => Ok(draw(&distribution(logits, *temperature)?, rng)),
        }
    }
}

/// Results of a run of speculative decoding.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Decoded {
    /// The tokens made.
    pub tokens: Vec<u32>,
    /// Passes of the target, that over the prompt aside.
    pub passes: u64,
    /// Drafted tokens that were accepted.
    pub accepted: u64,
    /// Drafted tokens that were rejected, at most one a pass; those behind it are not judged.
    pub rejected: u64,
}

impl Decoded {
    /// Adds another run.
    pub fn add(&mut self, other: &Decoded) {
        self.tokens.extend(&other.tokens);
        self.passes += other.passes;
        self.accepted += other.accepted;
        self.rejected += other.rejected;
    }

    /// The share of judged drafts that were accepted; none where none was judged.
    pub fn acceptance(&self) -> Option<f64> {
        let judged = self.accepted + self.rejected;
        (judged > 0).then(|| self.accepted as f64 / judged as f64)
    }
}

/// Continues `prompt`, which both sequences may hold already but for its last token, by `limit`
/// tokens. Each pass of the target runs over `gamma` drafted tokens (fewer at the end); both have
/// the same `vocab` first entries of their vocabularies, and choose among these.
///
/// With [`Choice::Greedy`] the tokens are those that the target alone would choose. Sampled, they
/// have the distribution that the target alone would draw them from: a drafted token is accepted
/// with probability `min(1, p / q)`, and a rejected one replaced by a draw from `max(0, p - q)`
/// (Leviathan et al. 2023).
///
/// # Errors
/// When a model fails, or its logits are not finite.
pub fn decode(
    (target, draft): (&mut dyn Continuation, &mut dyn Continuation),
    vocab: usize,
    prompt: &[u32],
    limit: usize,
    gamma: usize,
    choice: &mut Choice,
) -> Result<Decoded> {
    let mut sequence = prompt.to_vec();
    let mut out = Decoded::default();
    while out.tokens.len() < limit {
        let proposals = propose(draft, vocab, &sequence, gamma.min(limit - out.tokens.len() - 1), choice)?;
        let mut unread = sequence.get(target.len()..).unwrap_or_default().to_vec();
        unread.extend(proposals.iter().map(|p| p.token));
        let logits = target.extend(&unread, proposals.len() + 1)?;
        let mut rows = rows(&logits, proposals.len() + 1, vocab)?;
        let mut accepted = 0;
        let next = loop {
            let Some(row) = rows.next() else {
                return Err(Error::Model("there are fewer logits than tokens".into()));
            };
            match judge(row, proposals.get(accepted), choice)? {
                None => accepted += 1,
                Some(token) => break token,
            }
        };
        let made = proposals[..accepted].iter().map(|p| p.token).chain([next]);
        sequence.extend(made.clone());
        out.tokens.extend(made);
        out.passes += 1;
        out.accepted += accepted as u64;
        out.rejected += u64::from(accepted < proposals.len());
        // All but the newest token were run, unless a rejected draft stood in their place.
        target.truncate(sequence.len() - 1);
        draft.truncate(sequence.len() - 1);
    }
    Ok(out)
}

/// A drafted token.
struct Proposal {
    token: u32,
    /// Distribution that the token was drawn from; empty if it was chosen greedily.
    from: Vec<f64>,
}

/// Lets the draft continue a sequence.
fn propose(
    draft: &mut dyn Continuation,
    vocab: usize,
    sequence: &[u32],
    n: usize,
    choice: &mut Choice,
) -> Result<Vec<Proposal>> {
    let mut proposals: Vec<Proposal> = Vec::with_capacity(n);
    let mut unread = sequence.get(draft.len()..).unwrap_or_default().to_vec();
    for _ in 0..n {
        let logits = draft.extend(&unread, 1)?;
        let row = rows(&logits, 1, vocab)?.next().unwrap_or_default();
        let proposal = match choice {
            Choice::Greedy => Proposal { token: argmax(row)?, from: Vec::new() },
            Choice::Sampled { temperature, rng } => {
                let from = distribution(row, *temperature)?;
                Proposal { token: draw(&from, rng), from }
            }
        };
        unread = vec![proposal.token];
        proposals.push(proposal);
    }
    Ok(proposals)
}

/// The first `vocab` entries of each of `count` rows.
fn rows(logits: &[f32], count: usize, vocab: usize) -> Result<impl Iterator<Item = &[f32]>> {
    let width = logits.len() / count;
    if width < vocab || vocab == 0 {
        return Err(Error::Model(format!("a row of logits has {width} entries, {vocab} are needed")));
    }
    Ok(logits.chunks_exact(width).map(move |row| &row[..vocab]))
}

/// The target's word on a proposal: none if it is accepted, else the token in its place.
fn judge(row: &[f32], proposal: Option<&Proposal>, choice: &mut Choice) -> Result<Option<u32>> {
    match choice {
        Choice::Greedy => {
            let token = argmax(row)?;
            Ok(Some(token).filter(|token| proposal.is_none_or(|p| p.token != *token)))
        }
        Choice::Sampled { temperature, rng } => {
            let p = distribution(row, *temperature)?;
            let Some(Proposal { token, from }) = proposal else { return Ok(Some(draw(&p, rng))) };
            let at = *token as usize;
            if rng.random::<f64>() * from[at] < p[at] {
                return Ok(None);
            }
            let rest: Vec<f64> = p.iter().zip(from).map(|(p, q)| (p - q).max(0.0)).collect();
            Ok(Some(draw(&rest, rng)))
        }
    }
}

/// `softmax(logits / temperature)`.
///
/// # Errors
/// [`Error::Model`] when a logit is not finite.
pub fn distribution(logits: &[f32], temperature: f64) -> Result<Vec<f64>> {
    let row = row_logits::row(logits).ok_or_else(|| Error::Model("logits are NaN or infinite".into()))?;
    let mut p: Vec<f64> = logits.iter().map(|&l| ((f64::from(l) - f64::from(row.max)) / temperature).exp()).collect();
    let sum: f64 = p.iter().sum();
    p.iter_mut().for_each(|p| *p /= sum);
    Ok(p)
}

/// An index, each as likely as its weight; the last of any weight where rounding leaves a trace.
fn draw(weights: &[f64], rng: &mut ChaCha8Rng) -> u32 {
    let mut left = rng.random::<f64>() * weights.iter().sum::<f64>();
    let mut last = 0;
    for (i, &w) in (0u32..).zip(weights).filter(|(_, w)| **w > 0.0) {
        last = i;
        left -= w;
        if left < 0.0 {
            break;
        }
    }
    last
}

#[cfg(test)]
mod tests {
    use super::*;
    use scoring::model::testing::{Bigram, Continued};
    use statrs::distribution::{ChiSquared, ContinuousCDF};

    const VOCAB: usize = 7;
    const TEMPERATURE: f64 = 1.5;

    fn run(target: &Bigram, draft: &Bigram, limit: usize, gamma: usize, choice: &mut Choice) -> Decoded {
        let (mut t, mut d) = (Continued(target, Vec::new()), Continued(draft, Vec::new()));
        decode((&mut t, &mut d), VOCAB, &[3], limit, gamma, choice).expect("runs")
    }

    fn alone(model: &Bigram, limit: usize) -> Vec<u32> {
        let mut tokens = vec![3];
        for _ in 0..limit {
            let row = model.table.row(tokens[tokens.len() - 1] as usize).to_vec();
            tokens.push(argmax(&row).expect("finite"));
        }
        tokens.split_off(1)
    }

    #[test]
    fn greedy_speculation_gives_the_targets_own_tokens() {
        let target = Bigram::new(VOCAB, 0.3);
        for (draft, same) in [(Bigram::new(VOCAB, 0.3), true), (Bigram::new(VOCAB, -0.3), false)] {
            for gamma in 1..=8 {
                for limit in [1, 2, 5, 40] {
                    let out = run(&target, &draft, limit, gamma, &mut Choice::Greedy);
                    assert_eq!(out.tokens, alone(&target, limit), "gamma {gamma}");
                    assert_eq!(out.accepted + out.passes, limit as u64);
                    if same {
                        assert_eq!((out.rejected, out.passes), (0, limit.div_ceil(gamma + 1) as u64));
                    }
                }
            }
        }
    }

    /// The p-value of the first two tokens' joint distribution against that of the target.
    fn p_value(mut pair: impl FnMut(&mut Choice) -> Vec<u32>, target: &Bigram) -> f64 {
        const RUNS: usize = 40_000;
        let mut choice = Choice::new(TEMPERATURE, 5);
        let mut counts = [0usize; VOCAB * VOCAB];
        for _ in 0..RUNS {
            let tokens = pair(&mut choice);
            counts[tokens[0] as usize * VOCAB + tokens[1] as usize] += 1;
        }
        let of = |token: usize| distribution(&target.table.row(token).to_vec(), TEMPERATURE).expect("finite");
        let first = of(3);
        let mut statistic = 0.0;
        for (at, &count) in counts.iter().enumerate() {
            let expected = RUNS as f64 * first[at / VOCAB] * of(at / VOCAB)[at % VOCAB];
            assert!(expected > 5.0, "too few expected for the test: {expected}");
            statistic += (count as f64 - expected).powi(2) / expected;
        }
        1.0 - ChiSquared::new((VOCAB * VOCAB - 1) as f64).expect("valid").cdf(statistic)
    }

    #[test]
    fn sampled_speculation_has_the_targets_distribution() {
        let (target, draft) = (Bigram::new(VOCAB, 0.1), Bigram::new(VOCAB, -0.3));
        for gamma in [1, 2, 4] {
            let p = p_value(|choice| run(&target, &draft, 6, gamma, choice).tokens, &target);
            assert!(p > 0.001, "gamma {gamma}: p = {p}");
        }
        // The test can tell: the draft's own tokens have another distribution.
        let p = p_value(|choice| run(&draft, &draft, 6, 2, choice).tokens, &target);
        assert!(p < 1e-9, "p = {p}");
    }

    #[test]
    fn a_draft_equal_to_the_target_is_always_accepted() {
        let target = Bigram::new(VOCAB, 0.1);
        let mut choice = Choice::new(1.0, 1);
        let out = run(&target, &target, 60, 3, &mut choice);
        assert_eq!((out.acceptance(), out.passes), (Some(1.0), 15));
    }

    #[test]
    fn logits_that_are_no_numbers_are_an_error() {
        let mut target = Bigram::new(VOCAB, 0.3);
        target.table.fill(f32::NAN);
        let (mut t, mut d) = (Continued(&target, Vec::new()), Continued(&target, Vec::new()));
        for mut choice in [Choice::Greedy, Choice::new(1.0, 1)] {
            let out = decode((&mut t, &mut d), VOCAB, &[3], 4, 2, &mut choice);
            assert!(out.is_err_and(|e| e.to_string().contains("NaN")));
        }
    }
}
