//! GPTQ's and AWQ's layouts: 32-bit words of codes, packed across the other dimension than ours.
//!
//! Both have `P.qweight`, `P.qzeros` and `P.scales` with input features first. They are turned
//! into rows when the layer is opened, as large as they were: kernels then read them like any other
//! integer codes. Layouts as GPTQModel 7.7, AutoGPTQ 0.7 and AutoAWQ 0.2 write them.

use super::{Codes, Described, Form, Site, gptq_config};
use crate::{Bytes, DType, Result};
use gptq_config::{Kind, Said, ZeroPoints};
use schemes::{
    Activation, AffineStorage, FloatType, Grouping, IntStorage, Matrix, Packing, RowOrder, ScaleArray, ScaleUse,
    Storage,
};

/// Nibble of an AWQ word that holds each of its eight outputs.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// A layer that has been checked and not yet turned into rows.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Output and input features.
    pub shape: (usize, usize),
    said: Said,
    grouping: Grouping,
    /// Scales of one row.
    groups: usize,
    /// The group of each column, where columns are grouped in another order than their own.
    order: Option<Vec<u32>>,
    /// True if all zero points are the middle of the codes, or absent.
    symmetric: bool,
    scale: FloatType,
}

/// Describes a module: sizes of all tensors are checked against each other, nothing is turned.
pub(super) fn describe(site: Site<'_>) -> Result<Described> {
    let said = gptq_config::of_module(site)?;
    site.typed(".qweight", &[DType::I32])?;
    let shape = shape(site, &said)?;
    let scale = site.scales(".scales", ScaleUse::Multiply)?.ty;
    let (groups, across) = site.sides(".scales")?;
    if across != shape.0 || groups == 0 {
        return Err(site.bad(".scales", format!("[{groups}, {across}] does not suit {} output features", shape.0)));
    }
    let zeros_symmetric = zeros_are_middles(site, &said, shape.0, groups)?;
    let mut used = vec![".qweight", ".scales", ".qzeros"];
    let order = match site.tensor(".g_idx") {
        Some(_) => {
            used.push(".g_idx");
            order(site, shape.1, groups)?.filter(|_| groups > 1)
        }
        None if groups > 1 && said.ordered => {
            return Err(site.bad(".g_idx", "is missing, and config.json says desc_act"));
        }
        None => None,
    };
    let grouping = grouping(site, &said, shape.1, groups, order.is_some())?;
    let symmetric = zeros_symmetric && order.is_none();
    let plan = Plan { shape, said, grouping, groups, order, symmetric, scale };
    Ok(Described { form: Form::Gptq(Box::new(plan)), activation: Activation::Float, used })
}

/// Output and input features.
fn shape(site: Site<'_>, said: &Said) -> Result<(usize, usize)> {
    let (down, across) = site.sides(".qweight")?;
    let many = |n: usize| n.checked_mul(32 / said.bits);
    let shape = match said.kind {
        Kind::Gptq => many(down).map(|cols| (across, cols)),
        Kind::Awq => many(across).map(|rows| (rows, down)),
    };
    shape
        .filter(|(rows, cols)| rows.checked_mul(*cols).is_some_and(|n| n.checked_mul(said.bits).is_some()))
        .ok_or_else(|| site.bad(".qweight", "its shape is too large"))
}

impl Plan {
    /// Bytes of codes and scales, once opened.
    pub fn packed_bytes(&self) -> usize {
        let (rows, cols) = self.shape;
        let codes = rows * (cols * self.said.bits / 8);
        let scales = rows * self.groups;
        let zeros = if self.symmetric { 0 } else { 2 * scales };
        codes + self.scale.size() * scales + zeros + self.order.as_ref().map_or(0, |g| 4 * g.len())
    }

    /// Codes of the matrix, and the type of the scales.
    pub fn codes(&self) -> (Codes, Option<FloatType>) {
        let bits = self.packing().bits();
        let codes = match self.symmetric {
            true => Codes::Int(bits, self.grouping),
            false => Codes::Affine { bits, grouping: self.grouping, ordered: self.order.is_some() },
        };
        (codes, Some(self.scale))
    }

    fn packing(&self) -> Packing {
        if self.said.bits == 4 { Packing::Nibble } else { Packing::Offset8 }
    }

    /// Turns words into rows.
    pub fn open(self, site: Site<'_>) -> Result<Matrix<Bytes>> {
        let words = Words::read(site, ".qweight")?;
        let codes = Bytes::from(match self.said.kind {
            Kind::Gptq => gptq_rows(&words, self.shape, self.said.bits),
            Kind::Awq => awq_rows(&words, self.shape),
        });
        let int = IntStorage {
            packing: self.packing(),
            row_bytes: self.shape.1 * self.said.bits / 8,
            codes,
            grouping: self.grouping,
            scales: scales(site, self.shape.0, self.groups)?,
        };
        let storage = if self.symmetric {
            Storage::Int(int)
        } else {
            let zeros = zeros(site, &self.said, self.shape.0, self.groups)?;
            Storage::Affine(AffineStorage { int, zeros, groups: self.order })
        };
        site.matrix(".qweight", self.shape, storage, RowOrder::Natural)
    }
}

/// A tensor of 32-bit words.
struct Words<'a> {
    data: &'a [u8],
    across: usize,
}

impl<'a> Words<'a> {
    fn read(site: Site<'a>, suffix: &str) -> Result<Self> {
        let across = site.sides(suffix)?.1;
        Ok(Words { data: &site.typed(suffix, &[DType::I32])?.data, across })
    }

    fn get(&self, down: usize, across: usize) -> u32 {
        let at = 4 * (down * self.across + across);
        let d = self.data;
        u32::from_le_bytes([d[at], d[at + 1], d[at + 2], d[at + 3]])
    }
}

