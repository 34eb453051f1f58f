//! Bounds of a rendering: steps, and bytes ever allocated.

use crate::error::{Error, Result};
use std::cell::Cell;

/// Steps of a rendering at most: a second or two of work.
const STEPS: u64 = 20_000_000;
/// Bytes that a rendering allocates at most, freed ones among them.
const BYTES: usize = 256 << 20;

/// Remaining steps, bytes and depth of a rendering.
#[derive(Debug)]
pub struct Budget {
    steps: Cell<u64>,
    bytes: Cell<usize>,
}

impl Budget {
    pub fn new() -> Self {
        Budget { steps: Cell::new(STEPS), bytes: Cell::new(BYTES) }
    }

    /// Takes steps.
    pub fn step(&self, steps: u64) -> Result<()> {
        match self.steps.get().checked_sub(steps) {
            Some(left) => self.steps.set(left),
            None => return Err(Error::limit(format!("the template takes more than {STEPS} steps"))),
        }
        Ok(())
    }

    /// Takes memory, before it is allocated, and the steps to fill it.
    pub fn take(&self, bytes: usize) -> Result<()> {
        match self.bytes.get().checked_sub(bytes) {
            Some(left) => self.bytes.set(left),
            None => return Err(Error::limit(format!("the template takes more than {} MiB of memory", BYTES >> 20))),
        }
        self.step(1 + bytes as u64 / 64)
    }

    /// Takes the memory of a sequence of so many values.
    pub fn items(&self, items: usize) -> Result<()> {
        self.take(items.saturating_mul(64))
    }
}
