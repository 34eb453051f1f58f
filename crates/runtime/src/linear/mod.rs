//! Linear layers that multiply from the packed form.

pub mod codes;
mod float;
mod integer;
pub mod panel;
pub mod product;
pub mod quantized;
pub mod rounding;
pub mod weights;

use crate::ops::{self, values, values_mut};
use crate::simd::Isa;
use candle_core::{CpuStorage, InplaceOp2, Layout, Result, bail};
use panel::{Prepared, Recipe};
use product::Job;
use rounding::{Math, Rounding};
use std::sync::Arc;
use store::Linear;
use weights::parts;

/// A linear layer. Cloning shares the weights.
#[derive(Debug, Clone)]
pub struct PackedLinear {
    /// Its module, such as `model.layers.0.mlp.down_proj`.
    pub name: String,
    linear: Arc<Linear>,
    rounding: Option<Rounding>,
}

impl PackedLinear {
    /// Of a stored layer, with an engine's rounding of its input.
    pub fn new(name: impl Into<String>, linear: Arc<Linear>, math: Math) -> Self {
        let rounding = math.rounding(&linear);
        PackedLinear { name: name.into(), linear, rounding }
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
    /// Consecutive tokens that belong to one sequence.
    pub per_sequence: usize,
    /// Whether to add to what `out` holds.
    pub accumulate: bool,
}

impl Project<'_> {
    /// On slices.
    pub fn run(&self, x: &[f32], out: &mut [f32]) {
        self.run_on(Isa::best(), x, out);
    }

    fn run_on(&self, isa: Isa, x: &[f32], out: &mut [f32]) {
        let Some(cols) = self.layers.first().map(PackedLinear::cols).filter(|&c| c > 0) else { return };
        let tokens = x.len() / cols;
        let mut prepared = Prepared::new(x, cols, self.per_sequence, isa.tile());
        let plan: Vec<_> = self
            .layers
            .iter()
            .map(|layer| {
                let parts = parts(&layer.linear.matrix, layer.rounding.is_some()).into_iter().map(|(part, columns)| {
                    let recipe = Recipe { columns, activation: layer.linear.activation, rounding: layer.rounding };
                    (part, prepared.place(part, recipe))
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
        let (x, out) = (values(x, lx)?, values_mut(out, lo)?);
        let rows: usize = self.layers.iter().map(PackedLinear::rows).sum();
        let cols = ops::last_dim(lx)?;
        if let Some(l) = self.layers.iter().find(|l| l.cols() != cols) {
            bail!("{} takes {} features, not {cols}", l.name, l.cols());
        }
        if x.len() / cols * rows != out.len() {
            bail!("{} tokens of {rows} outputs don't fit into {}", x.len() / cols, out.len());
        }
        self.run(x, out);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
