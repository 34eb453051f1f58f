//! Layouts of codes and scales in files: any of them, presented as a packed [`Matrix`].
//!
//! The layout of a module is told by the tensors that are there: `P.weight.codes` is the packed
//! layout, `P.weight_packed` or an I8 `P.weight` with `P.weight_scale` compressed-tensors,
//! a quantization state or `P.SCB` bitsandbytes, `P.qweight` GPTQ or AWQ, an F8_E4M3 `P.weight`
//! 8-bit floats, and any other lone `P.weight` floats or ggml blocks.
//!
//! Every module passes one [`Gate`]: it is *described* first (names, types and shapes are checked with checked
//! arithmetic, and every tensor of the module must be known; nothing is decoded or repacked) and then *opened* from its
//! description.

mod all_layers;
mod bitsandbytes;
mod companions;
mod compressed;
mod description;
mod float8;
mod gptq;
mod gptq_config;
mod packed;

pub(crate) use all_layers::{declared_schemes, layers};
use description::{Codes, Form, Scaling};
pub use description::{Description, Layout};

use crate::{Bytes, Container, DType, Error, Linear, Model, Result, Tensor, json::shown, unused::is_cache_scale};
use schemes::{Activation, FloatType, Matrix, RowOrder, ScaleArray, ScaleUse, Storage};
use serde_json::{Map, Value};

/// No side of a matrix is longer.
const MAX_SIDE: u64 = 1 << 40;

/// The one entrance to a model's weights: describes modules and opens what it has described.
pub(crate) struct Gate<'a> {
    model: &'a Model,
    /// Lookup tables that many modules need; none where only one module is asked for.
    index: Option<Index<'a>>,
}

/// Names and entries of a model, arranged so that looking up one module's takes no pass over all.
struct Index<'a> {
    /// All names of tensors, sorted.
    names: Vec<&'a str>,
    /// The entries of the packed layout.
    entries: Result<packed::Entries>,
}

impl<'a> Gate<'a> {
    /// For one module, or a few.
    pub fn new(model: &'a Model) -> Self {
        Gate { model, index: None }
    }

    /// For all modules of a model.
    pub fn indexed(model: &'a Model) -> Self {
        let mut names: Vec<&str> = model.tensors.keys().map(String::as_str).collect();
        names.sort_unstable();
        Gate { model, index: Some(Index { names, entries: packed::entries(model) }) }
    }

    fn site<'s>(&'s self, module: &'s str) -> Site<'s> {
        Site { gate: self, module }
    }

    /// Describes a module's weights; none where no form of them is stored.
    pub fn describe(&self, module: &str) -> Result<Option<Description>> {
        let site = self.site(module);
        site.layout().map(|layout| site.describe(layout)).transpose()
    }
}

/// One module of a model.
#[derive(Clone, Copy)]
struct Site<'a> {
    gate: &'a Gate<'a>,
    module: &'a str,
}

/// A layout's own part of a description.
struct Described {
    form: Form,
    activation: Activation,
    /// Suffixes of the tensors that are read.
    used: Vec<&'static str>,
}

impl Described {
    /// A matrix of views, with activations left as they are.
    fn views(matrix: Matrix<Bytes>, used: impl IntoIterator<Item = &'static str>) -> Self {
        Described {
            form: Form::Views(Box::new(matrix)),
            activation: Activation::Float,
            used: used.into_iter().collect(),
        }
    }
}

