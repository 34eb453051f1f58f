//! The cache on the device (`kv.cuh`), and writing into it (`cache.cu`).

use super::case::{Arg, Case, Kind, Output};
use super::samples::Samples;
use super::{code_8, magnitude};
use crate::gpu::attention::Plan;
use crate::gpu::launch::{Launch, Module};
use crate::ops::attention::{Batch, Shape, Span};
use half::f16;

/// Type of stored keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stored {
    F32,
    F16,
    I8,
}

impl Stored {
    pub(super) const ALL: [Stored; 3] = [Stored::F32, Stored::F16, Stored::I8];

    /// Name of the type in names of kernels.
    pub(super) fn name(self) -> &'static str {
        match self {
            Stored::F32 => "f32",
            Stored::F16 => "f16",
            Stored::I8 => "i8",
        }
    }

    /// Bytes of an element, and elements of a scale.
    fn sizes(self) -> (usize, usize) {
        match self {
            Stored::F32 => (4, 0),
            Stored::F16 => (2, 0),
            Stored::I8 => (1, 2),
        }
    }
}

/// The blocks of one layer.
#[derive(Debug, Clone)]
pub(super) struct Store {
    pub(super) shape: Shape,
    pub(super) kind: Stored,
    pub(super) bytes: Vec<u8>,
}

impl Store {
    /// Fills a store with noise: what is not written is not to be read.
    pub(super) fn new(samples: &mut Samples, shape: Shape, kind: Stored, blocks: usize) -> Store {
        let (size, scale) = kind.sizes();
        let plane = 2 * (shape.head_dim + scale) * shape.block * size;
        Store { shape, kind, bytes: samples.bytes(blocks * shape.kv_heads * plane) }
    }

    /// Offsets of the key (0) or value (1) of a slot and head, and of its scale.
    fn offsets(&self, slot: usize, head: usize, which: usize) -> (usize, usize) {
        let Shape { kv_heads, head_dim: d, block, .. } = self.shape;
        let (size, scale) = self.kind.sizes();
        let plane = (slot / block * kv_heads + head) * 2 * (d + scale) * block * size;
        let row = which * block + slot % block;
        (plane + row * d * size, plane + (2 * block * d + row * scale) * size)
    }

    /// Writes a key or a value.
    fn write(&mut self, slot: usize, head: usize, which: usize, x: &[f32]) {
        let (at, scale_at) = self.offsets(slot, head, which);
        let mut codes = Vec::new();
        match self.kind {
            Stored::F32 => x.iter().for_each(|v| codes.extend(v.to_le_bytes())),
            Stored::F16 => x.iter().for_each(|v| codes.extend(f16::from_f32(*v).to_le_bytes())),
            Stored::I8 => {
                let scale = f16::from_f32(magnitude(x.iter().copied()) / 127.0);
                self.bytes[scale_at..scale_at + 2].copy_from_slice(&scale.to_le_bytes());
                codes.extend(x.iter().map(|v| code_8(*v, scale.to_f32()) as u8));
            }
        }
        self.bytes[at..at + codes.len()].copy_from_slice(&codes);
    }

    /// A key or a value.
    pub(super) fn read(&self, slot: usize, head: usize, which: usize) -> Vec<f32> {
        let (at, scale_at) = self.offsets(slot, head, which);
        let (size, d) = (self.kind.sizes().0, self.shape.head_dim);
        let codes = &self.bytes[at..at + d * size];
        match self.kind {
            Stored::F32 => codes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b)).collect(),
            Stored::F16 => codes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f32()).collect(),
            Stored::I8 => {
                let scale = f16::from_le_bytes([self.bytes[scale_at], self.bytes[scale_at + 1]]).to_f32();
                codes.iter().map(|&b| f32::from(b as i8) * scale).collect()
            }
        }
    }

    /// Writes the keys and values of tokens `[tokens, row]`.
    pub(super) fn store(&mut self, qkv: &[f32], slots: &[i32]) {
        let Shape { heads, kv_heads, head_dim: d, .. } = self.shape;
        for (row, slot) in qkv.chunks(self.shape.row()).zip(slots) {
            for (head, which) in (0..kv_heads).flat_map(|h| [(h, 0), (h, 1)]) {
                self.write(*slot as usize, head, which, &row[(heads + which * kv_heads + head) * d..][..d]);
            }
        }
    }
}

/// The arguments that say how a layer's heads and blocks are.
pub(super) fn shape_args(shape: Shape) -> [Arg; 4] {
    [shape.heads, shape.kv_heads, shape.head_dim, shape.block].map(Arg::int)
}

pub(super) fn cases(samples: &mut Samples) -> Vec<Case> {
    let mut all = vec![copy(samples)];
    for kind in Stored::ALL {
        for (heads, kv_heads, head_dim, block) in [(9, 3, 64, 16), (2, 1, 20, 7), (4, 4, 128, 1)] {
            let shape = Shape { heads, kv_heads, head_dim, block };
            let blocks = samples.shuffled(40);
            let spans = [
                Span { rows: 0..5, past: 11, blocks: blocks[..20].to_vec() },
                Span { rows: 5..6, past: 0, blocks: blocks[20..].to_vec() },
            ];
            let plan = Plan::new(&Batch::new(shape, &spans), 132);
            let store = Store::new(samples, shape, kind, 40);
            let mut qkv = samples.floats(6 * shape.row());
            // A key of zeros.
            qkv[heads * head_dim..(heads + 1) * head_dim].fill(0.0);
            let mut after = store.clone();
            after.store(&qkv, &plan.slots);
            let mut args = vec![Arg::buffer(&qkv), Arg::Buffer(store.bytes), Arg::buffer(&plan.slots)];
            args.extend(shape_args(shape));
            let output = Output::bits(1, Kind::Bytes, after.bytes);
            let name = format_args!("{kv_heads} heads of {head_dim}, blocks of {block}").to_string();
            all.push(Case::new(name, plan.store(kind.name(), shape), args, vec![output]));
        }
    }
    all
}

fn copy(samples: &mut Samples) -> Case {
    let (words, before) = (300, samples.bytes(4 * 1500));
    let mut after = before.clone();
    after.copy_within(4 * 900..4 * 1200, 4 * 300);
    let args = vec![Arg::Buffer(before), Arg::Long(900), Arg::Long(300), Arg::Long(words)];
    let launch = Launch::new(Module::Cache, "copy_block", [2, 1, 1], 256);
    Case::new(format_args!("{words} words"), launch, args, vec![Output::bits(0, Kind::Bytes, after)])
}
