//! Linear layers that multiply from the packed form.

pub mod byte_planes;
mod bytes;
pub mod codes;
mod float;
mod integer;
pub mod panel;
pub mod product;
pub mod quantized;
pub mod rounding;
mod rows;
pub mod weights;

use crate::ComputeType;
use crate::ops::{self, values, values_mut};
use crate::simd::Isa;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, Device, InplaceOp2, Layout, Result, bail};
use panel::{Prepared, Recipe};
use product::Job;
use rounding::{Math, Rounding};
use std::sync::Arc;
use store::Linear;
use weights::parts;

/// A linear layer. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct PackedLinear {
    /// Module of the packed linear, such as `model.layers.0.mlp.down_proj`.
    pub name: String,
    linear: Arc<Linear>,
    rounding: Option<Rounding>,
    /// This layer on a GPU, with those that take its input.
    #[cfg(feature = "cuda")]
    pub(crate) resident: Option<Arc<crate::cuda::Group>>,
}

impl PackedLinear {
    /// Prepares a stored layer, with an engine's rounding of its input.
    pub fn new(name: impl Into<String>, linear: Arc<Linear>, math: Math) -> Self {
        let rounding = math.rounding(&linear);
        PackedLinear {
            name: name.into(),
            linear,
            rounding,
            #[cfg(feature = "cuda")]
            resident: None,
        }
    }

    /// The layer as stored.
    pub fn linear(&self) -> &Arc<Linear> {
        &self.linear
    }

    /// Output features.
    pub fn rows(&self) -> usize {
        self.linear.matrix.rows()
    }

    /// Input features.
    pub fn cols(&self) -> usize {
        self.linear.matrix.cols()
    }

    /// Bytes of weights and bias.
    pub fn bytes(&self) -> usize {
        self.linear.matrix.packed_bytes() + self.linear.bias.as_ref().map_or(0, |b| 4 * b.len())
    }
}

/// Memory that layers take on a device.
#[derive(Debug, Clone, Copy, Default)]
pub struct Placed {
    /// Bytes of weights and biases.
    pub bytes: usize,
    /// Layers that are held decoded, since the device reads no such form.
    pub decoded: usize,
}

/// Puts layers that take the same input on a device; on the CPU they stay views into their files.
///
/// # Errors
/// When the device's memory is full.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
pub fn upload_layers(layers: &mut [PackedLinear], device: &Device, compute: ComputeType) -> Result<Placed> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return crate::cuda::upload_layers(layers, device, compute);
    }
    Ok(Placed { bytes: layers.iter().map(PackedLinear::bytes).sum(), decoded: 0 })
}

/// The operation: `out [tokens, sum of rows] = x W^T + b`, the outputs of the layers side by
/// side, all from the same input.
///
/// Activations are quantized here, where the layer asks for it. [`schemes::Activation::Int8Tensor`]
/// takes one scale for each sequence of the batch, so that what else is in the batch never
/// changes a result.
#[derive(Debug, Clone, Copy)]
pub struct Project<'a> {
    /// The layers.
    pub layers: &'a [PackedLinear],
    /// Number of tokens of each sequence there are, one sequence after the other.
    pub sequences: &'a [usize],
    /// True if to add to what `out` holds.
    pub accumulate: bool,
}

impl Project<'_> {
    /// On slices.
    pub fn run(&self, x: &[f32], out: &mut [f32]) {
        self.run_on(Isa::active(), x, out);
    }

    /// Checks shapes, and returns the number of tokens.
    fn check(&self, out: &Layout, x: &Layout) -> Result<usize> {
        let rows: usize = self.layers.iter().map(PackedLinear::rows).sum();
        let cols = ops::last_dim(x)?;
        if let Some(l) = self.layers.iter().find(|l| l.cols() != cols) {
            bail!("{} takes {} features, not {cols}", l.name, l.cols());
        }
        let (tokens, room) = (x.shape().elem_count() / cols, out.shape().elem_count());
        if tokens != self.sequences.iter().sum::<usize>() {
            bail!("{tokens} tokens are not those of sequences of {:?}", self.sequences);
        }
        if tokens * rows != room {
            bail!("{tokens} tokens of {rows} outputs don't fit into {room}");
        }
        Ok(tokens)
    }

    fn run_on(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        let Some(cols) = self.layers.first().map(PackedLinear::cols).filter(|&c| c > 0) else { return };
        let tokens = x.len() / cols;
        let mut prepared = Prepared::new(x, cols, self.sequences, isa.tile());
        let plan: Vec<_> = self
            .layers
            .iter()
            .map(|layer| {
                let parts = parts(&layer.linear.matrix, layer.rounding.is_some()).into_iter().map(|(part, columns)| {
                    let recipe = Recipe { columns, activation: layer.linear.activation, rounding: layer.rounding };
                    (part, prepared.insert(part, recipe))
                });
                (layer, parts.collect::<Vec<_>>())
            })
            .collect();
        let jobs: Vec<Job<'_>> = plan
            .into_iter()
            .map(|(layer, parts)| Job {
                terms: parts.into_iter().map(|(part, at)| prepared.term(part, at)).collect(),
                bias: layer.linear.bias.as_deref(),
                rows: layer.rows(),
            })
            .collect();
        product::multiply(isa, &jobs, tokens, self.accumulate, out);
    }
}

impl InplaceOp2 for Project<'_> {
    fn name(&self) -> &'static str {
        "packed-linear"
    }

    fn cpu_fwd(&self, out: &mut CpuStorage, lo: &Layout, x: &CpuStorage, lx: &Layout) -> Result<()> {
        self.check(lo, lx)?;
        self.run(values(x, lx)?, values_mut(out, lo)?);
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, out: &mut CudaStorage, lo: &Layout, x: &CudaStorage, lx: &Layout) -> Result<()> {
        crate::cuda::project(self, self.check(lo, lx)?, (out, lo), (x, lx))
    }
}

#[cfg(test)]
mod tests;
