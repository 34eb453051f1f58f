//! The operations that are not products.

use super::launch::{Arg, device_of, launch, pointer, resident, room, values};
use crate::gpu::launch::{Launch, Module};
use crate::ops::attention::{Batch, CopyBlock, Tables};
use crate::ops::norm::RmsNorm;
use crate::ops::rope::TurnHeads;
use crate::ops::swiglu::SwiGlu;
use candle_core::backend::BackendStorage;
use candle_core::cuda::CudaStorage;
use candle_core::{DType, Layout, Result, Tensor, bail};
use half::f16;

/// RMSNorm.
pub fn rms_norm(norm: &RmsNorm, out: &CudaStorage, lo: &Layout, x: &CudaStorage, lx: &Layout) -> Result<()> {
    let (cols, all) = (norm.weight.len(), lx.shape().elem_count());
    if lx.dims().last() != Some(&cols) || all != lo.shape().elem_count() {
        bail!("rms-norm over {cols} columns: {:?} to {:?}", lx.shape(), lo.shape());
    }
    let what = Launch::new(Module::Norm, "rms_norm", [all / cols, 1, 1], 256);
    let (x, out, device) = (values::<f32>(x, lx)?, values::<f32>(out, lo)?, device_of(x));
    let weight = carried(norm.resident.as_ref())?;
    launch(&device, &what, &[x, weight, out, Arg::int(cols)?, Arg::Float(norm.eps as f32)])
}

/// The address of factors that were put on the device before.
fn carried(tensor: Option<&Tensor>) -> Result<Arg> {
    match tensor {
        Some(tensor) => resident::<f32>(tensor),
        None => bail!("the factors of a norm are not on the GPU"),
    }
}

/// SwiGLU.
pub fn swiglu(op: SwiGlu, out: &CudaStorage, lo: &Layout, x: &CudaStorage, lx: &Layout) -> Result<()> {
    let all = lo.shape().elem_count();
    if lx.shape().elem_count() != 2 * all || !all.is_multiple_of(op.width) {
        bail!("swiglu of width {}: {:?} to {:?}", op.width, lx.shape(), lo.shape());
    }
    let what = Launch::over(Module::Elementwise, "swiglu", all / op.width, op.width);
    let args = [values::<f32>(x, lx)?, values::<f32>(out, lo)?, Arg::int(op.width)?];
    launch(&device_of(x), &what, &args)
}

/// Norms of heads and rotary positions; the shape is checked.
pub fn turn_heads(op: &TurnHeads<'_>, qkv: &CudaStorage, layout: &Layout) -> Result<()> {
    let Some([cos, sin]) = &op.turns.resident else { bail!("the positions are not on the GPU") };
    let (q, k, eps) = match op.norms {
        Some((q, k)) => (carried(q.resident.as_ref())?, carried(k.resident.as_ref())?, q.eps),
        None => (Arg::NULL, Arg::NULL, 0.0),
    };
    let what = Launch::new(Module::Rope, "turn_heads", [op.tokens(), (op.heads + op.kv_heads).div_ceil(4), 1], 128);
    let args = [
        values::<f32>(qkv, layout)?,
        resident::<f32>(cos)?,
        resident::<f32>(sin)?,
        q,
        k,
        Arg::int(op.heads)?,
        Arg::int(op.kv_heads)?,
        Arg::int(op.head_dim)?,
        Arg::Float(eps as f32),
    ];
    launch(&device_of(qkv), &what, &args)
}

/// Name of the type of stored keys and values, and their address.
fn store_of(store: &CudaStorage, layout: &Layout) -> Result<(&'static str, Arg)> {
    Ok(match store.dtype() {
        DType::F32 => ("f32", values::<f32>(store, layout)?),
        DType::F16 => ("f16", values::<f16>(store, layout)?),
        DType::U8 => ("i8", values::<u8>(store, layout)?),
        other => bail!("keys and values are stored in f32, f16 or 8-bit codes, not {other:?}"),
    })
}

