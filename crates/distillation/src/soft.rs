//! Soft labels: a teacher's distribution over the next token.

use crate::Result;
use candle_core::Tensor;
use std::ops::RangeInclusive;

/// Temperatures that can be asked for: below, a distribution is one token; above, it is even.
const TEMPERATURES: RangeInclusive<f64> = 0.1..=100.0;

/// Gives a temperature back that can be asked for, or says why not.
///
/// # Errors
/// What is wrong with it.
pub fn check_temperature(temperature: f64) -> Result<f64, String> {
    match TEMPERATURES.contains(&temperature) {
        true => Ok(temperature),
        false => Err(format!("a temperature must lie between 0.1 and 100, not be {temperature}")),
    }
}

/// Soft labels of one window, a row for each of its predictions, in order.
///
/// Row `i` belongs to the prediction of the window's token `i + 1` from its tokens `0..=i`. Entries of the vocabulary
/// are the teacher's; a padded vocabulary's have next to no probability.
#[derive(Debug, Clone, PartialEq)]
pub enum Soft {
    /// Everything.
    Full {
        /// Logits at temperature 1, `[rows, vocabulary]`. A constant added to a row changes nothing.
        logits: Vec<f32>,
    },
    /// Everything, left on the device that the teacher ran on.
    Resident(Resident),
    /// The most likely tokens, and the mass of all others.
    TopK {
        /// Tokens of a row.
        k: usize,
        /// The tokens, `[rows, k]`, the most likely first.
        ids: Vec<u32>,
        /// Their natural log-probabilities at [`Teacher::temperature`], `[rows, k]`.
        log_probs: Vec<f32>,
        /// The natural logarithm of the mass outside the `k`, `[rows]`; negative infinity where there is none.
        log_rest: Vec<f32>,
    },
    /// Independent draws.
    Sampled {
        /// Draws of a row.
        n: usize,
        /// Tokens drawn from the teacher's distribution at [`Teacher::temperature`], `[rows, n]`; a token may be
        /// there several times.
        ids: Vec<u32>,
    },
}

/// Logits at temperature 1 on a device, `[rows, vocabulary]`, in f32.
#[derive(Debug, Clone)]
pub struct Resident(pub Tensor);

/// Equality by identity of the tensor.
impl PartialEq for Resident {
    fn eq(&self, other: &Self) -> bool {
        self.0.id() == other.0.id()
    }
}

impl Soft {
    /// Number of predictions that these labels are for, with a teacher of `vocab_size` entries.
    pub fn rows(&self, vocab_size: usize) -> usize {
        match self {
            Soft::Full { logits } => logits.len() / vocab_size.max(1),
            Soft::Resident(Resident(logits)) => logits.elem_count() / vocab_size.max(1),
            Soft::TopK { log_rest, .. } => log_rest.len(),
            Soft::Sampled { n, ids } => ids.len() / (*n).max(1),
        }
    }
}

/// Gives soft labels of a text that was cut into windows: from a file, or by running a model.
pub trait Teacher {
    /// Entries of the vocabulary that the labels are over.
    fn vocab_size(&self) -> usize;

    /// The temperature that [`Soft::TopK`] and [`Soft::Sampled`] are at. [`Soft::Full`] and [`Soft::Resident`] suit every temperature.
    fn temperature(&self) -> f64;

    /// Bytes that the labels of a prediction take in memory.
    fn row_bytes(&self) -> u64 {
        4 * self.vocab_size() as u64
    }

    /// Labels of the window of this index (into [`Windows::windows`](crate::windows::Windows)), one row for each of
    /// its predictions.
    ///
    /// # Errors
    /// When the file doesn't hold them, or the model can't compute them.
    fn soft(&mut self, window: usize) -> Result<Soft>;

    /// Told which windows will be asked for again and again.
    fn keep(&mut self, _windows: &[usize]) {}
}