/// Rows of bytes: a word of GPTQ holds consecutive columns of one row, low bits first, as a row's
/// bytes do.
fn gptq_rows(words: &Words<'_>, (rows, cols): (usize, usize), bits: usize) -> Vec<u8> {
    let width = cols * bits / 8;
    let mut out = vec![0u8; rows * width];
    for down in 0..width / 4 {
        for (row, bytes) in out.chunks_exact_mut(width).enumerate() {
            bytes[4 * down..4 * down + 4].copy_from_slice(&words.get(down, row).to_le_bytes());
        }
    }
    out
}

/// Rows of bytes from words of eight rows each.
fn awq_rows(words: &Words<'_>, (rows, cols): (usize, usize)) -> Vec<u8> {
    let width = cols.div_ceil(2);
    let mut out = vec![0u8; rows * width];
    for col in 0..cols {
        for block in 0..rows / 8 {
            let word = words.get(col, block);
            for (nibble, row) in AWQ_ORDER.into_iter().enumerate() {
                let code = (word >> (4 * nibble) & 15) as u8;
                out[(8 * block + row) * width + col / 2] |= code << (4 * (col % 2));
            }
        }
    }
    out
}

/// Scales with one row's side by side.
fn scales(site: Site<'_>, rows: usize, groups: usize) -> Result<ScaleArray<Bytes>> {
    let found = site.scales(".scales", ScaleUse::Multiply)?;
    let size = found.ty.size();
    let mut data = Vec::with_capacity(found.data.len());
    for row in 0..rows {
        for group in 0..groups {
            let at = (group * rows + row) * size;
            data.extend_from_slice(&found.data[at..at + size]);
        }
    }
    Ok(ScaleArray { data: Bytes::from(data), ..found })
}

/// Checks the shape of the zero points, and whether all are the middle of the codes.
fn zeros_are_middles(site: Site<'_>, said: &Said, rows: usize, groups: usize) -> Result<bool> {
    if site.tensor(".qzeros").is_none() {
        if !said.symmetric {
            return Err(site.bad(".qzeros", "is missing, and config.json doesn't say that the codes are symmetric"));
        }
        return Ok(true);
    }
    let words = Words::read(site, ".qzeros")?;
    let (down, across) = site.sides(".qzeros")?;
    if down != groups || across != rows.div_ceil(32 / said.bits) {
        let what = format!("[{down}, {across}] words do not hold {groups} x {rows} zero points of {} bits", said.bits);
        return Err(site.bad(".qzeros", what));
    }
    Ok((0..groups).all(|group| (0..rows).all(|row| zero(&words, said, row, group) == 0)))
}

/// Zero points with one row's side by side, less the offset that the codes carry.
fn zeros(site: Site<'_>, said: &Said, rows: usize, groups: usize) -> Result<Vec<i16>> {
    if site.tensor(".qzeros").is_none() {
        return Ok(vec![0; rows * groups]);
    }
    let words = Words::read(site, ".qzeros")?;
    Ok((0..rows).flat_map(|row| (0..groups).map(move |g| (row, g))).map(|(r, g)| zero(&words, said, r, g)).collect())
}

/// One zero point, less the middle of the codes.
///
/// GPTQ's first format stores zero points less one. AutoGPTQ, ExLlama and vLLM add one to each and keep the bits of a
/// code, so that the largest code stands for 0. GPTQModel subtracts and adds one in all fields of a word at once, so
/// that in its own checkpoints a zero point of 0 borrows from the next.
fn zero(words: &Words<'_>, said: &Said, row: usize, group: usize) -> i16 {
    let (bits, per_word) = (said.bits, 32 / said.bits);
    let mask = (1u32 << bits) - 1;
    let field = match said.kind {
        Kind::Gptq => row % per_word,
        Kind::Awq => AWQ_ORDER.iter().position(|r| *r == row % 8).unwrap_or(0),
    };
    let word = words.get(group, row / per_word);
    let code = match said.zeros {
        ZeroPoints::AsStored => word >> (bits * field) & mask,
        ZeroPoints::LessOne => ((word >> (bits * field) & mask) + 1) & mask,
        // All ones divided by the largest code: a one in each field.
        ZeroPoints::LessOneInWords => word.wrapping_add(u32::MAX / mask) >> (bits * field) & mask,
    };
    code as i16 - (1i16 << (bits - 1))
}

/// The groups of columns; none where they are in order.
fn order(site: Site<'_>, cols: usize, groups: usize) -> Result<Option<Vec<u32>>> {
    let tensor = site.typed(".g_idx", &[DType::I32])?;
    let found: Vec<u32> = tensor.data.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    if found.len() != cols {
        return Err(site.bad(".g_idx", format!("{} groups for {cols} columns", found.len())));
    }
    if let Some(g) = found.iter().find(|g| **g as usize >= groups) {
        return Err(site.bad(".g_idx", format!("group {g} of {groups}")));
    }
    let size = cols.div_ceil(groups).max(1);
    let in_order = found.iter().enumerate().all(|(c, g)| *g as usize == c / size);
    Ok((!in_order).then_some(found))
}

/// The group size, as the number of scales tells it.
fn grouping(site: Site<'_>, said: &Said, cols: usize, groups: usize, ordered: bool) -> Result<Grouping> {
    let size = said.group_size.unwrap_or_else(|| cols.div_ceil(groups));
    if groups == 1 && !ordered {
        return Ok(Grouping::Row);
    }
    if size == 0 || cols.div_ceil(size) != groups {
        return Err(
            site.bad(".scales", format!("{groups} scales a row do not suit {cols} columns in groups of {size}"))
        );
    }
    Ok(Grouping::Group(size))
}
