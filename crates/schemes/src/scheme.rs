//! Names of schemes, and what each means.

use crate::{Error, FloatType, GgmlType};
use std::{fmt, str::FromStr};

/// Width of an integer code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bits {
    /// Codes in `[-7, 7]`.
    Four,
    /// Codes in `[-127, 127]`.
    Eight,
}

impl Bits {
    /// Bits of a code.
    pub fn width(self) -> u32 {
        match self {
            Bits::Four => 4,
            Bits::Eight => 8,
        }
    }

    /// The largest code, `2^(b-1) - 1`.
    pub fn qmax(self) -> i8 {
        match self {
            Bits::Four => 7,
            Bits::Eight => 127,
        }
    }
}

/// Weights that share one scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Grouping {
    /// The whole matrix.
    Tensor,
    /// Each output row.
    Row,
    /// Each run of so many consecutive weights of a row; the last of a row may be shorter.
    Group(usize),
}

impl Grouping {
    /// Scales in one row of `cols` weights (for [`Grouping::Tensor`] there is one in all: 0 here).
    pub fn per_row(self, cols: usize) -> usize {
        match self {
            Grouping::Tensor => 0,
            Grouping::Row => 1,
            Grouping::Group(n) => cols.div_ceil(n),
        }
    }

    /// Scales of a whole matrix; none when their number does not fit this machine, or groups are empty.
    pub fn checked_count(self, rows: usize, cols: usize) -> Option<usize> {
        match self {
            Grouping::Tensor => Some(1),
            Grouping::Group(0) => None,
            _ => rows.checked_mul(self.per_row(cols)),
        }
    }

    /// Scales of a whole matrix.
    pub fn count(self, rows: usize, cols: usize) -> usize {
        match self {
            Grouping::Tensor => 1,
            _ => rows * self.per_row(cols),
        }
    }
}

/// Treatment of the activations that a quantized matrix is multiplied with.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Activation {
    /// Nothing: full precision.
    #[default]
    Float,
    /// INT8, one scale (absmax/127) for each token.
    Int8Token,
    /// INT8, one scale (absmax/127) for all tokens of the call.
    Int8Tensor,
    /// INT8 with a scale fixed by calibration.
    Int8Static(f32),
}

/// Quantization scheme: how numbers become codes and scales, whatever the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// No quantization: values rounded to a float type.
    Float(FloatType),
    /// Symmetric integer codes.
    Int(Bits, Grouping),
    /// NormalFloat4, blocks of 64; `double_quant` stores the block scales in 8 bits.
    Nf4 {
        /// True if the scales are quantized themselves.
        double_quant: bool,
    },
    /// LLM.int8: calibrated outlier columns stay f16, the others are `int8-row`,
    /// multiplied with activations quantized per token.
    Int8Outlier,
    /// `int8-row` weights, multiplied with INT8 activations: one scale per token.
    W8A8Token,
    /// `int8-row` weights, INT8 activations with one scale per call.
    W8A8Tensor,
    /// `int8-row` weights, INT8 activations with a calibrated scale.
    W8A8Static,
    /// A ggml block type with its own way of choosing scales.
    Ggml(GgmlType),
}

impl Scheme {
    /// Every scheme that `--scheme all` and `sweep` stand for, best first.
    pub fn all() -> Vec<Scheme> {
        use {Bits::*, Grouping::*};
        vec![
            Scheme::Int(Eight, Row),
            Scheme::Int(Eight, Group(128)),
            Scheme::Int(Eight, Tensor),
            Scheme::Int8Outlier,
            Scheme::W8A8Token,
            Scheme::W8A8Tensor,
            Scheme::W8A8Static,
            Scheme::Nf4 { double_quant: false },
            Scheme::Nf4 { double_quant: true },
            Scheme::Int(Four, Group(32)),
            Scheme::Int(Four, Group(64)),
            Scheme::Int(Four, Group(128)),
            Scheme::Int(Four, Row),
            Scheme::Int(Four, Tensor),
        ]
    }

    /// Sentence on the schemes that `all` stands for, and on those that it leaves out.
    pub fn all_note() -> String {
        format!(
            "--scheme all stands for the {} schemes of every kind of code. Left out: ggml-* types, other group sizes \
             (int8-gN, int4-gN), mixtures (q4_k_m, ...) and floats; name them to have them.",
            Scheme::all().len()
        )
    }

    /// The schemes of some names, each once; `all` stands for [`Scheme::all`].
    ///
    /// # Errors
    /// What a name that is none is answered with.
    pub fn named<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Vec<Scheme>, Error> {
        let mut out: Vec<Scheme> = Vec::new();
        for name in names {
            let more = if name == "all" { Scheme::all() } else { vec![name.parse()?] };
            out.extend(more.into_iter().filter(|s| !out.contains(s)).collect::<Vec<_>>());
        }
        Ok(out)
    }

    /// Returns whether the inputs of a layer are quantized to 8 bits, too.
    pub fn quantizes_activations(self) -> bool {
        matches!(self, Scheme::Int8Outlier | Scheme::W8A8Token | Scheme::W8A8Tensor | Scheme::W8A8Static)
    }

