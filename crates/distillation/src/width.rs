//! Cut in width: the channels, heads and neurons that are kept, by the norms of the weights.
//!
//! * Channels of the residual stream, the same everywhere, with the largest share of the weights that write or read
//!   them: the sum over all matrices of the channel's squared norm as a share of the matrix's, where a norm's weight
//!   counts to the columns that it scales.
//! * In each block the key heads, and in each of them the query heads, with the largest product of the norms of `v`'s
//!   rows and `o`'s columns.
//! * In each block the neurons with the largest product of the norms of their rows of `gate` and `up` and column of
//!   `down`.
//!
//! What is kept stays in its order.

use crate::error::Result;
use crate::recipe::Shape;
use schemes::Matrix;
use store::Bytes;

/// Rows or columns of each matrix that are kept.
#[derive(Debug)]
pub struct Kept {
    /// Channels of the residual stream.
    pub hidden: Vec<usize>,
    /// Kept rows and columns of each block.
    pub blocks: Vec<KeptInBlock>,
}

/// Kept rows and columns of one block.
#[derive(Debug)]
pub struct KeptInBlock {
    /// Query heads' dimensions.
    pub queries: Vec<usize>,
    /// Key heads' dimensions.
    pub keys: Vec<usize>,
    /// Neurons of the feed-forward block.
    pub neurons: Vec<usize>,
}

impl Kept {
    /// Rows (or entries) and columns of a tensor that stay.
    pub fn in_tensor(&self, name: &str, layer: usize) -> (Option<&[usize]>, Option<&[usize]>) {
        let hidden = Some(&self.hidden[..]);
        let block = &self.blocks[layer.min(self.blocks.len() - 1)];
        let module = name.trim_end_matches(".weight").trim_end_matches(".bias");
        match module.rsplit('.').next().unwrap_or_default() {
            "embed_tokens" | "lm_head" => (None, hidden),
            "q_proj" => (Some(&block.queries), hidden),
            "k_proj" | "v_proj" => (Some(&block.keys), hidden),
            "o_proj" => (hidden, Some(&block.queries)),
            "gate_proj" | "up_proj" => (Some(&block.neurons), hidden),
            "down_proj" => (hidden, Some(&block.neurons)),
            _ => (hidden, None),
        }
    }
}

/// Chooses what stays.
///
/// # Errors
/// [`Error::Store`](crate::Error::Store) for weights that can't be read.
pub fn keep(teacher: &store::Model, full: &Shape, shape: &Shape) -> Result<Kept> {
    let embedding = Squares::from_matrix(&teacher.linear("model.embed_tokens")?.matrix, None);
    let mut channels = vec![0f64; full.hidden];
    embedding.add_shares(&embedding.columns, &mut channels);
    let mut blocks = Vec::with_capacity(full.layers);
    for layer in 0..full.layers {
        let at = |module: &str| format!("model.layers.{layer}.{module}");
        let norm = |module: &str| -> Result<Option<Vec<f32>>> { Ok(teacher.dense(&at(&format!("{module}.weight")))?) };
        let squares = |module: &str, scale: &Option<Vec<f32>>| -> Result<Squares> {
            Ok(Squares::from_matrix(&teacher.linear(&at(module))?.matrix, scale.as_deref()))
        };
        let (before, after) = (norm("input_layernorm")?, norm("post_attention_layernorm")?);
        let read = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"].map(|m| squares(m, &before));
        let [q, k, v] = read;
        let (q, k, v) = (q?, k?, v?);
        let (gate, up) = (squares("mlp.gate_proj", &after)?, squares("mlp.up_proj", &after)?);
        let (o, down) = (squares("self_attn.o_proj", &None)?, squares("mlp.down_proj", &None)?);
        [&q, &k, &v, &gate, &up].iter().for_each(|m| m.add_shares(&m.columns, &mut channels));
        [&o, &down].iter().for_each(|m| m.add_shares(&m.rows, &mut channels));
        let (queries, keys) = heads(&v.rows, &o.columns, full, shape);
        let neurons = (0..full.intermediate).map(|n| gate.rows[n] * up.rows[n] * down.columns[n]).collect::<Vec<_>>();
        blocks.push(KeptInBlock { queries, keys, neurons: largest(&neurons, shape.intermediate) });
    }
    Ok(Kept { hidden: largest(&channels, shape.hidden), blocks })
}

