//! Root-mean-square normalisation.

use super::{ROWS, Real, dispatch, last_dim, values};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

/// [`Operations::rms_norm`](super::Operations::rms_norm), fused.
pub(super) fn rms_norm(x: &Tensor, weight: &Tensor, eps: f64) -> Result<Tensor> {
    x.apply_op2(weight, RmsNorm { eps })
}

struct RmsNorm {
    eps: f64,
}

fn inverse_rms<T: Real>(x: &[T], eps: f64) -> T {
    let squares = x.iter().fold(T::zero(), |s, &v| s + v * v);
    let mean = squares / T::from_f64(x.len() as f64);
    T::one() / (mean + T::from_f64(eps)).sqrt()
}

impl RmsNorm {
    fn forward<T: Real>(&self, x: &[T], weight: &[T]) -> Vec<T> {
        let mut out = vec![T::zero(); x.len()];
        let rows = x.par_chunks_exact(weight.len()).zip(out.par_chunks_exact_mut(weight.len()));
        rows.with_min_len(ROWS).for_each(|(x, y)| {
            let inverse = inverse_rms(x, self.eps);
            for ((y, &x), &w) in y.iter_mut().zip(x).zip(weight) {
                *y = x * inverse * w;
            }
        });
        out
    }
}

impl CustomOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, x: &CpuStorage, lx: &Layout, w: &CpuStorage, lw: &Layout) -> Result<(CpuStorage, Shape)> {
        if lw.dims() != [last_dim(lx)?] {
            bail!("rms norm: the weight's shape {:?} doesn't fit {:?}", lw.dims(), lx.dims());
        }
        let out = dispatch!(x, T => T::to_cpu_storage_owned(self.forward::<T>(values(x, lx)?, values(w, lw)?)));
        Ok((out, lx.shape().clone()))
    }

    fn bwd(&self, x: &Tensor, w: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        // One result carries both: the rows of x's gradient, and weight's as the last row.
        let both = x.apply_op3_no_bwd(w, &grad.contiguous()?, &RmsNormGrad { eps: self.eps })?;
        let rows = both.dim(0)? - 1;
        let dx = both.narrow(0, 0, rows)?.reshape(x.shape())?;
        let dw = both.narrow(0, rows, 1)?.reshape(w.shape())?;
        Ok((Some(dx), Some(dw)))
    }
}

/// Rows whose part of the weight's gradient is summed before it is added to the others'.
const SUMMED: usize = 64;

struct RmsNormGrad {
    eps: f64,
}

impl RmsNormGrad {
    fn run<T: Real>(&self, x: &[T], w: &[T], g: &[T]) -> Vec<T> {
        let width = w.len();
        let mut out = vec![T::zero(); x.len()];
        let blocks = x.par_chunks(SUMMED * width).zip(g.par_chunks(SUMMED * width));
        let parts: Vec<Vec<T>> = blocks
            .zip(out.par_chunks_mut(SUMMED * width))
            .map(|((x, g), out)| {
                let mut dw = vec![T::zero(); width];
                for ((x, g), out) in x.chunks_exact(width).zip(g.chunks_exact(width)).zip(out.chunks_exact_mut(width)) {
                    let inverse = inverse_rms(x, self.eps);
                    let mut dot = T::zero();
                    for i in 0..width {
                        dw[i] += g[i] * x[i] * inverse;
                        dot += g[i] * w[i] * x[i];
                    }
                    let pull = dot * inverse * inverse / T::from_f64(width as f64);
                    for i in 0..width {
                        out[i] = inverse * (g[i] * w[i] - x[i] * pull);
                    }
                }
                dw
            })
            .collect();
        let mut dw = vec![T::zero(); width];
        for part in parts {
            dw.iter_mut().zip(part).for_each(|(sum, part)| *sum += part);
        }
        out.extend(dw);
        out
    }
}

impl CustomOp3 for RmsNormGrad {
    fn name(&self) -> &'static str {
        "rms-norm-grad"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        lx: &Layout,
        w: &CpuStorage,
        lw: &Layout,
        g: &CpuStorage,
        lg: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let width = last_dim(lx)?;
        let rows = lx.shape().elem_count() / width;
        let out = dispatch!(x, T => {
            T::to_cpu_storage_owned(self.run::<T>(values(x, lx)?, values(w, lw)?, values(g, lg)?))
        });
        Ok((out, Shape::from((rows + 1, width))))
    }
}
