//! Sums that stay from step to step: gradients and the optimizer's moments.
//!
//! Fused, they are changed where they lie; composed, they are replaced. What candle's autograd gives belongs to a graph:
//! a sum that stayed in it would hold all that it was ever made of.

use super::{Form, Real, dispatch, values, values_mut, with_values};
use candle_core::{CpuStorage, D, DType, InplaceOp1, InplaceOp2, Layout, Result, Tensor, bail};
use rayon::prelude::*;

/// Numbers that a thread takes at a time.
const CHUNK: usize = 1 << 14;

/// Adds `more`, of the same shape, to `sum`.
pub(crate) fn add(form: Form, sum: &mut Tensor, more: &Tensor) -> Result<()> {
    match form {
        Form::Fused => sum.inplace_op2(&more.contiguous()?, &Add)?,
        Form::Composed => *sum = (&*sum + more.detach())?.detach(),
    }
    Ok(())
}

/// Adds row `i` of `more`, `[ids, width]`, to row `ids[i]` of `sum`, one after the other.
pub(crate) fn add_rows(form: Form, sum: &mut Tensor, ids: &[u32], more: &Tensor) -> Result<()> {
    match form {
        Form::Fused => sum.inplace_op2(&more.contiguous()?, &AddRows { ids })?,
        Form::Composed => {
            let ids = Tensor::from_slice(ids, ids.len(), sum.device())?;
            *sum = sum.index_add(&ids, &more.detach().contiguous()?, 0)?.detach();
        }
    }
    Ok(())
}

/// Multiplies everything.
pub(crate) fn scale(form: Form, sum: &mut Tensor, by: f64) -> Result<()> {
    match form {
        Form::Fused => sum.inplace_op1(&Scale { by })?,
        Form::Composed => *sum = (&*sum * by)?.detach(),
    }
    Ok(())
}

/// The sum of all squares; fused, in an order that doesn't depend on the threads.
pub(crate) fn squares(form: Form, all: &[Tensor]) -> Result<f64> {
    if form == Form::Composed {
        // All of them are asked for before any is waited for. A GPU adds up each row at the same time as the others, but
        // all of a tensor in one place.
        let squares = |t: &Tensor| t.sqr()?.sum_keepdim(D::Minus1)?.sum_all()?.to_dtype(DType::F32);
        let each = all.iter().map(squares).collect::<Result<Vec<_>>>()?;
        let each: Vec<f32> = if each.is_empty() { vec![] } else { Tensor::stack(&each, 0)?.to_vec1()? };
        return Ok(each.into_iter().map(f64::from).sum());
    }
    let mut parts: Vec<f64> = Vec::new();
    for tensor in all {
        match tensor.dtype() {
            DType::F64 => with_values(tensor, |v: &[f64]| parts.par_extend(v.par_chunks(CHUNK).map(squares_of)))?,
            _ => with_values(tensor, |v: &[f32]| parts.par_extend(v.par_chunks(CHUNK).map(squares_of)))?,
        }
    }
    Ok(parts.into_iter().sum())
}

fn squares_of<T: Real>(values: &[T]) -> f64 {
    let mut lanes = [0f64; 8];
    for chunk in values.chunks(8) {
        for (lane, v) in lanes.iter_mut().zip(chunk) {
            let v = v.to_f64();
            *lane += v * v;
        }
    }
    lanes.iter().sum()
}

fn add_to<T: Real>(sum: &mut [T], more: &[T]) {
    sum.iter_mut().zip(more).for_each(|(sum, &more)| *sum += more);
}

struct Add;

impl InplaceOp2 for Add {
    fn name(&self) -> &'static str {
        "add-to"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, ls: &Layout, more: &CpuStorage, lm: &Layout) -> Result<()> {
        if ls.shape() != lm.shape() {
            bail!("a sum of {:?} and {:?}", ls.dims(), lm.dims());
        }
        dispatch!(sum, T => {
            let (sum, more) = (values_mut::<T>(sum, ls)?, values::<T>(more, lm)?);
            sum.par_chunks_mut(CHUNK).zip(more.par_chunks(CHUNK)).for_each(|(sum, more)| add_to(sum, more));
        });
        Ok(())
    }
}

struct AddRows<'a> {
    ids: &'a [u32],
}

impl InplaceOp2 for AddRows<'_> {
    fn name(&self) -> &'static str {
        "add-rows-to"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, ls: &Layout, more: &CpuStorage, lm: &Layout) -> Result<()> {
        let ((rows, width), (ids, wide)) = (ls.shape().dims2()?, lm.shape().dims2()?);
        if width != wide || ids != self.ids.len() || self.ids.iter().any(|&id| id as usize >= rows) {
            bail!("rows of {:?} can't be added to {:?}", lm.dims(), ls.dims());
        }
        dispatch!(sum, T => {
            let (sum, more) = (values_mut::<T>(sum, ls)?, values::<T>(more, lm)?);
            for (row, &id) in more.chunks_exact(width).zip(self.ids) {
                add_to(&mut sum[id as usize * width..][..width], row);
            }
        });
        Ok(())
    }
}

struct Scale {
    by: f64,
}

impl InplaceOp1 for Scale {
    fn name(&self) -> &'static str {
        "scale"
    }

    fn cpu_fwd(&self, sum: &mut CpuStorage, layout: &Layout) -> Result<()> {
        dispatch!(sum, T => {
            let by = <T as candle_core::WithDType>::from_f64(self.by);
            let chunks = values_mut::<T>(sum, layout)?.par_chunks_mut(CHUNK);
            chunks.for_each(|chunk| chunk.iter_mut().for_each(|v| *v *= by));
        });
        Ok(())
    }
}
