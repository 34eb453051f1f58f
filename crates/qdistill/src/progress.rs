//! Drawing the progress of a training.

use cli::Bars;
use distillation::train::{Progress, Start, Step, Validation};
use progress::Unit;
use report::format;
use std::io::Write;
use std::time::Instant;

/// A bar on a terminal, and lines for the validations everywhere.
pub struct Bar<'a> {
    bars: &'a Bars,
    /// Name of a validation's `kl`.
    kl: String,
    began: Instant,
    predictions: usize,
    /// Losses of the steps since the last validation.
    losses: Vec<f64>,
}

impl<'a> Bar<'a> {
    /// A bar that appears once training starts; `kl` says what a validation's is.
    pub fn new(bars: &'a Bars, kl: String) -> Self {
        Self { bars, kl, began: Instant::now(), predictions: 0, losses: Vec::new() }
    }

    /// Predictions trained on in a second, validations' time included.
    pub fn speed(&self) -> f64 {
        self.predictions as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }

    fn loss(&self) -> f64 {
        self.losses.iter().sum::<f64>() / self.losses.len() as f64
    }

    fn line(&self, text: &str) {
        // A log that can't be written is no reason to stop training.
        self.bars.suspend(|| drop(writeln!(std::io::stderr(), "{}", format::printable(text))));
    }
}

impl Progress for Bar<'_> {
    fn started(&mut self, start: &Start) {
        self.line(&format!(
            "{} weights, {} of them trained on {}; {}",
            start.weights, start.trained, start.device, start.text
        ));
        if start.done > 0 {
            self.line(&format!("resumed after step {}", start.done));
        }
        self.bars.start("training", Some(start.steps as u64), Unit::Items);
        self.bars.advance(start.done as u64);
        self.began = Instant::now();
    }

    fn stepped(&mut self, step: &Step) {
        self.predictions += step.predictions;
        self.losses.push(step.loss);
        self.bars.advance(1);
        self.bars.message(&format!("loss {:.3}, {:.0} tokens/s", self.loss(), self.speed()));
    }

    fn validated(&mut self, validation: &Validation) {
        let kl = validation.kl.map_or(String::new(), |kl| format!(", {} {kl:.4}", self.kl));
        self.line(&format!(
            "step {}: training loss {:.4}, validation loss {:.4} (perplexity {:.3}){kl}{}, {:.0} tokens/s",
            validation.step,
            self.loss(),
            validation.loss,
            validation.perplexity,
            if validation.best { ", saved" } else { "" },
            self.speed(),
        ));
        self.losses.clear();
    }

    fn sampled(&mut self, text: &str) {
        self.line(&format!("  it writes: {}", text.replace('\n', "\\n")));
    }
}
