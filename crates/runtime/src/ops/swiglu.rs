//! SwiGLU.

use super::{values, values_mut};
use crate::simd::{self, Kernel, Simd};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp2, Layout, Result, bail};
use rayon::prelude::*;

/// `out [tokens, n] = silu(gate) * up`, where the input `[tokens, 2n]` holds gate and up of a
/// token side by side.
#[derive(Debug, Clone, Copy)]
pub struct SwiGlu {
    /// Width of the output.
    pub width: usize,
}

impl SwiGlu {
    /// On slices.
    pub fn run(self, gate_up: &[f32], out: &mut [f32]) {
        let n = self.width;
        out.par_chunks_mut(n).zip(gate_up.par_chunks(2 * n)).with_min_len(4).for_each(|(out, both)| {
            let (gate, up) = both.split_at(n);
            out.copy_from_slice(gate);
            simd::run(Row { gate: out, up });
        });
    }
}

struct Row<'a> {
    gate: &'a mut [f32],
    up: &'a [f32],
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (one, zero) = (s.splat(1.0), s.splat(0.0));
        simd::zip_map(
            s,
            self.gate,
            self.up,
            #[inline(always)]
            |g, u| {
                let silu = s.div(g, s.add(one, simd::exp(s, s.sub(zero, g))));
                s.mul(silu, u)
            },
        );
    }
}

impl InplaceOp2 for SwiGlu {
    fn name(&self) -> &'static str {
        "swiglu"
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, lo: &Layout, x: &CpuStorage, lx: &Layout) -> Result<()> {
        let (x, out) = (values(x, lx)?, values_mut(out, lo)?);
        if x.len() != 2 * out.len() || !out.len().is_multiple_of(self.width) {
            bail!("swiglu of width {}: {:?} to {:?}", self.width, lx.shape(), lo.shape());
        }
        self.run(x, out);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, out: &mut CudaStorage, lo: &Layout, x: &CudaStorage, lx: &Layout) -> Result<()> {
        crate::cuda::swiglu(*self, out, lo, x, lx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_defined_in_f64() {
        let n = 41;
        let both: Vec<f32> = (0..4 * n).map(|i| (i as f32 - 80.0) * 0.7).collect();
        let mut out = vec![0f32; 2 * n];
        SwiGlu { width: n }.run(&both, &mut out);
        for (t, row) in both.chunks(2 * n).enumerate() {
            for i in 0..n {
                let (g, u) = (f64::from(row[i]), f64::from(row[n + i]));
                let want = g / (1.0 + (-g).exp()) * u;
                let got = f64::from(out[t * n + i]);
                assert!((got - want).abs() <= 1e-6 * want.abs() + 1e-30, "{g} {u}: {got} {want}");
            }
        }
    }
}
