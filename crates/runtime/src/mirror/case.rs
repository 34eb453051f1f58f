//! A launch, and what is expected of it.

use crate::gpu::launch::Launch;
use half::{bf16, f16};

/// An argument of a kernel.
#[derive(Debug, Clone)]
pub enum Arg {
    /// `int`.
    Int(i32),
    /// `long`.
    Long(i64),
    /// `float`.
    Float(f32),
    /// A pointer to nothing.
    Null,
    /// A pointer to these bytes.
    Buffer(Vec<u8>),
}

impl Arg {
    /// A size.
    pub(super) fn int(n: usize) -> Arg {
        Arg::Int(n as i32)
    }

    /// A pointer to numbers.
    pub(super) fn buffer<T: Bits>(values: &[T]) -> Arg {
        Arg::Buffer(bytes(values))
    }

    /// A pointer, to nothing where there are no numbers.
    pub(super) fn or_null<T: Bits>(values: &[T]) -> Arg {
        if values.is_empty() { Arg::Null } else { Arg::buffer(values) }
    }
}

/// Numbers as they lie in memory.
pub(super) trait Bits: Copy {
    /// Appends it.
    fn put(self, out: &mut Vec<u8>);
}

macro_rules! bits {
    ($($t:ty)*) => {$(impl Bits for $t {
        fn put(self, out: &mut Vec<u8>) {
            out.extend(self.to_le_bytes());
        }
    })*};
}
bits!(u8 i8 u16 i16 u32 i32 f32 f16 bf16);

/// Numbers as they lie in memory.
pub(super) fn bytes<T: Bits>(values: &[T]) -> Vec<u8> {
    let mut out = Vec::with_capacity(size_of_val(values));
    values.iter().for_each(|v| v.put(&mut out));
    out
}

/// Meaning of an output's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Values of f32.
    F32,
    /// Values of f16.
    F16,
    /// Values of bf16.
    BF16,
    /// Codes, or a mixture.
    Bytes,
}

/// A buffer that a kernel writes.
#[derive(Debug, Clone)]
pub struct Output {
    /// Index of the argument.
    pub arg: usize,
    /// Meaning of the bytes.
    pub kind: Kind,
    /// Bytes after the launch, by the mirror.
    pub mirror: Vec<u8>,
    /// Values by definition, in f64; empty where bits say everything.
    pub reference: Vec<f64>,
    /// Tolerance of the kernel against the definition, as a share of the largest magnitude.
    pub tolerance: f64,
}

impl Output {
    /// Numbers of f32 with their definition.
    pub(super) fn floats(arg: usize, mirror: &[f32], reference: Vec<f64>, tolerance: f64) -> Output {
        Output { arg, kind: Kind::F32, mirror: bytes(mirror), reference, tolerance }
    }

    /// Bits.
    pub(super) fn bits(arg: usize, kind: Kind, mirror: Vec<u8>) -> Output {
        Output { arg, kind, mirror, reference: Vec::new(), tolerance: 0.0 }
    }

    /// Numbers of a buffer like this output's.
    pub fn numbers(&self, bytes: &[u8]) -> Vec<f64> {
        match self.kind {
            Kind::F32 => bytes.as_chunks().0.iter().map(|&b| f64::from(f32::from_le_bytes(b))).collect(),
            Kind::F16 => bytes.as_chunks().0.iter().map(|&b| f16::from_le_bytes(b).to_f64()).collect(),
            Kind::BF16 => bytes.as_chunks().0.iter().map(|&b| bf16::from_le_bytes(b).to_f64()).collect(),
            Kind::Bytes => bytes.iter().map(|&b| f64::from(b)).collect(),
        }
    }

    /// Numbers of `found` whose bits are not the mirror's.
    pub fn differing(&self, found: &[u8]) -> usize {
        let size = match self.kind {
            Kind::F32 => 4,
            Kind::F16 | Kind::BF16 => 2,
            Kind::Bytes => 1,
        };
        let missing = found.len().abs_diff(self.mirror.len()) / size;
        missing + found.chunks(size).zip(self.mirror.chunks(size)).filter(|(a, b)| a != b).count()
    }

    /// The largest difference of `found` to the definition, as a share of its largest magnitude;
    /// none where there is no definition.
    pub fn error(&self, found: &[u8]) -> Option<f64> {
        if self.reference.is_empty() {
            return None;
        }
        let found = self.numbers(found);
        if found.len() != self.reference.len() {
            return Some(f64::INFINITY);
        }
        let largest = self.reference.iter().fold(f64::MIN_POSITIVE, |m, v| m.max(v.abs()));
        let worst = found.iter().zip(&self.reference).fold(0.0, |m: f64, (f, r)| {
            let off = (f - r).abs();
            if off.is_nan() { f64::INFINITY } else { m.max(off) }
        });
        Some(worst / largest)
    }
}

/// A launch, and what is expected of it.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name of the kernel and its shape.
    pub name: String,
    /// The kernel and its grid.
    pub(crate) launch: Launch,
    /// Arguments of the launch.
    pub args: Vec<Arg>,
    /// Outputs of the launch.
    pub outputs: Vec<Output>,
}

impl Case {
    pub(super) fn new(shape: impl std::fmt::Display, launch: Launch, args: Vec<Arg>, outputs: Vec<Output>) -> Case {
        Case { name: format!("{} {shape}", launch.kernel), launch, args, outputs }
    }

    /// The kernel.
    pub fn kernel(&self) -> &str {
        &self.launch.kernel
    }
}
