//! Errors of running a model.

/// Errors of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model's files.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// candle, or an operation on its tensors.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// A tensor that the family needs is missing.
    #[error("tensor {0} is missing")]
    Missing(String),
    /// A tensor's shape is not what the configuration says.
    #[error("{name} has shape {found:?}, the configuration says {expected:?}")]
    Shape {
        /// The module or tensor.
        name: String,
        /// Stored shape.
        found: Vec<usize>,
        /// Expected shape.
        expected: Vec<usize>,
    },
    /// A token outside the vocabulary.
    #[error("token id {id} is outside the vocabulary of {vocab} entries")]
    Token {
        /// The token.
        id: u32,
        /// Entries of the vocabulary.
        vocab: usize,
    },
    /// Sequences of a batch differ in length.
    #[error("the sequences of a batch must have one length; found {0} and {1}")]
    Uneven(usize, usize),
    /// A sequence longer than a layer's sliding window.
    #[error(
        "the model has a sliding window of {window} tokens, which is not supported in sequences beyond it; this one has \
         {longest}: shorten it"
    )]
    Window {
        /// Tokens that a layer sees.
        window: usize,
        /// Tokens of the longest sequence.
        longest: usize,
    },
    /// Nothing to run.
    #[error("there are no tokens to run")]
    Empty,
    /// The KV cache is too small.
    #[error("the KV cache holds {capacity} tokens; {needed} are needed")]
    CacheFull {
        /// Tokens that it can hold.
        capacity: usize,
        /// Tokens that it would have to.
        needed: usize,
    },
    /// The KV cache was made for another batch or model.
    #[error("the KV cache was made for {0}, not for {1}")]
    CacheShape(String, String),
    /// All blocks of a paged KV cache are in use.
    #[error(
        "the KV cache has {blocks} blocks of {block_tokens} tokens, and {missing} more are needed; release sequences or \
         make it larger"
    )]
    CacheExhausted {
        /// Blocks.
        blocks: usize,
        /// Tokens of a block.
        block_tokens: usize,
        /// Blocks wanted beyond those that were free.
        missing: usize,
    },
    /// A KV cache that can't be allocated.
    #[error("a KV cache of {blocks} blocks of {block_tokens} tokens does not fit into memory; make it smaller")]
    CacheMemory {
        /// Blocks.
        blocks: usize,
        /// Tokens of a block.
        block_tokens: usize,
    },
    /// A sequence of one KV cache, used with another.
    #[error("the sequence belongs to another KV cache")]
    ForeignSequence,
    /// Not the name of a device.
    #[error("unknown device '{0}'; known are auto, cpu, cuda and cuda:N")]
    UnknownDevice(String),
    /// Not a type to compute in.
    #[error("unknown type '{0}'; known are f32, f16 and bf16")]
    UnknownType(String),
    /// An instruction set that this processor or program doesn't have.
    #[error("QEVAL_ISA={name}: this processor has no such instruction set; use {available}, or unset the variable")]
    InstructionSet {
        /// The name in the environment.
        name: String,
        /// The names that can be used here, best first.
        available: String,
    },
    /// A GPU, in a build without CUDA.
    #[error("device '{0}': this build has no CUDA; scripts/build-cuda makes one, or use cpu")]
    NoCuda(String),
    /// A GPU that can't be used.
    #[error("device '{device}' can't be used: {reason}, or use cpu")]
    Gpu {
        /// Name of the device, as it was given.
        device: String,
        /// Message of the driver, and the way out.
        reason: String,
    },
    /// An operation that only the CPU has.
    #[error("{0} runs on the CPU only; use device cpu")]
    CpuOnly(String),
    /// Logits that no token can be chosen by.
    #[error("logits are NaN: no token can be chosen; the model's weights are at fault")]
    NaN,
    /// A setting of the sampler that makes no sense.
    #[error("{name} = {value} is out of range: {expected}")]
    Sampling {
        /// The setting.
        name: &'static str,
        /// Value of the setting.
        value: f64,
        /// Allowed values.
        expected: &'static str,
    },
}

/// Result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// Returns whether what was asked for is at fault: a device, type or instruction set that this build or processor
    /// doesn't have.
    pub fn is_usage(&self) -> bool {
        use Error::{InstructionSet, NoCuda, UnknownDevice, UnknownType};
        matches!(self, UnknownDevice(_) | UnknownType(_) | NoCuda(_) | InstructionSet { .. })
    }
}

/// An error's first line: a driver's and a library's have more.
pub(crate) fn line(error: &dyn std::error::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_string()
}
