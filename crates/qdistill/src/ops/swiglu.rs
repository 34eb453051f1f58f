//! The gated activation of Llama's feed-forward block.

use super::{Real, dispatch, values};
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor, WithDType, bail};

/// `silu(gate) * up`, elementwise.
pub fn swiglu(gate: &Tensor, up: &Tensor) -> Result<Tensor> {
    gate.apply_op2(up, SwiGlu)
}

struct SwiGlu;

fn sigmoid<T: Real>(x: T) -> T {
    T::one() / (T::one() + (T::zero() - x).exp())
}

fn forward<T: Real>(gate: &[T], up: &[T]) -> Vec<T> {
    gate.iter().zip(up).map(|(&g, &u)| g * sigmoid(g) * u).collect()
}

/// The gradient of `gate`, followed by that of `up`.
fn backward<T: Real>(gate: &[T], up: &[T], grad: &[T]) -> Vec<T> {
    let n = gate.len();
    let mut out = vec![T::zero(); 2 * n];
    let (dgate, dup) = out.split_at_mut(n);
    for i in 0..n {
        let s = sigmoid(gate[i]);
        let silu = gate[i] * s;
        dgate[i] = grad[i] * up[i] * (s + silu * (T::one() - s));
        dup[i] = grad[i] * silu;
    }
    out
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
