use super::*;
use crate::model::testing::Bigram;
use crate::text::testing::{encoder, tokenizer};
use store::Silent;

fn size(scheme: &str, bpw: f64) -> Size {
    Size { scheme: scheme.into(), bytes: 1000, parameters: 4000, bpw, file_bpw: 2.0 }
}

fn subject<'a>(name: &str, model: &'a Bigram, encoder: &'a Encoder) -> Subject<'a> {
    Subject {
        artifact: format!("{name}.gguf"),
        model,
        encoder,
        end: vec![256],
        size: size(name, 8.0),
        resident_bytes: 500,
        weight_error: None,
        warnings: vec!["a note".into()],
    }
}

pub(crate) fn request() -> Request {
    let text: String = (0..900).map(|i| ["ab", "cd ", "the ", "x"][(i * i + i / 3) % 4]).collect();
    Request {
        protocol: Protocol { ctx: 64, ..Protocol::default() },
        corpora: vec![
            Corpus { name: "first".into(), text: text.clone() },
            Corpus { name: "second".into(), text: text[500..].into() },
        ],
        battery: Some(Battery {
            name: "b".into(),
            items: battery::parse("b".as_ref(), r#"{"id": "1", "prompt": "a", "answers": ["x"]}"#).expect("good"),
        }),
        choices: None,
        speed: false,
        seed: 1,
    }
}

#[test]
fn a_comparison_from_one_end_to_the_other() {
    let encoder = encoder(false);
    let (model, near, far) = (Bigram::new(257, 0.1), Bigram::new(257, 0.12), Bigram::new(257, 3.0));
    let broken = Bigram { broken_at: Some(70), ..model.clone() };
    let artifacts = [("same", &model), ("near", &near), ("far", &far), ("broken", &broken)];
    let artifacts = artifacts.map(|(name, m)| subject(name, m, &encoder));
    let reference = subject("f16", &model, &encoder);
    let mut request = request();
    request.protocol.ctx = 128;
    let out = compare(&reference, &artifacts, &request, &Silent).expect("runs");
    let [first, same, near, far, broken] = &out.rows[..] else { panic!("five rows") };

    assert_eq!(first.verdict, Verdict::Reference);
    assert!(first.scores.kl.is_none() && first.agreement.is_none());
    let change = same.scores.change.expect("compared");
    assert_eq!((change.ratio, same.scores.kl.expect("compared").mean), (1.0, 0.0));
    assert_eq!((same.verdict, same.scores.same_top1), (Verdict::Indistinguishable, Some(1.0)));
    assert_eq!(same.agreement.as_ref().map(|a| (a.agree, a.total)), Some((144, 144)));
    assert_eq!(same.battery.as_ref().and_then(|b| b.mcnemar_p), Some(1.0));

    let kl = |row: &Row| row.scores.kl.expect("compared");
    assert!(kl(near).mean > 0.0 && kl(near).mean < kl(far).mean && kl(near).p99 >= kl(near).median);
    let interval = kl(far).ci95.expect("many blocks");
    assert!(interval.holds(kl(far).mean));
    assert_eq!(far.verdict, Verdict::Destroyed);
    assert_eq!(near.corpora.len(), 2);
    assert_ne!(near.corpora[0].perplexity, near.corpora[1].perplexity);

    let problem = broken.problem.as_deref().expect("NaN");
    assert_eq!(problem, "NaN or Inf logits in window 0 at position 70 of first");
    assert_eq!((broken.verdict, broken.corpora.len()), (Verdict::Unscored, 2));
    assert!(broken.battery.is_none() && broken.scores.perplexity.is_none());
    assert_eq!(out.notes, ["reference: a note"]);
}

#[test]
fn other_tokenizers_are_compared_by_bits_per_byte() {
    let (plain, merging) = (encoder(false), Encoder::new("m", tokenizer(&[("a", "b")], false), None).expect("encodes"));
    let (model, other) = (Bigram::new(257, 0.1), Bigram::new(258, 0.1));
    let reference = subject("f16", &model, &plain);
    let artifacts = [subject("other", &other, &merging)];
    let out = compare(&reference, &artifacts, &request(), &Silent).expect("runs");
    let row = &out.rows[1];
    assert!(row.not_comparable.as_deref().is_some_and(|n| n.contains("tokenizers differ")));
    assert!(row.scores.perplexity.is_none() && row.scores.kl.is_none() && row.agreement.is_none());
    assert!(row.scores.bits_per_byte.is_some_and(|b| b > 1.0));
    assert!(row.battery.is_some() && row.problem.is_none());
}

#[test]
fn the_json_has_the_documented_fields() {
    let encoder = encoder(false);
    let (model, near) = (Bigram::new(257, 0.1), Bigram::new(257, 0.12));
    let out = compare(&subject("f16", &model, &encoder), &[subject("near", &near, &encoder)], &request(), &Silent);
    let json: serde_json::Value =
        serde_json::from_str(&out.expect("runs").to_json().expect("serializes")).expect("valid");
    let row = &json["rows"][1];
    for pointer in [
        "/scheme",
        "/artifact",
        "/perplexity/value",
        "/perplexity/ci95/0",
        "/change/ratio",
        "/change/ci95/1",
        "/bits_per_byte",
        "/kl/mean",
        "/kl/p99",
        "/kl/ci95/0",
        "/agreement/agree",
        "/agreement/total",
        "/agreement/ci95/0",
        "/battery/right",
        "/battery/total",
        "/battery/ci95/0",
        "/battery/mcnemar_p",
        "/same_top1",
        "/bpw",
        "/file_bpw",
        "/size_bytes",
        "/resident_bytes",
        "/verdict",
    ] {
        assert!(row.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer}: {row:#}");
    }
    assert!(row["problem"].is_null());
    assert_eq!(json["protocol"]["ctx"], 64);
    assert_eq!(json["corpora"][0]["name"], "first");
}
