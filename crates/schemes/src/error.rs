//! Errors of encoding and decoding.

/// Errors of the codecs. The caller adds file and tensor names.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// A scheme name that is not known.
    #[error(
        "unknown scheme '{0}'{suggestion}; known are f32, f16, bf16, int8-absmax, int4-absmax, int8-row, int4-row, int8-gN, int4-gN (such as int4-g128), nf4, nf4-dq, int8-outlier, w8a8-token, w8a8-tensor, w8a8-static, ggml-TYPE (such as ggml-q8_0, ggml-q4_k)",
        suggestion = crate::suggest::question(.0)
    )]
    UnknownScheme(String),
    /// The source holds a NaN or an infinity.
    #[error("weight {value} at row {row}, column {col}: only finite weights can be quantized")]
    NotFinite {
        /// Row in the matrix.
        row: usize,
        /// Column in the matrix.
        col: usize,
        /// The offending value.
        value: f32,
    },
    /// A value does not fit the target float type.
    #[error("value {value} at element {index} overflows {ty}; use --overflow clamp, or bf16 or f32")]
    Overflow {
        /// Flat index of the element.
        index: usize,
        /// The value that does not fit.
        value: f32,
        /// The target type.
        ty: FloatName,
    },
    /// A scale does not fit its stored type.
    #[error("scale {value} of row {row} does not fit {ty}")]
    ScaleRange {
        /// Row in the matrix.
        row: usize,
        /// The scale before rounding.
        value: f32,
        /// The type of the scale.
        ty: FloatName,
    },
    /// A byte buffer has the wrong length for its shape.
    #[error("{what}: {found} bytes where {expected} are needed for {rows} x {cols}")]
    Length {
        /// Name of the buffer.
        what: &'static str,
        /// Bytes expected.
        expected: usize,
        /// Bytes found.
        found: usize,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
    },
    /// The shape does not suit the scheme or type.
    #[error("{rows} x {cols} does not fit {what}: {why}")]
    Shape {
        /// The scheme, packing or block type.
        what: String,
        /// Rows of the matrix.
        rows: usize,
        /// Columns of the matrix.
        cols: usize,
        /// Description of the mismatch.
        why: String,
    },
    /// A ggml type that this version cannot decode.
    #[error("ggml type {0} cannot be decoded by this version")]
    UnsupportedGgml(String),
}

/// The name of a float type, in errors.
pub type FloatName = crate::FloatType;
