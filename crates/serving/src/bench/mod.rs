//! Costs of serving a model: prefill, decoding, cache and batches, beside the machine's ceilings.

mod gpu;
mod machine;
mod measure;
pub mod synthetic;

pub use gpu::{Gpu, Product};
pub use machine::{Machine, Memory};
pub use measure::bench;

use crate::schedule::StepCosts;
use runtime::KvType;
use schemars::JsonSchema;
use scoring::stats::{Interval, quantile};
use scoring::{Error, Failed, Result};
use serde::Serialize;

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// Definitions of the words in reports.
pub const DEFINITIONS: [&str; 7] = [
    "Every time is the median of the repeats after one that warms up, with the fastest and the slowest; tokens are \
     pseudorandom, which costs what text costs.",
    "First token: a prompt through an empty cache and the logits after its last token. Prefill: its tokens over that \
     time.",
    "Decode: a token through a cache that holds the context, with its logits. Without the cache, the whole sequence is \
     run again for the token (through an empty cache of the same type, so that both round alike); equal says that the \
     logits are the same, bit for bit.",
    "Bandwidth: bytes of the weights that a step reads (all but an embedding of its own), and of the cache where there is a context, over the time of a step, as a share of \
     what all threads together read from memory. Work: two operations for each weight and token, as a share of the \
     peak of f32 multiply-adds in registers, and of the rate of dot products of 16-bit integers from the nearest cache \
     (integer kernels reuse what they read, and can do more).",
    "Batch: so many sequences, each with the context of the table's title, get a token each in one step.",
    "Knee: the batch from which on a step takes longer for each sequence instead of waiting for the weights. Expected: \
     the step of batch 1 over the time that a prompt token costs in prefill. Measured: that step over what a sequence \
     adds to a step between the two largest batches.",
    "Cache: bytes of a token by formula, 2 x layers x kv_heads x head_dim x 2 in f16 and 2 x layers x kv_heads x \
     (head_dim + 2) in int8, and as allocated.",
];

/// Settings of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Setting {
    /// Tokens of prompts.
    pub prompts: Vec<usize>,
    /// Tokens of context to decode after.
    pub contexts: Vec<usize>,
    /// Sequences of a step.
    pub batches: Vec<usize>,
    /// Tokens of context of each sequence of a batch.
    pub batch_context: usize,
    /// Tokens decoded in one run.
    pub tokens: usize,
    /// Runs that count.
    pub repeats: usize,
    /// Type of stored keys and values: `f16` or `int8`.
    #[serde(serialize_with = "kv_name")]
    #[schemars(with = "String")]
    pub kv: KvType,
    /// Engine whose rounding of activations is reproduced, as `--engine-math` names it.
    pub engine_math: String,
}

pub(crate) fn kv_name<S: serde::Serializer>(kv: &KvType, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(kv)
}

/// The most of anything that may be asked for.
const MOST: usize = 1 << 20;

impl Setting {
    /// # Errors
    /// [`Error::Protocol`] in one line.
    pub fn check(&self) -> Result<()> {
        let wrong = |what: &str| Err(Error::Protocol(format!("{what} must be between 1 and {MOST}")));
        let is_wrong = |n: &usize| !(1..=MOST).contains(n);
        for (what, list) in
            [("prompt lengths", &self.prompts), ("contexts", &self.contexts), ("batches", &self.batches)]
        {
            if list.is_empty() || list.iter().any(is_wrong) {
                return wrong(what);
            }
        }
        for (what, n) in [("--tokens", self.tokens), ("--repeats", self.repeats), ("the context", self.batch_context)] {
            if is_wrong(&n) {
                return wrong(what);
            }
        }
        if self.batches.windows(2).any(|pair| pair[0] >= pair[1]) {
            return Err(Error::Protocol("batches must rise".into()));
        }
        Ok(())
    }

    /// The longest sequence that is run.
    pub fn longest(&self) -> usize {
        let contexts = self.contexts.iter().copied().chain([self.batch_context]).map(|n| n + self.tokens);
        self.prompts.iter().copied().chain(contexts).max().unwrap_or(0)
    }
}

/// A time that was measured several times, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Time {
    /// The median.
    pub median: f64,
    /// The fastest and the slowest.
    pub range: Interval,
}

impl Time {
    /// Summarizes times in milliseconds.
    pub fn from_values(mut values: Vec<f64>) -> Self {
        let mut at = |q| quantile(&mut values, q).unwrap_or(f64::NAN);
        Time { median: at(0.5), range: Interval(at(0.0), at(1.0)) }
    }

