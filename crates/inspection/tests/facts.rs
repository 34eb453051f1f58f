//! Values of SmolLM2-135M that an independent implementation found (torch in f32, numpy).
//!
//! `scripts/get-model smollm2`, then `cargo test --workspace -- --ignored`.

use inspection::activations::{self, Seen};
use inspection::text::{Cut, Text};
use inspection::weights;
use progress::Silent;
use scoring::load::Compute;
use std::path::Path;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../models/smollm2");

const TEXT: &str = "The history of the printing press begins in the fifteenth century, when Johannes Gutenberg combined \
    movable metal type with an oil-based ink and a wooden press adapted from those used by wine makers. Within fifty \
    years, workshops in more than two hundred European cities were printing books, and the price of a single volume fell \
    sharply. Historians often describe this change as one of the most important steps toward modern science, public \
    education and mass communication.";

#[test]
#[ignore = "needs models/smollm2"]
fn relative_errors_of_smollm2() {
    let request = weights::Request { sigma: 6.0, schemes: weights::default_schemes(false), calibration: None };
    let found = weights::measure(Path::new(MODEL), &request, &Silent).expect("measured");
    let known = [
        ("int8-absmax", 0.02889, 0.11650, 0.03621),
        ("int8-row", 0.00851, 0.01162, 0.00851),
        ("int4-absmax", 0.48751, 0.98539, 0.58149),
        ("int4-row", 0.15404, 0.21102, 0.15406),
        ("int4-g128", 0.12461, 0.15847, 0.12351),
        ("int4-g64", 0.11355, 0.13875, 0.11270),
        ("int4-g32", 0.10171, 0.11999, 0.10108),
        ("nf4", 0.09378, 0.10160, 0.09349),
        ("nf4-dq", 0.09387, 0.10187, 0.09357),
    ];
    for (scheme, mean, worst, pooled) in known {
        let loss = found.schemes.iter().find(|s| s.scheme == scheme).expect("measured");
        assert_eq!(loss.matrices, 210);
        for (value, expected) in [(loss.mean, mean), (loss.worst, worst), (loss.pooled, pooled)] {
            assert!((value - expected).abs() < 5e-5, "{scheme}: {value} for {expected}");
        }
    }
    let worst = |scheme: &str| found.schemes.iter().find(|s| s.scheme == scheme).map(|s| s.worst_in.as_str());
    assert_eq!(worst("int8-absmax"), Some("model.layers.27.mlp.gate_proj"));
    assert_eq!(worst("int8-row"), Some("model.layers.0.self_attn.o_proj"));
}

#[test]
#[ignore = "needs models/smollm2"]
fn the_residual_stream_of_smollm2() {
    let request = activations::Request {
        text: Text { name: "press".into(), text: TEXT.into() },
        cut: Cut { tokens: 84, ctx: 512, bos: scoring::Bos::Never },
        top: 3,
        without: 4,
        compute: Compute::on_cpu(None),
    };
    let found = activations::look(Path::new(MODEL), &request, &Silent).expect("runs");
    let check = |seen: &Seen, top: [(usize, f32); 3], median: f32, levels: f64| {
        for (large, (dimension, absmax)) in seen.top.iter().zip(top) {
            assert_eq!(large.dimension, dimension);
            assert!((large.absmax - absmax).abs() < 0.6, "{dimension}: {} for {absmax}", large.absmax);
        }
        assert!((seen.median / median - 1.0).abs() < 5e-3, "{} for {median}", seen.median);
        assert_eq!(seen.tensor.levels, levels);
    };
    check(&found.residual[2], [(507, 653.0), (247, 118.0), (260, 110.0)], 4.8, 29.0);
    check(&found.residual[15], [(507, 22_495.0), (247, 1_669.0), (14, 860.0)], 45.7, 11.0);
    check(&found.residual[29], [(199, 2_531.0), (507, 2_505.0), (17, 1_552.0)], 79.5, 57.0);
    let block = &found.residual[15];
    assert_eq!((block.top[0].position, block.top[0].carried_by), (0, "first token"));
    assert_eq!(block.max_without_first.round(), 132.0);
    assert_eq!(block.without_first.map(|c| c.levels), Some(180.0));
}

#[test]
#[ignore = "needs models/smollm2; takes a minute"]
fn outlier_columns_of_smollm2() {
    let book = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/books/moby-dick-61.txt");
    let text = Text { name: "chapter 61".into(), text: std::fs::read_to_string(book).expect("is there") };
    let cut = Cut { tokens: 2048, ctx: 512, bos: scoring::Bos::Never };
    let request = activations::Request { text, cut, top: 3, without: 4, compute: Compute::on_cpu(None) };
    let found = activations::look(Path::new(MODEL), &request, &Silent).expect("runs");
    let (mut all, mut of_down, mut columns) = (0, 0, 0);
    for (module, absmax) in found.calibration.modules().filter(|(module, _)| *module != "lm_head") {
        let outliers = schemes::outlier::outlier_columns(absmax, schemes::outlier::THRESHOLD).len();
        (all, columns) = (all + outliers, columns + absmax.len());
        of_down += if module.ends_with("down_proj") { outliers } else { 0 };
    }
    assert_eq!((all, columns, of_down), (6_869, 149_760, 6_689));
}
