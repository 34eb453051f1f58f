//! Comparison of the weights that a GPU decodes with the CPU's.

use super::launch::{pointer, room};
use super::product::decode;
use super::weights::Weights;
use crate::ComputeType;
use crate::gpu::packed;
use crate::gpu::product::tiles;
use crate::measure::Difference;
use candle_core::{Device, Result};
use rayon::prelude::*;
use schemes::Matrix;
use store::Bytes;

/// Tolerance for a decoded weight, as a share of the row's largest: the order of two multiplications.
const NEAR: f32 = 5e-7;

/// The first weight that the GPU decodes to something else.
pub fn difference(device: &Device, matrix: &Matrix<Bytes>) -> Result<Option<Difference>> {
    let cuda = device.as_cuda_device()?;
    let (parts, _) = packed::parts(matrix, ComputeType::F32);
    for part in parts {
        let (weights, n) = (Weights::upload(&part.weights, cuda)?, part.weights.cols);
        let columns = part.columns.unwrap_or_else(|| (0..n as u32).collect());
        for tile in tiles(matrix.rows(), 4 * n) {
            let out = room::<f32>(cuda, tile.len() * n)?;
            decode(cuda, &weights, ComputeType::F32, (tile.start, tile.len()), (pointer(&out), n))?;
            let found = cuda.clone_dtoh(&out)?;
            let differs = |(row, found): (usize, &[f32])| differs(matrix, row, &columns, found);
            if let Some(d) = tile.into_par_iter().zip(found.par_chunks(n)).find_map_first(differs) {
                return Ok(Some(d));
            }
        }
    }
    Ok(None)
}

fn differs(matrix: &Matrix<Bytes>, row: usize, columns: &[u32], found: &[f32]) -> Option<Difference> {
    let mut wanted = vec![0f32; matrix.cols()];
    matrix.decode_row(row, &mut wanted);
    let largest = wanted.iter().fold(0f32, |m, v| m.max(v.abs()));
    let differs = columns.iter().zip(found).find(|(c, f)| {
        let off = (wanted[**c as usize] - **f).abs();
        off > NEAR * largest || off.is_nan()
    });
    differs.map(|(&c, &found)| Difference { row, col: c as usize, found, expected: wanted[c as usize] })
}