impl<'a> Site<'a> {
    fn model(self) -> &'a Model {
        self.gate.model
    }

    /// The tensor whose name is the module's plus `suffix`.
    fn tensor(self, suffix: &str) -> Option<&'a Tensor> {
        self.model().tensors.get(&format!("{}{suffix}", self.module))
    }

    /// Suffixes of all tensors under the module's name, dot included.
    fn companions(self) -> Vec<&'a str> {
        let suffix = |name: &&'a str| name.strip_prefix(self.module).filter(|rest| rest.starts_with('.'));
        match &self.gate.index {
            Some(index) => {
                let first = format!("{}.", self.module);
                let start = index.names.partition_point(|name| **name < *first);
                index.names[start..].iter().map_while(suffix).collect()
            }
            None => self.model().tensors.keys().map(String::as_str).filter_map(|name| suffix(&name)).collect(),
        }
    }

    /// Returns the tensor with this suffix; an error when it is missing.
    fn need(self, suffix: &str) -> Result<&'a Tensor> {
        self.tensor(suffix)
            .ok_or_else(|| Error::tensor(&self.model().path, shown(&format!("{}{suffix}", self.module)), "is missing"))
    }

    /// An error about the tensor with `suffix`, in its file.
    fn bad(self, suffix: &str, what: impl Into<String>) -> Error {
        let name = format!("{}{suffix}", self.module);
        match self.model().tensors.get(&name) {
            Some(t) => Error::tensor(&t.file, shown(&t.stored_name), what),
            None => Error::tensor(&self.model().path, shown(&name), what),
        }
    }

    /// An error about what config.json says of the module.
    fn unsupported(self, what: impl Into<String>) -> Error {
        Error::unsupported(&self.model().path, format!("module {}: {}", shown(self.module), what.into()))
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

    /// Describes weights in `layout`, with their bias and all that stands beside them.
    fn describe(self, layout: Layout) -> Result<Description> {
        companions::check_known(self)?;
        let Described { form, activation, mut used } = match layout {
            Layout::Plain => plain(self)?,
            Layout::Packed => packed::describe(self)?,
            Layout::CompressedPacked => compressed::pack_quantized(self)?,
            Layout::CompressedInt => compressed::int_quantized(self)?,
            Layout::Bnb4 => bitsandbytes::four_bit(self)?,
            Layout::BnbInt8 => bitsandbytes::int8(self)?,
            Layout::Gptq => gptq::describe(self)?,
            Layout::Float8 => float8::describe(self)?,
        };
        let main = used.first().copied().unwrap_or(".weight");
        let (rows, cols, packed_bytes, (codes, scale_type)) = match &form {
            Form::Views(m) => (m.rows(), m.cols(), m.packed_bytes(), description::codes_of(m.storage())),
            Form::Compressed(plan) => (plan.shape.0, plan.shape.1, plan.packed_bytes(), plan.codes()),
            Form::Gptq(plan) => (plan.shape.0, plan.shape.1, plan.packed_bytes(), plan.codes()),
        };
        if rows == 0 || cols == 0 {
            return Err(self.bad(main, format!("[{rows}, {cols}] holds no weights")));
        }
        if let Some(bias) = self.tensor(".bias") {
            // Not of a lone float matrix: the bias of a transposed one (Conv1D) has its columns' length.
            if layout != Layout::Plain {
                check_bias(self, bias, rows)?;
            }
            used.push(".bias");
        }
        let (scaling, more) = companions::scaling(self, cols, activation)?;
        used.extend(more);
        let unneeded = companions::unneeded(self, layout, codes, &used)?;
        Ok(Description {
            module: self.module.into(),
            layout,
            rows,
            cols,
            scheme: description::scheme_name(codes, activation, &scaling),
            activation,
            packed_bytes,
            scale_type,
            tensors: used.iter().map(|suffix| format!("{}{suffix}", self.module)).collect(),
            unneeded,
            codes,
            form,
            scaling,
        })
    }
}

/// Returns whether any form of the module's weights is stored.
pub(crate) fn is_stored(model: &Model, module: &str) -> bool {
    Gate::new(model).site(module).layout().is_some()
}

/// Opens what has been described, with its bias.
pub(crate) fn open(model: &Model, description: Description) -> Result<Linear> {
    let gate = Gate::new(model);
    let activation = description.activation;
    let module = description.module.clone();
    let matrix = open_matrix(model, description)?;
    let site = gate.site(&module);
    let bias = site.tensor(".bias");
    bias.map(|bias| check_bias(site, bias, matrix.rows())).transpose()?;
    Ok(Linear { matrix, bias: bias.map(dense).transpose()?, activation })
}

/// Opens the weights of what has been described: the one place where weights are repacked.
pub(crate) fn open_matrix(model: &Model, description: Description) -> Result<Matrix<Bytes>> {
    let gate = Gate::new(model);
    let site = gate.site(&description.module);
    let matrix = match description.form {
        Form::Views(matrix) => *matrix,
        Form::Compressed(plan) => plan.open(site)?,
        Form::Gptq(plan) => plan.open(site)?,
    };
    let (shape, order) = ((matrix.rows(), matrix.cols()), matrix.order());
    match description.scaling {
        Scaling { factor: None, columns: None } => Ok(matrix),
        scaling => site.matrix(".weight", shape, scaling.apply(matrix.into_storage()), order),
    }
}

/// Describes and opens one module.
pub(crate) fn linear(model: &Model, module: &str) -> Result<Linear> {
    let gate = Gate::new(model);
    match gate.describe(module)? {
        Some(description) => open(model, description),
        None => Err(gate.site(module).bad(".weight", "is missing")),
    }
}

