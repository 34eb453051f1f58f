//! Element types as files name them.

use schemes::{FloatType, GgmlType};
use std::fmt;

/// The type of a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    F64,
    F32,
    F16,
    BF16,
    F8E4M3,
    F8E5M2,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool,
    /// A ggml block type (never one that has an entry of its own here).
    Ggml(GgmlType),
}

impl DType {
    /// Bytes of one element; none for block types.
    pub fn size(self) -> Option<usize> {
        match self {
            DType::F64 | DType::I64 | DType::U64 => Some(8),
            DType::F32 | DType::I32 | DType::U32 => Some(4),
            DType::F16 | DType::BF16 | DType::I16 | DType::U16 => Some(2),
            DType::F8E4M3 | DType::F8E5M2 | DType::I8 | DType::U8 | DType::Bool => Some(1),
            DType::Ggml(_) => None,
        }
    }

    /// The float type that schemes work with, if it is one.
    pub fn float(self) -> Option<FloatType> {
        match self {
            DType::F32 => Some(FloatType::F32),
            DType::F16 => Some(FloatType::F16),
            DType::BF16 => Some(FloatType::BF16),
            _ => None,
        }
    }

    /// The ggml type that holds it; none for types that GGUF doesn't have.
    pub fn ggml(self) -> Option<GgmlType> {
        Some(match self {
            DType::F64 => GgmlType::F64,
            DType::F32 => GgmlType::F32,
            DType::F16 => GgmlType::F16,
            DType::BF16 => GgmlType::BF16,
            DType::I64 => GgmlType::I64,
            DType::I32 => GgmlType::I32,
            DType::I16 => GgmlType::I16,
            DType::I8 => GgmlType::I8,
            DType::Ggml(ty) => ty,
            _ => return None,
        })
    }

    /// The name in safetensors headers; none for types they don't have.
    pub fn safetensors_name(self) -> Option<&'static str> {
        Some(match self {
            DType::F64 => "F64",
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::F8E4M3 => "F8_E4M3",
            DType::F8E5M2 => "F8_E5M2",
            DType::I64 => "I64",
            DType::I32 => "I32",
            DType::I16 => "I16",
            DType::I8 => "I8",
            DType::U64 => "U64",
            DType::U32 => "U32",
            DType::U16 => "U16",
            DType::U8 => "U8",
            DType::Bool => "BOOL",
            DType::Ggml(_) => return None,
        })
    }
}

impl From<FloatType> for DType {
    fn from(ty: FloatType) -> Self {
        match ty {
            FloatType::F32 => DType::F32,
            FloatType::F16 => DType::F16,
            FloatType::BF16 => DType::BF16,
        }
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DType::Ggml(t) => t.fmt(f),
            other => f.write_str(other.safetensors_name().unwrap_or("?")),
        }
    }
}
