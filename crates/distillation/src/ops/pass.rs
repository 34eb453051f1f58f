//! The operations of a pass through the blocks, in the form that its device takes.

use super::composed::{self, Tables};
use super::{Form, attention, norm, swiglu};
use candle_core::{Result, Tensor};

/// The operations of a pass over rows of so many tokens.
#[derive(Debug)]
pub struct Operations {
    tokens: usize,
    head_dim: usize,
    theta: f64,
    /// Tensors that the composed form needs; none where operations are fused.
    tables: Option<Tables>,
}

impl Operations {
    /// For rows of `tokens` tokens, heads of `head_dim` dimensions and rotary angles of base `theta`; `like` has the
    /// device and the type of what is computed.
    ///
    /// # Errors
    /// What can't be put on the device.
    pub fn new(form: Form, tokens: usize, head_dim: usize, theta: f64, like: &Tensor) -> Result<Self> {
        let tables = match form {
            Form::Fused => None,
            Form::Composed => Some(Tables::new(tokens, head_dim, theta, like)?),
        };
        Ok(Self { tokens, head_dim, theta, tables })
    }

    /// `weight * x / sqrt(mean(x^2) + eps)` along the last dimension.
    ///
    /// # Errors
    /// A weight that doesn't fit.
    pub fn rms_norm(&self, x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
        match &self.tables {
            None => norm::rms_norm(x, weight, eps),
            Some(_) => composed::rms_norm(x, weight, eps),
        }
    }

    /// Rotary position embedding in the "rotate half" form of Hugging Face's Llama.
    ///
    /// `x` is `[batch * tokens, heads * head_dim]`; row `r` is at position `r % tokens`. Dimension `i` of the first half
    /// of a head is paired with dimension `i` of the second, and turned by `position * theta^(-2i / head_dim)`.
    ///
    /// # Errors
    /// Rows that can't be split into heads.
    pub fn rotary(&self, x: &Tensor) -> Result<Tensor> {
        match &self.tables {
            None => attention::rotary(x, self.tokens, self.head_dim, self.theta),
            Some(tables) => tables.rotary(x),
        }
    }

    /// Softmax of `scale * x` along the last dimension, where row `r` sees columns `0..=r % tokens` only.
    ///
    /// `x` is `[batch, rows, tokens]` with `rows` a multiple of `tokens`: the heads that share a key head may be stacked
    /// along the rows. Columns that are out of sight get probability 0.
    ///
    /// # Errors
    /// Rows that are no multiple of the columns.
    pub fn causal_softmax(&self, x: &Tensor, scale: f64) -> Result<Tensor> {
        match &self.tables {
            None => attention::causal_softmax(x, scale),
            Some(tables) => tables.causal_softmax(x, scale),
        }
    }

    /// `silu(gate) * up`, elementwise.
    ///
    /// # Errors
    /// Shapes that differ.
    pub fn swiglu(&self, gate: &Tensor, up: &Tensor) -> Result<Tensor> {
        match &self.tables {
            None => swiglu::swiglu(gate, up),
            Some(_) => gate.silu()? * up,
        }
    }
}