/// Dimensions of the query heads and of the key heads that stay, by the squares of v's rows and o's columns.
fn heads(v: &[f64], o: &[f64], full: &Shape, shape: &Shape) -> (Vec<usize>, Vec<usize>) {
    let width = full.head_dim;
    let sum = |squares: &[f64], head: usize| squares[head * width..(head + 1) * width].iter().sum::<f64>();
    let query = |head: usize| (sum(v, head / full.group()) * sum(o, head)).sqrt();
    let group = |key: usize| (key * full.group()..(key + 1) * full.group()).map(query).collect::<Vec<_>>();
    let keys: Vec<f64> = (0..full.kv_heads).map(|key| group(key).iter().sum()).collect();
    let keys = largest(&keys, shape.kv_heads);
    let queries: Vec<usize> = keys
        .iter()
        .flat_map(|&key| largest(&group(key), shape.group()).into_iter().map(move |q| key * full.group() + q))
        .collect();
    let dims = |heads: &[usize]| heads.iter().flat_map(|&h| h * width..(h + 1) * width).collect();
    (dims(&queries), dims(&keys))
}

/// The indices of the largest values, ascending.
fn largest(values: &[f64], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order.truncate(count);
    order.sort_unstable();
    order
}

/// Squared norms of a matrix's rows and columns.
struct Squares {
    rows: Vec<f64>,
    columns: Vec<f64>,
}

impl Squares {
    /// Norms of a matrix whose columns are scaled first.
    fn from_matrix(matrix: &Matrix<Bytes>, scale: Option<&[f32]>) -> Self {
        let mut row = vec![0f32; matrix.cols()];
        let (mut rows, mut columns) = (Vec::with_capacity(matrix.rows()), vec![0f64; matrix.cols()]);
        for i in 0..matrix.rows() {
            matrix.decode_row(i, &mut row);
            if let Some(scale) = scale {
                row.iter_mut().zip(scale).for_each(|(w, s)| *w *= s);
            }
            let mut sum = 0f64;
            for (column, &w) in columns.iter_mut().zip(&row) {
                let square = f64::from(w) * f64::from(w);
                *column += square;
                sum += square;
            }
            rows.push(sum);
        }
        Self { rows, columns }
    }

    fn add_shares(&self, squares: &[f64], to: &mut [f64]) {
        let total = squares.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        to.iter_mut().zip(squares).for_each(|(to, square)| *to += square / total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::student::shape_of;
    use std::path::Path;

    #[test]
    fn channels_that_nothing_uses_are_cut_first() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny"));
        let teacher = store::open(path).expect("the fixture");
        let full = shape_of(&teacher).expect("a Llama");
        let kept = keep(&teacher, &full, &Shape { hidden: 191, intermediate: 511, ..full.clone() }).expect("norms");
        assert_eq!(kept.hidden.len(), 191);
        assert_eq!(kept.blocks[0].neurons.len(), 511);
        assert_eq!(largest(&[3.0, 1.0, 2.0, 2.0], 2), [0, 2]);
        // Two key heads of two query heads of one dimension: key head 1 is wider, and in it query head 3.
        let small = Shape { heads: 4, kv_heads: 2, head_dim: 1, ..full.clone() };
        let one = Shape { heads: 1, kv_heads: 1, ..small.clone() };
        assert_eq!(heads(&[1.0, 4.0], &[1.0, 1.0, 1.0, 2.0], &small, &one), (vec![3], vec![1]));
    }
}
