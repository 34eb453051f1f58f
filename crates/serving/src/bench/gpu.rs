//! Ceilings of a GPU, against which models are measured.

use runtime::measure::{Timed, ceilings, products};
use schemars::JsonSchema;
use scoring::load::Compute;
use scoring::{Error, Result};
use serde::Serialize;

/// Rows and columns of the layer whose products are timed: in 4 bits it is still more than the
/// second-level cache of the largest GPUs holds.
const SHAPE: (usize, usize) = (32_768, 8_192);

/// Tokens of these products.
const TOKENS: [usize; 4] = [1, 8, 64, 512];

/// A GPU and its ceilings.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Gpu {
    /// Name of the device.
    pub device: String,
    /// Type of the operands: `f32`, `f16` or `bf16`.
    pub dtype: String,
    /// Bytes read and written in a second by copies within its memory.
    pub copied_bytes_per_s: f64,
    /// Operations in a second of a large product by cuBLAS in that type.
    pub flop_per_s: f64,
    /// Rows and columns of the products.
    pub shape: (usize, usize),
    /// Products of one large layer, where they were asked for.
    pub products: Vec<Product>,
}

/// A product.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Product {
    /// The form of the weights, and whose product it is.
    pub what: String,
    /// Tokens.
    pub tokens: usize,
    /// Seconds that it takes.
    pub seconds: f64,
    /// Bytes of the weights.
    pub bytes: usize,
    /// Share of the memory's bandwidth that reading the weights once comes to.
    pub bandwidth_share: f64,
    /// Share of the matrix rate.
    pub matrix_share: f64,
}

impl Gpu {
    /// Measures the device, and products of one large layer where they are asked for; none of the CPU.
    ///
    /// # Errors
    /// [`Error::Device`] when its memory is full.
    pub fn measure(compute: &Compute, with_products: bool) -> Result<Option<Gpu>> {
        let (device, dtype) = (&compute.device, compute.options.compute);
        let Some(peaks) = ceilings(device, dtype).map_err(Error::Device)? else { return Ok(None) };
        let timed =
            if with_products { products(device, dtype, SHAPE, &TOKENS).map_err(Error::Device)? } else { vec![] };
        let product = |t: Timed| Product {
            bandwidth_share: t.bytes as f64 / t.seconds / peaks.copied_bytes_per_s,
            matrix_share: 2.0 * (SHAPE.0 * SHAPE.1 * t.tokens) as f64 / t.seconds / peaks.flop_per_s,
            what: t.what,
            tokens: t.tokens,
            seconds: t.seconds,
            bytes: t.bytes,
        };
        Ok(Some(Gpu {
            device: runtime::device_name(device),
            dtype: dtype.to_string(),
            copied_bytes_per_s: peaks.copied_bytes_per_s,
            flop_per_s: peaks.flop_per_s,
            shape: SHAPE,
            products: timed.into_iter().map(product).collect(),
        }))
    }
}
