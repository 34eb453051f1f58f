//! ggml blocks: integers whose groups are whole blocks, exactly, and ggml's own types.

use super::{Content, Laid, Layout, NoFit, OutTensor, Request};
use crate::encode::{CodeLayout, Encoding};
use schemes::{Bits, FloatType, GgmlType, Grouping, Scheme};
use store::DType;

/// Lays a weight out.
pub(super) fn lay(r: &Request<'_>) -> Result<Laid, NoFit> {
    let (ty, encoding) = match r.scheme {
        Scheme::Int(bits, grouping) => {
            let ty = if bits == Bits::Eight { GgmlType::Q8_0 } else { GgmlType::Q4_0 };
            if let Grouping::Group(n) = grouping
                && !n.is_multiple_of(ty.block_len())
            {
                return Err(no_fit(r, format!("groups of {n} are not whole blocks of {} ({ty})", ty.block_len())));
            }
            (ty, Encoding::Int { bits, grouping, scale: FloatType::F16, layout: CodeLayout::Blocks, repeat: false })
        }
        Scheme::Ggml(ty) if schemes::ggml::is_encodable(ty) => (ty, Encoding::Ggml(ty)),
        Scheme::Ggml(ty) => return Err(no_fit(r, format!("{ty} is read but not written by this version"))),
        other => return Err(no_fit(r, format!("no ggml block holds {other}"))),
    };
    if r.scale != FloatType::F16 {
        return Err(no_fit(r, format!("its scales need f32, and {ty} blocks have f16")));
    }
    let Some(row_bytes) = ty.row_bytes(r.cols) else {
        return Err(no_fit(r, format!("{} columns are not whole blocks of {} ({ty})", r.cols, ty.block_len())));
    };
    let tensor = OutTensor {
        name: r.name.to_string(),
        dtype: DType::Ggml(ty),
        shape: vec![r.rows, r.cols],
        bytes: (r.rows * row_bytes) as u64,
        content: Content::Stream(0),
    };
    Ok(Laid { layout: Layout::Ggml, encoding, tensors: vec![tensor], entry: None })
}

fn no_fit(r: &Request<'_>, why: String) -> NoFit {
    let instead = match r.scheme {
        Scheme::Ggml(_) if r.cols.is_multiple_of(32) && r.scale == FloatType::F16 => {
            "types with blocks of 32 fit (ggml-q8_0, -q5_1, -q5_0, -q4_1, -q4_0, -iq4_nl), or keep the weight with --exclude".into()
        }
        Scheme::Ggml(_) => "keep the weight with --exclude".into(),
        _ => "--layout packed holds it".into(),
    };
    NoFit { why, instead }
}
