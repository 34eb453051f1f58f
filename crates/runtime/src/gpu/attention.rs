//! Keys and values that a step of attention reads and writes on a GPU.

use super::launch::{Launch, Module};
use crate::ops::attention::{Batch, Shape};

/// Query rows that a block takes: few for single tokens, many for prompts.
const FEW_ROWS: usize = 8;
const MANY_ROWS: usize = 32;

/// The widest head that a block of many rows has shared memory for.
const WIDEST_OF_MANY: usize = 160;

/// The widest head that there are kernels for.
const WIDEST: usize = 256;

/// Keys of a split, where there are too few blocks for all multiprocessors.
const SPLIT: usize = 256;

/// Lists that attention of one step reads on a GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Slot of each token's key and value: block times tokens of a block, plus place.
    pub slots: Vec<i32>,
    /// Five numbers for each block of query rows: the span's first row of the batch, the tokens
    /// before it, the first query row, how many, and where its blocks start in `table`.
    pub tiles: Vec<i32>,
    /// The blocks of all spans.
    pub table: Vec<i32>,
    /// Query rows of a block.
    pub rows: usize,
    /// Keys of a split; a multiple of 32.
    pub split_keys: usize,
    /// Splits of the longest context.
    pub splits: usize,
}

/// Returns whether there are kernels for heads of this width.
pub fn fits(head_dim: usize) -> bool {
    head_dim.is_multiple_of(4) && head_dim <= WIDEST
}

impl Plan {
    /// Plans a batch on a GPU of so many multiprocessors. A batch holds fewer than 2^31 tokens, blocks and places: they
    /// are allocated.
    pub fn new(batch: &Batch<'_>, processors: usize) -> Self {
        let Batch { shape, spans, .. } = *batch;
        let group = shape.heads / shape.kv_heads.max(1);
        let most = spans.iter().map(|s| s.rows.len()).max().unwrap_or(0);
        let rows = if most == 1 || shape.head_dim > WIDEST_OF_MANY { FEW_ROWS } else { MANY_ROWS };
        let (mut slots, mut tiles, mut table) = (Vec::new(), Vec::new(), Vec::new());
        for span in spans {
            let block_of = |position: usize| span.blocks[position / shape.block] as usize * shape.block;
            let places = (span.past..span.past + span.rows.len()).map(|p| (block_of(p) + p % shape.block) as i32);
            slots.extend(places);
            let queries = span.rows.len() * group;
            for first in (0..queries).step_by(rows) {
                let tile = [span.rows.start, span.past, first, rows.min(queries - first), table.len()];
                tiles.extend(tile.map(|n| n as i32));
            }
            table.extend(span.blocks.iter().map(|&b| b as i32));
        }
        let longest = spans.iter().map(|s| s.past + s.rows.len()).max().unwrap_or(1);
        let busy = tiles.len() / 5 * shape.kv_heads >= processors;
        let split_keys = if busy { longest.next_multiple_of(32) } else { SPLIT };
        Plan { slots, tiles, table, rows, split_keys, splits: longest.div_ceil(split_keys) }
    }

    /// Writing the new keys and values, as `kind`: `f32`, `f16` or `i8`.
    pub fn store(&self, kind: &str, shape: Shape) -> Launch {
        Launch::new(Module::Cache, format!("store_keys_{kind}"), [self.slots.len(), shape.kv_heads, 1], 64)
    }

    /// Attention over stored keys and values of `kind`.
    pub fn attend(&self, kind: &str, shape: Shape) -> Launch {
        let grid = [self.tiles.len() / 5, shape.kv_heads, self.splits];
        let shared = 4 * ((self.rows + 32) * (shape.head_dim + 4) + self.rows * 36);
        Launch::new(Module::Attend, format!("attend_{kind}_{}", self.rows), grid, 128).shared(shared)
    }

    /// Adding up the splits.
    pub fn combine(&self, shape: Shape) -> Launch {
        Launch::new(Module::Attend, "combine_splits", [self.slots.len(), shape.heads, 1], 64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::attention::Span;

    const SHAPE: Shape = Shape { heads: 9, kv_heads: 3, head_dim: 64, block: 16 };

    fn span(first: usize, n: usize, past: usize, blocks: &[u32]) -> Span {
        Span { rows: first..first + n, past, blocks: blocks.to_vec() }
    }

    #[test]
    fn single_tokens_split_their_context() {
        let spans = [span(0, 1, 600, &(0..40).collect::<Vec<_>>()), span(1, 1, 17, &[50, 49])];
        let plan = Plan::new(&Batch::new(SHAPE, &spans), 132);
        assert_eq!(plan.slots, [37 * 16 + 8, 49 * 16 + 1]);
        assert_eq!(plan.tiles, [0, 600, 0, 3, 0, 1, 17, 0, 3, 40]);
        assert_eq!((plan.rows, plan.split_keys, plan.splits), (8, 256, 3));
        assert_eq!((plan.table.len(), &plan.table[39..]), (42, &[39, 50, 49][..]));
        assert_eq!(plan.attend("f16", SHAPE).grid, (2, 3, 3));
        assert_eq!(plan.attend("i8", SHAPE).kernel, "attend_i8_8");
        assert_eq!(plan.combine(SHAPE).grid, (2, 9, 1));
    }

    #[test]
    fn every_query_row_is_in_one_tile() {
        let blocks: Vec<u32> = (0..64).collect();
        let spans = [span(0, 70, 5, &blocks), span(70, 1, 900, &blocks), span(71, 300, 0, &blocks)];
        for shape in [SHAPE, Shape { heads: 4, kv_heads: 1, head_dim: 256, ..SHAPE }] {
            let plan = Plan::new(&Batch::new(shape, &spans), 132);
            let group = shape.heads / shape.kv_heads;
            for span in &spans {
                let of_span = plan.tiles.chunks(5).filter(|t| t[0] as usize == span.rows.start);
                let ends = of_span.fold(0, |at, t| {
                    assert_eq!((t[2], t[1] as usize), (at, span.past));
                    assert!((1..=plan.rows as i32).contains(&t[3]));
                    at + t[3]
                });
                assert_eq!(ends as usize, span.rows.len() * group);
            }
            assert_eq!(plan.slots.len(), 371);
            assert!(plan.attend("f32", shape).shared <= 48 << 10);
            assert!(plan.split_keys.is_multiple_of(32) && plan.splits * plan.split_keys >= 901);
        }
    }

    #[test]
    fn a_long_prompt_is_not_split() {
        let spans = [span(0, 4000, 0, &(0..250).collect::<Vec<_>>())];
        let plan = Plan::new(&Batch::new(SHAPE, &spans), 132);
        assert_eq!((plan.rows, plan.splits, plan.split_keys), (32, 1, 4000));
    }

    #[test]
    fn widths_without_kernels_are_known() {
        assert!(fits(64) && fits(256) && !fits(66) && !fits(260));
    }
}
