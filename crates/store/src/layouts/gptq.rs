//! GPTQ's and AWQ's layouts: 32-bit words of codes, packed across the other dimension than ours.
//!
//! Both have `P.qweight`, `P.qzeros` and `P.scales` with input features first. They are turned
//! into rows when the layer is made, as large as they were: kernels then read them like any other
//! integer codes. Layouts as GPTQModel 7.7, AutoGPTQ 0.7 and AutoAWQ 0.2 write them.

use super::{Site, quantization};
use crate::{Bytes, DType, Error, Model, Result, json::shown};
use schemes::{AffineStorage, Grouping, IntStorage, Matrix, Packing, RowOrder, ScaleArray, ScaleUse, Storage};
use serde_json::{Map, Value};

/// Which nibble of an AWQ word holds which of its eight outputs.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// Which of the two layouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Words along the input features.
    Gptq,
    /// Words along the output features, their nibbles interleaved.
    Awq,
}

/// What config.json says of all layers.
struct Said {
    kind: Kind,
    bits: usize,
    /// What is added to a stored zero point: GPTQ's first format stores one less.
    zero_offset: i16,
    /// Whether zero points may be absent: all are the middle of the codes.
    symmetric: bool,
    /// Whether columns are in groups in another order than their own.
    ordered: bool,
}

/// Refuses what would change every weight if it were ignored.
pub(super) fn check_config(model: &Model, config: &Map<String, Value>) -> Result<()> {
    said(model, config).map(|_| ())
}

fn said(model: &Model, config: &Map<String, Value>) -> Result<Said> {
    let refuse = |what: String| Error::unsupported(&model.path, what);
    let text = |key: &str| config.get(key).and_then(Value::as_str);
    let flag = |key: &str, default: bool| config.get(key).and_then(Value::as_bool).unwrap_or(default);
    let bits = config.get("bits").or_else(|| config.get("w_bit")).and_then(Value::as_u64).unwrap_or(4);
    if text("quant_method") == Some("awq") {
        match text("version").map(str::to_ascii_lowercase).as_deref() {
            None | Some("gemm") => {}
            Some(other) => {
                return Err(refuse(format!("AWQ's version '{}' is not supported; gemm is", shown(other))));
            }
        }
        if bits != 4 {
            return Err(refuse(format!("AWQ with {bits} bits is not supported; 4 are")));
        }
        let symmetric = !flag("zero_point", true);
        return Ok(Said { kind: Kind::Awq, bits: 4, zero_offset: 0, symmetric, ordered: false });
    }
    if bits != 4 && bits != 8 {
        return Err(refuse(format!("GPTQ with {bits} bits is not supported; 4 and 8 are")));
    }
    let zero_offset = match text("checkpoint_format").or_else(|| text("format")) {
        None | Some("gptq") => 1,
        Some("gptq_v2") => 0,
        Some(other) => {
            let other = shown(other);
            return Err(refuse(format!("GPTQ's format '{other}' is not supported; gptq and gptq_v2 are")));
        }
    };
    let (symmetric, ordered) = (flag("sym", true), flag("desc_act", false));
    Ok(Said { kind: Kind::Gptq, bits: bits as usize, zero_offset, symmetric, ordered })
}

fn layout(site: Site<'_>) -> Result<Said> {
    let config = quantization(site.model).ok_or_else(|| {
        site.bad(".qweight", "config.json has no quantization_config: GPTQ or AWQ can't be told apart")
    })?;
    said(site.model, config)
}

/// Output and input features.
pub(super) fn shape(site: Site<'_>) -> Result<(usize, usize)> {
    let said = layout(site)?;
    let (down, across) = site.sides(".qweight")?;
    let per_word = 32 / said.bits;
    let many = |n: usize| n.checked_mul(per_word).ok_or_else(|| site.bad(".qweight", "its shape is too large"));
    Ok(match said.kind {
        Kind::Gptq => (across, many(down)?),
        Kind::Awq => (many(across)?, down),
    })
}

