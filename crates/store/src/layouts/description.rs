//! A module's weights as the names, types and shapes of its tensors tell them.

use super::{compressed, gptq};
use crate::Bytes;
use schemes::{Activation, Bits, FloatType, GgmlType, Grouping, Matrix, Nf4Absmax, ScaledStorage, Scheme, Storage};

/// Layout of a module's weights in its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Floats or ggml blocks.
    Plain,
    /// The packed layout of this project.
    Packed,
    /// compressed-tensors' `pack-quantized`.
    CompressedPacked,
    /// compressed-tensors' `int-quantized`.
    CompressedInt,
    /// bitsandbytes' NF4 or FP4.
    Bnb4,
    /// bitsandbytes' LLM.int8.
    BnbInt8,
    /// GPTQ or AWQ.
    Gptq,
    /// 8-bit floats with scales.
    Float8,
}

/// Codes of a matrix.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Codes {
    Float(FloatType),
    Ggml(GgmlType),
    Int(Bits, Grouping),
    /// Integer codes with zero points; `ordered` where the columns are grouped in another order than their own.
    Affine {
        bits: Bits,
        grouping: Grouping,
        ordered: bool,
    },
    Float8,
    Fp4,
    Nf4 {
        double_quant: bool,
    },
    Outlier {
        columns: usize,
    },
}

/// The description of one module's weights: their shape, scheme and size, and the tensors that they lie in. All shapes
/// and lengths have been checked; no weight has been decoded or repacked. [`crate::Model::open_layer`] opens it.
#[derive(Debug, Clone)]
pub struct Description {
    /// The module, such as `model.layers.0.mlp.down_proj`.
    pub module: String,
    /// Layout of the weights in the tensors.
    pub layout: Layout,
    /// Output features; at least 1.
    pub rows: usize,
    /// Input features; at least 1.
    pub cols: usize,
    /// The scheme's name, as tables show it.
    pub scheme: String,
    /// Treatment of the layer's activations.
    pub activation: Activation,
    /// Bytes of codes and scales.
    pub packed_bytes: usize,
    /// The type of the scales; none where the form has no scales or their type is fixed.
    pub scale_type: Option<FloatType>,
    /// Names of the tensors that the weights and their bias are read from, as in [`crate::Model::tensors`].
    pub tensors: Vec<String>,
    /// Names of tensors of this module that engines need and the weights don't (scales of activations).
    pub unneeded: Vec<String>,
    pub(super) codes: Codes,
    pub(super) form: Form,
    pub(super) scaling: Scaling,
}

/// The weights before they are opened.
#[derive(Debug, Clone)]
pub(super) enum Form {
    /// Nothing is to be turned around: a matrix of views into the file.
    Views(Box<Matrix<Bytes>>),
    /// compressed-tensors with zero points or an order of groups.
    Compressed(Box<compressed::Affine>),
    /// GPTQ or AWQ.
    Gptq(Box<gptq::Plan>),
}

/// Factors beside those of the form itself.
#[derive(Debug, Clone, Default)]
pub(super) struct Scaling {
    pub factor: Option<f32>,
    pub columns: Option<Vec<f32>>,
}

impl Scaling {
    /// Puts the factors, if there are any, beside the storage.
    pub fn apply(&self, storage: Storage<Bytes>) -> Storage<Bytes> {
        if self.factor.is_none() && self.columns.is_none() {
            return storage;
        }
        Storage::Scaled(ScaledStorage {
            inner: Box::new(storage),
            factor: self.factor.unwrap_or(1.0),
            columns: self.columns.clone(),
        })
    }
}

impl Description {
    /// Number of weights.
    pub fn weights(&self) -> usize {
        self.rows * self.cols
    }

    /// Returns whether the weights are other than floats.
    pub fn is_quantized(&self) -> bool {
        !matches!(self.codes, Codes::Float(_))
    }

    /// Columns that are stored in f16 beside the codes.
    pub fn outlier_columns(&self) -> usize {
        if let Codes::Outlier { columns } = self.codes { columns } else { 0 }
    }
}

/// The codes of a storage and the type of its scales.
pub(super) fn codes_of(storage: &Storage<Bytes>) -> (Codes, Option<FloatType>) {
    match storage {
        Storage::Float(ty, _) => (Codes::Float(*ty), None),
        Storage::Ggml(ty, _) => (Codes::Ggml(*ty), None),
        Storage::Int(int) => (Codes::Int(int.packing.bits(), int.grouping), Some(int.scales.ty)),
        Storage::Affine(a) => {
            let (bits, grouping, ordered) = (a.int.packing.bits(), a.int.grouping, a.groups.is_some());
            (Codes::Affine { bits, grouping, ordered }, Some(a.int.scales.ty))
        }
        Storage::Float8(f) => (Codes::Float8, Some(f.scales.ty)),
        Storage::Nf4(n) => {
            let (double_quant, ty) = match &n.absmax {
                Nf4Absmax::Plain(scales) => (false, scales.ty),
                Nf4Absmax::Nested { .. } => (true, FloatType::F32),
            };
            // Sign and magnitude, as the levels of a float are; those of NF4 ascend.
            let fp4 = (0..8).all(|i| n.levels[i + 8] == -n.levels[i]);
            (if fp4 { Codes::Fp4 } else { Codes::Nf4 { double_quant } }, Some(ty))
        }
        Storage::Outlier(o) => (Codes::Outlier { columns: o.columns.len() }, Some(o.inner.scales.ty)),
        Storage::Scaled(s) => codes_of(&s.inner),
    }
}

/// The name of the scheme that decodes as the layer does.
pub(super) fn scheme_name(codes: Codes, activation: Activation, scaling: &Scaling) -> String {
    let scheme = match codes {
        Codes::Float(ty) => Scheme::Float(ty).to_string(),
        Codes::Ggml(ty) => ty.to_string(),
        Codes::Int(bits, grouping) => int_name(bits, grouping, activation),
        Codes::Affine { bits, grouping, ordered } => {
            let ordered = if ordered { ", activation order" } else { "" };
            format!("{} with zero points{ordered}", Scheme::Int(bits, grouping))
        }
        Codes::Float8 => "fp8-e4m3".into(),
        Codes::Fp4 => "fp4".into(),
        Codes::Nf4 { double_quant } => Scheme::Nf4 { double_quant }.to_string(),
        Codes::Outlier { .. } => Scheme::Int8Outlier.to_string(),
    };
    if scaling.columns.is_some() { format!("{scheme} with scaled inputs") } else { scheme }
}

fn int_name(bits: Bits, grouping: Grouping, activation: Activation) -> String {
    match (grouping, activation) {
        (_, Activation::Float) => Scheme::Int(bits, grouping).to_string(),
        (Grouping::Row, Activation::Int8Token) => Scheme::W8A8Token.to_string(),
        (Grouping::Row, Activation::Int8Tensor) => Scheme::W8A8Tensor.to_string(),
        (Grouping::Row, Activation::Int8Static(_)) => Scheme::W8A8Static.to_string(),
        (_, activation) => {
            let kind = match activation {
                Activation::Int8Static(_) => "static",
                Activation::Int8Tensor => "tensor",
                _ => "token",
            };
            format!("{} with int8 activations by {kind}", Scheme::Int(bits, grouping))
        }
    }
}
