//! A teacher's distribution of the next token, softened by temperatures.

use crate::soft::check_temperature;
use crate::teacher::Model;
use crate::{Error, Result};
use schemars::JsonSchema;
use serde::Serialize;

/// The most likely continuations of a prompt.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Continuations {
    /// The prompt.
    pub prompt: String,
    /// Tokens of the continuations, BOS among them where the tokenizer puts one.
    pub prompt_tokens: usize,
    /// Entries of the vocabulary.
    pub vocab_size: usize,
    /// Rank of the token that the text has next: its hard label is 1, all others' 0.
    pub hard: usize,
    /// The distribution at each temperature.
    pub temperatures: Vec<Softened>,
    /// Tokens, the most likely first; last the hard label's where it isn't among them.
    pub tokens: Vec<Token>,
}

/// A distribution at a temperature.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Softened {
    /// Logits are divided by it.
    pub temperature: f64,
    /// Entropy in nats.
    pub entropy: f64,
    /// The probability of the most likely token over that of the third; none where that is 0 or isn't there.
    pub first_to_third: Option<f64>,
    /// The mass of all tokens that are not listed.
    pub others: f64,
}

/// A token that may come next.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Token {
    /// 1 for the most likely.
    pub rank: usize,
    /// Id of the token.
    pub id: u32,
    /// Text of the token.
    pub text: String,
    /// Probability of the token at each temperature.
    pub probabilities: Vec<f64>,
}

/// The softmax of `logits / temperature`.
pub fn softened(logits: &[f32], temperature: f64) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let mut out: Vec<f64> = logits.iter().map(|&x| ((f64::from(x) - f64::from(top)) / temperature).exp()).collect();
    let sum: f64 = out.iter().sum();
    out.iter_mut().for_each(|p| *p /= sum);
    out
}

/// Entropy in nats.
fn entropy(p: &[f64]) -> f64 {
    // Less than nothing is not shown: -0 has a sign.
    0.0 - p.iter().filter(|p| **p > 0.0).map(|p| p * p.ln()).sum::<f64>()
}

/// Runs `prompt` and lists the `top` most likely next tokens. `next` is the text that really follows, if it is known:
/// its first token is the hard label; without it, that is the most likely token.
///
/// # Errors
/// A prompt without tokens or longer than the model is made for, temperatures out of range or equal, or logits that
/// are not finite.
pub fn continuations(
    model: &Model,
    prompt: &str,
    next: Option<&str>,
    temperatures: &[f64],
    top: usize,
) -> Result<Continuations> {
    for (i, &t) in temperatures.iter().enumerate() {
        check_temperature(t).map_err(Error::Prompt)?;
        if temperatures[..i].contains(&t) {
            return Err(Error::Prompt(format!("temperature {t} is there twice")));
        }
    }
    let encode = |text: &str| model.text.encode(text).map_err(|e| Error::Tokenizer(e.to_string()));
    let ids: Vec<u32> = model.text.bos().into_iter().chain(encode(prompt)?).collect();
    let longest = model.transformer.config().max_position;
    if ids.is_empty() || ids.len() > longest {
        return Err(Error::Prompt(format!("it has {} tokens; 1 to {longest} are possible", ids.len())));
    }
    let hidden = model.transformer.hidden(&[&ids], None)?;
    let logits = model.transformer.see_logits(&hidden, ids.len() - 1..ids.len(), <[f32]>::to_vec)?;
    if logits.iter().any(|x| !x.is_finite()) {
        return Err(model.not_finite("the logits after the prompt"));
    }
    let mut ranked: Vec<u32> = (0..logits.len() as u32).collect();
    ranked.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    let hard = match next.map(encode).transpose()? {
        Some(ids) => {
            let first = ids.first().ok_or_else(|| Error::Prompt("nothing follows it".into()))?;
            ranked.iter().position(|id| id == first).ok_or(runtime::Error::Token { id: *first, vocab: logits.len() })?
        }
        None => 0,
    };
    let distributions: Vec<Vec<f64>> = temperatures.iter().map(|&t| softened(&logits, t)).collect();
    let listed: Vec<usize> = (0..top.min(ranked.len())).chain((hard >= top).then_some(hard)).collect();
    let softened = temperatures.iter().zip(&distributions).map(|(&temperature, p)| {
        let of = |rank: usize| ranked.get(rank).map(|&id| p[id as usize]);
        Softened {
            temperature,
            entropy: entropy(p),
            first_to_third: of(0).zip(of(2)).filter(|(_, third)| *third > 0.0).map(|(first, third)| first / third),
            others: (1.0 - listed.iter().filter_map(|&rank| of(rank)).sum::<f64>()).max(0.0),
        }
    });
    let softened = softened.collect();
    let token = |&rank: &usize| {
        let id = ranked[rank];
        let probabilities = distributions.iter().map(|p| p[id as usize]).collect();
        Token { rank: rank + 1, id, text: text_of(model, id), probabilities }
    };
    Ok(Continuations {
        prompt: prompt.into(),
        prompt_tokens: ids.len(),
        vocab_size: logits.len(),
        hard: hard + 1,
        temperatures: softened,
        tokens: listed.iter().map(token).collect(),
    })
}

/// The text of a token; its name in the vocabulary where it is no whole characters.
fn text_of(model: &Model, id: u32) -> String {
    let tokenizer = model.text.tokenizer();
    let decoded = tokenizer.decode(&[id], false).ok().filter(|text| !text.is_empty() && !text.contains('\u{fffd}'));
    decoded.or_else(|| tokenizer.id_to_token(id)).unwrap_or_else(|| format!("#{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_has_no_entropy_and_no_sign() {
        assert_eq!(entropy(&[1.0, 0.0]).to_bits(), 0);
        assert!((entropy(&[0.5, 0.5]) - 2f64.ln()).abs() < 1e-15);
    }

    #[test]
    fn a_ratio_of_2_24_becomes_its_square_root_1_50_at_temperature_2() {
        let logits = [2.24f32.ln(), 0.3, 0.0, -4.0];
        for (temperature, ratio) in [(1.0, 2.24), (2.0, 2.24f64.sqrt()), (4.0, 2.24f64.powf(0.25))] {
            let p = softened(&logits, temperature);
            assert!((p.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            assert!((p[0] / p[2] - ratio).abs() < 1e-6, "{temperature}: {}", p[0] / p[2]);
        }
        assert_eq!(format!("{:.2}", softened(&logits, 2.0)[0] / softened(&logits, 2.0)[2]), "1.50");
    }
}
