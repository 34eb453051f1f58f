use super::*;
use schemes::{Bits, RowOrder, Storage};

/// A matrix of these weights in F32.
fn matrix(rows: usize, cols: usize, weight: impl Fn(usize) -> f32) -> Matrix<Vec<u8>> {
    let bytes = (0..rows * cols).flat_map(|i| weight(i).to_le_bytes()).collect();
    Matrix::new(rows, cols, Storage::Float(FloatType::F32, bytes), RowOrder::Natural).expect("fits")
}

/// Numbers in [-1, 1], most of them near zero, without a pattern that matters.
fn noise(i: usize) -> f32 {
    let x = (i as u64).wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    ((x >> 40) as f32 / (1u64 << 23) as f32 - 1.0).powi(3)
}

#[test]
fn moments_of_a_known_matrix() {
    let found = spread(&matrix(2, 4, |i| [1.0, -1.0, 1.0, -1.0, 1.0, -1.0, 3.0, -3.0][i]), 1.5).expect("finite");
    assert_eq!((found.mean_abs, found.max, found.max_at), (1.5, 3.0, (1, 2)));
    assert!((found.std - 3f64.sqrt()).abs() < 1e-12);
    // Fourth moment (6 + 2 x 81) / 8 = 21 over 9.
    assert!((found.kurtosis - (21.0 / 9.0 - 3.0)).abs() < 1e-12);
    assert_eq!(found.beyond, 2);
    assert_eq!(found.top_row, Some(Crowded { index: 1, beyond: 2 }));
    assert_eq!(found.top_col, Some(Crowded { index: 2, beyond: 1 }));
    assert_eq!(found.histogram.iter().sum::<u64>(), 8);
}

#[test]
fn one_large_weight_is_found() {
    let found = spread(&matrix(16, 64, |i| if i == 5 * 64 + 7 { -30.0 } else { noise(i) }), 6.0).expect("finite");
    assert_eq!((found.max_at, found.beyond), ((5, 7), 1));
    assert!(found.max_over_std() > 20.0 && found.kurtosis > 100.0);
    assert_eq!(Spread::edges().len(), found.histogram.len() + 1);
    assert_eq!(found.histogram[0], 1, "beyond -12 standard deviations");
}

#[test]
fn equal_weights_and_empty_matrices() {
    let found = spread(&matrix(3, 4, |_| 0.0), 6.0).expect("finite");
    assert_eq!((found.std, found.max_over_std(), found.beyond, found.top_row), (0.0, 0.0, 0, None));
    let none = losses(&matrix(0, 4, |_| 0.0), &[Form::Nf4Block(16)], None).expect("nothing");
    assert_eq!(none, [Some(WeightError::default())]);
}

#[test]
fn what_is_not_finite_is_named() {
    let broken = matrix(3, 64, |i| if i == 70 { f32::NAN } else { noise(i) });
    let is_named = |e: Error| matches!(e, Error::NotFinite { row: 1, col: 6, .. });
    assert!(is_named(spread(&broken, 6.0).expect_err("NaN")));
    for form in [Form::Nf4Block(64), Form::Scheme(Scheme::W8A8Token)] {
        assert!(is_named(losses(&broken, &[form], None).expect_err("NaN")), "{form}");
    }
}

#[test]
fn losses_are_those_of_the_scheme() {
    let m = matrix(8, 96, |i| noise(i) * (1 + i / 32 % 5) as f32);
    let scheme = |name: &str| Form::Scheme(name.parse().expect("a scheme"));
    let names = ["int8-row", "w8a8-static", "int4-g32", "int4-absmax", "nf4", "nf4-dq", "ggml-q8_0", "f32", "f16"];
    let forms: Vec<Form> = names.iter().map(|name| scheme(name)).collect();
    let found: Vec<f64> =
        losses(&m, &forms, None).expect("finite").iter().map(|e| e.expect("fits").relative()).collect();
    assert_eq!(found[0], found[1]);
    assert!(found[0] < 0.01 && found[2] < found[3] && (found[4] - found[5]).abs() < 0.01, "{found:?}");
    assert!(found[6] < 0.01 && found[7] == 0.0 && found[8] < 1e-3);

    // By hand: int4 by row with scales in F16.
    let mut hand = WeightError::default();
    for row in m.decode_all().chunks(96) {
        let scale = int::scale_of(rowmath::absmax(row), Bits::Four, FloatType::F16);
        let decoded: Vec<f32> = row.iter().map(|w| (w / scale).round_ties_even().clamp(-7.0, 7.0) * scale).collect();
        hand.add(row, &decoded);
    }
    let by_row = losses(&m, &[scheme("int4-row")], None).expect("finite")[0].expect("fits");
    assert!((by_row.relative() - hand.relative()).abs() < 1e-6);
}

#[test]
fn forms_that_do_not_suit_have_no_loss() {
    let scheme = |name: &str| Form::Scheme(name.parse().expect("a scheme"));
    let found = losses(&matrix(4, 96, noise), &[scheme("ggml-q4_k"), scheme("int8-outlier")], None);
    assert_eq!(found.expect("finite"), [None, None]);
    let with = losses(&matrix(4, 96, noise), &[scheme("int8-outlier"), scheme("int8-row")], Some(&[])).expect("finite");
    assert_eq!(with[0], with[1], "without outlier columns it is int8-row");
    // F16 can't carry these scales: F32 does.
    let tiny = losses(&matrix(4, 64, |i| 1e-20 * noise(i)), &[scheme("int8-row"), scheme("int8-absmax")], None);
    assert!(tiny.expect("finite").iter().all(|e| e.is_some_and(|e| e.relative() < 0.01)));
}

#[test]
fn outlier_columns_stay_and_do_not_stretch_the_scale() {
    let m = matrix(4, 64, |i| if i % 64 == 9 { 100.0 * noise(i) } else { noise(i) });
    let forms = [Form::Scheme(Scheme::Int8Outlier), Form::Scheme(Scheme::W8A8Token)];
    let found = losses(&m, &forms, Some(&[9])).expect("finite");
    let [split, plain] = [0, 1].map(|i| found[i].expect("fits").difference);
    assert!(split < plain / 10.0, "{split} {plain}");
}
