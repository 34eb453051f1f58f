use super::*;
use crate::model::testing::Bigram;
use crate::rows::Row;
use crate::text::testing::{encoder, tokenizer};
use crate::verdict::Verdict;
use progress::Silent;

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
        max_position: 512,
        weight_error: None,
        warnings: vec!["a note".into()],
        trained_on: store::TrainedOn::default(),
    }
}

fn ready<'a, const N: usize>(subjects: [Subject<'a>; N]) -> [Entrant<'a>; N] {
    subjects.map(Entrant::Ready)
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
        agreement: true,
        speed: false,
        seed: 1,
        margin: Default::default(),
        limits: Default::default(),
    }
}

#[test]
fn a_comparison_from_one_end_to_the_other() {
    let encoder = encoder(false);
    let (model, near, far) = (Bigram::new(257, 0.1), Bigram::new(257, 0.12), Bigram::new(257, 3.0));
    let broken = Bigram { broken_at: Some(70), ..model.clone() };
    let artifacts = [("same", &model), ("near", &near), ("far", &far), ("broken", &broken)];
    let artifacts = ready(artifacts.map(|(name, m)| subject(name, m, &encoder)));
    let reference = subject("f16", &model, &encoder);
    let mut request = request();
    request.protocol.ctx = 128;
    let out = compare(&reference, &artifacts, &request, &Silent).expect("runs");
    let [first, same, near, far, broken] = &out.rows[..] else { panic!("five rows") };

    assert_eq!(first.verdict, Verdict::Reference);
    assert!(first.scores.kl.is_none() && first.agreement.is_none());
    let change = same.scores.change.expect("compared");
    assert_eq!((change.ratio, same.scores.kl.expect("compared").mean), (1.0, 0.0));
    assert_eq!((same.verdict, same.scores.same_top1), (Verdict::Same, Some(1.0)));
    assert_eq!(same.agreement.as_ref().map(|a| (a.agree, a.total)), Some((144, 144)));
    assert_eq!(same.battery.as_ref().and_then(|b| b.mcnemar_p), Some(1.0));

    let kl = |row: &Row| row.scores.kl.expect("compared");
    assert!(kl(near).mean > 0.0 && kl(near).mean < kl(far).mean && kl(near).p99 >= kl(near).median);
    let interval = kl(far).ci95.expect("many blocks");
    assert!(interval.holds(kl(far).mean));
    assert_eq!(far.verdict, Verdict::Destroyed);
    assert_eq!(near.corpora.len(), 2);
    assert_ne!(near.corpora[0].perplexity, near.corpora[1].perplexity);

    let problem = broken.error.as_deref().expect("NaN");
    assert_eq!(problem, "NaN or Inf logits in window 0 at position 70 of first");
    assert_eq!((broken.verdict, broken.corpora.len()), (Verdict::Failed, 2));
    assert!(broken.battery.is_none() && broken.scores.perplexity.is_none());
    assert_eq!(out.notes, ["reference: a note"]);
}

#[test]
fn other_tokenizers_are_compared_by_bits_per_byte() {
    let (plain, merging) = (encoder(false), Encoder::new("m", tokenizer(&[("a", "b")], false), None).expect("encodes"));
    let (model, other) = (Bigram::new(257, 0.1), Bigram::new(258, 0.1));
    let reference = subject("f16", &model, &plain);
    let artifacts = ready([subject("other", &other, &merging)]);
    let out = compare(&reference, &artifacts, &request(), &Silent).expect("runs");
    let row = &out.rows[1];
    assert!(row.not_comparable.as_deref().is_some_and(|n| n.contains("tokenizers differ")));
    assert!(row.scores.perplexity.is_none() && row.scores.kl.is_none() && row.agreement.is_none());
    let bits = row.scores.bits_per_byte.expect("scored alone");
    assert!(bits > 1.0 && row.scores.bits_per_byte_ci95.is_some_and(|i| i.holds(bits)));
    // Every token is one byte here, so that both scores of the reference say the same.
    let reference = &out.rows[0].scores;
    let bits = |nats: f64| nats.ln() / std::f64::consts::LN_2;
    let from_perplexity = reference.perplexity.and_then(|p| p.ci95).map(|i| i.map(bits)).expect("long enough");
    let from_bytes = reference.bits_per_byte_ci95.expect("long enough");
    let far = (from_perplexity.0 - from_bytes.0).abs() + (from_perplexity.1 - from_bytes.1).abs();
    assert!(far < 1e-9, "{from_perplexity:?} {from_bytes:?}");
    assert!(row.battery.is_some() && row.error.is_none());
}

#[test]
fn the_json_has_the_documented_fields() {
    let encoder = encoder(false);
    let (model, near) = (Bigram::new(257, 0.1), Bigram::new(257, 0.12));
    let artifacts = ready([subject("near", &near, &encoder)]);
    let out = compare(&subject("f16", &model, &encoder), &artifacts, &request(), &Silent);
    let json: serde_json::Value = serde_json::to_value(out.expect("runs")).expect("serializes");
    let row = &json["rows"][1];
    for pointer in [
        "/scheme",
        "/artifact",
        "/perplexity/value",
        "/perplexity/ci95/0",
        "/change/ratio",
        "/change/ci95/1",
        "/bits_per_byte",
        "/bits_per_byte_ci95/0",
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
        "/same_top1_ci95/0",
        "/label",
        "/bpw",
        "/file_bpw",
        "/size_bytes",
        "/resident_bytes",
        "/verdict",
    ] {
        assert!(row.pointer(pointer).is_some_and(|v| !v.is_null()), "{pointer}: {row:#}");
    }
    assert!(row["error"].is_null());
    assert_eq!(json["protocol"]["ctx"], 64);
    assert_eq!(json["corpora"][0]["name"], "first");
}

