//! The ggml tensor types: one table of names and block sizes.

use crate::Error;
use std::{fmt, str::FromStr};

/// A ggml tensor type that is known by name and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GgmlType(u8);

struct Info {
    name: &'static str,
    block_len: usize,
    block_bytes: usize,
}

const fn info(name: &'static str, block_len: usize, block_bytes: usize) -> Option<Info> {
    Some(Info { name, block_len, block_bytes })
}

/// By number in GGUF files. The gaps are types that were withdrawn.
static TABLE: [Option<Info>; 43] = [
    info("f32", 1, 4),
    info("f16", 1, 2),
    info("q4_0", 32, 18),
    info("q4_1", 32, 20),
    None,
    None,
    info("q5_0", 32, 22),
    info("q5_1", 32, 24),
    info("q8_0", 32, 34),
    info("q8_1", 32, 36),
    info("q2_k", 256, 84),
    info("q3_k", 256, 110),
    info("q4_k", 256, 144),
    info("q5_k", 256, 176),
    info("q6_k", 256, 210),
    info("q8_k", 256, 292),
    info("iq2_xxs", 256, 66),
    info("iq2_xs", 256, 74),
    info("iq3_xxs", 256, 98),
    info("iq1_s", 256, 50),
    info("iq4_nl", 32, 18),
    info("iq3_s", 256, 110),
    info("iq2_s", 256, 82),
    info("iq4_xs", 256, 136),
    info("i8", 1, 1),
    info("i16", 1, 2),
    info("i32", 1, 4),
    info("i64", 1, 8),
    info("f64", 1, 8),
    info("iq1_m", 256, 56),
    info("bf16", 1, 2),
    None,
    None,
    None,
    info("tq1_0", 256, 54),
    info("tq2_0", 256, 66),
    None,
    None,
    None,
    info("mxfp4", 32, 17),
    info("nvfp4", 64, 36),
    info("q1_0", 128, 18),
    info("q2_0", 64, 18),
];

macro_rules! constants {
    ($($name:ident = $id:literal),* $(,)?) => {
        #[allow(missing_docs)]
        impl GgmlType {
            $(pub const $name: GgmlType = GgmlType($id);)*
        }
    };
}

constants! {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q8_1 = 9,
    Q2_K = 10, Q3_K = 11, Q4_K = 12, Q5_K = 13, Q6_K = 14, Q8_K = 15,
    IQ2_XXS = 16, IQ2_XS = 17, IQ3_XXS = 18, IQ1_S = 19, IQ4_NL = 20, IQ3_S = 21, IQ2_S = 22, IQ4_XS = 23,
    I8 = 24, I16 = 25, I32 = 26, I64 = 27, F64 = 28, IQ1_M = 29, BF16 = 30,
    TQ1_0 = 34, TQ2_0 = 35, MXFP4 = 39, NVFP4 = 40, Q1_0 = 41, Q2_0 = 42,
}

impl GgmlType {
    /// Every known type, by number.
    pub fn all() -> impl Iterator<Item = GgmlType> {
        (0..TABLE.len() as u32).filter_map(GgmlType::from_id)
    }

    /// The type with this number in GGUF files; none when unknown or withdrawn.
    pub fn from_id(id: u32) -> Option<Self> {
        TABLE.get(id as usize)?.as_ref()?;
        Some(GgmlType(id as u8))
    }

    /// The number in GGUF files.
    pub fn id(self) -> u32 {
        u32::from(self.0)
    }

    /// The lower-case name, such as `q4_0`.
    pub fn name(self) -> &'static str {
        self.info().0
    }

    /// Weights of one block.
    pub fn block_len(self) -> usize {
        self.info().1
    }

    /// Bytes of one block.
    pub fn block_bytes(self) -> usize {
        self.info().2
    }

    /// Returns whether [`super::decode`] knows the type.
    pub fn is_decodable(self) -> bool {
        super::decoder(self).is_some()
    }

    /// Returns whether [`super::encode_rows`] knows the type.
    pub fn is_encodable(self) -> bool {
        super::is_encodable(self)
    }

    /// Bytes of a row of `cols` weights; none when the block doesn't divide it, or on overflow.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        if !cols.is_multiple_of(self.block_len()) {
            return None;
        }
        (cols / self.block_len()).checked_mul(self.block_bytes())
    }

    fn info(self) -> (&'static str, usize, usize) {
        // Values of this type are made from filled entries of the table only.
        match &TABLE[usize::from(self.0)] {
            Some(i) => (i.name, i.block_len, i.block_bytes),
            None => ("unknown", 1, 1),
        }
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for GgmlType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        GgmlType::all().find(|t| t.name() == s).ok_or_else(|| Error::UnsupportedGgml(s.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_numbers_and_constants_agree() {
        for t in GgmlType::all() {
            assert_eq!(t.to_string().parse(), Ok(t));
            assert_eq!(GgmlType::from_id(t.id()), Some(t));
            assert!(t.block_len().is_power_of_two() && t.block_bytes() > 0);
        }
        for (t, name) in [
            (GgmlType::BF16, "bf16"),
            (GgmlType::Q8_0, "q8_0"),
            (GgmlType::Q6_K, "q6_k"),
            (GgmlType::IQ4_NL, "iq4_nl"),
            (GgmlType::IQ1_M, "iq1_m"),
            (GgmlType::MXFP4, "mxfp4"),
            (GgmlType::Q2_0, "q2_0"),
        ] {
            assert_eq!(t.name(), name);
        }
        assert_eq!(GgmlType::all().count(), 35);
    }

    #[test]
    fn unknown_ones_are_refused() {
        for id in [4, 5, 31, 36, 43, 255, 256, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None, "{id}");
        }
        assert!("Q8_0".parse::<GgmlType>().is_err() && "".parse::<GgmlType>().is_err());
        assert!(!GgmlType::Q8_1.is_decodable() && GgmlType::Q4_K.is_decodable());
    }

    #[test]
    fn rows_are_whole_blocks() {
        assert_eq!(GgmlType::Q8_0.row_bytes(576), Some(18 * 34));
        assert_eq!(GgmlType::Q4_K.row_bytes(576), None);
        assert_eq!(GgmlType::F64.row_bytes(usize::MAX), None);
    }
}
