//! How codes and scales lie in files: any layout, presented as a packed [`Matrix`].
//!
//! The layout of a module is told by the tensors that are there: `P.weight.codes` is the packed
//! layout, `P.weight_packed` or an I8 `P.weight` with `P.weight_scale` compressed-tensors,
//! a quantization state or `P.SCB` bitsandbytes, `P.qweight` GPTQ or AWQ, an F8_E4M3 `P.weight`
//! 8-bit floats, and any other lone `P.weight` floats or ggml blocks.

mod bitsandbytes;
mod compressed;
mod declared;
mod float8;
mod gptq;
mod packed;

pub(crate) use declared::declared_schemes;

use crate::{Bytes, DType, Error, Linear, Model, Result, Tensor, json::shown};
use schemes::{Activation, FloatType, Matrix, RowOrder, ScaleArray, ScaleUse, Storage};
use serde_json::{Map, Value};

/// No side of a matrix is longer.
const MAX_SIDE: u64 = 1 << 40;

/// Which layout a module's tensors have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Plain,
    Packed,
    CompressedPacked,
    CompressedInt,
    Bnb4,
    BnbInt8,
    Gptq,
    Float8,
}

/// One module of a model.
#[derive(Clone, Copy)]
struct Site<'a> {
    model: &'a Model,
    module: &'a str,
}

impl<'a> Site<'a> {
    /// The tensor whose name is the module's plus `suffix`.
    fn tensor(self, suffix: &str) -> Option<&'a Tensor> {
        self.model.tensors.get(&format!("{}{suffix}", self.module))
    }

    /// The same; an error when it is missing.
    fn need(self, suffix: &str) -> Result<&'a Tensor> {
        self.tensor(suffix)
            .ok_or_else(|| Error::tensor(&self.model.path, shown(&format!("{}{suffix}", self.module)), "is missing"))
    }

    /// An error about the tensor with `suffix`, in its file.
    fn bad(self, suffix: &str, what: impl Into<String>) -> Error {
        let name = format!("{}{suffix}", self.module);
        match self.model.tensors.get(&name) {
            Some(t) => Error::tensor(&t.file, shown(&t.stored_name), what),
            None => Error::tensor(&self.model.path, shown(&name), what),
        }
    }

    /// A matrix over `storage`; what doesn't fit is an error about the tensor with `suffix`.
    fn matrix(
        self,
        suffix: &str,
        shape: (usize, usize),
        storage: Storage<Bytes>,
        order: RowOrder,
    ) -> Result<Matrix<Bytes>> {
        Matrix::new(shape.0, shape.1, storage, order).map_err(|e| self.bad(suffix, e.to_string()))
    }

    /// Scales of a float type.
    fn scales(self, suffix: &str, usage: ScaleUse) -> Result<ScaleArray<Bytes>> {
        let tensor = self.need(suffix)?;
        let ty = tensor
            .dtype
            .float()
            .ok_or_else(|| self.bad(suffix, format!("scales of type {} are not floats", tensor.dtype)))?;
        Ok(ScaleArray { ty, usage, data: tensor.data.clone() })
    }

    /// Checks the type of a tensor.
    fn typed(self, suffix: &str, types: &[DType]) -> Result<&'a Tensor> {
        let tensor = self.need(suffix)?;
        if types.contains(&tensor.dtype) {
            return Ok(tensor);
        }
        let names: Vec<String> = types.iter().map(DType::to_string).collect();
        Err(self.bad(suffix, format!("type {} where {} is needed", tensor.dtype, names.join(" or "))))
    }

    /// The two dimensions of a tensor.
    fn sides(self, suffix: &str) -> Result<(usize, usize)> {
        match self.need(suffix)?.shape[..] {
            [rows, cols] => Ok((rows, cols)),
            ref other => Err(self.bad(suffix, format!("shape {other:?} is not that of a matrix"))),
        }
    }

    fn layout(self) -> Option<Layout> {
        if self.tensor(".weight.codes").is_some() {
            return Some(Layout::Packed);
        }
        if self.tensor(".weight_packed").is_some() {
            return Some(Layout::CompressedPacked);
        }
        if self.tensor(".qweight").is_some() {
            return Some(Layout::Gptq);
        }
        let weight = self.tensor(".weight")?;
        Some(if self.tensor(bitsandbytes::NF4_STATE).is_some() || self.tensor(bitsandbytes::FP4_STATE).is_some() {
            Layout::Bnb4
        } else if self.tensor(".SCB").is_some() {
            Layout::BnbInt8
        } else if weight.dtype == DType::F8E4M3 {
            Layout::Float8
        } else if weight.dtype == DType::I8 || self.tensor(".weight_scale").is_some() {
            Layout::CompressedInt
        } else {
            Layout::Plain
        })
    }

    /// Rows and columns of the weights.
    fn shape(self, layout: Layout) -> Result<(usize, usize)> {
        match layout {
            Layout::Plain | Layout::CompressedInt | Layout::BnbInt8 | Layout::Float8 => self.sides(".weight"),
            Layout::Gptq => gptq::shape(self),
            Layout::Packed => packed::shape(self),
            Layout::CompressedPacked => compressed::packed_shape(self),
            Layout::Bnb4 => bitsandbytes::four_bit_shape(self),
        }
    }
}

/// Whether any form of the module's weights is stored.
pub(crate) fn is_stored(model: &Model, module: &str) -> bool {
    Site { model, module }.layout().is_some()
}

/// Rows and columns of a module's weights; none when there are none.
pub(crate) fn shape(model: &Model, module: &str) -> Result<Option<(usize, usize)>> {
    let site = Site { model, module };
    site.layout().map(|l| site.shape(l)).transpose()
}