/// The matrix of a module.
pub(super) fn matrix(site: Site<'_>) -> Result<Matrix<Bytes>> {
    let said = layout(site)?;
    let shape = shape(site)?;
    let words = Words::of(site, ".qweight")?;
    let mut int = IntStorage {
        packing: if said.bits == 4 { Packing::Nibble } else { Packing::Offset8 },
        row_bytes: shape.1 * said.bits / 8,
        codes: Bytes::from(Vec::new()),
        grouping: Grouping::Row,
        scales: scales(site, shape.0)?,
    };
    let groups = site.sides(".scales")?.0;
    let zeros = zeros(site, &said, shape.0, groups)?;
    let order = match site.tensor(".g_idx") {
        Some(_) if groups > 1 => order(site, shape.1, groups)?,
        None if groups > 1 && said.ordered => {
            return Err(site.bad(".g_idx", "is missing, and config.json says desc_act"));
        }
        _ => None,
    };
    int.grouping = grouping(site, shape.1, groups, order.is_some())?;
    int.codes = Bytes::from(match said.kind {
        Kind::Gptq => gptq_rows(&words, shape, said.bits),
        Kind::Awq => awq_rows(&words, shape),
    });
    let symmetric = zeros.iter().all(|z| *z == 0) && order.is_none();
    let storage =
        if symmetric { Storage::Int(int) } else { Storage::Affine(AffineStorage { int, zeros, groups: order }) };
    site.matrix(".qweight", shape, storage, RowOrder::Natural)
}

/// A tensor of 32-bit words.
struct Words<'a> {
    data: &'a [u8],
    across: usize,
}

impl<'a> Words<'a> {
    fn of(site: Site<'a>, suffix: &str) -> Result<Self> {
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
    if width == 0 {
        return out;
    }
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
fn scales(site: Site<'_>, rows: usize) -> Result<ScaleArray<Bytes>> {
    let found = site.scales(".scales", ScaleUse::Multiply)?;
    let (groups, across) = site.sides(".scales")?;
    if across != rows || groups == 0 {
        return Err(site.bad(".scales", format!("[{groups}, {across}] does not suit {rows} output features")));
    }
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

/// Zero points with one row's side by side, less the offset that the codes carry.
fn zeros(site: Site<'_>, said: &Said, rows: usize, groups: usize) -> Result<Vec<i16>> {
    let middle = 1i16 << (said.bits - 1);
    if site.tensor(".qzeros").is_none() {
        if !said.symmetric {
            return Err(site.bad(".qzeros", "is missing, and config.json doesn't say that the codes are symmetric"));
        }
        return Ok(vec![0; rows * groups]);
    }
    let words = Words::of(site, ".qzeros")?;
    let (down, across) = site.sides(".qzeros")?;
    let per_word = 32 / said.bits;
    if down != groups || across != rows.div_ceil(per_word) {
        let what = format!("[{down}, {across}] words do not hold {groups} x {rows} zero points of {} bits", said.bits);
        return Err(site.bad(".qzeros", what));
    }
    let mask = (1u32 << said.bits) - 1;
    let place = |row: usize| match said.kind {
        Kind::Gptq => row % per_word,
        Kind::Awq => AWQ_ORDER.iter().position(|r| *r == row % 8).unwrap_or(0),
    };
    let zero = |row: usize, group: usize| {
        let code = words.get(group, row / per_word) >> (said.bits * place(row)) & mask;
        code as i16 + said.zero_offset - middle
    };
    Ok((0..rows).flat_map(|row| (0..groups).map(move |group| (row, group))).map(|(r, g)| zero(r, g)).collect())
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
    let size = cols.div_ceil(groups);
    let in_order = found.iter().enumerate().all(|(c, g)| *g as usize == c / size);
    Ok((!in_order).then_some(found))
}

/// The group size, as the number of scales tells it.
fn grouping(site: Site<'_>, cols: usize, groups: usize, ordered: bool) -> Result<Grouping> {
    let said = quantization(site.model)
        .and_then(|c| c.get("group_size").or_else(|| c.get("q_group_size")))
        .and_then(Value::as_i64)
        .and_then(|n| usize::try_from(n).ok())
        .filter(|n| *n > 0);
    let size = said.unwrap_or_else(|| cols.div_ceil(groups));
    if groups == 1 && !ordered {
        return Ok(Grouping::Row);
    }
    if cols.div_ceil(size) != groups {
        return Err(
            site.bad(".scales", format!("{groups} scales a row do not suit {cols} columns in groups of {size}"))
        );
    }
    Ok(Grouping::Group(size))
}
