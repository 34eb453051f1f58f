//! Configuration of a model, as the runtime needs it, whatever file it came from.

mod keys;
mod parse;
mod rope;
mod unread;
mod window;

pub use parse::MAX_SIZE;
pub(crate) use parse::{parse, token_ids};
pub(crate) use unread::notes;

/// Model families that the runtime runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Llama, SmolLM2, Mistral without sliding window.
    Llama,
    /// Qwen2 and Qwen2.5: biases on q, k, v.
    Qwen2,
    /// Qwen3: norms on q and k.
    Qwen3,
}

/// Scaling of rotary positions.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// None.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Stretch of the context.
        factor: f64,
    },
    /// Llama 3.1's frequency-dependent scaling.
    Llama3 {
        /// Stretch of the context.
        factor: f64,
        /// Below this many turns over the original context: stretched in full.
        low_freq_factor: f64,
        /// Above this many turns: left alone.
        high_freq_factor: f64,
        /// The context length of pre-training.
        original_max_position: usize,
    },
    /// YaRN (Peng et al. 2023).
    Yarn {
        /// Stretch of the context.
        factor: f64,
        /// Fast end of the ramp, in turns.
        beta_fast: f64,
        /// Slow end of the ramp, in turns.
        beta_slow: f64,
        /// Factor on cos and sin; `0.1 ln(factor) + 1` unless given.
        attention_factor: f64,
        /// The context length of pre-training.
        original_max_position: usize,
        /// True if the ends of the ramp are rounded outwards to whole dimensions.
        truncate: bool,
    },
    /// Explicit factors, one for each rotary frequency: the frequency is divided by it
    /// (GGUF's `rope_freqs.weight`, llama.cpp's form of Llama 3.1's scaling).
    Factors(Vec<f32>),
}

/// A decoder's hyperparameters.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// The family.
    pub family: Family,
    /// Entries of the vocabulary, as the embedding has rows.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Width of the MLP.
    pub intermediate_size: usize,
    /// Blocks.
    pub layers: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Epsilon of every RMSNorm.
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    pub rope_theta: f64,
    /// Scaling of rotary positions.
    pub rope_scaling: RopeScaling,
    /// Context length that the model was trained for.
    pub max_position: usize,
    /// Tokens that a layer with sliding-window attention sees, at least `max_position`. Attention here is full, so
    /// longer sequences must be refused.
    pub window: Option<usize>,
    /// True if the output projection is the embedding.
    pub tie_word_embeddings: bool,
    /// Begin-of-sequence token, if the model names one.
    pub bos_token_id: Option<u32>,
    /// End-of-sequence tokens.
    pub eos_token_ids: Vec<u32>,
}
