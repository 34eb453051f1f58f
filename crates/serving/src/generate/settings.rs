//! Sampling settings, and their defaults in generation_config.json.

use runtime::{Sampler, Sampling};
use schemars::JsonSchema;
use scoring::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Sampling settings.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Settings {
    /// 0 for the most likely token.
    pub temperature: f64,
    /// Only from so many of the most likely tokens.
    pub top_k: Option<usize>,
    /// Only from the fewest tokens that together reach this probability.
    pub top_p: f64,
    /// Only from tokens at least this share as likely as the most likely one.
    pub min_p: f64,
    /// Divides positive logits of tokens that are there already, and multiplies negative ones.
    pub repetition_penalty: f64,
    /// Seed of what is sampled.
    pub seed: u64,
    /// Tokens at most.
    pub max_tokens: usize,
    /// Texts that end it.
    pub stop: Vec<String>,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            temperature: 0.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            seed: 0,
            max_tokens: 128,
            stop: Vec::new(),
        }
    }
}

/// Defaults from a generation_config.json.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
pub struct Defaults {
    /// True to sample; otherwise the most likely token is taken.
    pub do_sample: Option<bool>,
    /// The temperature of sampling.
    pub temperature: Option<f64>,
    /// [`Settings::top_k`] of the file; 0 is none.
    pub top_k: Option<usize>,
    /// [`Settings::top_p`] of the file.
    pub top_p: Option<f64>,
    /// [`Settings::min_p`] of the file.
    pub min_p: Option<f64>,
    /// [`Settings::repetition_penalty`] of the file.
    pub repetition_penalty: Option<f64>,
}

impl Defaults {
    /// Reads generation_config.json.
    ///
    /// # Errors
    /// Names the file.
    pub fn parse(path: &Path, json: &[u8]) -> Result<Self> {
        let fails = |e: String| Error::Text(format!("{}: {e}", path.display()));
        serde_json::from_value(store::parse_json(json).map_err(fails)?).map_err(|e| fails(e.to_string()))
    }

    /// The settings asked for, and these where `asked` says nothing. Whoever asks for anything that only sampling knows, asks
    /// for sampling.
    pub fn settings(&self, asked: &Defaults) -> Settings {
        let wants = [asked.temperature.is_some(), asked.top_k.is_some(), asked.top_p.is_some(), asked.min_p.is_some()];
        let samples = wants.contains(&true) || self.do_sample == Some(true);
        let base = Settings::default();
        let sampling = if samples {
            Settings {
                temperature: asked.temperature.or(self.temperature).unwrap_or(1.0),
                top_k: asked.top_k.or(self.top_k).filter(|&k| k > 0),
                top_p: asked.top_p.or(self.top_p).unwrap_or(base.top_p),
                min_p: asked.min_p.or(self.min_p).unwrap_or(base.min_p),
                ..base
            }
        } else {
            base
        };
        let penalty = asked.repetition_penalty.or(self.repetition_penalty);
        Settings { repetition_penalty: penalty.unwrap_or(sampling.repetition_penalty), ..sampling }
    }
}

impl Settings {
    /// Chooses tokens.
    ///
    /// # Errors
    /// [`Error::Protocol`] for a setting out of range.
    pub fn sampler(&self) -> Result<Sampler> {
        let wrong = |what: String| Err(Error::Protocol(what));
        if self.stop.iter().any(String::is_empty) {
            return wrong("an empty stop text would end every text at once".into());
        }
        let Settings { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *self;
        let sampling = Sampling { temperature, top_k, min_p, top_p, repetition_penalty };
        Sampler::new(self.seed, sampling).or_else(|e| wrong(e.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(json: &str) -> Defaults {
        Defaults::parse(Path::new("g.json"), json.as_bytes()).expect("valid")
    }

    #[test]
    fn the_models_own_defaults_hold_where_nothing_is_asked() {
        let model = defaults(
            r#"{"do_sample": true, "temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.1}"#,
        );
        let own = model.settings(&Defaults::default());
        assert_eq!((own.temperature, own.top_k, own.top_p, own.repetition_penalty), (0.7, Some(20), 0.8, 1.1));
        let asked = Defaults { temperature: Some(0.0), top_k: Some(0), ..Defaults::default() };
        assert_eq!((model.settings(&asked).temperature, model.settings(&asked).top_k), (0.0, None));
    }

    #[test]
    fn without_sampling_the_most_likely_token_is_taken() {
        // As transformers does: a temperature alone doesn't make it sample.
        let model = defaults(r#"{"do_sample": false, "temperature": 0.7, "top_p": 0.8, "repetition_penalty": 1.1}"#);
        let own = model.settings(&Defaults::default());
        assert_eq!((own.temperature, own.top_p, own.repetition_penalty), (0.0, 1.0, 1.1));
        let asked = Defaults { top_k: Some(5), ..Defaults::default() };
        let sampled = model.settings(&asked);
        assert_eq!((sampled.temperature, sampled.top_k, sampled.top_p), (0.7, Some(5), 0.8));
        assert_eq!(defaults("{}").settings(&asked).temperature, 1.0);
        assert!(Defaults::parse(Path::new("g.json"), b"[").is_err_and(|e| e.to_string().starts_with("g.json: ")));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let refused = |s: Settings| s.sampler().expect_err("refused").to_string();
        let base = Settings::default;
        assert!(refused(Settings { min_p: 1.5, ..base() }).contains("min_p = 1.5"));
        assert!(refused(Settings { stop: vec![String::new()], ..base() }).contains("stop"));
    }
}
