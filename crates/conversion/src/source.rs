//! The logical weights of a model, whatever layout they are stored in.

use crate::roles::{Role, Roles, Stored};
use crate::{Error, Result};
use schemes::{FloatType, Matrix, Storage};
use std::collections::{HashMap, HashSet};
use store::{Bytes, DType, Description, Model, Tensor};

/// Rotary factors, which an artifact gets from the configuration.
const ROPE_FREQS: &str = "rope_freqs.weight";

/// Source of a weight's values.
#[derive(Debug, Clone)]
pub enum Values {
    /// A matrix in any packed form.
    Matrix(Matrix<Bytes>),
    /// A tensor that is only ever copied or converted between float types.
    Tensor(Tensor),
}

/// One logical weight.
#[derive(Debug, Clone)]
pub struct Weight {
    /// Hugging Face name, such as `model.layers.0.mlp.down_proj.weight`.
    pub name: String,
    /// Shape, outermost first.
    pub shape: Vec<usize>,
    /// The type as stored, when it is a plain one.
    pub float: Option<FloatType>,
    /// The values.
    pub values: Values,
    /// Key in the model of the tensor that holds the values or codes.
    pub main: String,
    /// True if the weight is the output projection too: the embedding of a model that stores no `lm_head`.
    pub tied: bool,
    /// Function of the weight in the model.
    pub role: Role,
}

impl Weight {
    /// The module that holds the weight: the name without `.weight`.
    pub fn module(&self) -> &str {
        self.name.strip_suffix(".weight").unwrap_or(&self.name)
    }

    /// The modules that it serves: its own, and `lm_head` where it is tied.
    pub fn modules(&self) -> impl Iterator<Item = &str> {
        std::iter::once(self.module()).chain(self.tied.then_some("lm_head"))
    }

    /// Number of weights.
    pub fn count(&self) -> usize {
        self.shape.iter().product()
    }

    /// Returns whether the weight is a matrix `[out, in]` of a Linear, which can be quantized.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with(".weight") && self.role != Role::Transposed && self.is_float()
    }

    /// Returns whether the values are numbers of any float type or layout, which can be converted.
    fn is_float(&self) -> bool {
        match &self.values {
            Values::Matrix(_) => true,
            Values::Tensor(t) => t.dtype.float().is_some() || t.dtype == DType::F64,
        }
    }

    /// Returns whether the weight is a linear projection of a text block, which is quantized by default.
    pub fn is_block_projection(&self) -> bool {
        self.role.is_quantized_by_default() && self.is_matrix()
    }

    /// Returns whether the weight is a table of embeddings and no linear layer.
    pub fn is_embedding(&self) -> bool {
        self.role == Role::Embedding
    }

    /// Bytes as stored.
    pub fn stored_bytes(&self) -> usize {
        match &self.values {
            Values::Matrix(m) => m.packed_bytes(),
            Values::Tensor(t) => t.data.len(),
        }
    }

    /// Gives the weight's mapped pages back.
    pub fn release(&self) {
        match &self.values {
            Values::Tensor(t) => t.data.release(),
            Values::Matrix(m) => match m.storage() {
                Storage::Float(_, b) | Storage::Ggml(_, b) => b.release(),
                Storage::Int(i) => i.codes.release(),
                Storage::Affine(a) => a.int.codes.release(),
                Storage::Float8(f) => f.codes.release(),
                Storage::Nf4(n) => n.codes.release(),
                Storage::Outlier(o) => o.inner.codes.release(),
                Storage::Scaled(_) => {}
            },
        }
    }
}

