//! Choosing tokens.

use crate::{Error, Result, Transformer};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::{borrow::Cow, collections::HashSet};

/// Rule that chooses tokens; by default the most likely one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Logits are divided by it; 0 takes the most likely token.
    pub temperature: f64,
    /// Only from so many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Only from tokens at least this share as likely as the most likely one.
    pub min_p: f64,
    /// Only from the fewest of these that together reach this probability.
    pub top_p: f64,
    /// Divides positive logits of tokens that are there already, and multiplies negative ones.
    pub repetition_penalty: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Sampling { temperature: 0.0, top_k: None, min_p: 0.0, top_p: 1.0, repetition_penalty: 1.0 }
    }
}

/// Chooses tokens from logits. The same seed chooses the same.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    /// Tokens that the penalty is for; empty where there is none.
    seen: HashSet<u32>,
    rng: ChaCha8Rng,
}

impl Sampler {
    /// The most likely token, always.
    pub fn greedy() -> Self {
        Sampler { sampling: Sampling::default(), seen: HashSet::new(), rng: ChaCha8Rng::seed_from_u64(0) }
    }

    /// By these rules.
    ///
    /// # Errors
    /// [`Error::Sampling`] for settings out of range.
    pub fn new(seed: u64, sampling: Sampling) -> Result<Self> {
        let Sampling { temperature, top_k, min_p, top_p, repetition_penalty } = sampling;
        let bad = |name, value, expected| Err(Error::Sampling { name, value, expected });
        if !(temperature >= 0.0 && temperature.is_finite()) {
            return bad("temperature", temperature, "0 or more");
        }
        if top_k == Some(0) {
            return bad("top_k", 0.0, "at least 1");
        }
        if !(0.0..=1.0).contains(&min_p) {
            return bad("min_p", min_p, "0 to 1");
        }
        if !(top_p > 0.0 && top_p <= 1.0) {
            return bad("top_p", top_p, "above 0, at most 1");
        }
        if !(repetition_penalty > 0.0 && repetition_penalty.is_finite()) {
            return bad("repetition_penalty", repetition_penalty, "above 0");
        }
        Ok(Sampler { sampling, seen: HashSet::new(), rng: ChaCha8Rng::seed_from_u64(seed) })
    }

    /// Tokens that are there already, such as the prompt; those that it chooses it knows.
    pub fn read(&mut self, tokens: &[u32]) {
        if self.sampling.repetition_penalty != 1.0 {
            self.seen.extend(tokens);
        }
    }

    /// The next token. Of equally likely ones the greedy choice is the first.
    ///
    /// # Errors
    /// [`Error::NaN`] where no logit is a number.
    pub fn sample(&mut self, logits: &[f32]) -> Result<u32> {
        let logits = self.penalized(logits);
        let token = match self.sampling.temperature {
            0.0 => argmax(&logits).ok_or(Error::NaN)?,
            _ => self.draw(&logits)?,
        };
        self.read(&[token]);
        Ok(token)
    }

    /// Makes tokens that are there already less likely.
    fn penalized<'a>(&self, logits: &'a [f32]) -> Cow<'a, [f32]> {
        let mut logits = Cow::Borrowed(logits);
        let penalty = self.sampling.repetition_penalty as f32;
        for token in &self.seen {
            if (*token as usize) < logits.len() {
                let l = &mut logits.to_mut()[*token as usize];
                *l = if *l > 0.0 { *l / penalty } else { *l * penalty };
            }
        }
        logits
    }

    fn draw(&mut self, logits: &[f32]) -> Result<u32> {
        let Sampling { temperature, top_k, min_p, top_p, .. } = self.sampling;
        let mut ranked: Vec<(u32, f64)> =
            (0u32..).zip(logits.iter().map(|&l| f64::from(l))).filter(|(_, l)| !l.is_nan()).collect();
        // Ties by index, so that the order is the same on every machine.
        ranked.sort_unstable_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        ranked.truncate(top_k.unwrap_or(usize::MAX));
        let top = ranked.first().ok_or(Error::NaN)?.1;
        for (_, l) in &mut ranked {
            // An infinite top takes all; infinity less infinity is no number.
            *l = if *l == top { 1.0 } else { ((*l - top) / temperature).exp() };
        }
        ranked.truncate(ranked.partition_point(|(_, p)| *p >= min_p));
        let total: f64 = ranked.iter().map(|(_, p)| p).sum();
        let mut kept = 0.0;
        let enough = ranked.iter().position(|(_, p)| {
            kept += p;
            kept >= top_p * total
        });
        ranked.truncate(enough.map_or(ranked.len(), |n| n + 1));
        let mut left = self.rng.random::<f64>() * ranked.iter().map(|(_, p)| p).sum::<f64>();
        for (token, p) in &ranked {
            left -= p;
            if left < 0.0 {
                return Ok(*token);
            }
        }
        // Rounding may leave a trace after the last.
        ranked.last().map(|(token, _)| *token).ok_or(Error::NaN)
    }
}

