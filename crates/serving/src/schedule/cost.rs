//! Durations of steps.

use schemars::JsonSchema;
use scoring::{Error, Result};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Duration of a step.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cost {
    /// One step, whatever is in it: time is counted in steps.
    Unit,
    /// Seconds, from measurements.
    Measured(StepCosts),
}

/// Step costs as `qeval bench` measures them.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StepCosts {
    /// A step in which so many sequences decode one token each; rising batches.
    pub decode: Vec<DecodeCost>,
    /// Milliseconds that each prompt token adds to a step.
    pub prompt_ms_per_token: f64,
}

/// A step of one batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DecodeCost {
    /// Sequences.
    pub batch: usize,
    /// Milliseconds.
    pub ms: f64,
}

/// The costs in a file: at the top, or those of its only model.
#[derive(Deserialize)]
struct File {
    step_costs: Option<StepCosts>,
    #[serde(default)]
    models: Vec<Model>,
}

#[derive(Deserialize)]
struct Model {
    step_costs: Option<StepCosts>,
}

/// Milliseconds that a step takes at most: eleven days. Sums over a trace stay finite.
const MOST_MS: f64 = 1e9;

/// Milliseconds that it takes at least.
const LEAST_MS: f64 = 1e-6;

impl StepCosts {
    /// Checks that batches rise and all times are possible.
    ///
    /// # Errors
    /// In one line.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Text(format!("step costs: {what}")));
        let is_time = |ms: f64| (0.0..=MOST_MS).contains(&ms);
        if self.decode.is_empty() || self.decode.iter().any(|d| d.batch == 0 || !is_time(d.ms) || d.ms < LEAST_MS) {
            return wrong("decode needs at least one batch of 1 or more with milliseconds between 1e-6 and 1e9");
        }
        if self.decode.windows(2).any(|pair| pair[0].batch >= pair[1].batch) {
            return wrong("the batches of decode must rise");
        }
        if !is_time(self.prompt_ms_per_token) {
            return wrong("prompt_ms_per_token must be 0 or more, up to 1e9");
        }
        Ok(())
    }

    /// Reads what `qeval bench --json` wrote for one model, or `{"step_costs": {"decode":
    /// [{"batch": 1, "ms": 8.0}], "prompt_ms_per_token": 1.0}}`.
    ///
    /// # Errors
    /// Names the file.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        let wrong = |what: String| Error::Text(format!("{}: {what}", path.display()));
        let file: File = serde_json::from_str(text).map_err(|e| wrong(e.to_string()))?;
        let mut found: Vec<StepCosts> =
            file.step_costs.into_iter().chain(file.models.into_iter().filter_map(|m| m.step_costs)).collect();
        let costs = match found.len() {
            1 => found.remove(0),
            0 => return Err(wrong("has no step_costs".into())),
            n => return Err(wrong(format!("has the step_costs of {n} models; run bench for one"))),
        };
        costs.check().map_err(|e| wrong(e.to_string()))?;
        Ok(costs)
    }

    /// Milliseconds of a step in which `batch` sequences decode: linear between what was measured,
    /// and along the last two beyond it.
    pub fn decode_ms(&self, batch: usize) -> f64 {
        let (Some(first), Some(last)) = (self.decode.first(), self.decode.last()) else { return 0.0 };
        match batch {
            0 => return 0.0,
            _ if batch <= first.batch => return first.ms,
            _ if self.decode.len() == 1 => return last.ms,
            _ => {}
        }
        let at = self.decode.partition_point(|d| d.batch < batch).min(self.decode.len() - 1);
        let (low, high) = (self.decode[at - 1], self.decode[at]);
        let slope = (high.ms - low.ms) / (high.batch - low.batch) as f64;
        low.ms + slope * (batch - low.batch) as f64
    }
}

impl Cost {
    /// A step in which `decoding` sequences get a token each and `prompt` tokens of prompts are
    /// read: in seconds, or one step.
    pub fn step(&self, decoding: usize, prompt: u64) -> f64 {
        match self {
            Cost::Unit => 1.0,
            Cost::Measured(costs) => {
                let ms = costs.decode_ms(decoding) + costs.prompt_ms_per_token * prompt as f64;
                // What was extrapolated may not run backwards, nor stand still.
                ms.max(LEAST_MS) / 1e3
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs() -> StepCosts {
        let at = |batch, ms| DecodeCost { batch, ms };
        StepCosts { decode: vec![at(1, 8.0), at(4, 11.0), at(8, 19.0)], prompt_ms_per_token: 0.5 }
    }

    #[test]
    fn a_step_lies_between_what_was_measured() {
        let found = [0, 1, 2, 4, 6, 8, 9].map(|batch| costs().decode_ms(batch));
        assert_eq!(found, [0.0, 8.0, 9.0, 11.0, 15.0, 19.0, 21.0]);
        assert_eq!(Cost::Measured(costs()).step(4, 20), 0.021);
        assert_eq!(Cost::Unit.step(4, 20), 1.0);
    }

    #[test]
    fn costs_come_from_a_file() {
        let path = Path::new("b.json");
        let text = serde_json::to_string(&serde_json::json!({"models": [{"step_costs": costs()}]})).expect("JSON");
        assert_eq!(StepCosts::parse(path, &text).expect("valid"), costs());
        let refused = |text: &str| StepCosts::parse(path, text).expect_err(text).to_string();
        assert!(refused("{}").starts_with("b.json: has no step_costs"));
        assert!(refused("[").starts_with("b.json: "));
        let mut falling = costs();
        falling.decode.swap(0, 1);
        let mut free = costs();
        free.decode[0].ms = 0.0;
        let mut negative = costs();
        negative.prompt_ms_per_token = -1.0;
        let mut endless = costs();
        endless.decode[2].ms = 1e308;
        for wrong in [falling, free, negative, endless] {
            let text = serde_json::to_string(&serde_json::json!({"step_costs": wrong})).expect("JSON");
            assert!(refused(&text).starts_with("b.json: step costs: "));
        }
    }
}
