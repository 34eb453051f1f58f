//! Products of layers that take the same input.

use super::launch::{Launch, Module};
use super::packed::{self, Format, Packed, Part};
use crate::ComputeType;
use schemes::Activation;
use std::ops::Range;
use store::Linear;

/// Tokens that are multiplied straight from packed weights; more go through cuBLAS.
pub const FEW: usize = 8;

/// Bytes of decoded weights that are kept at a time: a part of the second-level cache, and never a
/// whole matrix of a large model.
const TILE: usize = 32 << 20;

/// Rows of a tile are a multiple of this.
const TILE_ROWS: usize = 128;

/// Layers side by side, those of one form as one matrix.
#[derive(Debug, Default)]
pub struct Group {
    /// The products, from left to right.
    pub products: Vec<Product>,
    /// Lists of columns that parts take.
    pub columns: Vec<Vec<u32>>,
    /// Outputs of all.
    pub rows: usize,
    /// Layers that were decoded, since no kernel reads their form.
    pub decoded: usize,
}

/// One product.
#[derive(Debug)]
pub struct Product {
    /// Index of the layer's first output.
    pub at: usize,
    /// Outputs of the product.
    pub rows: usize,
    /// Parts that are added up, with the list of columns that each takes (all where there is none).
    pub parts: Vec<(Part, Option<usize>)>,
    /// Added to its outputs; empty for none.
    pub bias: Vec<f32>,
    /// Treatment of the layer's input.
    pub activation: Activation,
}

/// Packs layers for a GPU that computes in `compute`.
pub fn group<'a>(layers: impl IntoIterator<Item = &'a Linear>, compute: ComputeType) -> Group {
    let mut all = Group::default();
    for layer in layers {
        let rows = layer.matrix.rows();
        let (parts, decoded) = packed::parts(&layer.matrix, compute);
        all.decoded += usize::from(decoded);
        let bias = layer.bias.clone().unwrap_or_default();
        let parts = match all.products.last_mut() {
            Some(last) if last.activation == layer.activation => last.join(parts, rows, &bias),
            _ => Some(parts),
        };
        if let Some(parts) = parts {
            let parts = parts.into_iter().map(|part| {
                let columns = part.columns.as_ref().map(|c| index_of(&mut all.columns, c));
                (part, columns)
            });
            let parts = parts.collect();
            all.products.push(Product { at: all.rows, rows, parts, bias, activation: layer.activation });
        }
        all.rows += rows;
    }
    all
}

/// Index of a list; the list is added where it was absent.
fn index_of(all: &mut Vec<Vec<u32>>, list: &[u32]) -> usize {
    all.iter().position(|l| l == list).unwrap_or_else(|| {
        all.push(list.to_vec());
        all.len() - 1
    })
}

impl Product {
    /// Takes another layer's rows in, where every part is of the same form; else gives them back.
    fn join(&mut self, parts: Vec<Part>, rows: usize, bias: &[f32]) -> Option<Vec<Part>> {
        let fits = parts.len() == self.parts.len() && self.parts.iter().zip(&parts).all(|((a, _), b)| a.fits(b));
        if !fits {
            return Some(parts);
        }
        for ((part, _), more) in self.parts.iter_mut().zip(parts) {
            part.join(more);
        }
        if !self.bias.is_empty() || !bias.is_empty() {
            self.bias.resize(self.rows, 0.0);
            self.bias.extend_from_slice(bias);
            self.bias.resize(self.rows + rows, 0.0);
        }
        self.rows += rows;
        None
    }
}

/// Form that a part's input is made into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    /// Taken as it is.
    Floats,
    /// Quantized and multiplied as codes.
    Codes,
    /// Quantized, then taken as floats.
    Rounded,
}

/// Chooses the form of a part's input.
pub fn input(weights: &Packed, exact: bool, activation: Activation) -> Input {
    let codes = weights.format == Format::I8 && weights.group == 0 && weights.zeros.is_empty();
    match activation {
        Activation::Float => Input::Floats,
        _ if exact => Input::Floats,
        _ if codes => Input::Codes,
        _ => Input::Rounded,
    }
}

/// Tokens and rows of a warp: the kernels that there are.
fn warp(tokens: usize, rows: usize, processors: usize) -> (usize, usize) {
    match tokens {
        // Few rows leave processors idle: a row for each warp then.
        1 if rows < 4 * 8 * processors => (1, 1),
        1 => (1, 4),
        2 => (2, 4),
        3 | 4 => (4, 2),
        _ => (8, 2),
    }
}

/// A launch of a product of at most [`FEW`] tokens on a GPU of so many multiprocessors.
fn few(module: Module, name: &str, tokens: usize, rows: usize, processors: usize) -> Launch {
    let (t, r) = warp(tokens, rows, processors);
    let mut warps = 8;
    while warps > 1 && rows.div_ceil(r * warps) < processors {
        warps /= 2;
    }
    Launch::new(module, format!("{name}_{t}x{r}"), [rows.div_ceil(r * warps), 1, 1], 32 * warps as u32)
}

/// A product of few tokens, in floats.
pub fn gemv(format: Format, tokens: usize, rows: usize, processors: usize) -> Launch {
    few(Module::Gemv, &format!("gemv_{format}"), tokens, rows, processors)
}

/// A product of codes.
pub fn integer(tokens: usize, rows: usize, processors: usize) -> Launch {
    if tokens <= FEW {
        return few(Module::Integer, "gemv_i8i8", tokens, rows, processors);
    }
    Launch::new(Module::Integer, "gemm_i8i8", [tokens.div_ceil(64), rows.div_ceil(128), 1], 256)
}

/// Rows that are decoded at a time, to values of so many bytes.
pub fn tiles(rows: usize, row_bytes: usize) -> Vec<Range<usize>> {
    let most = (TILE / row_bytes.max(1)).max(TILE_ROWS) / TILE_ROWS * TILE_ROWS;
    (0..rows).step_by(most).map(|first| first..rows.min(first + most)).collect()
}

#[cfg(test)]
#[path = "product_tests.rs"]
mod tests;
