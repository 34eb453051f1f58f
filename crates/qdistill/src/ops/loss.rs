//! Cross-entropy against token ids.

use super::{Real, dispatch, last_dim, values};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail};
use std::sync::Arc;

/// The mean negative log-likelihood, in nats, of `targets` under `softmax(logits)`; `logits` is `[rows, vocabulary]`.
pub fn cross_entropy(logits: &Tensor, targets: &[u32]) -> Result<Tensor> {
    logits.apply_op1(CrossEntropy { targets: targets.into() })
}

struct CrossEntropy {
    targets: Arc<[u32]>,
}

/// The largest logit, and the sum of `exp(logit - largest)`.
fn normaliser<T: Real>(row: &[T]) -> (T, T) {
    let top = row.iter().fold(row[0], |m, &v| if v > m { v } else { m });
    (top, row.iter().fold(T::zero(), |s, &v| s + (v - top).exp()))
}

impl CrossEntropy {
    fn forward<T: Real>(&self, logits: &[T], width: usize) -> T {
        let mut total = 0f64;
        for (row, &target) in logits.chunks_exact(width).zip(self.targets.iter()) {
            let (top, sum) = normaliser(row);
            total += (sum.ln() + top - row[target as usize]).to_f64();
        }
        T::from_f64(total / self.targets.len() as f64)
    }
}

impl CustomOp1 for CrossEntropy {
    fn name(&self) -> &'static str {
        "cross-entropy"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = last_dim(layout)?;
        let rows = layout.shape().elem_count() / width;
        if rows != self.targets.len() {
            bail!("cross-entropy: {rows} rows of logits, {} targets", self.targets.len());
        }
        if let Some(target) = self.targets.iter().find(|&&t| t as usize >= width) {
            bail!("cross-entropy: target {target} lies outside the vocabulary of {width}");
        }
        let out = dispatch!(storage, T => T::to_cpu_storage(&[self.forward::<T>(values(storage, layout)?, width)]));
        Ok((out, Shape::from(())))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let op = CrossEntropyGrad { targets: self.targets.clone() };
        Ok(Some(arg.apply_op2_no_bwd(&grad.contiguous()?, &op)?))
    }
}

struct CrossEntropyGrad {
    targets: Arc<[u32]>,
}

impl CrossEntropyGrad {
    fn run<T: Real>(&self, logits: &[T], width: usize, grad: T) -> Vec<T> {
        let each = grad / T::from_f64(self.targets.len() as f64);
        let mut out = Vec::with_capacity(logits.len());
        for (i, (row, &target)) in logits.chunks_exact(width).zip(self.targets.iter()).enumerate() {
            let (top, sum) = normaliser(row);
            let factor = each / sum;
            out.extend(row.iter().map(|&v| (v - top).exp() * factor));
            out[i * width + target as usize] -= each;
        }
        out
    }
}

impl CustomOp2 for CrossEntropyGrad {
    fn name(&self) -> &'static str {
        "cross-entropy-grad"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = last_dim(lx)?;
        let out = dispatch!(x, T => {
            let [grad] = values::<T>(g, lg)? else { bail!("cross-entropy: the loss is one number") };
            T::to_cpu_storage_owned(self.run::<T>(values(x, lx)?, width, *grad))
        });
        Ok((out, lx.shape().clone()))
    }
}