    /// Returns the distance of the farthest run from the median, as a share of the median.
    pub fn farthest(&self) -> f64 {
        (self.median - self.range.0).max(self.range.1 - self.median) / self.median
    }
}

/// Results of a measurement.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Bench {
    /// Version of this structure.
    pub version: u32,
    /// Settings that were measured.
    pub setting: Setting,
    /// The machine, in the same run.
    pub machine: Machine,
    /// The GPU that models ran on, in the same run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<Gpu>,
    /// The models, in the order given.
    pub models: Vec<Measured>,
    /// Models that couldn't be opened or run.
    pub failed: Vec<Failed>,
    /// Reasons to doubt the figures: other work kept the machine busy.
    pub warnings: Vec<String>,
    /// Definitions of the words in reports.
    pub definitions: Vec<String>,
}

/// A model.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Measured {
    /// Path of the model.
    pub name: String,
    /// Scheme of the model.
    pub scheme: String,
    /// Bytes of its weights as they are held.
    pub weight_bytes: u64,
    /// Bytes of weights that every step reads: all, except for the embedding where the output projection is another
    /// matrix.
    pub step_bytes: u64,
    /// Weights that a token is multiplied with.
    pub multiplied: u64,
    /// This process's memory after the model was measured; none where the system doesn't say.
    pub memory: Option<Memory>,
    /// Bytes of the cache.
    pub cache: Cache,
    /// Prompts.
    pub prefill: Vec<Prefill>,
    /// Decoding alone.
    pub decode: Vec<Decode>,
    /// Decoding together.
    pub batch: Vec<Batch>,
    /// Batch at which arithmetic takes over from memory.
    pub knee: Knee,
    /// Costs of steps, for `qeval schedule --costs`.
    pub step_costs: StepCosts,
}

/// Each measured peak of the machine: its name, the multiple of it that a model may reach, and why a model may seem to
/// reach more. Products of 16-bit integers come two to one of f32.
const PEAKS: [(&str, f64, &str); 3] = [
    ("bandwidth", 1.0, ", or the weights lie in the processor's caches"),
    ("f32 peak", 2.0, ", or this is no release build"),
    ("matrix rate", 1.0, ""),
];

/// Beyond that by more than this factor, the peak was measured too low.
const IMPOSSIBLE: f64 = 1.1;

/// A run farther from the median than this share of it was disturbed.
const NOISY: f64 = 0.5;

impl Measured {
    /// Lists reasons to doubt the model's figures.
    pub fn warnings(&self) -> Vec<String> {
        let (prefill, decode, batch) = (|| self.prefill.iter(), || self.decode.iter(), || self.batch.iter());
        let bandwidth = decode().map(|d| d.bandwidth_share).chain(batch().map(|b| b.bandwidth_share));
        let work = prefill().map(|p| p.work).chain(batch().map(|b| b.work)).map(Work::of_peak);
        let shares: Vec<(&str, f64)> = bandwidth.map(|share| ("bandwidth", share)).chain(work).collect();
        let mut out = Vec::new();
        let busy = |share: f64, what: &str, otherwise: &str| {
            let (name, share) = (&self.name, report::format::percent(share, 0));
            format!("{name}: {share} {what}: something else kept the machine busy{otherwise}")
        };
        for (what, most, otherwise) in PEAKS {
            let share = shares.iter().filter(|s| s.0 == what).map(|s| s.1).fold(0.0, f64::max);
            if share > most * IMPOSSIBLE {
                out.push(busy(share, &format!("of the {what} that was measured"), otherwise));
            }
        }
        let times = prefill().map(|p| p.ms).chain(decode().flat_map(|d| [d.ms, d.without_cache_ms]));
        let noise = times.chain(batch().map(|b| b.ms)).map(|t| t.farthest()).fold(0.0, f64::max);
        if noise > NOISY {
            let (name, noise) = (&self.name, report::format::percent(noise, 0));
            out.push(format!("{name}: unreliable: runs varied by {noise}; rerun on an idle machine"));
        }
        out
    }
}

/// Bytes of a token in the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Cache {
    /// By formula.
    pub formula: usize,
    /// Bytes that were allocated.
    pub allocated: usize,
}

/// A prompt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Prefill {
    /// Tokens of the prompt.
    pub tokens: usize,
    /// Milliseconds until its first token.
    pub ms: Time,
    /// Tokens in a second.
    pub tokens_per_s: f64,
    /// Share of a peak that the run reached.
    #[serde(flatten)]
    pub work: Work,
}

