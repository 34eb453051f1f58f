use super::super::legend;
use super::*;
use scoring::rows::Limits;
use scoring::{agreement, battery, size, verdict::Because};

fn scores(ppl: f64, ratio: Option<f64>) -> TextScores {
    let around = |v: f64, share: f64| Some(Interval(v * (1.0 - share), v * (1.0 + share)));
    TextScores {
        perplexity: Some(Measured { value: ppl, ci95: around(ppl, 0.08) }),
        change: ratio.map(|ratio| Change { ratio, ci95: around(ratio, 0.004) }),
        bits_per_byte: Some(ppl.log2() / 4.1),
        bits_per_byte_ci95: around(ppl.log2() / 4.1, 0.02),
        kl: ratio.map(|r| Kl {
            mean: r.ln().abs(),
            ci95: around(r.ln().abs(), 0.1),
            median: 0.001,
            p99: r.ln().abs() * 9.0,
        }),
        same_top1: ratio.map(|r| 1.0 / r.max(1.0)),
        same_top1_ci95: ratio.and_then(|r| around(1.0 / r.max(1.0), 0.02)),
        divergences: vec![0.001, 0.01, 0.1],
    }
}

fn row(scheme: &str, bpw: f64, ppl: f64, ratio: Option<f64>, verdict: Verdict) -> Row {
    Row {
        label: scheme.into(),
        scheme: Some(scheme.into()),
        artifact: format!("{scheme}.gguf"),
        is_reference: ratio.is_none(),
        scores: scores(ppl, ratio),
        corpora: vec![scores(ppl, ratio)],
        agreement: ratio.map(|_| agreement::Score {
            agree: 141,
            total: 144,
            ci95: Some(Interval(0.94, 0.993)),
            design_effect: 1.2,
        }),
        battery: Some(battery::Score {
            right: 12,
            total: 16,
            ci95: Some(Interval(0.505, 0.898)),
            mcnemar_p: ratio.map(|_| 0.625),
        }),
        bpw: Some(bpw),
        file_bpw: Some(bpw + 1.2),
        size_bytes: Some((bpw * 2e7) as u64),
        parameters: Some(134_515_008),
        resident_bytes: Some((bpw * 1.9e7) as u64),
        weight_error: ratio.map(|r| size::Errors {
            mean: 0.4 * r.ln().abs(),
            worst: 0.985_39,
            worst_module: "model.layers.27.mlp.gate_proj".into(),
            pooled: 0.3,
            matrices: 210,
        }),
        prefill_tokens_per_s: Some(461.2),
        prefill_range: Some(Interval(450.3, 462.9)),
        decode_tokens_per_s: Some(66.04),
        decode_range: Some(Interval(65.5, 67.2)),
        verdict,
        ..Row::default()
    }
}

pub(crate) fn sample() -> Comparison {
    let mut broken = row("w8a8-tensor", 8.023, 0.0, None, Verdict::Failed);
    broken.is_reference = false;
    broken.corpora = vec![TextScores::default()];
    broken.scores = TextScores::default();
    broken.error = Some("NaN or Inf logits in window 3 at position 17 of prose.txt".into());
    let junk = Row {
        label: "junk.txt".into(),
        artifact: "artifacts/junk.txt".into(),
        verdict: Verdict::Failed,
        error: Some("artifacts/junk.txt: is no model".into()),
        corpora: vec![TextScores::default()],
        ..Row::default()
    };
    let mut smaller = row("nf4", 4.25, 58.0, Some(1.01), Verdict::Inconclusive);
    smaller.verdict_because = Some(Because::Kl);
    smaller.tokens_to_settle = Some(18_000);
    smaller.weight_error = None;
    smaller.weights_not_comparable = Some("the reference has no model.layers.9.mlp.up_proj, it has one".into());
    Comparison {
        version: 1,
        reference: "models/smollm2".into(),
        protocol: scoring::Protocol::default(),
        corpora: vec![scoring::rows::CorpusInfo {
            name: "prose.txt".into(),
            rule: "all 4965 tokens: 4955 tokens scored".into(),
            tokens_scored: 4955,
            bytes_scored: 23_871,
        }],
        battery: Some("16".into()),
        choices: None,
        agreement: true,
        speed: true,
        seed: 0,
        margin: Default::default(),
        smallest_within_margin: Some("int8-row.gguf".into()),
        limits: Limits::default(),
        smallest_within_limits: None,
        methods: vec!["How it was done.".into()],
        notes: vec!["reference: a note".into()],
        rows: vec![
            row("f16", 16.0, 57.619, None, Verdict::Reference),
            row("int8-row", 8.023, 57.47, Some(0.9974), Verdict::Equivalent),
            row("int4-g128", 4.135, 105.7, Some(1.834), Verdict::Different),
            row("int4-absmax", 4.0, 4.5e6, Some(78_100.0), Verdict::Destroyed),
            smaller,
            broken,
            junk,
        ],
    }
}

