//! The loss, in both forms, against PyTorch, finite differences and what must hold exactly.

use super::*;
use candle_core::{DType, Device};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    rows: usize,
    width: usize,
    vocabulary: usize,
    k: usize,
    masked: usize,
    hidden: Vec<f64>,
    head: Vec<f64>,
    teacher: Vec<f64>,
    tokens: Vec<u32>,
    draws: Vec<Vec<u32>>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    labels: String,
    divergence: Divergence,
    temperature: f64,
    alpha: f64,
    loss: f64,
    hidden: Vec<f64>,
    head: Vec<f64>,
}

impl Case {
    fn objective(&self) -> Objective {
        let Case { alpha, temperature, divergence, .. } = *self;
        Objective { alpha, temperature, divergence }
    }
}

/// Labels of some rows, in every form.
struct Labels {
    vocabulary: usize,
    logits: Vec<f32>,
    k: usize,
    ids: Vec<u32>,
    log_probs: Vec<f32>,
    log_rest: Vec<f32>,
    draws: Vec<Vec<u32>>,
}

impl Labels {
    fn new(teacher: &[f64], vocabulary: usize, k: usize, temperature: f64, draws: Vec<Vec<u32>>) -> Self {
        let logits = teacher.iter().map(|&x| x as f32).collect();
        let (mut ids, mut log_probs, mut log_rest) = (vec![], vec![], vec![]);
        for row in teacher.chunks(vocabulary) {
            let exp: Vec<f64> = row.iter().map(|x| (x / temperature).exp()).collect();
            let sum: f64 = exp.iter().sum();
            let mut order: Vec<usize> = (0..vocabulary).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
            ids.extend(order[..k].iter().map(|&i| i as u32));
            log_probs.extend(order[..k].iter().map(|&i| (exp[i] / sum).ln() as f32));
            log_rest.push((order[k..].iter().map(|&i| exp[i]).sum::<f64>() / sum).ln() as f32);
        }
        Self { vocabulary, logits, k, ids, log_probs, log_rest, draws }
    }

    fn row(&self, kind: &str, row: usize) -> SoftRow<'_> {
        let (k, v) = (self.k, self.vocabulary);
        match kind {
            "full" => SoftRow::Full(&self.logits[row * v..][..v]),
            "top-k" => SoftRow::TopK {
                ids: &self.ids[row * k..][..k],
                log_probs: &self.log_probs[row * k..][..k],
                log_rest: self.log_rest[row],
            },
            _ => SoftRow::Sampled(&self.draws[row]),
        }
    }

    fn targets(&self, kind: &str, tokens: &[u32], masked: usize) -> Vec<Option<Target<'_>>> {
        let target = |(row, &token)| (row != masked).then(|| Target { token, soft: Some(self.row(kind, row)) });
        tokens.iter().enumerate().map(target).collect()
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../tests/golden/loss.json")).expect("the file that make_loss.py wrote")
}

fn matrix(values: &[f64], rows: usize, dtype: DType) -> Tensor {
    let shape = (rows, values.len() / rows);
    Tensor::from_slice(values, shape, &Device::Cpu).and_then(|t| t.to_dtype(dtype)).expect("a matrix")
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    tensor.to_dtype(DType::F64).and_then(|t| t.flatten_all()?.to_vec1()).expect("numbers")
}

struct Outcome {
    losses: Losses,
    hidden: Vec<f64>,
    head: Vec<f64>,
}

