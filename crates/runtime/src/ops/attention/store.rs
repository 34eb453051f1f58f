//! Writing keys and values.

use super::{Batch, Element, Shape};
use crate::ops::values;
#[cfg(feature = "cuda")]
use candle_core::CudaStorage;
use candle_core::{CpuStorage, InplaceOp1, InplaceOp2, Layout, Result, bail};
use half::f16;
use rayon::prelude::*;

/// Tokens that are transposed at a time.
const AT_ONCE: usize = 16;

/// Writes the new keys and values into the store.
#[derive(Debug, Clone, Copy)]
pub struct StoreKeys<'a>(pub Batch<'a>);

/// New tokens that go into one block.
struct Piece {
    block: usize,
    /// The first one's row, its place in the block, and how many they are.
    row: usize,
    offset: usize,
    count: usize,
}

impl StoreKeys<'_> {
    /// On slices.
    pub(super) fn run<E: Element>(self, qkv: &[f32], store: &mut [E]) {
        let Batch { shape, .. } = self.0;
        let stride = shape.kv_heads * shape.plane::<E>();
        let mut pieces = self.pieces();
        // Each block that is written belongs to one sequence.
        pieces.sort_unstable_by_key(|p| p.block);
        let (mut tasks, mut rest, mut at) = (Vec::new(), store, 0);
        for piece in &pieces {
            let (_, from) = rest.split_at_mut((piece.block - at) * stride);
            let (block, later) = from.split_at_mut(stride);
            tasks.extend(block.chunks_mut(shape.plane::<E>()).enumerate().map(|(head, plane)| (piece, head, plane)));
            (rest, at) = (later, piece.block + 1);
        }
        let longest = pieces.iter().map(|p| p.count).max().unwrap_or(1);
        tasks.into_par_iter().with_min_len(2 * AT_ONCE / longest.min(AT_ONCE)).for_each(|(piece, head, plane)| {
            write(shape, piece, head, &qkv[piece.row * shape.row()..], plane);
        });
    }

    fn pieces(&self) -> Vec<Piece> {
        let block = self.0.shape.block;
        let mut pieces = Vec::new();
        for span in self.0.spans {
            let (mut position, mut row) = (span.past, span.rows.start);
            while row < span.rows.end {
                let offset = position % block;
                let count = (block - offset).min(span.rows.end - row);
                pieces.push(Piece { block: span.blocks[position / block] as usize, row, offset, count });
                (position, row) = (position + count, row + count);
            }
        }
        pieces
    }
}

/// One head of a piece, whose rows of `qkv` come first in `rows`.
fn write<E: Element>(shape: Shape, piece: &Piece, head: usize, rows: &[f32], plane: &mut [E]) {
    let Shape { heads, kv_heads, head_dim: d, block, .. } = shape;
    let (keys, rest) = plane.split_at_mut(d * block);
    let (values, scales) = rest.split_at_mut(d * block);
    let (key_scales, value_scales) = scales.split_at_mut(block * E::SCALE);
    let (k_at, v_at) = ((heads + head) * d, (heads + kv_heads + head) * d);
    let rows = &rows[..piece.count * shape.row()];
    let mut stage = vec![E::default(); AT_ONCE.min(piece.count) * d];
    for (some, first) in rows.chunks(AT_ONCE * shape.row()).zip((piece.offset..).step_by(AT_ONCE)) {
        let n = some.len() / shape.row();
        for (t, row) in some.chunks_exact(shape.row()).enumerate() {
            let scale = (first + t) * E::SCALE..(first + t + 1) * E::SCALE;
            E::encode(&row[k_at..k_at + d], &mut stage[t * d..(t + 1) * d], &mut key_scales[scale.clone()]);
            let value = &mut values[(first + t) * d..(first + t + 1) * d];
            E::encode(&row[v_at..v_at + d], value, &mut value_scales[scale]);
        }
        for i in 0..d {
            let column = &mut keys[i * block + first..][..n];
            column.iter_mut().zip(stage[i..].iter().step_by(d)).for_each(|(k, code)| *k = *code);
        }
    }
}

impl InplaceOp2 for StoreKeys<'_> {
    fn name(&self) -> &'static str {
        "store-keys"
    }

    fn cpu_fwd(&self, store: &mut CpuStorage, ls: &Layout, qkv: &CpuStorage, lq: &Layout) -> Result<()> {
        let qkv = values(qkv, lq)?;
        match (store, ls.contiguous_offsets()) {
            (CpuStorage::F32(all), Some((start, end))) => self.checked(qkv, &mut all[start..end]),
            (CpuStorage::F16(all), Some((start, end))) => self.checked::<f16>(qkv, &mut all[start..end]),
            (CpuStorage::U8(all), Some((start, end))) => self.checked(qkv, &mut all[start..end]),
            _ => bail!("keys and values are stored in contiguous f32, f16 or 8-bit codes"),
        }
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, store: &mut CudaStorage, ls: &Layout, qkv: &CudaStorage, lq: &Layout) -> Result<()> {
        crate::cuda::store_keys(&self.0, store, ls, qkv, lq)
    }
}

impl StoreKeys<'_> {
    fn checked<E: Element>(self, qkv: &[f32], store: &mut [E]) -> Result<()> {
        self.0.check::<E>(qkv.len(), store.len())?;
        self.run(qkv, store);
        Ok(())
    }
}

/// Copies a block, of a store `[blocks, ..]`, onto another.
#[derive(Debug, Clone, Copy)]
pub struct CopyBlock {
    /// Index of the block that is copied.
    pub from: usize,
    /// Index of the block that becomes the copy.
    pub to: usize,
}

impl InplaceOp1 for CopyBlock {
    fn name(&self) -> &'static str {
        "copy-block"
    }

    fn cpu_fwd(&self, store: &mut CpuStorage, layout: &Layout) -> Result<()> {
        let block = self.block(layout)?;
        let (from, to) = (self.from * block..(self.from + 1) * block, self.to * block);
        match store {
            CpuStorage::F16(all) => all.copy_within(from, to),
            CpuStorage::U8(all) => all.copy_within(from, to),
            _ => bail!("keys and values are stored in f16 or 8-bit codes"),
        }
        Ok(())
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(&self, store: &mut CudaStorage, layout: &Layout) -> Result<()> {
        crate::cuda::copy_block(self, self.block(layout)?, store)
    }
}

impl CopyBlock {
    /// Elements of a block, where both are in the store.
    fn block(&self, layout: &Layout) -> Result<usize> {
        let (blocks, all) = (layout.dims().first().copied().unwrap_or(0), layout.shape().elem_count());
        if self.from >= blocks || self.to >= blocks || layout.contiguous_offsets() != Some((0, all)) {
            bail!("copy of block {} to {} of {:?}", self.from, self.to, layout.shape());
        }
        Ok(all / blocks)
    }
}
