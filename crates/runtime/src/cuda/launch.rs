//! Opening a device, its memory, launches: the one place that hands pointers to a GPU.

use super::driver;
use crate::ComputeType;
use crate::gpu::launch::{Launch, Module};
use candle_core::backend::BackendStorage;
use candle_core::cuda::cudarc::cublas::{result::gemm_ex, sys as cublas};
use candle_core::cuda::cudarc::driver::{
    CudaSlice, DevicePtr, DeviceRepr, LaunchConfig, PushKernelArg,
    result::device::{get, get_default_mem_pool},
    sys::{self, CUmemPool_attribute},
};
use candle_core::cuda::{CudaDType, CudaDevice, CudaStorage, WrapErr};
use candle_core::{Device, Error, Layout, Result, Storage, Tensor, bail};
use std::sync::{Mutex, PoisonError};

include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// GPUs that are open, by number.
static OPEN: Mutex<Vec<(usize, Device)>> = Mutex::new(Vec::new());

/// Opens a GPU, once; the reason in the driver's words where that fails.
pub fn open(ordinal: usize) -> std::result::Result<Device, String> {
    let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, device)) = open.iter().find(|(n, _)| *n == ordinal) {
        return Ok(device.clone());
    }
    driver::probe(ordinal)?;
    let device = prepare(ordinal).map_err(|e| reason(&e))?;
    open.push((ordinal, device.clone()));
    Ok(device)
}

/// An error in one line, with the way out that fits.
fn reason(error: &Error) -> String {
    let line = crate::error::line(error);
    let way_out = match ["Cublas", "Curand"].into_iter().find(|library| line.contains(library)) {
        Some(library) => format!("put the folder of CUDA's lib{} into LD_LIBRARY_PATH", library.to_lowercase()),
        None => "see what nvidia-smi says".into(),
    };
    format!("{line}; {way_out}")
}

fn prepare(ordinal: usize) -> Result<Device> {
    // A stream of its own: candle's default device uses the stream of the calling thread, and a
    // pass runs on whichever thread of the pool is free.
    let device = Device::new_cuda_with_stream(ordinal)?;
    // SAFETY: all work of this process goes to the device's one stream, in order, so that no
    // event is needed to keep two streams apart: a GPU is opened once.
    unsafe { device.as_cuda_device()?.disable_event_tracking() };
    // Without pools of memory it is slower, and nothing else.
    let _ = keep_memory(ordinal);
    // A context alone doesn't tell whether the driver takes our kernels, and candle's.
    let cuda = device.as_cuda_device()?;
    cuda.get_or_load_custom_func("copy_block", Module::Cache.name(), ptx(Module::Cache)?)?;
    Tensor::new(&[1f32, 2f32], &device)?.index_select(&Tensor::new(&[1u32], &device)?, 0)?.to_vec1::<f32>()?;
    Ok(device)
}

/// Lets the device's pool keep what is freed: by default it goes back to the system at every
/// synchronization, and each pass would ask for its workspaces anew.
fn keep_memory(ordinal: usize) -> Result<()> {
    let (pool, mut most) = (pool(ordinal)?, u64::MAX);
    let attribute = CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    // SAFETY: the pool is a device's default one, and the attribute's value is a u64, which the driver copies.
    unsafe { sys::cuMemPoolSetAttribute(pool, attribute, (&raw mut most).cast()).result().w() }
}

/// The default pool of a GPU's memory.
fn pool(ordinal: usize) -> Result<sys::CUmemoryPool> {
    let Ok(ordinal) = i32::try_from(ordinal) else { bail!("there is no GPU {ordinal}") };
    // SAFETY: the device is the driver's own; its default pool lives as long as it.
    unsafe { get_default_mem_pool(get(ordinal).w()?).w() }
}

