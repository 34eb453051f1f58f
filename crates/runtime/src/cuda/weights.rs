//! Weights on a GPU, in packed form.

use super::launch::{Arg, maybe, room};
use crate::ComputeType;
use crate::gpu::packed::Packed;
use crate::gpu::product::{self, Input};
use crate::linear::{PackedLinear, Placed};
use candle_core::cuda::CudaDevice;
use candle_core::cuda::cudarc::driver::CudaSlice;
use candle_core::{Device, Result};
use schemes::Activation;
use std::sync::Arc;

/// Layers that take the same input, side by side.
#[derive(Debug)]
pub struct Group {
    /// Number of layers.
    pub(super) layers: usize,
    pub(super) products: Vec<Product>,
    /// Lists of columns that parts take.
    pub(super) columns: Vec<CudaSlice<i32>>,
    /// Outputs of all.
    pub(super) rows: usize,
    pub(super) compute: ComputeType,
    /// Multiprocessors of the device.
    pub(super) processors: usize,
}

/// Rows of layers of one form.
#[derive(Debug)]
pub(super) struct Product {
    /// The first output.
    pub at: usize,
    pub parts: Vec<Part>,
    pub bias: Option<CudaSlice<f32>>,
    pub activation: Activation,
}

/// One of the products that are added up.
#[derive(Debug)]
pub(super) struct Part {
    pub weights: Weights,
    /// Index of the list of columns that the part takes; none where it takes all.
    pub columns: Option<usize>,
    /// Form of the part's input.
    pub input: Input,
}

/// Packed rows in the GPU's memory; lists that are absent take none.
pub(super) type Weights = Packed<Option<CudaSlice<u8>>>;

impl Weights {
    pub(super) fn upload(packed: &Packed, device: &CudaDevice) -> Result<Self> {
        packed.placed(|bytes| (!bytes.is_empty()).then(|| upload(bytes, device)).transpose())
    }

    /// Arguments of kernels that decode these weights.
    pub(super) fn args(&self) -> Result<[Arg; 7]> {
        Ok([
            maybe(self.codes.as_ref()),
            maybe(self.scales.as_ref()),
            maybe(self.zeros.as_ref()),
            maybe(self.levels.as_ref()),
            Arg::int(self.row_bytes)?,
            Arg::int(self.group)?,
            Arg::flag(self.half_scales),
        ])
    }
}

/// Values in the GPU's memory.
fn upload<T>(values: &[T], device: &CudaDevice) -> Result<CudaSlice<T>>
where
    T: candle_core::cuda::cudarc::driver::DeviceRepr + 'static,
{
    let mut slice = room(device, values.len())?;
    if !values.is_empty() {
        device.memcpy_htod(values, &mut slice)?;
    }
    Ok(slice)
}

/// Puts layers that take the same input on a GPU.
///
/// # Errors
/// When its memory is full.
pub fn upload_layers(layers: &mut [PackedLinear], device: &Device, compute: ComputeType) -> Result<Placed> {
    let cuda = device.as_cuda_device()?;
    let planned = product::group(layers.iter().map(|l| &**l.linear()), compute);
    let (mut bytes, mut products) = (0, Vec::with_capacity(planned.products.len()));
    for product in &planned.products {
        let mut parts = Vec::with_capacity(product.parts.len());
        for (part, columns) in &product.parts {
            bytes += part.weights.bytes();
            let weights = Weights::upload(&part.weights, cuda)?;
            let input = product::input(&part.weights, part.exact, product.activation);
            parts.push(Part { weights, columns: *columns, input });
        }
        bytes += 4 * product.bias.len();
        let bias = (!product.bias.is_empty()).then(|| upload(&product.bias, cuda)).transpose()?;
        products.push(Product { at: product.at, parts, bias, activation: product.activation });
    }
    let indices = planned.columns.iter().map(|list| list.iter().map(|&c| c as i32).collect::<Vec<_>>());
    let columns = indices.map(|list| upload(&list, cuda)).collect::<Result<Vec<_>>>()?;
    let processors = super::processors(device);
    let group = Group { layers: layers.len(), products, columns, rows: planned.rows, compute, processors };
    let group = Arc::new(group);
    layers.iter_mut().for_each(|layer| layer.resident = Some(Arc::clone(&group)));
    Ok(Placed { bytes, decoded: planned.decoded })
}
