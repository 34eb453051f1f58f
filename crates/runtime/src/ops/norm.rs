//! RMSNorm.

use super::{last_dim, values, values_mut};
use crate::simd::{self, Kernel, Simd};
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp2, Layout, Result, Tensor, bail};
use rayon::prelude::*;

/// `out = x / sqrt(mean(x^2) + eps) * weight` over the last dimension.
#[derive(Debug, Clone)]
pub struct RmsNorm {
    /// Factors of the columns.
    pub weight: Vec<f32>,
    /// Epsilon.
    pub eps: f64,
    /// The factors on a GPU.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    pub(crate) resident: Option<Tensor>,
}

impl RmsNorm {
    /// For the CPU.
    pub fn new(weight: Vec<f32>, eps: f64) -> Self {
        RmsNorm { weight, eps, resident: None }
    }

    /// For a device.
    ///
    /// # Errors
    /// When its memory is full.
    pub fn on(self, device: &Device) -> Result<Self> {
        let place = || Tensor::from_slice(&self.weight, self.weight.len(), device);
        let resident = (!device.is_cpu()).then(place).transpose()?;
        Ok(RmsNorm { resident, ..self })
    }

    /// On slices.
    pub fn run(&self, x: &[f32], out: &mut [f32]) {
        let n = self.weight.len();
        out.par_chunks_mut(n).zip(x.par_chunks(n)).with_min_len(16).for_each(|(out, x)| {
            out.copy_from_slice(x);
            self.row(out);
        });
    }

    /// One row, in place.
    pub fn row(&self, row: &mut [f32]) {
        simd::run(Row { row, weight: &self.weight, eps: self.eps as f32 });
    }
}

struct Row<'a> {
    row: &'a mut [f32],
    weight: &'a [f32],
    eps: f32,
}

impl Kernel for Row<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let n = self.row.len();
        let whole = n / S::LANES * S::LANES;
        let mut sums = s.splat(0.0);
        for c in s.chunks(&self.row[..whole]) {
            let v = s.load(c);
            sums = s.fma(v, v, sums);
        }
        let rest: f32 = self.row[whole..].iter().map(|v| v * v).sum();
        let mean = (s.sum(sums) + rest) / n as f32;
        let factor = s.splat(1.0 / (mean + self.eps).sqrt());
        simd::zip_map(
            s,
            self.row,
            self.weight,
            #[inline(always)]
            |x, w| s.mul(s.mul(x, factor), w),
        );
    }
}

impl InplaceOp2 for RmsNorm {
    fn name(&self) -> &'static str {
        "rms-norm"
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, lo: &Layout, x: &CpuStorage, lx: &Layout) -> Result<()> {
        let (x, out) = (values(x, lx)?, values_mut(out, lo)?);
        if last_dim(lx)? != self.weight.len() || x.len() != out.len() {
            bail!("rms-norm over {} columns: {:?} to {:?}", self.weight.len(), lx.shape(), lo.shape());
        }
        self.run(x, out);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, out: &mut CudaStorage, lo: &Layout, x: &CudaStorage, lx: &Layout) -> Result<()> {
        crate::cuda::rms_norm(self, out, lo, x, lx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_defined_in_f64() {
        for n in [1, 7, 16, 33, 576] {
            let x: Vec<f32> = (0..2 * n).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.3).collect();
            let norm = RmsNorm::new((0..n).map(|i| 0.5 + i as f32 / n as f32).collect(), 1e-5);
            let mut out = vec![0f32; 2 * n];
            norm.run(&x, &mut out);
            for (x, out) in x.chunks(n).zip(out.chunks(n)) {
                let mean: f64 = x.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>() / n as f64;
                for i in 0..n {
                    let want = f64::from(x[i]) / (mean + 1e-5).sqrt() * f64::from(norm.weight[i]);
                    assert!((f64::from(out[i]) - want).abs() <= 1e-6 * want.abs() + 1e-9, "{n} {i}");
                }
            }
        }
    }
}