/// Lists the logical weights in the model's order, without buffers that loaders compute for themselves.
///
/// # Errors
/// When a weight's layout is not understood.
pub fn weights(model: &Model) -> Result<Vec<Weight>> {
    let layers: Vec<Description> = model.layers().into_values().filter_map(|layer| layer.ok()).collect();
    // Biases are weights of their own.
    let read = layers.iter().flat_map(|l| l.tensors.iter().filter(|n| !n.ends_with(".bias")).chain(&l.unneeded));
    let read: HashSet<String> = read.cloned().collect();
    let mut mains: HashMap<String, Description> =
        layers.into_iter().filter_map(|l| Some((l.tensors.first()?.clone(), l))).collect();
    let mut out = Vec::new();
    for (name, tensor) in &model.tensors {
        let weight = match mains.remove(name) {
            Some(layer) => {
                let module = layer.module.clone();
                matrix(name, &module, model.open_matrix(layer)?)
            }
            None if read.contains(name) || name == ROPE_FREQS || Model::is_buffer(name, tensor) => continue,
            None => undescribed(model, name, tensor)?,
        };
        out.push(weight);
    }
    assign_roles(&mut out, model.config_json.as_ref());
    if out.is_empty() {
        return Err(Error::Request(format!("{}: holds no tensors", model.path.display())));
    }
    Ok(out)
}

/// A tensor of no layer that could be described: the error of the layer where it is the main tensor of one.
fn undescribed(model: &Model, name: &str, tensor: &Tensor) -> Result<Weight> {
    let main = [".weight_packed", ".weight.codes", ".qweight"].iter().find_map(|s| name.strip_suffix(s));
    // No packed form holds F64: such a matrix is converted like any other tensor.
    let wide = tensor.dtype == DType::F64;
    let quantized = main.is_some() || !(tensor.dtype.float().is_some() || wide);
    if let Some(module) = main.or_else(|| name.strip_suffix(".weight"))
        && (quantized || tensor.shape.len() == 2 && !wide)
    {
        return Ok(matrix(name, module, model.linear(module)?.matrix));
    }
    Ok(Weight {
        name: name.into(),
        shape: tensor.shape.clone(),
        float: tensor.dtype.float(),
        values: Values::Tensor(tensor.clone()),
        main: name.into(),
        tied: false,
        role: Role::Other,
    })
}

fn matrix(main: &str, module: &str, matrix: Matrix<Bytes>) -> Weight {
    let float = match matrix.storage() {
        Storage::Float(ty, _) => Some(*ty),
        _ => None,
    };
    Weight {
        name: format!("{module}.weight"),
        shape: vec![matrix.rows(), matrix.cols()],
        float,
        values: Values::Matrix(matrix),
        main: main.into(),
        tied: false,
        role: Role::Other,
    }
}

fn assign_roles(weights: &mut [Weight], config: Option<&serde_json::Value>) {
    let stored: Vec<Stored<'_>> = weights.iter().map(|w| Stored { name: &w.name, shape: &w.shape }).collect();
    let roles = Roles::new(&stored, config);
    let found: Vec<Role> = stored.iter().map(|t| roles.role(t.name, t.shape)).collect();
    weights.iter_mut().zip(found).for_each(|(weight, role)| weight.role = role);
}

/// The float type that most of the model's matrices have; F32 when they are F64, F16 when none has any.
pub fn main_float(weights: &[Weight]) -> FloatType {
    let count =
        |ty| weights.iter().filter(|w| w.float == Some(ty) && w.shape.len() == 2).map(Weight::count).sum::<usize>();
    let most = [FloatType::F32, FloatType::BF16, FloatType::F16].into_iter().max_by_key(|&ty| count(ty));
    let wide = |w: &Weight| w.shape.len() == 2 && plain_dtype(w) == Some(DType::F64);
    match most.filter(|&ty| count(ty) > 0) {
        Some(ty) => ty,
        None if weights.iter().any(wide) => FloatType::F32,
        None => FloatType::F16,
    }
}

/// The type of a tensor that is not a matrix, for copying.
pub fn plain_dtype(weight: &Weight) -> Option<DType> {
    match &weight.values {
        Values::Tensor(t) => Some(t.dtype),
        Values::Matrix(m) => match m.storage() {
            Storage::Float(ty, _) => Some(DType::from(*ty)),
            Storage::Ggml(ty, _) => Some(DType::Ggml(*ty)),
            _ => None,
        },
    }
}
