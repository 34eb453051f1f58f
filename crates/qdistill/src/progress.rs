//! Drawing the progress of a training.

use indicatif::{ProgressBar, ProgressStyle};
use qdistill::{Progress, Start, Step, Validation};
use std::io::{IsTerminal, Write};
use std::time::Instant;

/// A bar on a terminal; lines for the validations only, elsewhere.
pub struct Bar {
    bar: ProgressBar,
    terminal: bool,
    began: Instant,
    tokens: usize,
    smooth: Option<f64>,
}

impl Bar {
    /// A bar that appears once training starts.
    pub fn new() -> Self {
        let terminal = std::io::stderr().is_terminal();
        Self { bar: ProgressBar::hidden(), terminal, began: Instant::now(), tokens: 0, smooth: None }
    }

    fn line(&self, text: &str) {
        if self.terminal {
            self.bar.println(text);
        } else {
            // A log that can't be written is no reason to stop training.
            let _ = writeln!(std::io::stderr(), "{text}");
        }
    }

    fn tokens_per_second(&self) -> f64 {
        self.tokens as f64 / self.began.elapsed().as_secs_f64().max(1e-9)
    }
}

impl Progress for Bar {
    fn started(&mut self, start: &Start) {
        if self.terminal {
            self.bar = ProgressBar::new(start.steps as u64);
            if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {msg} {eta} left") {
                self.bar.set_style(style);
            }
        }
        self.began = Instant::now();
        self.line(&format!(
            "{} weights; {} tokens to train on and {} sentences; {} tokens for validation",
            start.weights, start.training_tokens, start.sentences, start.validation_tokens
        ));
    }

    fn stepped(&mut self, step: &Step) {
        self.tokens += step.tokens;
        let smooth = self.smooth.map_or(step.loss, |s| 0.98 * s + 0.02 * step.loss);
        self.smooth = Some(smooth);
        self.bar.set_position(step.step as u64);
        self.bar.set_message(format!("loss {smooth:.3}, {:.0} tokens/s", self.tokens_per_second()));
    }

    fn validated(&mut self, validation: &Validation) {
        let speed = self.tokens_per_second();
        self.line(&format!(
            "step {}: training loss {:.4}, validation loss {:.4} (perplexity {:.3}){}, {speed:.0} tokens/s",
            validation.step,
            self.smooth.unwrap_or(f64::NAN),
            validation.loss,
            validation.loss.exp(),
            if validation.best { ", saved" } else { "" },
        ));
    }
}