/// Shares of the peaks of where a model ran.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum Work {
    /// On the CPU.
    Cpu {
        /// Share of the machine's f32 peak.
        f32_share: f64,
        /// Share of the machine's rate of 16-bit integer products; may exceed 1.
        int16_share: f64,
    },
    /// On a GPU.
    Gpu {
        /// Share of the rate of a large product by cuBLAS, in the type that is computed in.
        matrix_share: f64,
    },
}

impl Work {
    /// The peak of [`PEAKS`] that it is held to, and the share.
    fn of_peak(self) -> (&'static str, f64) {
        match self {
            Work::Gpu { matrix_share } => ("matrix rate", matrix_share),
            Work::Cpu { f32_share, .. } => ("f32 peak", f32_share),
        }
    }
}

/// Decoding after a context.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Decode {
    /// Tokens of the context.
    pub context: usize,
    /// Milliseconds of a token.
    pub ms: Time,
    /// Share of the machine's read bandwidth.
    pub bandwidth_share: f64,
    /// Milliseconds of a token for which the whole sequence is run again.
    pub without_cache_ms: Time,
    /// True if both ways gave the same logits: bit for bit on the CPU; within 1% of the largest on a GPU, which sums
    /// few tokens and many in other orders and types.
    pub equal: bool,
}

/// A step of several sequences.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Batch {
    /// Sequences.
    pub batch: usize,
    /// Milliseconds of a step: the latency of every sequence's token.
    pub ms: Time,
    /// Tokens in a second, of all sequences.
    pub tokens_per_s: f64,
    /// Share of the machine's read bandwidth.
    pub bandwidth_share: f64,
    /// Share of a peak that the run reached.
    #[serde(flatten)]
    pub work: Work,
}

/// The batch at which a step is bound by arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Knee {
    /// From prefill; none where a single token costs no more than one of many.
    pub expected: Option<f64>,
    /// From the batches; none where there are fewer than two, or the last costs nothing.
    pub measured: Option<f64>,
}

impl Knee {
    /// Finds the knee in measurements of prefill and batches.
    pub fn find(prefill: &[Prefill], batches: &[Batch]) -> Self {
        let of = |single: f64, each: f64| Some(single / each).filter(|knee| each > 0.0 && knee.is_finite());
        let Some(single) = batches.first().filter(|b| b.batch == 1).map(|b| b.ms.median) else {
            return Knee { expected: None, measured: None };
        };
        let fastest = prefill.iter().map(|p| p.ms.median / p.tokens as f64).reduce(f64::min);
        let added = match batches {
            [.., a, b] => Some((b.ms.median - a.ms.median) / (b.batch - a.batch) as f64),
            _ => None,
        };
        Knee { expected: fastest.and_then(|each| of(single, each)), measured: added.and_then(|each| of(single, each)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(batch: usize, ms: f64) -> Batch {
        let ms = Time::from_values(vec![ms]);
        let work = Work::Gpu { matrix_share: 0.0 };
        Batch { batch, ms, tokens_per_s: 0.0, bandwidth_share: 0.0, work }
    }

    #[test]
    fn the_knee_lies_where_the_two_lines_meet() {
        // 10 ms for the weights, 2 ms for each token: both bind at 5 sequences.
        let batches: Vec<Batch> = [1, 2, 8, 16].map(|b| batch(b, f64::max(10.0, 2.0 * b as f64))).into();
        let work = Work::Cpu { f32_share: 0.0, int16_share: 0.0 };
        let prefill = Prefill { tokens: 100, ms: Time::from_values(vec![200.0]), tokens_per_s: 500.0, work };
        assert_eq!(Knee::find(&[prefill], &batches), Knee { expected: Some(5.0), measured: Some(5.0) });
        assert_eq!(Knee::find(&[prefill], &batches[1..]).measured, None);
        assert_eq!(Knee::find(&[], &[batch(1, 10.0), batch(2, 10.0)]).measured, None);
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = Setting {
            prompts: vec![16],
            contexts: vec![16],
            batches: vec![1, 2],
            batch_context: 8,
            tokens: 4,
            repeats: 1,
            kv: KvType::F16,
            engine_math: "exact".into(),
        };
        assert!(good.check().is_ok());
        assert_eq!(good.longest(), 20);
        let refused = |s: Setting| s.check().expect_err("refused").to_string();
        assert!(refused(Setting { prompts: vec![], ..good.clone() }).contains("prompt lengths"));
        assert!(refused(Setting { batches: vec![2, 1], ..good.clone() }).contains("rise"));
        assert!(refused(Setting { repeats: 0, ..good.clone() }).contains("--repeats"));
    }
}