fn tables<'a>(batch: &Batch<'a>, qkv: &Layout, store: (&CudaStorage, &Layout)) -> Result<&'a Tables> {
    let (qkv, elements) = (qkv.shape().elem_count(), store.1.shape().elem_count());
    match store.0.dtype() {
        DType::F32 => batch.check::<f32>(qkv, elements)?,
        DType::F16 => batch.check::<f16>(qkv, elements)?,
        _ => batch.check::<u8>(qkv, elements)?,
    }
    match batch.tables {
        Some(tables) => Ok(tables),
        None => bail!("the places of keys are not on the GPU"),
    }
}

/// Writes new keys and values.
pub fn store_keys(batch: &Batch<'_>, store: &CudaStorage, ls: &Layout, qkv: &CudaStorage, lq: &Layout) -> Result<()> {
    let (shape, tables) = (batch.shape, tables(batch, lq, (store, ls))?);
    let (kind, at) = store_of(store, ls)?;
    let args = [
        values::<f32>(qkv, lq)?,
        at,
        resident::<i32>(&tables.slots)?,
        Arg::int(shape.heads)?,
        Arg::int(shape.kv_heads)?,
        Arg::int(shape.head_dim)?,
        Arg::int(shape.block)?,
    ];
    launch(&device_of(qkv), &tables.plan.store(kind, shape), &args)
}

/// Copies a block of so many elements.
pub fn copy_block(op: &CopyBlock, block: usize, store: &CudaStorage) -> Result<()> {
    let bytes = block * store.dtype().size_in_bytes();
    let (_, at) = store_of(store, &Layout::contiguous(0))?;
    if !bytes.is_multiple_of(4) {
        bail!("blocks of {bytes} bytes can't be copied in words");
    }
    let words = bytes / 4;
    let what = Launch::new(Module::Cache, "copy_block", [words.div_ceil(256), 1, 1], 256);
    let args = [op.from * words, op.to * words, words].map(|n| Arg::Long(n as i64));
    launch(&device_of(store), &what, &[&[at], &args[..]].concat())
}

/// Attention over stored keys and values.
pub fn attend(
    batch: &Batch<'_>,
    (out, lo): (&CudaStorage, &Layout),
    (qkv, lq): (&CudaStorage, &Layout),
    (store, ls): (&CudaStorage, &Layout),
) -> Result<()> {
    let (shape, tables, device) = (batch.shape, tables(batch, lq, (store, ls))?, device_of(qkv));
    let (plan, width) = (&tables.plan, shape.heads * shape.head_dim);
    let tokens = plan.slots.len();
    if lo.shape().elem_count() != tokens * width {
        bail!("attend: {:?} to {:?}", lq.shape(), lo.shape());
    }
    let split = if plan.splits > 1 { plan.splits * tokens } else { 0 };
    let sums = room::<f32>(&device, split * width)?;
    let stats = room::<f32>(&device, split * shape.heads * 2)?;
    let (kind, at) = store_of(store, ls)?;
    let out = values::<f32>(out, lo)?;
    let args = [
        values::<f32>(qkv, lq)?,
        at,
        out,
        if split > 0 { pointer(&sums) } else { Arg::NULL },
        if split > 0 { pointer(&stats) } else { Arg::NULL },
        resident::<i32>(&tables.tiles)?,
        resident::<i32>(&tables.table)?,
        Arg::int(tokens)?,
        Arg::int(shape.heads)?,
        Arg::int(shape.kv_heads)?,
        Arg::int(shape.head_dim)?,
        Arg::int(shape.block)?,
        Arg::int(plan.split_keys)?,
    ];
    launch(&device, &plan.attend(kind, shape), &args)?;
    if split == 0 {
        return Ok(());
    }
    let counts = [tokens, shape.heads, shape.head_dim, plan.splits].map(Arg::int);
    let mut args = vec![pointer(&sums), pointer(&stats), out];
    for count in counts {
        args.push(count?);
    }
    launch(&device, &plan.combine(shape), &args)
}
