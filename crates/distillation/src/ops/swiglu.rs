//! The gated activation of Llama's feed-forward block.

use super::{Real, dispatch, values};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};
use rayon::prelude::*;

/// [`Operations::swiglu`](super::Operations::swiglu), fused.
pub(super) fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, SwiGlu)
}

struct SwiGlu;

/// Elements that a thread takes at a time.
const CHUNK: usize = 1 << 14;

#[inline(always)]
fn sigmoid<T: Real>(x: T) -> T {
    T::one() / (T::one() + (T::zero() - x).exp())
}

fn forward<T: Real>(gate: &[T], up: &[T]) -> Vec<T> {
    let mut out = vec![T::zero(); gate.len()];
    let chunks = gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)).zip(out.par_chunks_mut(CHUNK));
    chunks.for_each(|((gate, up), out)| activate(gate, up, out));
    out
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn activate<T: Real>(gate: &[T], up: &[T], out: &mut [T]) {
    for ((out, &g), &u) in out.iter_mut().zip(gate).zip(up) {
        *out = g * sigmoid(g) * u;
    }
}

/// The gradient of `gate`, followed by that of `up`.
fn backward<T: Real>(gate: &[T], up: &[T], grad: &[T]) -> Vec<T> {
    let n = gate.len();
    let mut out = vec![T::zero(); 2 * n];
    let (dgate, dup) = out.split_at_mut(n);
    let into = dgate.par_chunks_mut(CHUNK).zip(dup.par_chunks_mut(CHUNK));
    let chunks = gate.par_chunks(CHUNK).zip(up.par_chunks(CHUNK)).zip(grad.par_chunks(CHUNK));
    chunks.zip(into).for_each(|(((gate, up), grad), (dgate, dup))| activate_grad((gate, up, grad), dgate, dup));
    out
}

#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2+fma"), dispatcher = "direct")]
fn activate_grad<T: Real>((gate, up, grad): (&[T], &[T], &[T]), dgate: &mut [T], dup: &mut [T]) {
    let n = gate.len();
    let (up, grad, dgate, dup) = (&up[..n], &grad[..n], &mut dgate[..n], &mut dup[..n]);
    for i in 0..n {
        let s = sigmoid(gate[i]);
        let silu = gate[i] * s;
        dgate[i] = grad[i] * up[i] * (s + silu * (T::one() - s));
        dup[i] = grad[i] * silu;
    }
}

impl CustomOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, g: &CpuStorage, lg: &Layout, u: &CpuStorage, lu: &Layout) -> Result<(CpuStorage, Shape)> {
        if lg.shape() != lu.shape() {
            bail!("swiglu: shapes {:?} and {:?} differ", lg.dims(), lu.dims());
        }
        let out = dispatch!(g, T => T::to_cpu_storage_owned(forward::<T>(values(g, lg)?, values(u, lu)?)));
        Ok((out, lg.shape().clone()))
    }

    fn bwd(&self, g: &Tensor, u: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let both = g.apply_op3_no_bwd(u, &grad.contiguous()?, &SwiGluGrad)?;
        Ok((Some(both.get(0)?), Some(both.get(1)?)))
    }
}

struct SwiGluGrad;

impl CustomOp3 for SwiGluGrad {
    fn name(&self) -> &'static str {
        "swiglu-grad"
    }

    fn cpu_fwd(
        &self,
        g: &CpuStorage,
        lg: &Layout,
        u: &CpuStorage,
        lu: &Layout,
        d: &CpuStorage,
        ld: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = dispatch!(g, T => {
            T::to_cpu_storage_owned(backward::<T>(values(g, lg)?, values(u, lu)?, values(d, ld)?))
        });
        let shape: Vec<usize> = std::iter::once(2).chain(lg.dims().iter().copied()).collect();
        Ok((out, Shape::from(shape)))
    }
}
