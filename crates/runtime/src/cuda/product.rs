//! The product of layers: few tokens straight from packed weights, many by cuBLAS from a tile of
//! decoded rows at a time, codes with codes in integers.

use super::inputs::{Form, Inputs};
use super::launch::{Arg, Gemm, device_of, launch, maybe, pointer, room, values};
use super::weights::{Group, Part, Product, Weights};
use crate::ComputeType;
use crate::gpu::launch::{Launch, Module};
use crate::gpu::packed::{Format, float_of};
use crate::gpu::product::{FEW, Input, gemv, integer, tiles};
use crate::linear::{PackedLinear, Project};
use candle_core::cuda::{CudaDevice, CudaStorage};
use candle_core::{Layout, Result, bail};
use std::sync::Arc;

/// Destination of a product's outputs.
#[derive(Debug, Clone, Copy)]
struct To {
    /// The first token's first output, f32.
    at: Arg,
    /// Elements from token to token.
    stride: usize,
    accumulate: bool,
    /// Added after everything else.
    bias: Arg,
}

/// The operation; shapes are checked, and there are so many tokens.
pub fn project(
    op: &Project<'_>,
    tokens: usize,
    (out, lo): (&CudaStorage, &Layout),
    (x, lx): (&CudaStorage, &Layout),
) -> Result<()> {
    let Some(group) = shared_group(op.layers) else {
        bail!("the weights of {} are not on the GPU", op.layers.first().map_or("no layer", |l| &l.name));
    };
    let (device, out, x) = (device_of(x), values::<f32>(out, lo)?, values::<f32>(x, lx)?);
    let cols = op.layers.first().map_or(0, PackedLinear::cols);
    let mut inputs = Inputs::new(&device, group, op.sequences, x, (tokens, cols));
    for product in &group.products {
        let last = product.parts.len() - 1;
        for (i, part) in product.parts.iter().enumerate() {
            let to = To {
                at: out.plus(4 * product.at),
                stride: group.rows,
                accumulate: op.accumulate || i > 0,
                bias: maybe(product.bias.as_ref().filter(|_| i == last)),
            };
            add(&mut inputs, product, part, to)?;
        }
    }
    Ok(())
}

/// The layers' group, where they are all of one.
fn shared_group(layers: &[PackedLinear]) -> Option<&Arc<Group>> {
    let group = layers.first()?.resident.as_ref()?;
    let same = |l: &PackedLinear| l.resident.as_ref().is_some_and(|g| Arc::ptr_eq(g, group));
    (group.layers == layers.len() && layers.iter().all(same)).then_some(group)
}

fn add(inputs: &mut Inputs<'_>, product: &Product, part: &Part, to: To) -> Result<()> {
    let weights = &part.weights;
    let form = Form { columns: part.columns, n: weights.cols, input: part.input, activation: product.activation };
    if form.input == Input::Codes {
        return codes(inputs, weights, form, to);
    }
    if inputs.tokens > FEW {
        return many(inputs, weights, form, to);
    }
    let what = gemv(weights.format, inputs.tokens, weights.rows, inputs.group.processors);
    let mut args = vec![inputs.floats(form)?];
    args.extend(weights.args()?);
    args.extend([to.bias, to.at]);
    for n in [inputs.tokens, weights.rows, weights.cols, to.stride] {
        args.push(Arg::int(n)?);
    }
    args.push(Arg::flag(to.accumulate));
    launch(inputs.device, &what, &args)
}

/// In integers.
fn codes(inputs: &mut Inputs<'_>, weights: &Weights, form: Form, to: To) -> Result<()> {
    let (x, x_scales) = inputs.codes(form)?;
    let what = integer(inputs.tokens, weights.rows, inputs.group.processors);
    let args = [
        x,
        x_scales,
        maybe(weights.codes.as_ref()),
        maybe(weights.scales.as_ref()),
        Arg::flag(weights.half_scales),
        to.bias,
        to.at,
        Arg::int(inputs.tokens)?,
        Arg::int(weights.rows)?,
        Arg::int(weights.row_bytes)?,
        Arg::int(to.stride)?,
        Arg::flag(to.accumulate),
    ];
    launch(inputs.device, &what, &args)
}

/// By cuBLAS.
fn many(inputs: &mut Inputs<'_>, weights: &Weights, form: Form, to: To) -> Result<()> {
    let (device, compute, tokens) = (inputs.device, inputs.group.compute, inputs.tokens);
    let x = inputs.cast(form)?;
    let float = float_of(compute);
    let size = float.size();
    let gemm = |first: usize, rows: usize, from: (Arg, usize)| {
        let out = (to.at.plus(4 * first), to.stride);
        Gemm { rows, tokens, cols: weights.cols, weights: from, x, out, accumulate: to.accumulate }.run(device, compute)
    };
    if weights.format == Format::Float(float) {
        gemm(0, weights.rows, (maybe(weights.codes.as_ref()), weights.row_bytes / size))?;
    } else {
        let stride = (weights.cols * size).next_multiple_of(16) / size;
        let tiles = tiles(weights.rows, stride * size);
        let most = tiles.first().map_or(0, |t| t.len());
        let scratch = room::<u8>(device, most * stride * size)?;
        for tile in tiles {
            let at = pointer(&scratch);
            decode(device, weights, compute, (tile.start, tile.len()), (at, stride))?;
            gemm(tile.start, tile.len(), (at, stride))?;
        }
    }
    if let Arg::Pointer(1..) = to.bias {
        let what = Launch::over(Module::Elementwise, "add_bias", tokens, weights.rows);
        launch(device, &what, &[to.at, to.bias, Arg::int(weights.rows)?, Arg::int(to.stride)?])?;
    }
    Ok(())
}

/// Decodes `n` rows from `first` on.
pub(super) fn decode(
    device: &CudaDevice,
    weights: &Weights,
    to: ComputeType,
    (first, n): (usize, usize),
    (out, stride): (Arg, usize),
) -> Result<()> {
    let what = Launch::over(Module::Decode, format!("decode_{}_{to}", weights.format), n, stride);
    let mut args = weights.args()?.to_vec();
    args.extend([Arg::NULL, out, Arg::int(first)?, Arg::int(weights.cols)?, Arg::int(stride)?]);
    launch(device, &what, &args)
}