/// Tests of both forms.
macro_rules! in_both_forms {
    ($($test:ident),* $(,)?) => {
        mod fused {
            $(#[test] fn $test() { super::$test(super::Form::Fused) })*
        }
        mod composed {
            $(#[test] fn $test() { super::$test(super::Form::Composed) })*
        }
    };
}

in_both_forms!(
    losses_and_gradients_are_pytorchs,
    gradients_match_finite_differences,
    a_student_like_its_teacher_has_no_loss_and_no_gradient,
    the_temperature_leaves_gradients_of_like_size,
    chunks_of_logits_change_nothing_but_roundings,
    rows_without_a_target_count_for_nothing,
    mass_outside_the_top_counts,
    misfits_are_errors,
    a_sharp_student_is_told_what_it_leaves_out,
    sharp_distributions_are_compared_as_in_f64,
);

fn run(form: Form, hidden: &Tensor, head: &Tensor, targets: &[Option<Target<'_>>], objective: &Objective) -> Outcome {
    in_chunks(form, hidden, head, targets, objective, usize::MAX)
}

fn in_chunks(
    form: Form,
    hidden: &Tensor,
    head: &Tensor,
    targets: &[Option<Target<'_>>],
    objective: &Objective,
    rows: usize,
) -> Outcome {
    let mut into = head.zeros_like().expect("zeros");
    let scale = 1.0 / targets.iter().flatten().count() as f64;
    let gradient = HeadGradient { scale, head: Some(&mut into) };
    let (losses, d_hidden) = match rows {
        usize::MAX => head_loss(form, hidden, head, targets, objective, Some(gradient)),
        rows => chunked(form, (hidden, head), targets, objective, Some(gradient), rows),
    }
    .expect("a loss");
    Outcome { losses, hidden: numbers(&d_hidden.expect("a gradient was asked for")), head: numbers(&into) }
}

fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    for (i, (a, b)) in ours.iter().zip(theirs).enumerate() {
        assert!((a - b).abs() <= tolerance * (1.0 + b.abs()), "{what} {i}: {a} against {b}");
    }
}

fn matches_pytorch(form: Form, dtype: DType, tolerance: f64) {
    let golden = golden();
    let (hidden, head) = (matrix(&golden.hidden, golden.rows, dtype), matrix(&golden.head, golden.vocabulary, dtype));
    assert_eq!(hidden.dims(), [golden.rows, golden.width]);
    assert_eq!(golden.cases.len(), 63);
    for case in &golden.cases {
        let labels = Labels::new(&golden.teacher, golden.vocabulary, golden.k, case.temperature, golden.draws.clone());
        let targets = labels.targets(&case.labels, &golden.tokens, golden.masked);
        let objective = case.objective();
        let ours = run(form, &hidden, &head, &targets, &objective);
        let what = format!("{} {objective:?}", case.labels);
        assert_close(&what, &[ours.losses.mean(&objective)], &[case.loss], tolerance);
        assert_close(&what, &ours.hidden, &case.hidden, tolerance);
        assert_close(&what, &ours.head, &case.head, tolerance);
    }
}

fn losses_and_gradients_are_pytorchs(form: Form) {
    // Top-k labels are f32.
    matches_pytorch(form, DType::F64, 1e-6);
    matches_pytorch(form, DType::F32, 1e-5);
}

fn gradients_match_finite_differences(form: Form) {
    let golden = golden();
    for case in golden.cases.iter().filter(|c| c.alpha == 0.5) {
        let labels = Labels::new(&golden.teacher, golden.vocabulary, golden.k, case.temperature, golden.draws.clone());
        let targets = labels.targets(&case.labels, &golden.tokens, golden.masked);
        let objective = case.objective();
        let loss = |hidden: &[f64], head: &[f64]| {
            let (hidden, head) = (matrix(hidden, golden.rows, DType::F64), matrix(head, golden.vocabulary, DType::F64));
            let (losses, none) = head_loss(form, &hidden, &head, &targets, &objective, None).expect("a loss");
            assert!(none.is_none());
            losses.mean(&objective)
        };
        let (hidden, head) =
            (matrix(&golden.hidden, golden.rows, DType::F64), matrix(&golden.head, golden.vocabulary, DType::F64));
        let ours = run(form, &hidden, &head, &targets, &objective);
        let moved = |values: &[f64], at: usize, by: f64| {
            let mut values = values.to_vec();
            values[at] += by;
            values
        };
        let slope = |f: &dyn Fn(f64) -> f64| (f(1e-5) - f(-1e-5)) / 2e-5;
        let of_hidden: Vec<f64> =
            (0..golden.hidden.len()).map(|i| slope(&|by| loss(&moved(&golden.hidden, i, by), &golden.head))).collect();
        let of_head: Vec<f64> =
            (0..golden.head.len()).map(|i| slope(&|by| loss(&golden.hidden, &moved(&golden.head, i, by)))).collect();
        let what = format!("{} {objective:?}", case.labels);
        assert_close(&what, &ours.hidden, &of_hidden, 1e-8);
        assert_close(&what, &ours.head, &of_head, 1e-8);
    }
}

/// A student with the teacher's logits, of a vocabulary that doesn't fit the lanes.
fn twins() -> (Tensor, Tensor, Vec<f64>, usize) {
    let vocabulary = 1100;
    let draw = |stream, n, std| crate::random::normal(&mut crate::random::stream(7, stream), n, std);
    let hidden = Tensor::from_vec(draw(1, 5 * 8, 1.0), (5, 8), &Device::Cpu).expect("hidden states");
    let head = Tensor::from_vec(draw(2, vocabulary * 8, 1.0), (vocabulary, 8), &Device::Cpu).expect("a head");
    let logits = head.t().and_then(|t| hidden.matmul(&t)).expect("logits");
    (hidden, head, numbers(&logits), vocabulary)
}

fn a_student_like_its_teacher_has_no_loss_and_no_gradient(form: Form) {
    let (hidden, head, logits, vocabulary) = twins();
    for divergence in [Divergence::Forward, Divergence::Reverse, Divergence::JensenShannon] {
        for temperature in [1.0, 2.0, 4.0] {
            let objective = Objective { alpha: 1.0, temperature, divergence };
            let labels = Labels::new(&logits, vocabulary, 32, temperature, vec![]);
            for kind in ["full", "top-k"] {
                let ours = run(form, &hidden, &head, &labels.targets(kind, &[0, 1, 2, 3, 4], 9), &objective);
                let what = format!("{kind} {objective:?}");
                assert_close(&what, &[ours.losses.soft], &[0.0], 2e-5);
                let size = |g: &[f64]| g.iter().fold(0f64, |m, v| m.max(v.abs()));
                assert!(size(&ours.hidden) < 2e-6 && size(&ours.head) < 2e-6, "{what}: {}", size(&ours.hidden));
                if (form, kind, divergence) == (Form::Fused, "full", Divergence::Forward) {
                    assert!(ours.losses.soft.abs() < 1e-9 && size(&ours.hidden) == 0.0 && size(&ours.head) == 0.0);
                }
            }
        }
    }
}

fn the_temperature_leaves_gradients_of_like_size(form: Form) {
    let (hidden, head, logits, vocabulary) = twins();
    let other: Vec<f64> = logits.iter().enumerate().map(|(i, x)| x + ((i * 7 % 13) as f64 - 6.0) * 0.02).collect();
    let size = |temperature| {
        let labels = Labels::new(&other, vocabulary, 32, temperature, vec![]);
        let objective = Objective { alpha: 1.0, temperature, divergence: Divergence::Forward };
        let ours = run(form, &hidden, &head, &labels.targets("full", &[0, 1, 2, 3, 4], 9), &objective);
        ours.hidden.iter().map(|g| g * g).sum::<f64>().sqrt()
    };
    let ratio = size(4.0) / size(1.0);
    assert!((0.2..5.0).contains(&ratio), "{ratio}: without T^2 it would be 16 times smaller");
}

fn chunks_of_logits_change_nothing_but_roundings(form: Form) {
    let (hidden, head, logits, vocabulary) = twins();
    let other: Vec<f64> = logits.iter().map(|x| x * 0.5).collect();
    let objective = Objective { alpha: 0.5, temperature: 2.0, divergence: Divergence::Forward };
    let labels = Labels::new(&other, vocabulary, 8, 2.0, vec![]);
    // Row 2 has no target: it stands at the end of a chunk, alone in one, and at the beginning of the next.
    let targets = labels.targets("full", &[3, 1, 4, 1, 5], 2);
    let whole = run(form, &hidden, &head, &targets, &objective);
    assert_eq!(whole.losses.predictions, 4);
    for rows in [1, 2, 3, 4, 5] {
        let parts = in_chunks(form, &hidden, &head, &targets, &objective, rows);
        let sums = |of: &Outcome| [of.losses.soft, of.losses.hard, of.losses.predictions as f64];
        assert_close("losses", &sums(&parts), &sums(&whole), 1e-6);
        assert_close("hidden", &parts.hidden, &whole.hidden, 1e-6);
        assert_close("head", &parts.head, &whole.head, 1e-6);
    }
}

fn rows_without_a_target_count_for_nothing(form: Form) {
    let (hidden, head, logits, vocabulary) = twins();
    let labels = Labels::new(&logits.iter().map(|x| x * 0.5).collect::<Vec<_>>(), vocabulary, 8, 2.0, vec![]);
    let objective = Objective { alpha: 0.5, temperature: 2.0, divergence: Divergence::Forward };
    let tokens = [3, 1, 4, 1, 5];
    for masked in [0, 2, 4] {
        let ours = run(form, &hidden, &head, &labels.targets("top-k", &tokens, masked), &objective);
        assert_eq!(ours.losses.predictions, 4);
        assert!(ours.hidden[masked * 8..][..8].iter().all(|g| *g == 0.0));
        // The same as if the row weren't there.
        let rest: Vec<u32> = (0..5).filter(|&i| i != masked as u32).collect();
        let without = hidden.index_select(&Tensor::new(&rest[..], &Device::Cpu).expect("ids"), 0).expect("rows");
        let mut targets = labels.targets("top-k", &tokens, masked);
        targets.remove(masked);
        let less = run(form, &without, &head, &targets, &objective);
        assert_close("losses", &[ours.losses.soft, ours.losses.hard], &[less.losses.soft, less.losses.hard], 1e-9);
        assert_close("head", &ours.head, &less.head, 1e-6);
    }
}

fn mass_outside_the_top_counts(form: Form) {
    // Both agree on the one labelled token's share among the labelled, but not on how much lies outside.
    let hidden = matrix(&[1.0], 1, DType::F64);
    let loss = |student: &[f64], log_prob: f32, log_rest: f32| {
        let head = matrix(student, student.len(), DType::F64);
        let (ids, log_probs) = ([0], [log_prob]);
        let soft = Some(SoftRow::TopK { ids: &ids, log_probs: &log_probs, log_rest });
        let objective = Objective { alpha: 1.0, temperature: 1.0, divergence: Divergence::Forward };
        let targets = [Some(Target { token: 0, soft })];
        head_loss(form, &hidden, &head, &targets, &objective, None).expect("a loss").0.soft
    };
    let known = 0.9f64 * (0.9f64 / 0.5).ln() + 0.1 * (0.1f64 / 0.5).ln();
    let ours = loss(&[0.0, 0.0], 0.9f32.ln(), 0.1f32.ln());
    assert!((ours - known).abs() < 1e-6, "{ours} {known}");
    // All mass on the labelled token: no infinity from the empty rest.
    let ours = loss(&[0.0, 0.0], 0.0, f32::NEG_INFINITY);
    assert!((ours - 2f64.ln()).abs() < 1e-6, "{ours}");
}

fn misfits_are_errors(form: Form) {
    let (hidden, head, logits, vocabulary) = twins();
    let labels = Labels::new(&logits, vocabulary, 8, 2.0, vec![vec![1, 2]; 5]);
    let says = |targets: &[Option<Target<'_>>], divergence, what: &str| {
        let objective = Objective { alpha: 0.5, temperature: 2.0, divergence };
        let error = head_loss(form, &hidden, &head, targets, &objective, None).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    let targets = labels.targets("full", &[0, 1, 2, 3, 4], 9);
    says(&targets[1..], Divergence::Forward, "4 targets");
    says(&labels.targets("full", &[0, 1, 2, 3, 1100], 9), Divergence::Forward, "outside the vocabulary");
    says(&labels.targets("sampled", &[0; 5], 9), Divergence::Reverse, "forward divergence only");
    says(&[Some(Target { token: 0, soft: None }); 5], Divergence::Forward, "no soft labels");
}

#[test]
fn logits_on_the_device_are_labels_like_those_in_memory() {
    let (hidden, head, logits, vocabulary) = twins();
    let half: Vec<f64> = logits.iter().map(|x| x * 0.5).collect();
    let labels = Labels::new(&half, vocabulary, 8, 2.0, vec![]);
    let objective = Objective { alpha: 0.5, temperature: 2.0, divergence: Divergence::Reverse };
    // Two windows' labels, whose rows are not all used, and in the middle a row that isn't labelled.
    let window =
        |from: usize, rows: usize| Resident(matrix(&half[from * vocabulary..][..rows * vocabulary], rows, DType::F32));
    let (first, second) = (window(0, 3), window(2, 3));
    let places = [Some((&first, 0)), Some((&first, 1)), None, Some((&second, 1)), Some((&second, 2))];
    let tokens = [3, 1, 4, 1, 5];
    let place = |(place, token): (&Option<(_, _)>, &u32)| {
        place.map(|(logits, row)| Target { token: *token, soft: Some(SoftRow::Resident { logits, row }) })
    };
    let targets: Vec<Option<Target<'_>>> = places.iter().zip(&tokens).map(place).collect();
    let there = run(Form::Composed, &hidden, &head, &targets, &objective);
    let here = run(Form::Composed, &hidden, &head, &labels.targets("full", &tokens, 2), &objective);
    assert_eq!((there.losses, there.hidden, there.head), (here.losses, here.hidden, here.head));

    let refused = |form, targets: &[Option<Target<'_>>], what: &str| {
        let error = head_loss(form, &hidden, &head, targets, &objective, None).expect_err(what).to_string();
        assert!(error.contains(what), "{error}");
    };
    refused(Form::Fused, &targets, "on another device");
    let mut mixed = targets.clone();
    mixed[2] = labels.targets("full", &tokens, 9)[2];
    refused(Form::Composed, &mixed, "more than one kind");
    mixed[2] = Some(Target { token: 0, soft: Some(SoftRow::Resident { logits: &first, row: 3 }) });
    refused(Form::Composed, &mixed, "row 3 of the teacher's logits");
}

fn a_sharp_student_is_told_what_it_leaves_out(form: Form) {
    // Of f32's exponentials the student's of all other tokens are nothing.
    for gap in [80.0, 95.0, 120.0, 1000.0] {
        let head: Vec<f64> = (0..12).map(|i| if i < 2 { 0.0 } else { -gap }).collect();
        let (hidden, head) = (matrix(&[1.0], 1, DType::F32), matrix(&head, 12, DType::F32));
        let (ids, log_probs) = ([0, 1], [0.45f32.ln(), 0.45f32.ln()]);
        let soft = Some(SoftRow::TopK { ids: &ids, log_probs: &log_probs, log_rest: 0.1f32.ln() });
        for divergence in [Divergence::Forward, Divergence::Reverse, Divergence::JensenShannon] {
            let objective = Objective { alpha: 1.0, temperature: 1.0, divergence };
            let ours = run(form, &hidden, &head, &[Some(Target { token: 0, soft })], &objective);
            assert!(ours.losses.soft > 0.0, "{gap}, {divergence:?}: {:?}", ours.losses);
            assert!(ours.hidden.iter().chain(&ours.head).all(|g| g.is_finite()), "{gap}, {divergence:?}");
            if divergence == Divergence::Forward {
                // Lower logits of what has too much, higher ones of what has too little.
                assert!(ours.head[..2].iter().all(|&g| g > 0.04) && ours.head[2..].iter().sum::<f64>() < -0.08);
            }
        }
    }
}

fn sharp_distributions_are_compared_as_in_f64(form: Form) {
    // At a low temperature most exponentials are nothing in f32, and a few of the student's are where the teacher's
    // are all.
    let draw = |stream| crate::random::normal(&mut crate::random::stream(11, stream), 60, 9.0);
    let (student, teacher) = (draw(1), draw(2));
    let exact = |values: &[f32]| matrix(&values.iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), 60, DType::F32);
    for temperature in [0.1, 0.3, 1.0] {
        let logs = |values: &[f32]| {
            let scaled: Vec<f64> = values.iter().map(|&v| f64::from(v) / temperature).collect();
            let top = scaled.iter().fold(f64::MIN, |m, &v| m.max(v));
            let sum = scaled.iter().map(|v| (v - top).exp()).sum::<f64>().ln();
            scaled.into_iter().map(|v| v - top - sum).collect::<Vec<f64>>()
        };
        let (s, t) = (logs(&student), logs(&teacher));
        let divergence = |kind| -> f64 {
            let each = s.iter().zip(&t).map(|(&s, &t)| {
                let (p, q) = (s.exp(), t.exp());
                let middle = s.max(t) + (-(s - t).abs()).exp().ln_1p() - std::f64::consts::LN_2;
                match kind {
                    Divergence::Forward => q * (t - s),
                    Divergence::Reverse => p * (s - t),
                    Divergence::JensenShannon => 0.5 * (p * (s - middle) + q * (t - middle)),
                }
            });
            each.sum()
        };
        let targets = [Some(Target { token: 0, soft: Some(SoftRow::Full(&teacher)) })];
        for kind in [Divergence::Forward, Divergence::Reverse, Divergence::JensenShannon] {
            let objective = Objective { alpha: 1.0, temperature, divergence: kind };
            let ours = run(form, &matrix(&[1.0], 1, DType::F32), &exact(&student), &targets, &objective).losses.soft;
            let wanted = divergence(kind);
            assert!((ours - wanted).abs() < 1e-5 * wanted, "{kind:?} at {temperature}: {ours}, not {wanted}");
        }
    }
}