#[test]
fn what_could_not_be_opened_has_a_row_in_its_place() {
    let encoder = encoder(false);
    let model = Bigram::new(257, 0.1);
    let failed = Entrant::Failed { artifact: "x/junk.txt".into(), error: "x/junk.txt: is no model".into() };
    let [same] = ready([subject("same", &model, &encoder)]);
    let out =
        compare(&subject("f16", &model, &encoder), &[failed, same], &request(), &Silent).expect("the others stand");
    let [_, junk, same] = &out.rows[..] else { panic!("three rows") };
    assert_eq!(
        (junk.label.as_str(), junk.artifact.as_str(), junk.verdict),
        ("junk.txt", "x/junk.txt", Verdict::Failed)
    );
    assert_eq!((junk.error.as_deref(), junk.corpora.len()), (Some("x/junk.txt: is no model"), 2));
    assert_eq!(same.verdict, Verdict::Same);
    let json: serde_json::Value = serde_json::to_value(&out).expect("serializes");
    assert_eq!(json["rows"][1]["error"], "x/junk.txt: is no model");
    assert!(json["rows"][1]["size_bytes"].is_null());
}

#[test]
fn a_padded_vocabulary_changes_no_score_and_is_noted() {
    let encoder = encoder(false);
    let model = Bigram::new(257, 0.1);
    let mut table = ndarray::Array2::zeros((257, 320));
    table.slice_mut(ndarray::s![.., ..257]).assign(&model.table);
    let padded = Bigram { table, broken_at: None };
    let out =
        compare(&subject("f16", &model, &encoder), &ready([subject("padded", &padded, &encoder)]), &request(), &Silent);
    let out = out.expect("runs");
    let scores = &out.rows[1].scores;
    assert_eq!((scores.change.map(|c| c.ratio), scores.kl.map(|k| k.mean)), (Some(1.0), Some(0.0)));
    assert_eq!(scores.perplexity, out.rows[0].scores.perplexity);
    let note = out.notes.iter().find(|n| n.starts_with("padded: the vocabulary has 320 entries, the reference's 257"));
    assert!(note.is_some_and(|n| n.contains("% of its probability to the others")), "{:?}", out.notes);
}

#[test]
fn windows_beyond_the_training_are_noted() {
    let encoder = encoder(false);
    let model = Bigram::new(257, 0.1);
    let of = |most: usize| {
        let reference = Subject { max_position: most, ..subject("f16", &model, &encoder) };
        let artifacts = ready([Subject { max_position: most, ..subject("same", &model, &encoder) }]);
        compare(&reference, &artifacts, &request(), &Silent).expect("runs").notes
    };
    assert_eq!(of(64), ["reference: a note"]);
    let beyond = "reference: windows have 64 positions, but the model was trained for 63 (max_position_embeddings)";
    assert!(of(63).iter().filter(|n| n.starts_with(beyond)).count() == 1, "{:?}", of(63));
    let reference = Subject { max_position: 63, ..subject("f16", &model, &encoder) };
    let alone = perplexity(&reference, &request().corpora, &request().protocol, 0, &Silent).expect("runs");
    assert!(alone.notes[1].starts_with("windows have 64 positions"), "{:?}", alone.notes);
}

#[test]
fn perplexity_alone_says_what_it_needs_to() {
    let encoder = encoder(false);
    let model = Bigram::new(257, 0.1);
    let run = |model: &Bigram, text: &str| {
        let corpus = Corpus { name: "c".into(), text: text.into() };
        perplexity(&subject("m", model, &encoder), &[corpus], &Protocol::default(), 0, &Silent)
    };
    let long = run(&model, &"some words ".repeat(20)).expect("runs");
    assert_eq!(long.methods.len(), 2);
    let short = run(&model, "some words").expect("runs");
    assert_eq!(short.methods, ["The names of special tokens in a text are read as ordinary text."]);
    let broken = Bigram { broken_at: Some(3), ..model };
    let e = run(&broken, "some words").expect_err("NaN").to_string();
    assert_eq!(e, "m.gguf: NaN or Inf logits in window 0 at position 3 of c; there is no score");
}

#[test]
fn a_text_that_a_model_was_trained_on_is_named() {
    let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
    let request = Request { battery: None, choices: None, speed: false, ..request() };
    let known = encoder.encode(&request.corpora[1].text).expect("encodes").ids;
    let trained_on = store::TrainedOn::new([&known[..]]);
    let reference = subject("f16", &model, &encoder);
    let artifacts = ready([Subject { trained_on, ..subject("student", &model, &encoder) }]);
    let found = compare(&reference, &artifacts, &request, &Silent).expect("scores");
    assert_eq!((found.rows[0].trained_on.len(), &found.rows[1].trained_on), (0, &vec!["second".to_string()]));
    assert!(
        found.notes.iter().any(|n| n.starts_with("student: contamination: ") && n.contains("second")),
        "{:?}",
        found.notes
    );
}
