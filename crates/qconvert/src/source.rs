//! The logical weights of a model, whatever layout they are stored in.

use crate::roles::{Role, Roles, Stored};
use crate::{Error, Result};
use schemes::{FloatType, Matrix, Storage};
use store::{Bytes, DType, Model, Tensor};

/// Suffixes of tensors that only serve a quantized weight, with the suffix of that weight's
/// main tensor beside them.
const SERVANTS: [(&str, &[&str]); 24] = [
    (".weight_scale", &[".weight_packed", ".weight"]),
    (".weight_shape", &[".weight_packed"]),
    (".weight_scale_inv", &[".weight"]),
    (".weight_zero_point", &[".weight_packed", ".weight"]),
    (".weight_g_idx", &[".weight_packed", ".weight"]),
    (".input_scale", &[".weight_packed", ".weight"]),
    (".scales", &[".qweight"]),
    (".qzeros", &[".qweight"]),
    (".g_idx", &[".qweight"]),
    (".weight.absmax", &[".weight.codes", ".weight"]),
    (".weight.quant_map", &[".weight"]),
    (".weight.nested_absmax", &[".weight.codes", ".weight"]),
    (".weight.nested_quant_map", &[".weight"]),
    (".weight.quant_state.bitsandbytes__nf4", &[".weight"]),
    (".weight.quant_state.bitsandbytes__fp4", &[".weight"]),
    (".SCB", &[".weight"]),
    (".weight_format", &[".weight"]),
    (".weight.scales", &[".weight.codes"]),
    (".weight.absmax_codes", &[".weight.codes"]),
    (".weight.nested_map", &[".weight.codes"]),
    (".weight.nested_offset", &[".weight.codes"]),
    (".weight.outlier_columns", &[".weight.codes"]),
    (".weight.outliers", &[".weight.codes"]),
    ("rope_freqs.weight", &[""]),
];

/// Where a weight's values come from.
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
    /// Whether it is the output projection too: the embedding of a model that stores no `lm_head`.
    pub tied: bool,
    /// What it does in the model.
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

    /// Whether it is a matrix `[out, in]` of a Linear: what can be quantized.
    pub fn is_matrix(&self) -> bool {
        self.shape.len() == 2 && self.name.ends_with(".weight") && self.role != Role::Transposed && self.is_float()
    }

    /// Whether its values are numbers of any float type or layout, which can be converted.
    fn is_float(&self) -> bool {
        match &self.values {
            Values::Matrix(_) => true,
            Values::Tensor(t) => t.dtype.float().is_some() || t.dtype == DType::F64,
        }
    }

    /// Whether it is a linear projection of a text block: what is quantized by default.
    pub fn is_block_projection(&self) -> bool {
        self.role.is_quantized_by_default() && self.is_matrix()
    }

    /// Whether it is a table of embeddings and no linear layer.
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
            },
        }
    }
}

/// The weights of a model, and what was left out of them.
#[derive(Debug, Clone, Default)]
pub struct Listed {
    /// The logical weights in the model's order.
    pub weights: Vec<Weight>,
    /// Stored buffers that loaders compute for themselves.
    pub buffers: Vec<String>,
}

/// Lists the logical weights in the model's order.
///
/// # Errors
/// When a weight's layout is not understood.
pub fn weights(model: &Model) -> Result<Listed> {
    let mut listed = Listed::default();
    let out = &mut listed.weights;
    for (name, tensor) in &model.tensors {
        if is_servant(model, name) {
            continue;
        }
        if is_buffer(name, tensor) {
            listed.buffers.push(name.clone());
            continue;
        }
        let main = [".weight_packed", ".weight.codes", ".qweight"].iter().find_map(|s| name.strip_suffix(s));
        let module = main.or_else(|| name.strip_suffix(".weight"));
        // No packed form holds F64: such a matrix is converted like any other tensor.
        let quantized = main.is_some() || !(tensor.dtype.float().is_some() || tensor.dtype == DType::F64);
        let weight = match module {
            Some(module) if quantized || tensor.shape.len() == 2 && tensor.dtype != DType::F64 => {
                let matrix = if quantized { model.linear(module)?.matrix } else { plain_matrix(model, name, tensor)? };
                let float = match matrix.storage() {
                    Storage::Float(ty, _) => Some(*ty),
                    _ => None,
                };
                let shape = vec![matrix.rows(), matrix.cols()];
                Weight {
                    name: format!("{module}.weight"),
                    shape,
                    float,
                    values: Values::Matrix(matrix),
                    main: name.clone(),
                    tied: false,
                    role: Role::Other,
                }
            }
            _ => Weight {
                name: name.clone(),
                shape: tensor.shape.clone(),
                float: tensor.dtype.float(),
                values: Values::Tensor(tensor.clone()),
                main: name.clone(),
                tied: false,
                role: Role::Other,
            },
        };
        out.push(weight);
    }
    assign_roles(out, model.config_json.as_ref());
    if out.is_empty() {
        return Err(Error::Request(format!("{}: holds no tensors", model.path.display())));
    }
    Ok(listed)
}

/// A float matrix as stored. (A Linear's bias is not looked at: that of a Conv1D has another length.)
fn plain_matrix(model: &Model, name: &str, tensor: &Tensor) -> Result<Matrix<Bytes>> {
    let bad = |what: String| store::Error::tensor(&model.path, name, what);
    let (&[rows, cols], Some(ty)) = (&tensor.shape[..], tensor.dtype.float()) else {
        return Err(bad("is no float matrix".into()).into());
    };
    let storage = Storage::Float(ty, tensor.data.clone());
    Ok(Matrix::new(rows, cols, storage, tensor.order).map_err(|e| bad(e.to_string()))?)
}

fn assign_roles(weights: &mut [Weight], config: Option<&serde_json::Value>) {
    let stored: Vec<Stored<'_>> = weights.iter().map(|w| Stored { name: &w.name, shape: &w.shape }).collect();
    let roles = Roles::new(&stored, config);
    let found: Vec<Role> = stored.iter().map(|t| roles.of(t.name, t.shape)).collect();
    weights.iter_mut().zip(found).for_each(|(weight, role)| weight.role = role);
}

/// Buffers that older checkpoints store and every loader computes for itself: rotary
/// frequencies, and causal masks, which have no feature dimension and so can't be biases.
fn is_buffer(name: &str, tensor: &Tensor) -> bool {
    let attention = [".attn", ".self_attn", ".attention", ".self_attention"];
    let of_attention =
        |last: &str| name.strip_suffix(last).is_some_and(|module| attention.iter().any(|a| module.ends_with(a)));
    name.ends_with("rotary_emb.inv_freq")
        || of_attention(".masked_bias")
        || (of_attention(".bias") && tensor.shape.len() == 4)
}

fn is_servant(model: &Model, name: &str) -> bool {
    SERVANTS.iter().any(|(suffix, mains)| {
        name.strip_suffix(suffix)
            .is_some_and(|base| mains.iter().any(|m| m.is_empty() || model.tensors.contains_key(&format!("{base}{m}"))))
    })
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