fn check_bias(site: Site<'_>, bias: &Tensor, rows: usize) -> Result<()> {
    if bias.dtype.float().is_none() && bias.dtype != DType::F64 {
        return Err(site.bad(".bias", format!("type {} where floats are needed", bias.dtype)));
    }
    let values = bias.shape.iter().try_fold(1usize, |n, side| n.checked_mul(*side));
    if values != Some(rows) {
        let found = values.map_or("too many".into(), |n| n.to_string());
        return Err(site.bad(".bias", format!("{found} values for {rows} rows")));
    }
    Ok(())
}

/// Floats and ggml blocks.
fn plain(site: Site<'_>) -> Result<Described> {
    let weight = site.need(".weight")?;
    let shape = site.sides(".weight")?;
    let storage = match (weight.dtype, weight.dtype.float()) {
        (_, Some(ty)) => Storage::Float(ty, weight.data.clone()),
        (DType::Ggml(ty), _) => Storage::Ggml(ty, weight.data.clone()),
        (other, _) => return Err(site.bad(".weight", format!("weights of type {other} are not supported"))),
    };
    Ok(Described::views(site.matrix(".weight", shape, storage, weight.order)?, [".weight"]))
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

/// Returns whether some tensor has the name that a quantization method's layout gives it. Other methods have no such
/// name.
fn has_layout(model: &Model, method: &str) -> bool {
    let marks: &[&str] = match method {
        "gptq" | "awq" => &[".qweight"],
        "bitsandbytes" => &[".SCB", ".quant_state.bitsandbytes__"],
        _ => return true,
    };
    model.tensors.keys().any(|name| marks.iter().any(|mark| name.contains(mark)))
}

/// Refuses quantization methods that aren't understood, by name, and ones of which no tensor has the layout.
pub(crate) fn check_method(model: &Model) -> Result<()> {
    let Some(config) = quantization(model) else { return Ok(()) };
    let flag = |key: &str| config.get(key).and_then(Value::as_bool).unwrap_or(false);
    let method = config.get("quant_method").and_then(Value::as_str);
    match method {
        Some("compressed-tensors") => compressed::check_config(model, config),
        Some("bitsandbytes" | "qconvert" | "fp8") => Ok(()),
        Some("gptq" | "awq") => gptq_config::check(model, config),
        None if flag("load_in_8bit") || flag("load_in_4bit") => Ok(()),
        None => Err(Error::unsupported(&model.path, "quantization_config names no quant_method")),
        Some(other) => Err(Error::unsupported(
            &model.path,
            format!(
                "quantization method '{}' is not supported; compressed-tensors, bitsandbytes, gptq, awq and fp8 are",
                shown(other)
            ),
        )),
    }?;
    match method.filter(|method| model.container != Container::Gguf && !has_layout(model, method)) {
        None => Ok(()),
        Some(method) => Err(Error::unsupported(
            &model.path,
            format!(
                "quantization_config of config.json says {method}, and no tensor has its layout: transformers loads no \
                 such model; remove quantization_config if the weights are plain floats"
            ),
        )),
    }
}

/// Notes on settings of the checkpoint's scheme that are not applied here.
pub(crate) fn notes(model: &Model) -> Vec<String> {
    let config = quantization(model);
    let groups = config.and_then(|c| c.get("config_groups")).and_then(Value::as_object).into_iter().flatten();
    let inputs: Vec<&Value> = groups.filter_map(|(_, group)| group.get("input_activations")).collect();
    let float = |input: &&Value| input.get("type").and_then(Value::as_str) == Some("float");
    let fp8 = config.and_then(|c| c.get("quant_method")).and_then(Value::as_str) == Some("fp8");
    let mut notes = Vec::new();
    if fp8 || inputs.iter().any(float) {
        notes.push("its engine rounds activations to 8-bit floats; here they are not rounded".into());
    } else if inputs.iter().all(|input| input.is_null()) {
        // Static scales of integers are used.
        let rounds = |name: &str| companions::is_of_activations(name) && !is_cache_scale(name);
        let scale = model.tensors.iter().find(|(name, _)| rounds(name));
        notes.extend(scale.map(|(_, tensor)| {
            let name = shown(&tensor.stored_name);
            format!("its engine rounds activations ({name} is a scale for that); here they are not rounded")
        }));
    }
    if config.and_then(|c| c.get("kv_cache_scheme")).is_some_and(|scheme| !scheme.is_null()) {
        notes.push("its engine rounds keys and values (kv_cache_scheme); here they are not rounded".into());
    }
    notes
}

#[cfg(test)]
mod gate_tests;
#[cfg(test)]
mod tests;