#[test]
fn the_terminal_table() {
    let form = report::table::Terminal { width: 100, ..Default::default() };
    let comparison = sample();
    let mut table = table(&comparison).expect("fits");
    table.notes = legend::notes(&comparison);
    table.notes.extend(legend::short(&comparison));
    insta::assert_snapshot!(form.render(&table));
}

#[test]
fn the_other_forms() {
    let table = table(&sample()).expect("fits");
    let csv = table.to_csv();
    let header: Vec<&str> = csv.lines().next().unwrap_or_default().split(',').collect();
    for key in ["scheme", "artifact", "error", "perplexity.ci95.low", "change.ratio", "kl.mean", "agreement.agree"] {
        assert!(header.contains(&key), "{key} in {header:?}");
    }
    assert_eq!(csv.lines().count(), 8);
    assert!(csv.contains("artifacts/junk.txt: is no model"), "{csv}");
    assert!(table.to_markdown().contains("| int4-absmax |"));
}

#[test]
fn the_header_of_csv_is_the_same_whatever_was_measured() {
    let full = sample();
    let header = |c: &Comparison| table(c).expect("fits").to_csv().lines().next().map(str::to_string);
    let mut no_intervals = full.clone();
    let bare = |p: Measured| Measured { ci95: None, ..p };
    for row in &mut no_intervals.rows {
        for scores in &mut row.corpora {
            scores.perplexity = scores.perplexity.map(bare);
            scores.change = scores.change.map(|c| Change { ci95: None, ..c });
            scores.kl = scores.kl.map(|k| Kl { ci95: None, ..k });
            scores.same_top1_ci95 = None;
            scores.bits_per_byte_ci95 = None;
        }
    }
    let mut failed = full.clone();
    failed.rows.drain(1..failed.rows.len() - 1);
    let mut silent = failed.clone();
    silent.rows.iter_mut().for_each(|r| {
        *r = Row { corpora: vec![TextScores::default()], ..Row::default() };
    });
    for other in [&no_intervals, &failed, &silent] {
        assert_eq!(header(other), header(&full));
    }
}

#[test]
fn what_decided_is_said_where_the_word_leaves_it_open() {
    let of = |verdict, because| {
        let row = Row { verdict, verdict_because: Some(because), ..Row::default() };
        super::verdict(&row).text
    };
    assert_eq!(of(Verdict::Different, Because::PerplexityDown), "different (perplexity down)");
    assert_eq!(of(Verdict::Inconclusive, Because::Kl), "inconclusive (KL)");
    assert_eq!(of(Verdict::Destroyed, Because::PerplexityUp), "destroyed");
}

#[test]
fn perplexity_in_lines() {
    let corpus = |ci95| scoring::compare::CorpusPerplexity {
        info: sample().corpora[0].clone(),
        perplexity: Measured { value: 57.6, ci95 },
        bits_per_byte: 1.426,
        bits_per_byte_ci95: ci95.map(|_| Interval(1.4, 1.45)),
    };
    let scored = Perplexities {
        version: 2,
        model: "m".into(),
        protocol: scoring::Protocol::default(),
        corpora: vec![corpus(Some(Interval(53.0, 62.2))), corpus(None)],
        methods: vec!["How it was done.".into()],
        notes: vec!["a note".into()],
    };
    insta::assert_snapshot!(perplexity(&scored), @r"
    perplexity    57.60 [53.0, 62.2]
    bits per byte 1.4260 [1.40, 1.45]
    prose.txt: all 4965 tokens: 4955 tokens scored
    perplexity    57.60
    bits per byte 1.4260
    prose.txt: all 4965 tokens: 4955 tokens scored
    How it was done.
    note: a note
    ");
}

#[test]
fn every_text_has_its_columns() {
    let mut comparison = sample();
    let mut second = comparison.corpora[0].clone();
    second.name = "book.txt".into();
    comparison.corpora.push(second);
    for row in &mut comparison.rows {
        row.corpora.push(TextScores::default());
    }
    let table = table(&comparison).expect("fits");
    assert!(table.columns.iter().any(|c| c.key == "perplexity:book.txt" && c.header == "Perplexity\nbook.txt"));
    assert!(super::super::page::page(&comparison).expect("fits").render().is_ok());
}

#[test]
fn another_verdict_on_a_later_text_is_noted() {
    let mut comparison = sample();
    let mut second = comparison.corpora[0].clone();
    second.name = "book.txt".into();
    comparison.corpora.push(second);
    for row in &mut comparison.rows {
        let again = row.corpora[0].clone();
        row.corpora.push(again);
    }
    comparison.rows[1].corpora[1] = scores(90.0, Some(1.3));
    let notes = legend::notes(&comparison);
    let said: Vec<&String> = notes.iter().filter(|n| n.ends_with(" on book.txt.")).collect();
    assert!(said.contains(&&"int8-row: different on book.txt.".to_string()), "{said:?}");
    assert!(!said.iter().any(|n| n.starts_with("int4-g128") || n.starts_with("f16")), "{said:?}");
}