/// Bytes that the device's pool keeps and nothing uses.
pub fn pooled(ordinal: usize) -> Result<u64> {
    let pool = pool(ordinal)?;
    let read = |attribute: CUmemPool_attribute| {
        let mut bytes = 0u64;
        // SAFETY: as in `keep_memory`; both attributes are a u64, which the driver writes.
        unsafe { sys::cuMemPoolGetAttribute(pool, attribute, (&raw mut bytes).cast()).result().w()? };
        Ok::<u64, Error>(bytes)
    };
    let reserved = read(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
    Ok(reserved.saturating_sub(read(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?))
}

/// An argument of a kernel, in the type that its C declaration has.
#[derive(Debug, Clone, Copy)]
pub(super) enum Arg {
    /// Any pointer; 0 for none.
    Pointer(u64),
    /// `int`.
    Int(i32),
    /// `long`.
    Long(i64),
    /// `float`.
    Float(f32),
}

impl Arg {
    /// No pointer.
    pub(super) const NULL: Arg = Arg::Pointer(0);

    /// A size or an index.
    pub(super) fn int(n: usize) -> Result<Arg> {
        i32::try_from(n).map(Arg::Int).or_else(|_| bail!("{n} exceeds what a kernel counts to"))
    }

    /// A yes or a no.
    pub(super) fn flag(yes: bool) -> Arg {
        Arg::Int(yes.into())
    }

    /// So many bytes further.
    pub(super) fn plus(self, bytes: usize) -> Arg {
        match self {
            Arg::Pointer(p) => Arg::Pointer(p + bytes as u64),
            other => other,
        }
    }
}

/// The address of a slice. Whoever passes it on keeps the slice until the launch: what is freed
/// later goes through the same stream.
pub(super) fn pointer<T: DeviceRepr>(slice: &CudaSlice<T>) -> Arg {
    Arg::Pointer(slice.device_ptr(slice.stream()).0)
}

/// The address of a slice that may be absent.
pub(super) fn maybe<T: DeviceRepr>(slice: Option<&CudaSlice<T>>) -> Arg {
    slice.map_or(Arg::NULL, pointer)
}

/// The address of a contiguous tensor's values.
pub(super) fn values<T: CudaDType + DeviceRepr>(storage: &CudaStorage, layout: &Layout) -> Result<Arg> {
    let Some((start, _)) = layout.contiguous_offsets() else { bail!("this operation needs contiguous tensors") };
    Ok(pointer(storage.as_cuda_slice::<T>()?).plus(start * size_of::<T>()))
}

/// The address of what an operation carries.
pub(super) fn resident<T: CudaDType + DeviceRepr>(tensor: &Tensor) -> Result<Arg> {
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cuda(storage) => values::<T>(storage, layout),
        _ => bail!("what an operation needs is not on the GPU"),
    }
}

/// Room for what a kernel writes before anything reads it.
pub(super) fn room<T: DeviceRepr>(device: &CudaDevice, n: usize) -> Result<CudaSlice<T>> {
    // SAFETY: every kernel writes all of its output, and is launched before those that read it.
    unsafe { device.alloc(n.max(1)) }
}

/// The compiled text of a file of kernels.
fn ptx(module: Module) -> Result<&'static str> {
    let found = PTX.iter().find(|(name, _)| *name == module.name());
    found.map_or_else(|| bail!("there is no kernel file {}", module.name()), |(_, ptx)| Ok(*ptx))
}

/// Launches a kernel.
pub(super) fn launch(device: &CudaDevice, what: &Launch, args: &[Arg]) -> Result<()> {
    let function = device.get_or_load_custom_func(&what.kernel, what.module.name(), ptx(what.module)?)?;
    let mut builder = function.builder();
    for arg in args {
        match arg {
            Arg::Pointer(p) => builder.arg(p),
            Arg::Int(n) => builder.arg(n),
            Arg::Long(n) => builder.arg(n),
            Arg::Float(x) => builder.arg(x),
        };
    }
    let config = LaunchConfig { grid_dim: what.grid, block_dim: (what.block, 1, 1), shared_mem_bytes: what.shared };
    // SAFETY: callers pass what the kernel's table in cuda/README.md asks for, to buffers of the
    // sizes that follow from shapes which the operations check, and keep them until here.
    let launched = unsafe { builder.launch(config) };
    launched.map_err(|e| Error::Msg(format!("{}: {e}", what.kernel)))?;
    Ok(())
}

/// A product by cuBLAS: `out [tokens, rows] = x [tokens, cols] w [rows, cols]^T`, sums in f32.
#[derive(Debug)]
pub(super) struct Gemm {
    pub rows: usize,
    pub tokens: usize,
    pub cols: usize,
    /// Weights and elements from row to row.
    pub weights: (Arg, usize),
    /// Input and elements from row to row, of the same type.
    pub x: (Arg, usize),
    /// Output in f32 and elements from row to row.
    pub out: (Arg, usize),
    pub accumulate: bool,
}

impl Gemm {
    pub(super) fn run(&self, device: &CudaDevice, ty: ComputeType) -> Result<()> {
        let int = |n: usize| i32::try_from(n).or_else(|_| bail!("{n} exceeds what cuBLAS counts to"));
        let address = |arg: Arg| match arg {
            Arg::Pointer(p) => p as usize as *mut std::ffi::c_void,
            _ => std::ptr::null_mut(),
        };
        let float = cublas::cudaDataType::CUDA_R_32F;
        let input = match ty {
            ComputeType::F32 => float,
            ComputeType::F16 => cublas::cudaDataType::CUDA_R_16F,
            ComputeType::BF16 => cublas::cudaDataType::CUDA_R_16BF,
        };
        let (alpha, beta) = (1f32, if self.accumulate { 1f32 } else { 0f32 });
        let (transposed, plain) = (cublas::cublasOperation_t::CUBLAS_OP_T, cublas::cublasOperation_t::CUBLAS_OP_N);
        device.cuda_stream().context().bind_to_thread().w()?;
        let blas = device.cublas_handle();
        // SAFETY: column by column, `out` is [rows, tokens], the weights transposed are [rows, cols] and
        // the input is [cols, tokens]; strides and sizes follow from shapes that are checked, the
        // factors are f32 on the host as the computation in f32 wants them.
        let done = unsafe {
            gemm_ex(
                *blas.handle(),
                transposed,
                plain,
                int(self.rows)?,
                int(self.tokens)?,
                int(self.cols)?,
                (&raw const alpha).cast(),
                address(self.weights.0),
                input,
                int(self.weights.1)?,
                address(self.x.0),
                input,
                int(self.x.1)?,
                (&raw const beta).cast(),
                address(self.out.0),
                float,
                int(self.out.1)?,
                cublas::cublasComputeType_t::CUBLAS_COMPUTE_32F,
                cublas::cublasGemmAlgo_t::CUBLAS_GEMM_DEFAULT,
            )
        };
        done.w()
    }
}

/// The device of a storage.
pub(super) fn device_of(storage: &CudaStorage) -> CudaDevice {
    storage.device().clone()
}
