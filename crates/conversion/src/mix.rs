//! Mixtures of ggml's types, as llama-quantize makes them: `q4_k_m` and its kin.
//!
//! A mixture gives each matrix of a GGUF file a type by its name and block. The rules are llama.cpp's for dense models
//! without an importance matrix (`src/llama-quant.cpp`: `llama_tensor_get_type_impl`, `tensor_type_fallback`).

use crate::{Error, Result};
use schemes::{FloatType, GgmlType, Scheme};
use std::fmt;
use std::str::FromStr;
use store::{Config, Family};

/// A mixture of ggml's types.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Mix {
    name: &'static str,
    base: GgmlType,
    file_type: u32,
}

/// Name, type of the matrices that no rule names, and llama.cpp's number.
const MIXES: [(&str, GgmlType, u32); 16] = [
    ("q2_k", GgmlType::Q2_K, 10),
    ("q3_k_s", GgmlType::Q3_K, 11),
    ("q3_k_m", GgmlType::Q3_K, 12),
    ("q3_k_l", GgmlType::Q3_K, 13),
    ("iq4_xs", GgmlType::IQ4_XS, 30),
    ("iq4_nl", GgmlType::IQ4_NL, 25),
    ("q4_0", GgmlType::Q4_0, 2),
    ("q4_1", GgmlType::Q4_1, 3),
    ("q4_k_s", GgmlType::Q4_K, 14),
    ("q4_k_m", GgmlType::Q4_K, 15),
    ("q5_0", GgmlType::Q5_0, 8),
    ("q5_1", GgmlType::Q5_1, 9),
    ("q5_k_s", GgmlType::Q5_K, 16),
    ("q5_k_m", GgmlType::Q5_K, 17),
    ("q6_k", GgmlType::Q6_K, 18),
    ("q8_0", GgmlType::Q8_0, 7),
];

impl Mix {
    /// The mixture of a name, in either case; none for another name.
    pub fn from_name(name: &str) -> Option<Self> {
        let found = MIXES.iter().find(|mix| mix.0.eq_ignore_ascii_case(name))?;
        Some(Mix { name: found.0, base: found.1, file_type: found.2 })
    }

    /// The names of all mixtures.
    pub fn names() -> impl Iterator<Item = &'static str> {
        MIXES.iter().map(|mix| mix.0)
    }

    /// The scheme of the matrices that no rule names.
    pub fn base(self) -> Scheme {
        Scheme::Ggml(self.base)
    }

    /// The value of GGUF's `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.file_type
    }

    /// The types of a model's matrices, given as GGUF name and row length.
    pub fn types<'a>(self, config: &Config, matrices: impl IntoIterator<Item = (&'a str, usize)>) -> Vec<MixedType> {
        let matrices: Vec<(&str, usize)> = matrices.into_iter().collect();
        let mut values: Vec<usize> =
            matrices.iter().filter(|m| m.0.ends_with("attn_v.weight")).filter_map(|m| block(m.0)).collect();
        values.sort_unstable();
        let model = Shape {
            config,
            is_tied: !matrices.iter().any(|m| m.0 == "output.weight"),
            value_blocks: values,
            is_70b: config.layers == 80
                && match config.family {
                    Family::Llama => config.heads != config.kv_heads,
                    Family::Qwen2 => true,
                    _ => false,
                },
        };
        matrices.iter().map(|&(name, cols)| self.type_of(name, cols, &model)).collect()
    }

    fn type_of(self, name: &str, cols: usize, model: &Shape<'_>) -> MixedType {
        if !is_quantized(name) {
            return MixedType::Kept;
        }
        let wanted = match () {
            () if name == "output.weight" || (model.is_tied && name == "token_embd.weight") => self.output_type(cols),
            () if name.ends_with("attn_v.weight") => self.value_type(name, model),
            () if name.ends_with("attn_output.weight") => self.attention_output_type(),
            () if name.contains("ffn_down") => self.down_type(block(name).unwrap_or(0), model.config.layers),
            () => self.base,
        };
        match fallback(wanted, cols) {
            ty if ty == Some(wanted) => MixedType::Ggml(wanted),
            Some(instead) => MixedType::Instead { wanted, instead },
            None => MixedType::F16 { wanted },
        }
    }

    /// The output projection's, and that of an embedding which stands for it.
    fn output_type(self, cols: usize) -> GgmlType {
        match self.base {
            base if !cols.is_multiple_of(base.block_len()) => GgmlType::Q8_0,
            GgmlType::Q8_0 => GgmlType::Q8_0,
            _ => GgmlType::Q6_K,
        }
    }

    fn value_type(self, name: &str, model: &Shape<'_>) -> GgmlType {
        let at = block(name).and_then(|block| model.value_blocks.binary_search(&block).ok()).unwrap_or(0);
        let is_grouped = model.config.heads / model.config.kv_heads.max(1) >= 4;
        let ty = match self.name {
            "q2_k" if is_grouped => GgmlType::Q4_K,
            "q2_k" => GgmlType::Q3_K,
            "q3_k_m" if at < 2 => GgmlType::Q5_K,
            "q3_k_m" => GgmlType::Q4_K,
            "q3_k_l" => GgmlType::Q5_K,
            "iq4_nl" | "iq4_xs" if is_grouped => GgmlType::Q5_K,
            "q4_k_m" | "q5_k_m" if has_more_bits(at, model.value_blocks.len()) => GgmlType::Q6_K,
            "q4_k_s" if at < 4 => GgmlType::Q5_K,
            _ => self.base,
        };
        // 70B models have few of these weights.
        if model.is_70b && matches!(ty, GgmlType::Q3_K | GgmlType::Q4_K) { GgmlType::Q5_K } else { ty }
    }

    fn attention_output_type(self) -> GgmlType {
        match self.name {
            "q2_k" => GgmlType::Q3_K,
            "q3_k_m" => GgmlType::Q4_K,
            "q3_k_l" => GgmlType::Q5_K,
            _ => self.base,
        }
    }

    fn down_type(self, block: usize, blocks: usize) -> GgmlType {
        let is_early = block < blocks / 8;
        match self.name {
            "q2_k" => GgmlType::Q3_K,
            "q3_k_m" if block < blocks / 16 => GgmlType::Q5_K,
            "q3_k_m" => GgmlType::Q4_K,
            "q3_k_l" => GgmlType::Q5_K,
            "q4_k_m" | "q5_k_m" if has_more_bits(block, blocks) => GgmlType::Q6_K,
            "iq4_nl" | "iq4_xs" | "q4_k_s" if is_early => GgmlType::Q5_K,
            _ => self.base,
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// A matrix's type in a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixedType {
    /// As it is stored.
    Kept,
    /// The type.
    Ggml(GgmlType),
    /// The type of smaller blocks that stands in for one whose blocks don't divide the rows.
    Instead {
        /// The type that the rule names.
        wanted: GgmlType,
        /// The type that it gets.
        instead: GgmlType,
    },
    /// F16: no blocks divide the rows.
    F16 {
        /// The type that the rule names.
        wanted: GgmlType,
    },
}

impl MixedType {
    /// The scheme of the matrix; none where it stays as it is.
    pub fn scheme(self) -> Option<Scheme> {
        match self {
            MixedType::Kept => None,
            MixedType::Ggml(ty) | MixedType::Instead { instead: ty, .. } => Some(Scheme::Ggml(ty)),
            MixedType::F16 { .. } => Some(Scheme::Float(FloatType::F16)),
        }
    }
}

/// Properties of a model that the rules depend on.
struct Shape<'a> {
    config: &'a Config,
    is_tied: bool,
    /// Blocks that have a value projection, rising.
    value_blocks: Vec<usize>,
    is_70b: bool,
}