    /// Returns whether encoding needs activation statistics.
    pub fn needs_calibration(self) -> bool {
        matches!(self, Scheme::Int8Outlier | Scheme::W8A8Static)
    }

    /// Bits of codes and scales over all weights of a `[rows, cols]` matrix, whatever the
    /// layout; `outlier_columns` of the columns stay f16. A single scale counts as nothing.
    pub fn total_bits(self, rows: usize, cols: usize, outlier_columns: usize, scale: FloatType) -> f64 {
        let weights = (rows * cols) as f64;
        let scale = 8.0 * scale.size() as f64;
        match self {
            Scheme::Float(ty) => 8.0 * ty.size() as f64 * weights,
            Scheme::Nf4 { double_quant: false } => 4.0 * weights + (weights / 64.0).ceil() * scale,
            Scheme::Nf4 { double_quant: true } => {
                let blocks = (weights / 64.0).ceil();
                4.0 * weights + 8.0 * blocks + 32.0 * (blocks / 256.0).ceil()
            }
            Scheme::Int8Outlier => 8.0 * weights + scale * rows as f64 + 8.0 * (rows * outlier_columns) as f64,
            Scheme::Ggml(ty) => weights / ty.block_len() as f64 * 8.0 * ty.block_bytes() as f64,
            _ => self.int().map_or(0.0, |(bits, grouping)| {
                f64::from(bits.width()) * weights + (rows * grouping.per_row(cols)) as f64 * scale
            }),
        }
    }

    /// The integer codes and grouping beneath the scheme, where it has such.
    pub fn int(self) -> Option<(Bits, Grouping)> {
        match self {
            Scheme::Int(bits, grouping) => Some((bits, grouping)),
            Scheme::W8A8Token | Scheme::W8A8Tensor | Scheme::W8A8Static => Some((Bits::Eight, Grouping::Row)),
            _ => None,
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scheme::Float(t) => t.fmt(f),
            Scheme::Int(b, Grouping::Tensor) => write!(f, "int{}-absmax", b.width()),
            Scheme::Int(b, Grouping::Row) => write!(f, "int{}-row", b.width()),
            Scheme::Int(b, Grouping::Group(n)) => write!(f, "int{}-g{n}", b.width()),
            Scheme::Nf4 { double_quant: false } => f.write_str("nf4"),
            Scheme::Nf4 { double_quant: true } => f.write_str("nf4-dq"),
            Scheme::Int8Outlier => f.write_str("int8-outlier"),
            Scheme::W8A8Token => f.write_str("w8a8-token"),
            Scheme::W8A8Tensor => f.write_str("w8a8-tensor"),
            Scheme::W8A8Static => f.write_str("w8a8-static"),
            Scheme::Ggml(t) => write!(f, "ggml-{t}"),
        }
    }
}

impl FromStr for Scheme {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        let unknown = || Error::UnknownScheme(s.to_string());
        if let Ok(t) = s.parse::<FloatType>() {
            return Ok(Scheme::Float(t));
        }
        if let Some(t) = s.strip_prefix("ggml-") {
            return t.parse().map(Scheme::Ggml).map_err(|_| unknown());
        }
        let fixed = match s {
            "nf4" => Some(Scheme::Nf4 { double_quant: false }),
            "nf4-dq" => Some(Scheme::Nf4 { double_quant: true }),
            "int8-outlier" => Some(Scheme::Int8Outlier),
            "w8a8-token" => Some(Scheme::W8A8Token),
            "w8a8-tensor" => Some(Scheme::W8A8Tensor),
            "w8a8-static" => Some(Scheme::W8A8Static),
            _ => None,
        };
        if let Some(scheme) = fixed {
            return Ok(scheme);
        }
        let (bits, rest) = match (s.strip_prefix("int8-"), s.strip_prefix("int4-")) {
            (Some(rest), _) => (Bits::Eight, rest),
            (_, Some(rest)) => (Bits::Four, rest),
            _ => return Err(unknown()),
        };
        let grouping = match rest {
            "absmax" => Grouping::Tensor,
            "row" => Grouping::Row,
            _ => {
                let digits = rest.strip_prefix('g').ok_or_else(unknown)?;
                let n: usize = digits.parse().map_err(|_| unknown())?;
                if n == 0 || n > 1 << 24 || digits.starts_with(['0', '+']) {
                    return Err(unknown());
                }
                Grouping::Group(n)
            }
        };
        Ok(Scheme::Int(bits, grouping))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        let mut names: Vec<String> = Scheme::all().iter().map(Scheme::to_string).collect();
        names.extend(["f16", "bf16", "f32", "int8-g96", "ggml-q8_0", "ggml-q4_0"].map(String::from));
        for name in names {
            assert_eq!(name.parse::<Scheme>().map(|s| s.to_string()), Ok(name));
        }
    }

    #[test]
    fn wrong_names_are_refused() {
        for name in ["", "int4", "int4-g0", "int4-g", "int4-g007", "int5-row", "int8-g-1", "ggml-q9", "NF4"] {
            assert!(name.parse::<Scheme>().is_err(), "{name}");
        }
    }
}
