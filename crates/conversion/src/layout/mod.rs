//! Layouts of codes and scales in a file: one module for each layout.

pub mod bitsandbytes;
pub mod compressed_tensors;
pub mod ggml_blocks;
pub mod packed;

use crate::encode::Encoding;
use schemes::{FloatType, Scheme};
use std::{fmt, str::FromStr};
use store::DType;

/// The layouts that a quantized weight can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// Our own: plain typed tensors, every scheme, at its true bits per weight.
    Packed,
    /// compressed-tensors, as vLLM and transformers load it.
    CompressedTensors,
    /// bitsandbytes, as transformers loads it.
    Bitsandbytes,
    /// ggml blocks in GGUF.
    Ggml,
    /// Not quantized.
    Plain,
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Packed => "packed",
            Layout::CompressedTensors => "compressed-tensors",
            Layout::Bitsandbytes => "bitsandbytes",
            Layout::Ggml => "ggml",
            Layout::Plain => "plain",
        })
    }
}

impl FromStr for Layout {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "packed" => Ok(Layout::Packed),
            "compressed-tensors" => Ok(Layout::CompressedTensors),
            "bitsandbytes" => Ok(Layout::Bitsandbytes),
            "ggml" => Ok(Layout::Ggml),
            _ => Err(format!("unknown layout '{s}'; known are packed, compressed-tensors, bitsandbytes, ggml")),
        }
    }
}

/// A weight to lay out.
#[derive(Debug, Clone)]
pub struct Request<'a> {
    /// The weight's name in the output file, ending in `.weight`.
    pub name: &'a str,
    /// Output features.
    pub rows: usize,
    /// Input features.
    pub cols: usize,
    /// The scheme.
    pub scheme: Scheme,
    /// F32 where f16 doesn't carry the scales.
    pub scale: FloatType,
    /// The float type of the model, which some layouts record.
    pub model_float: FloatType,
    /// Calibrated columns that stay f16.
    pub outlier_columns: &'a [u32],
    /// Calibrated scale of the activations.
    pub activation_scale: Option<f32>,
}

/// A tensor of the output file.
#[derive(Debug, Clone, PartialEq)]
pub struct OutTensor {
    /// Name in the file.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// Bytes.
    pub bytes: u64,
    /// Source of the tensor's bytes.
    pub content: Content,
}

/// Source of a tensor's bytes.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Stream of the weight's encoding.
    Stream(usize),
    /// Known while planning.
    Constant(Vec<u8>),
}

impl OutTensor {
    /// A tensor that the encoder fills.
    pub fn stream(name: String, dtype: DType, shape: Vec<usize>, stream: usize) -> Self {
        let bytes = shape.iter().product::<usize>() as u64 * dtype.size().unwrap_or(1) as u64;
        OutTensor { name, dtype, shape, bytes, content: Content::Stream(stream) }
    }

    /// A tensor whose bytes are known.
    pub fn constant(name: String, dtype: DType, shape: Vec<usize>, bytes: Vec<u8>) -> Self {
        OutTensor { name, dtype, shape, bytes: bytes.len() as u64, content: Content::Constant(bytes) }
    }
}

/// A weight laid out.
#[derive(Debug, Clone, PartialEq)]
pub struct Laid {
    /// The layout used.
    pub layout: Layout,
    /// Encoding of the rows.
    pub encoding: Encoding,
    /// The tensors, in file order.
    pub tensors: Vec<OutTensor>,
    /// The weight's entry in `qconvert.tensors`, in the packed layout.
    pub entry: Option<serde_json::Value>,
}

/// The reason that a weight does not fit a layout, and a layout that it fits.
#[derive(Debug, Clone, PartialEq)]
pub struct NoFit {
    /// The reason.
    pub why: String,
    /// Schemes and layouts that fit instead.
    pub instead: String,
}

/// Lays a weight out.
///
/// # Errors
/// [`NoFit`] when the layout can't hold the scheme for this shape.
pub fn lay(layout: Layout, request: &Request<'_>) -> Result<Laid, NoFit> {
    if matches!(request.scheme, Scheme::Ggml(_)) && layout != Layout::Ggml {
        return Err(NoFit {
            why: format!("the {layout} layout does not hold {}", request.scheme),
            instead: "ggml types go to GGUF in its own layout (--to gguf, without --layout)".into(),
        });
    }
    match layout {
        Layout::Packed => packed::lay(request),
        Layout::CompressedTensors => compressed_tensors::lay(request),
        Layout::Bitsandbytes => bitsandbytes::lay(request),
        Layout::Ggml => ggml_blocks::lay(request),
        Layout::Plain => {
            Err(NoFit { why: "plain tensors hold no quantized weight".into(), instead: "choose another layout".into() })
        }
    }
}