/// The linear layer of a module.
pub(crate) fn linear(model: &Model, module: &str) -> Result<Linear> {
    let site = Site { model, module };
    let Some(layout) = site.layout() else {
        return Err(site.bad(".weight", "is missing"));
    };
    let (matrix, activation) = match layout {
        Layout::Plain => (plain(site)?, Activation::Float),
        Layout::Packed => packed::linear(site)?,
        Layout::CompressedPacked => compressed::pack_quantized(site)?,
        Layout::CompressedInt => compressed::int_quantized(site)?,
        Layout::Bnb4 => (bitsandbytes::four_bit(site)?, Activation::Float),
        Layout::BnbInt8 => (bitsandbytes::int8(site)?, Activation::Float),
        Layout::Gptq => (gptq::matrix(site)?, Activation::Float),
        Layout::Float8 => (float8::matrix(site)?, Activation::Float),
    };
    let bias = site.tensor(".bias").map(dense).transpose()?;
    if let Some(bias) = &bias
        && bias.len() != matrix.rows()
    {
        return Err(site.bad(".bias", format!("{} values for {} rows", bias.len(), matrix.rows())));
    }
    Ok(Linear { matrix, bias, activation })
}

/// Floats and ggml blocks.
fn plain(site: Site<'_>) -> Result<Matrix<Bytes>> {
    let weight = site.need(".weight")?;
    let shape = site.sides(".weight")?;
    let storage = match (weight.dtype, weight.dtype.float()) {
        (_, Some(ty)) => Storage::Float(ty, weight.data.clone()),
        (DType::Ggml(ty), _) => Storage::Ggml(ty, weight.data.clone()),
        (other, _) => return Err(site.bad(".weight", format!("weights of type {other} are not supported"))),
    };
    site.matrix(".weight", shape, storage, weight.order)
}

/// A small tensor as f32, its rows in natural order.
pub(crate) fn dense(tensor: &Tensor) -> Result<Vec<f32>> {
    let bad = |what: String| Error::tensor(&tensor.file, shown(&tensor.stored_name), what);
    let mut values = match (tensor.dtype.float(), tensor.dtype) {
        (Some(ty), _) => floats(ty, &tensor.data),
        (None, DType::F64) => {
            let value = |b: &[u8]| f64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]) as f32;
            tensor.data.chunks_exact(8).map(value).collect()
        }
        (None, other) => return Err(bad(format!("type {other} where floats are needed"))),
    };
    if let (RowOrder::Interleaved { head_dim }, [n]) = (tensor.order, &tensor.shape[..]) {
        if head_dim == 0 || head_dim % 2 == 1 || n % head_dim != 0 || *n != values.len() {
            return Err(bad(format!("{n} values are not heads of {head_dim}")));
        }
        values = (0..*n).map(|row| values[tensor.order.stored(row)]).collect();
    }
    Ok(values)
}

fn floats(ty: FloatType, data: &[u8]) -> Vec<f32> {
    let mut out = vec![0f32; data.len() / ty.size()];
    schemes::decode_floats(ty, data, &mut out);
    out
}

/// Values of an F32 tensor of a fixed length.
fn table<const N: usize>(site: Site<'_>, suffix: &str) -> Result<[f32; N]> {
    let tensor = site.typed(suffix, &[DType::F32])?;
    let values = floats(FloatType::F32, &tensor.data);
    let n = values.len();
    <[f32; N]>::try_from(values).map_err(|_| site.bad(suffix, format!("{n} values where {N} are needed")))
}

/// Two sizes from JSON, within bounds.
fn json_shape(value: Option<&Value>) -> Option<(usize, usize)> {
    let side = |v: &Value| v.as_u64().filter(|n| *n <= MAX_SIDE).and_then(|n| usize::try_from(n).ok());
    match value?.as_array()?.as_slice() {
        [rows, cols] => Some((side(rows)?, side(cols)?)),
        _ => None,
    }
}

/// The quantization block of config.json.
fn quantization(model: &Model) -> Option<&Map<String, Value>> {
    model
        .config_json
        .as_ref()?
        .get("quantization_config")
        .or_else(|| model.config_json.as_ref()?.get("compression_config"))?
        .as_object()
}

/// Refuses quantization methods that aren't understood, by name, and reports what is left out.
pub(crate) fn check_method(model: &Model) -> Result<()> {
    let Some(config) = quantization(model) else { return Ok(()) };
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let method = config.get("quant_method").and_then(Value::as_str);
    match method {
        Some("compressed-tensors") => compressed::check_config(model, config),
        Some("bitsandbytes" | "qconvert" | "fp8") => Ok(()),
        Some("gptq" | "awq") => gptq::check_config(model, config),
        None if flag("load_in_8bit") || flag("load_in_4bit") => Ok(()),
        None => Err(Error::unsupported(&model.path, "quantization_config names no quant_method")),
        Some(other) => Err(Error::unsupported(
            &model.path,
            format!(
                "quantization method '{}' is not supported; compressed-tensors, bitsandbytes, gptq, awq and fp8 are",
                shown(other)
            ),
        )),
    }
}

/// What the scheme of the checkpoint asks for and is not done here.
pub(crate) fn notes(model: &Model) -> Vec<String> {
    let Some(config) = quantization(model) else { return Vec::new() };
    let groups = config.get("config_groups").and_then(Value::as_object).into_iter().flatten();
    let mut inputs = groups.filter_map(|(_, group)| group.get("input_activations"));
    let float = |input: &Value| input.get("type").and_then(Value::as_str) == Some("float");
    let fp8 = config.get("quant_method").and_then(Value::as_str) == Some("fp8");
    if fp8 || inputs.any(float) {
        return vec!["its engine rounds activations to 8-bit floats; here they are not rounded".into()];
    }
    Vec::new()
}

#[cfg(test)]
mod tests;
