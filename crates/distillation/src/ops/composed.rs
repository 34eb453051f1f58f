//! The operations of a pass, composed of candle's: for devices that this crate has no loops for.
//!
//! candle's autograd makes their gradients. Largest values are subtracted as constants: they change no result.

use super::attention::angles;
use candle_core::{D, DType, Result, Tensor, bail};

/// Tensors that are the same in all blocks.
#[derive(Debug)]
pub(super) struct Tables {
    tokens: usize,
    head_dim: usize,
    /// Cosines of the rotary angles, `[tokens, 1, head_dim / 2]`.
    cos: Tensor,
    sin: Tensor,
    /// 0 where a token is in sight of another and negative infinity elsewhere, `[tokens, tokens]`.
    mask: Tensor,
}

/// `weight * x / sqrt(mean(x^2) + eps)` along the last dimension.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    if weight.dims() != [x.dim(D::Minus1)?] {
        bail!("rms norm: the weight's shape {:?} doesn't fit {:?}", weight.dims(), x.dims());
    }
    let inverse = (x.sqr()?.mean_keepdim(D::Minus1)? + eps)?.sqrt()?.recip()?;
    x.broadcast_mul(&inverse)?.broadcast_mul(weight)
}

impl Tables {
    /// For rows of `tokens` tokens, of the type of `like` and where that lies.
    pub(super) fn new(tokens: usize, head_dim: usize, theta: f64, like: &Tensor) -> Result<Self> {
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            bail!("rotary: {head_dim} dimensions can't be paired");
        }
        let table = |values: Vec<f64>, shape: &[usize]| {
            // From f32 where that is computed in: not every device converts from f64.
            match like.dtype() {
                DType::F64 => Tensor::from_vec(values, shape, like.device()),
                dtype => {
                    let values: Vec<f32> = values.into_iter().map(|v| v as f32).collect();
                    Tensor::from_vec(values, shape, like.device())?.to_dtype(dtype)
                }
            }
        };
        let turns = |turn: fn(f64) -> f64| {
            table(angles(tokens, head_dim, theta).map(turn).collect(), &[tokens, 1, head_dim / 2])
        };
        // Made on the device: it is large.
        let places = table((0..tokens).map(|i| i as f64).collect(), &[tokens, 1])?;
        let seen = Tensor::zeros((tokens, tokens), like.dtype(), like.device())?;
        let hidden = (&seen + f64::NEG_INFINITY)?;
        let mask = places.t()?.broadcast_gt(&places)?.where_cond(&hidden, &seen)?;
        Ok(Self { tokens, head_dim, cos: turns(f64::cos)?, sin: turns(f64::sin)?, mask })
    }

    /// Rotary positions of `[batch * tokens, heads * head_dim]`.
    pub(super) fn rotary(&self, x: &Tensor) -> Result<Tensor> {
        let (rows, width) = x.dims2()?;
        if !rows.is_multiple_of(self.tokens) || !width.is_multiple_of(self.head_dim) {
            let (tokens, head_dim) = (self.tokens, self.head_dim);
            bail!("rotary: rows of {width} can't be split into heads of {head_dim} at {tokens} positions");
        }
        let half = self.head_dim / 2;
        let split = x.reshape((rows / self.tokens, self.tokens, width / self.head_dim, self.head_dim))?;
        let (x1, x2) = (split.narrow(3, 0, half)?, split.narrow(3, half, half)?);
        let turned = |a: &Tensor, b: &Tensor| a.broadcast_mul(&self.cos)? + b.broadcast_mul(&self.sin)?;
        Tensor::cat(&[turned(&x1, &x2.neg()?)?, turned(&x2, &x1)?], 3)?.reshape((rows, width))
    }

    /// The causal softmax of `[batch, rows, tokens]`.
    pub(super) fn causal_softmax(&self, x: &Tensor, scale: f64) -> Result<Tensor> {
        let (batch, rows, columns) = x.dims3()?;
        if columns != self.tokens || !rows.is_multiple_of(columns) {
            bail!("causal softmax: {rows} rows aren't a multiple of {columns} columns for {} tokens", self.tokens);
        }
        // candle's kernels count in 32 bits.
        if x.elem_count() > i32::MAX as usize {
            bail!("causal softmax: {:?} is more than a GPU's kernels count to; take more parts of a batch", x.dims());
        }
        let stacked = (x * scale)?.reshape((batch * (rows / columns), columns, columns))?;
        let seen = stacked.broadcast_add(&self.mask)?;
        let above = seen.broadcast_sub(&seen.detach().max_keepdim(D::Minus1)?)?.exp()?;
        above.broadcast_div(&above.sum_keepdim(D::Minus1)?)?.reshape((batch, rows, columns))
    }
}
