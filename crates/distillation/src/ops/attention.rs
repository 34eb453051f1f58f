//! Rotary positions and the causal softmax.

use super::{ROWS, Real, dispatch, last_dim, values};
use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

/// [`Operations::causal_softmax`](super::Operations::causal_softmax), fused.
pub(super) fn causal_softmax(x: &Tensor, scale: f64) -> Result<Tensor> {
    x.apply_op1(CausalSoftmax { scale })
}

struct CausalSoftmax {
    scale: f64,
}

impl CausalSoftmax {
    fn forward<T: Real>(&self, x: &[T], columns: usize) -> Vec<T> {
        let mut out = vec![T::zero(); x.len()];
        let rows = x.par_chunks_exact(columns).zip(out.par_chunks_exact_mut(columns)).enumerate();
        rows.with_min_len(ROWS).for_each(|(row, (x, y))| {
            let seen = row % columns + 1;
            softmax_row(&x[..seen], &mut y[..seen], self.scale);
        });
        out
    }
}

impl CustomOp1 for CausalSoftmax {
    fn name(&self) -> &'static str {
        "causal-softmax"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let columns = last_dim(layout)?;
        let rows = layout.dims().iter().rev().nth(1).copied().unwrap_or(0);
        if rows == 0 || !rows.is_multiple_of(columns) {
            bail!("causal softmax: {rows} rows aren't a multiple of {columns} columns");
        }
        let out =
            dispatch!(storage, T => T::to_cpu_storage_owned(self.forward::<T>(values(storage, layout)?, columns)));
        Ok((out, layout.shape().clone()))
    }

    fn bwd(&self, _arg: &Tensor, res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let op = CausalSoftmaxGrad { scale: self.scale };
        Ok(Some(res.apply_op2_no_bwd(&grad.contiguous()?, &op)?))
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn softmax_row<T: Real>(x: &[T], y: &mut [T], scale: f64) {
    let scale = T::from_f64(scale);
    let mut top = x[0];
    for &x in x {
        top = if x > top { x } else { top };
    }
    for (y, &x) in y.iter_mut().zip(x) {
        *y = ((x - top) * scale).exp();
    }
    let mut sum = T::zero();
    for &y in &*y {
        sum += y;
    }
    let inverse = T::one() / sum;
    for y in y {
        *y *= inverse;
    }
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn softmax_row_grad<T: Real>(y: &[T], g: &[T], d: &mut [T], scale: f64) {
    let scale = T::from_f64(scale);
    let mut dot = T::zero();
    for (&y, &g) in y.iter().zip(g) {
        dot += y * g;
    }
    for ((d, &y), &g) in d.iter_mut().zip(y).zip(g) {
        *d = scale * y * (g - dot);
    }
}

struct CausalSoftmaxGrad {
    scale: f64,
}

impl CausalSoftmaxGrad {
    fn run<T: Real>(&self, y: &[T], g: &[T], columns: usize) -> Vec<T> {
        let mut out = vec![T::zero(); y.len()];
        let rows = y.par_chunks_exact(columns).zip(g.par_chunks_exact(columns)).zip(out.par_chunks_exact_mut(columns));
        rows.enumerate().with_min_len(ROWS).for_each(|(row, ((y, g), d))| {
            let seen = row % columns + 1;
            softmax_row_grad(&y[..seen], &g[..seen], &mut d[..seen], self.scale);
        });
        out
    }
}

impl CustomOp2 for CausalSoftmaxGrad {
    fn name(&self) -> &'static str {
        "causal-softmax-grad"
    }

    fn cpu_fwd(&self, y: &CpuStorage, ly: &Layout, g: &CpuStorage, lg: &Layout) -> Result<(CpuStorage, Shape)> {
        let columns = last_dim(ly)?;
        let out = dispatch!(y, T => T::to_cpu_storage_owned(self.run::<T>(values(y, ly)?, values(g, lg)?, columns)));
        Ok((out, ly.shape().clone()))
    }
}

/// [`Operations::rotary`](super::Operations::rotary), fused.
pub(super) fn rotary(x: &Tensor, tokens: usize, head_dim: usize, theta: f64) -> Result<Tensor> {
    x.apply_op1(Rotary { tokens, head_dim, theta, forward: true })
}

struct Rotary {
    tokens: usize,
    head_dim: usize,
    theta: f64,
    forward: bool,
}

impl Rotary {
    fn run<T: Real>(&self, x: &[T], width: usize) -> Vec<T> {
        let half = self.head_dim / 2;
        let (cos, sin) = self.tables::<T>();
        let mut out = vec![T::zero(); x.len()];
        let rows = x.par_chunks_exact(width).zip(out.par_chunks_exact_mut(width)).enumerate();
        rows.with_min_len(ROWS).for_each(|(row, (x, y))| {
            let at = row % self.tokens * half;
            let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
            for (x, y) in x.chunks_exact(self.head_dim).zip(y.chunks_exact_mut(self.head_dim)) {
                let (x1, x2) = x.split_at(half);
                let (y1, y2) = y.split_at_mut(half);
                for i in 0..half {
                    y1[i] = x1[i] * cos[i] - x2[i] * sin[i];
                    y2[i] = x2[i] * cos[i] + x1[i] * sin[i];
                }
            }
        });
        out
    }

    fn tables<T: Real>(&self) -> (Vec<T>, Vec<T>) {
        let sign = if self.forward { 1.0 } else { -1.0 };
        let angles = angles(self.tokens, self.head_dim, self.theta);
        angles.map(|a| (T::from_f64(a.cos()), T::from_f64(sign * a.sin()))).unzip()
    }
}

/// By how much each pair of dimensions is turned, `[tokens, head_dim / 2]`.
pub(super) fn angles(tokens: usize, head_dim: usize, theta: f64) -> impl Iterator<Item = f64> {
    (0..tokens).flat_map(move |position| {
        (0..head_dim / 2).map(move |i| position as f64 * theta.powf(-2.0 * i as f64 / head_dim as f64))
    })
}

impl CustomOp1 for Rotary {
    fn name(&self) -> &'static str {
        "rotary"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let width = last_dim(layout)?;
        if self.tokens == 0
            || self.head_dim == 0
            || !self.head_dim.is_multiple_of(2)
            || !width.is_multiple_of(self.head_dim)
        {
            bail!(
                "rotary: rows of {width} can't be split into heads of {} at {} positions",
                self.head_dim,
                self.tokens
            );
        }
        let out = dispatch!(storage, T => T::to_cpu_storage_owned(self.run::<T>(values(storage, layout)?, width)));
        Ok((out, layout.shape().clone()))
    }

    fn bwd(&self, _arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let back = Rotary { forward: !self.forward, ..*self };
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&back)?))
    }
}