/// The first index of the largest value; NaN is never it.
fn argmax(values: &[f32]) -> Option<u32> {
    let mut best: Option<(u32, f32)> = None;
    for (i, &v) in (0u32..).zip(values) {
        if !v.is_nan() && best.is_none_or(|(_, b)| v > b) {
            best = Some((i, v));
        }
    }
    best.map(|(i, _)| i)
}

/// Continues `prompt` by at most `max_new` tokens; a token of `stop` ends it and is not
/// among them.
///
/// # Errors
/// [`Error::Empty`] for an empty prompt, [`Error::Token`] for one outside the vocabulary.
pub fn generate(
    model: &Transformer,
    prompt: &[u32],
    max_new: usize,
    sampler: &mut Sampler,
    stop: &[u32],
) -> Result<Vec<u32>> {
    let mut cache = model.new_cache(1, prompt.len() + max_new)?;
    sampler.read(prompt);
    let mut tokens = Vec::with_capacity(max_new);
    let mut hidden = model.hidden(&[prompt], Some(&mut cache))?;
    while tokens.len() < max_new {
        let last = hidden.narrow(1, hidden.dim(1)? - 1, 1)?;
        let logits = model.logits(&last)?.flatten_all()?.to_vec1::<f32>()?;
        let token = sampler.sample(&logits)?;
        if stop.contains(&token) {
            break;
        }
        tokens.push(token);
        if tokens.len() < max_new {
            hidden = model.hidden(&[&[token]], Some(&mut cache))?;
        }
    }
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sampler(temperature: f64, top_k: Option<usize>, top_p: f64) -> Sampler {
        Sampler::new(7, Sampling { temperature, top_k, top_p, ..Sampling::default() }).expect("in range")
    }

    #[test]
    fn greedy_takes_the_first_of_equals_and_no_nan() {
        let mut s = Sampler::greedy();
        assert_eq!(s.sample(&[1.0, f32::NAN, 3.0, 3.0]).expect("numbers"), 2);
        assert!(matches!(s.sample(&[f32::NAN]), Err(Error::NaN)));
    }

    #[test]
    fn the_same_seed_gives_the_same_tokens_near_the_distribution() {
        let logits = [0.0, 1.0, 2.0, f32::NEG_INFINITY];
        let draw = || {
            let mut s = sampler(1.0, None, 1.0);
            (0..4000).map(|_| s.sample(&logits).expect("numbers")).collect::<Vec<_>>()
        };
        let tokens = draw();
        assert_eq!(tokens, draw());
        let weights: Vec<f64> = logits.iter().map(|&l| f64::from(l).exp()).collect();
        let total: f64 = weights.iter().sum();
        for (i, w) in weights.iter().enumerate() {
            let share = tokens.iter().filter(|&&t| t as usize == i).count() as f64 / 4000.0;
            assert!((share - w / total).abs() < 0.03, "{i}: {share}");
        }
    }

    #[test]
    fn top_k_and_top_p_cut() {
        let logits = [0.0, 1.0, 2.0, 3.0];
        let mut k = sampler(5.0, Some(2), 1.0);
        let mut p = sampler(1.0, None, 0.5);
        for _ in 0..200 {
            assert!(k.sample(&logits).expect("numbers") >= 2);
            assert_eq!(p.sample(&logits).expect("numbers"), 3);
        }
    }

    #[test]
    fn what_is_unlikely_or_there_already() {
        // exp((2 - 3) / 0.5) = 0.135 stays, exp((1 - 3) / 0.5) = 0.018 goes.
        let cut = Sampling { temperature: 0.5, min_p: 0.1, ..Sampling::default() };
        let mut s = Sampler::new(7, cut).expect("in range");
        let drawn: HashSet<u32> = (0..400).map(|_| s.sample(&[2.0, f32::NAN, 3.0, 1.0]).expect("numbers")).collect();
        assert_eq!(drawn, HashSet::from([0, 2]));
        let mut s = Sampler::new(7, Sampling { repetition_penalty: 2.0, ..Sampling::default() }).expect("in range");
        s.read(&[0, 1, 0, 99]);
        assert_eq!(*s.penalized(&[4.0, -1.0, 3.0, 1.0]), [2.0, -2.0, 3.0, 1.0]);
        // What it chose is there, too.
        let chosen: Vec<u32> = (0..3).map(|_| s.sample(&[4.0, -1.0, 3.0, 1.9]).expect("numbers")).collect();
        assert_eq!(chosen, [2, 0, 0]);
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |sampling: Sampling| Sampler::new(0, sampling).expect_err("refused").to_string();
        let base = Sampling::default;
        assert!(refused(Sampling { temperature: -1.0, ..base() }).contains("temperature = -1"));
        assert!(refused(Sampling { temperature: f64::NAN, ..base() }).contains("temperature"));
        assert!(refused(Sampling { top_k: Some(0), ..base() }).contains("top_k"));
        assert!(refused(Sampling { top_p: 0.0, ..base() }).contains("top_p"));
        assert!(refused(Sampling { min_p: 1.5, ..base() }).contains("min_p = 1.5"));
        assert!(refused(Sampling { repetition_penalty: 0.0, ..base() }).contains("repetition_penalty"));
    }
}