/// Returns whether llama-quantize quantizes matrices of this name.
fn is_quantized(name: &str) -> bool {
    name.ends_with("weight") && !name.contains("_norm.weight") && !name.contains("ffn_gate_inp.weight")
}

/// The first and last eighth of `count` blocks, and every third between.
fn has_more_bits(at: usize, count: usize) -> bool {
    at < count / 8 || at >= 7 * count / 8 || (at - count / 8) % 3 == 2
}

/// The type for rows of `cols` values: `wanted`, else one of blocks of 32; none where these don't fit either.
fn fallback(wanted: GgmlType, cols: usize) -> Option<GgmlType> {
    let fits = |ty: &GgmlType| cols.is_multiple_of(ty.block_len());
    let instead = match wanted {
        ty if fits(&ty) => return Some(ty),
        GgmlType::IQ4_XS => GgmlType::IQ4_NL,
        GgmlType::Q2_K | GgmlType::Q3_K => GgmlType::Q4_0,
        GgmlType::Q4_K => GgmlType::Q5_0,
        GgmlType::Q5_K => GgmlType::Q5_1,
        GgmlType::Q6_K => GgmlType::Q8_0,
        ty => ty,
    };
    Some(instead).filter(fits)
}

/// The block that a tensor's GGUF name tells.
fn block(name: &str) -> Option<usize> {
    name.strip_prefix("blk.")?.split_once('.')?.0.parse().ok()
}

/// A requested quantization: one scheme for the projections, or a mixture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice {
    /// The scheme of weights that no rule names.
    pub scheme: Scheme,
    /// The mixture.
    pub mix: Option<Mix>,
}

impl Choice {
    /// The schemes and mixtures of some names, each once; `all` stands for [`Scheme::all`].
    ///
    /// # Errors
    /// What a name that is none is answered with.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Self>> {
        let mut out: Vec<Self> = Vec::new();
        for name in names {
            let more =
                if name == "all" { Scheme::all().into_iter().map(Self::from).collect() } else { vec![name.parse()?] };
            out.extend(more.into_iter().filter(|choice| !out.contains(choice)).collect::<Vec<Self>>());
        }
        Ok(out)
    }
}

impl From<Scheme> for Choice {
    fn from(scheme: Scheme) -> Self {
        Choice { scheme, mix: None }
    }
}

impl FromStr for Choice {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        if let Some(mix) = Mix::from_name(name) {
            return Ok(Choice { scheme: mix.base(), mix: Some(mix) });
        }
        let unknown = |e: schemes::Error| {
            let mixtures: Vec<&str> = Mix::names().collect();
            Error::Request(format!("{e}; and llama-quantize's mixtures {}", mixtures.join(", ")))
        };
        Ok(name.parse::<Scheme>().map_err(unknown)?.into())
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.mix {
            Some(mix) => mix.fmt(f),
            None => self.scheme.fmt(f),
        }
    }
}

#[cfg(test)]
#[path = "mix_tests.rs"]
mod tests;
