//! Ceilings of a GPU, and times of products on it.

use super::launch::{Arg, Gemm, pointer, resident, room};
use super::weights;
use crate::linear::{PackedLinear, Project};
use crate::measure::{Ceilings, Timed};
use crate::selftest::matrices;
use crate::{ComputeType, Math};
use candle_core::cuda::{CudaDType, cudarc::driver::DeviceRepr};
use candle_core::quantized::{GgmlDType, QMatMul, QTensor};
use candle_core::{DType, Device, Module, Result, Tensor, WithDType};
use half::{bf16, f16};
use schemes::{GgmlType, Matrix, RowOrder};
use std::sync::Arc;
use std::time::Instant;
use store::Linear;

/// Bytes that are copied to measure the memory: more than caches hold.
const COPIED: usize = 1 << 30;

/// Rows, columns and tokens of the product that measures the matrix rate.
const SQUARE: usize = 8192;

/// Seconds that a measurement takes at least.
const ENOUGH: f64 = 0.1;

/// Tolerance for candle's products, which round activations to 8 bits, against those in f32, as a share of the largest.
const ALIKE: f32 = 0.02;

/// The device's ceilings.
pub fn ceilings(device: &Device, compute: ComputeType) -> Result<Ceilings> {
    let cuda = device.as_cuda_device()?;
    let (from, mut to) = (cuda.alloc_zeros::<u8>(COPIED)?, cuda.alloc_zeros::<u8>(COPIED)?);
    let copy = time(device, || cuda.memcpy_dtod(&from, &mut to))?;
    drop((from, to));
    let ((_a, a), (_b, b)) = (noise(device, compute)?, noise(device, compute)?);
    let out = room::<f32>(cuda, SQUARE * SQUARE)?;
    let gemm = square(a, b, pointer(&out));
    let product = time(device, || gemm.run(cuda, compute))?;
    Ok(Ceilings { copied_bytes_per_s: 2.0 * COPIED as f64 / copy, flop_per_s: 2.0 * (SQUARE as f64).powi(3) / product })
}

/// A square matrix of random numbers, and where it lies: a GPU that multiplies zeros draws less power, and clocks higher.
fn noise(device: &Device, compute: ComputeType) -> Result<(Tensor, Arg)> {
    let values = Tensor::rand(-1f32, 1f32, (SQUARE, SQUARE), device)?;
    match compute {
        ComputeType::F32 => held::<f32>(&values),
        ComputeType::F16 => held::<f16>(&values),
        ComputeType::BF16 => held::<bf16>(&values),
    }
}

fn held<T: CudaDType + DeviceRepr + WithDType>(values: &Tensor) -> Result<(Tensor, Arg)> {
    let values = values.to_dtype(T::DTYPE)?;
    let at = resident::<T>(&values)?;
    Ok((values, at))
}

fn square(weights: Arg, x: Arg, out: Arg) -> Gemm {
    Gemm {
        rows: SQUARE,
        tokens: SQUARE,
        cols: SQUARE,
        weights: (weights, SQUARE),
        x: (x, SQUARE),
        out: (out, SQUARE),
        accumulate: false,
    }
}

/// Seconds of `run`, as often as is needed to know.
fn time(device: &Device, mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..3 {
        run()?;
    }
    device.synchronize()?;
    let mut times = 4;
    loop {
        let start = Instant::now();
        for _ in 0..times {
            run()?;
        }
        device.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        if seconds >= ENOUGH {
            return Ok(seconds / f64::from(times));
        }
        times *= 2;
    }
}

/// Products of a matrix of `rows` x `cols` in every form, and candle's own.
pub fn products(
    device: &Device,
    compute: ComputeType,
    (rows, cols): (usize, usize),
    tokens: &[usize],
) -> Result<Vec<Timed>> {
    let mut all = Vec::new();
    for (what, storage, activation) in matrices::timed(rows, cols) {
        // The forms fit any shape that is a multiple of 256.
        let Ok(matrix) = Matrix::new(rows, cols, storage, RowOrder::Natural) else { continue };
        all.extend(layer(device, compute, what, Linear { matrix, bias: None, activation }, tokens)?);
    }
    for ty in [GgmlType::Q8_0, GgmlType::Q4_0, GgmlType::Q4_K] {
        // It is there for comparison only: what can't be run, or computes something else, is left out.
        all.extend(candle(device, ty, (rows, cols), tokens).unwrap_or_default());
    }
    Ok(all)
}

/// A layer's product for some numbers of tokens, through a name for it.
fn layer(device: &Device, compute: ComputeType, what: &str, linear: Linear, tokens: &[usize]) -> Result<Vec<Timed>> {
    let mut layers = [PackedLinear::new(what, Arc::new(linear), Math::Exact)];
    let bytes = weights::upload_layers(&mut layers, device, compute)?.bytes;
    let each = |&n: &usize| {
        let x = Tensor::rand(-1f32, 1f32, (n, layers[0].cols()), device)?;
        let out = Tensor::zeros((n, layers[0].rows()), DType::F32, device)?;
        let op = Project { layers: &layers, sequences: &[n], accumulate: false };
        let seconds = time(device, || out.inplace_op2(&x, &op))?;
        Ok(Timed { what: what.into(), tokens: n, seconds, bytes })
    };
    tokens.iter().map(each).collect()
}

/// candle's own product of a quantized matrix, for the numbers of tokens for which it is right: its kernels are made
/// for one compute capability, and elsewhere give nothing without saying so.
fn candle(device: &Device, ty: GgmlType, (rows, cols): (usize, usize), tokens: &[usize]) -> Result<Vec<Timed>> {
    let dtype = match ty {
        GgmlType::Q8_0 => GgmlDType::Q8_0,
        GgmlType::Q4_0 => GgmlDType::Q4_0,
        _ => GgmlDType::Q4K,
    };
    let values = Tensor::rand(-1f32, 1f32, (rows, cols), &Device::Cpu)?.to_device(device)?;
    let matrix = QTensor::quantize(&values, dtype)?;
    drop(values);
    let bytes = matrix.storage_size_in_bytes();
    let decoded = matrix.dequantize(device)?.t()?;
    let matrix = QMatMul::from_qtensor(matrix)?;
    let mut all = Vec::new();
    for &n in tokens {
        let x = Tensor::rand(-1f32, 1f32, (n, cols), device)?;
        let (found, wanted) = (matrix.forward(&x)?, x.matmul(&decoded)?);
        let largest = |t: &Tensor| t.abs()?.flatten_all()?.max(0)?.to_scalar::<f32>();
        if largest(&(found - &wanted)?)? > ALIKE * largest(&wanted)? {
            continue;
        }
        let seconds = time(device, || matrix.forward(&x).map(drop))?;
        all.push(Timed { what: format!("candle {ty}"), tokens: n, seconds, bytes });
    }
    Ok(all)
}
