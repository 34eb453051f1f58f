use super::*;
use schemes::{FloatType, Matrix, RowOrder, Storage};

fn layer(rows: usize, ty: FloatType, bias: Option<f32>, activation: Activation) -> Linear {
    let data = vec![0u8; rows * 24 * ty.size()];
    let matrix = Matrix::new(rows, 24, Storage::Float(ty, data.into()), RowOrder::Natural).expect("lengths fit");
    Linear { matrix, bias: bias.map(|b| vec![b; rows]), activation }
}

#[test]
fn layers_of_one_form_become_one_matrix() {
    let float = Activation::Float;
    let layers = [layer(8, FloatType::F16, None, float), layer(4, FloatType::F16, Some(2.0), float)];
    let found = group(&layers, ComputeType::F16);
    let [product] = &found.products[..] else { panic!("{} products", found.products.len()) };
    assert_eq!((product.rows, product.at, found.rows, found.decoded), (12, 0, 12, 0));
    assert_eq!(product.bias, [vec![0.0; 8], vec![2.0; 4]].concat());
    let weights = &product.parts[0].0.weights;
    assert_eq!((weights.rows, weights.codes.len()), (12, 12 * weights.row_bytes));
}

#[test]
fn layers_of_other_forms_stay_apart() {
    let layers = [
        layer(8, FloatType::F16, Some(1.0), Activation::Float),
        layer(4, FloatType::BF16, None, Activation::Float),
        layer(4, FloatType::BF16, None, Activation::Int8Token),
    ];
    let found = group(&layers, ComputeType::F16);
    let places: Vec<_> = found.products.iter().map(|p| (p.at, p.rows, p.bias.len())).collect();
    assert_eq!(places, [(0, 8, 8), (8, 4, 0), (12, 4, 0)]);
}

#[test]
fn every_row_is_in_one_block() {
    for tokens in 1..=FEW {
        for rows in [1, 7, 576, 4224, 4225, 49152] {
            for launch in [gemv(Format::U4, tokens, rows, 132), integer(tokens, rows, 132)] {
                let (t, r) = warp(tokens, rows, 132);
                let of_block = launch.block as usize / 32 * r;
                let blocks = launch.grid.0 as usize;
                assert!(t >= tokens && blocks * of_block >= rows && (blocks - 1) * of_block < rows, "{launch:?}");
                assert!(launch.kernel.ends_with(&format!("_{t}x{r}")), "{launch:?}");
            }
        }
    }
    assert_eq!(gemv(Format::Q4K, 1, 49152, 132).kernel, "gemv_q4k_1x4");
    assert_eq!(gemv(Format::Float(FloatType::BF16), 1, 576, 132).kernel, "gemv_bf16_1x1");
    assert_eq!(integer(9, 130, 132).grid, (1, 2, 1));
}

#[test]
fn tiles_cover_all_rows_and_stay_small() {
    for (rows, row_bytes) in [(1, 16), (49152, 1152), (128_256, 8192), (300, 1 << 20)] {
        let tiles = tiles(rows, row_bytes);
        assert!(tiles.windows(2).all(|t| t[0].end == t[1].start));
        assert_eq!((tiles[0].start, tiles.last().map(|t| t.end)), (0, Some(rows)));
        assert!(tiles.iter().all(|t| t.len() * row_bytes <= TILE || t.len() <= TILE_ROWS));
    }
}

#[test]
fn eight_bits_meet_eight_bits_where_both_are_by_row() {
    let weights = |format, group| Packed {
        format,
        rows: 1,
        cols: 32,
        row_bytes: 32,
        group,
        half_scales: true,
        codes: vec![0; 32],
        scales: vec![0; 4],
        zeros: Vec::new(),
        levels: Vec::new(),
    };
    let token = Activation::Int8Token;
    assert_eq!(input(&weights(Format::I8, 0), false, token), Input::Codes);
    assert_eq!(input(&weights(Format::I8, 16), false, token), Input::Rounded);
    assert_eq!(input(&weights(Format::U4, 0), false, token), Input::Rounded);
    assert_eq!(input(&weights(Format::I8, 0), true, token), Input::Floats);
    assert_eq!(input(&weights(Format::I8, 0), false, Activation::Float), Input::Floats);
}
