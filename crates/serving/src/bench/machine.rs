//! Ceilings of the machine, against which models are measured.

use rayon::prelude::*;
use schemars::JsonSchema;
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// The machine's ceilings, with all threads at once; the best of several runs each.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Machine {
    /// Threads.
    pub threads: usize,
    /// The instruction set that products on the CPU ran with: `avx512-vnni`, `avx512`, `avx2` or `plain`.
    pub instruction_set: &'static str,
    /// Bytes read from memory in a second.
    pub read_bytes_per_s: f64,
    /// Floating-point operations (f32, a fused multiply-add counts as two) in a second.
    pub f32_flop_per_s: f64,
    /// Operations (a product of 16-bit integers added to a 32-bit sum counts as two) in a second,
    /// of dot products whose rows are read from the nearest cache. What keeps a row in registers
    /// can do more.
    pub int16_op_per_s: f64,
}

/// Bytes that are read: more than caches hold.
const BYTES: usize = 256 << 20;

/// Runs of each kind: short ones, so that some are not interrupted.
const RUNS: usize = 20;

/// Multiply-adds of one thread in a run, in units of all register blocks or of a row.
const ROUNDS: usize = 250_000;

/// Lanes of a register block, and blocks that are independent of each other: enough to keep a
/// processor with wide vectors and long latencies busy.
const LANES: usize = 16;
const BLOCKS: usize = 12;

/// Columns of a row of integers.
const DOT: usize = 512;

impl Machine {
    /// Measures it. Takes about a second, and 256 MiB.
    pub fn measure() -> Self {
        let threads = rayon::current_num_threads();
        let instruction_set = runtime::active_instruction_set();
        let data = vec![1u64; BYTES / 8];
        let read = best(|| {
            let sum: u64 = data.par_chunks(1 << 17).map(sum).reduce(|| 0, u64::wrapping_add);
            black_box(sum);
            BYTES as f64
        });
        let all =
            |work: fn(usize) -> f64| best(|| (0..threads).into_par_iter().with_max_len(1).map(|_| work(ROUNDS)).sum());
        let (f32_flop_per_s, int16_op_per_s) = (all(fused), all(dots));
        Machine { threads, instruction_set, read_bytes_per_s: read, f32_flop_per_s, int16_op_per_s }
    }
}

/// Amounts a second of the fastest of [`RUNS`] runs, after one that warms up.
fn best(mut run: impl FnMut() -> f64) -> f64 {
    run();
    let rate = |_| {
        let start = Instant::now();
        run() / start.elapsed().as_secs_f64()
    };
    (0..RUNS).map(rate).fold(0.0, f64::max)
}

#[multiversion::multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn sum(values: &[u64]) -> u64 {
    let mut sums = [0u64; 4 * LANES];
    for chunk in values.chunks_exact(sums.len()) {
        for (s, v) in sums.iter_mut().zip(chunk) {
            *s = s.wrapping_add(*v);
        }
    }
    sums.iter().fold(0, |a, b| a.wrapping_add(*b))
}

/// Fused multiply-adds in registers; how many operations.
#[multiversion::multiversion(targets("x86_64+avx512f", "x86_64+avx2+fma"))]
fn fused(rounds: usize) -> f64 {
    let factor = black_box([0.999_9f32; LANES]);
    let mut sums = black_box([[1f32; LANES]; BLOCKS]);
    for _ in 0..rounds {
        for block in &mut sums {
            for (sum, factor) in block.iter_mut().zip(&factor) {
                *sum = sum.mul_add(*factor, *factor);
            }
        }
    }
    black_box(sums);
    2.0 * (rounds * BLOCKS * LANES) as f64
}

/// Dot products of 16-bit integers that lie in the nearest cache; how many operations.
#[multiversion::multiversion(targets("x86_64+avx512f+avx512bw+avx512vl", "x86_64+avx2"))]
fn dots(rounds: usize) -> f64 {
    let values = black_box([1i16; DOT]);
    let rows = black_box([[3i16; DOT]; 4]);
    let mut total = 0i32;
    for _ in 0..rounds / rows.len() {
        let values = black_box(&values);
        for row in &rows {
            total = total.wrapping_add(dot(values, row));
        }
    }
    black_box(total);
    2.0 * ((rounds / rows.len()) * rows.len() * DOT) as f64
}

/// One sum in this plain form is what compilers turn into products of pairs.
#[inline(always)]
fn dot(a: &[i16; DOT], b: &[i16; DOT]) -> i32 {
    let mut sum = 0i32;
    for (a, b) in a.iter().zip(b) {
        sum += i32::from(*a) * i32::from(*b);
    }
    sum
}

/// Memory of this process in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Memory {
    /// Held now, the mapped files that were read among it.
    pub resident: u64,
    /// The most since [`Memory::reset_peak`].
    pub peak: u64,
    /// Held now and not backed by a file.
    pub anonymous: u64,
}

impl Memory {
    /// Reads the load from the system; none where the system doesn't tell.
    pub fn now() -> Option<Self> {
        let status = std::fs::read_to_string("/proc/self/status").ok()?;
        let bytes = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(1024 * line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?)
        };
        Some(Memory { resident: bytes("VmRSS")?, peak: bytes("VmHWM")?, anonymous: bytes("RssAnon")? })
    }

    /// Forgets the peak so far, where the system lets a process do so.
    pub fn reset_peak() {
        // Where it doesn't, the peak is that of the whole run, which is at least as much.
        let _ = std::fs::write("/proc/self/clear_refs", "5");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_counted() {
        assert_eq!(fused(10), 2.0 * 10.0 * 192.0);
        assert_eq!(dots(10), 2.0 * 8.0 * 512.0);
        assert_eq!(dot(&[3; DOT], &[-2; DOT]), -6 * 512);
        assert_eq!(sum(&[3; 640]), 1920);
        let rate = best(|| 5.0);
        assert!(rate > 0.0 && rate.is_finite());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn memory_that_is_used_shows() {
        let before = Memory::now().expect("Linux says");
        let held = vec![1u8; 64 << 20];
        let after = Memory::now().expect("Linux says");
        assert!(after.anonymous >= before.anonymous + (32 << 20), "{before:?} {after:?}");
        assert!(after.peak >= after.resident);
        drop(black_box(held));
    }
}
