use super::*;
use crate::soft::{Soft, Teacher};
use crate::teacher::{Model, Online};
use crate::{Windows, continuations::softened};
use proptest::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use store::output::{Existing, Form, ResumableFile};
use tempfile::TempDir;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
const TEMPERATURES: [f64; 3] = [1.0, 2.0, 4.0];

fn model() -> &'static Model {
    static MODEL: OnceLock<Model> = OnceLock::new();
    MODEL.get_or_init(|| Model::open(Path::new(FIXTURE), "cpu", "f32").expect("the fixture"))
}

fn settings(kind: Kind) -> Settings {
    Settings { kind, temperatures: TEMPERATURES.into(), seed: 7 }
}

/// Two documents in three windows: two whole ones and a short one, then one of another text.
fn windows() -> Windows {
    let ids = model().text.encode(&crate::testing::TEXT.repeat(2)).expect("any text");
    Windows::new(&[ids[..40].to_vec(), ids[50..57].to_vec()], 16, None).expect("long enough")
}

struct Made {
    /// Keeps the file.
    folder: TempDir,
    path: PathBuf,
}

fn make(kind: Kind, windows: &Windows) -> Made {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labels.safetensors");
    let plan = Plan::new(&path, model(), windows, settings(kind)).expect("a plan");
    let written = plan.write(Existing::Refuse, &progress::Silent).expect("labels");
    assert_eq!((written.resumed, written.made), (0, windows.predictions()));
    assert_eq!(fs::metadata(&path).expect("there").len(), plan.file_len(), "as large as announced");
    Made { folder, path }
}

/// The teacher's logits for each prediction of a window, row by row.
fn logits(windows: &Windows, window: usize) -> Vec<Vec<f32>> {
    let Soft::Full { logits } = Online::new(model(), windows, 1.0).soft(window).expect("runs") else {
        panic!("full labels")
    };
    logits.chunks(model().vocab_size()).map(<[f32]>::to_vec).collect()
}

#[test]
fn top_k_and_the_rest_are_the_whole_distribution_at_every_temperature() {
    let windows = windows();
    let labels = Labels::open(&make(Kind::TopK(8), &windows).path).expect("opens");
    assert_eq!(labels.windows(), &windows);
    for t in TEMPERATURES {
        let mut reader = labels.at(t).expect("a listed temperature");
        for window in 0..windows.windows.len() {
            let Soft::TopK { k, ids, log_probs, log_rest } = reader.soft(window).expect("labels") else {
                panic!("top-k labels")
            };
            let rows = logits(&windows, window);
            assert_eq!((k, log_rest.len(), ids.len()), (8, rows.len(), 8 * rows.len()));
            for (i, row) in rows.iter().enumerate() {
                let p = softened(row, t);
                let (ids, log_probs) = (&ids[8 * i..][..8], &log_probs[8 * i..][..8]);
                let sum: f64 = log_probs.iter().chain([&log_rest[i]]).map(|&lp| f64::from(lp).exp()).sum();
                assert!((sum - 1.0).abs() < 1e-5, "T = {t}: {sum}");
                let listed: f64 = ids.iter().map(|&id| p[id as usize]).sum();
                // F16 moves log-probabilities by up to 2^-12 of themselves, and the normaliser with them.
                let outside = 1.0 - listed;
                let rest = f64::from(log_rest[i]).exp();
                assert!((rest - outside).abs() < 2e-3 * outside + 1e-6, "T = {t}: {rest} {outside}");
                for (&id, &lp) in ids.iter().zip(log_probs) {
                    let exact = p[id as usize].ln();
                    assert!((f64::from(lp) - exact).abs() < 4e-3, "T = {t}: {lp} {exact}");
                }
                assert!(ids.windows(2).all(|w| row[w[0] as usize] >= row[w[1] as usize]));
                let least = row[ids[7] as usize];
                assert_eq!(row.iter().filter(|&&x| x > least).count(), 7, "nothing more likely is left out");
            }
        }
    }
}

#[test]
fn top_k_of_everything_leaves_no_rest() {
    let windows = windows();
    let vocab = model().vocab_size();
    let labels = Labels::open(&make(Kind::TopK(vocab), &windows).path).expect("opens");
    let Soft::TopK { log_rest, .. } = labels.at(2.0).expect("listed").soft(0).expect("labels") else { panic!("top-k") };
    assert!(log_rest.iter().all(|&r| r == f32::NEG_INFINITY));
    let plan = Plan::new(Path::new("x"), model(), &windows, settings(Kind::TopK(vocab + 1)));
    assert!(plan.expect_err("too many").to_string().contains("use full"));
}

#[test]
fn the_cost_of_f16() {
    // KL(exact || stored) of the k probabilities and the rest, against what students are apart from teachers: above
    // 0.01 nats in the best case.
    let windows = windows();
    let labels = Labels::open(&make(Kind::TopK(64), &windows).path).expect("opens");
    for t in TEMPERATURES {
        let (mut kl, mut n) = (0.0, 0.0);
        for window in 0..windows.windows.len() {
            let Soft::TopK { ids, log_probs, log_rest, .. } =
                labels.at(t).expect("listed").soft(window).expect("labels")
            else {
                panic!("top-k")
            };
            for (i, row) in logits(&windows, window).iter().enumerate() {
                let p = softened(row, t);
                let listed = ids[64 * i..][..64].iter().map(|&id| p[id as usize]);
                let outside = 1.0 - listed.clone().sum::<f64>();
                let stored = log_probs[64 * i..][..64].iter().chain([&log_rest[i]]);
                kl += listed.chain([outside]).zip(stored).map(|(p, &q)| p * (p.ln() - f64::from(q))).sum::<f64>();
                n += 1.0;
            }
        }
        let per_row = t * t * kl / n;
        assert!(per_row.abs() < 1e-5, "T = {t}: {per_row}");
    }
}

#[test]
fn full_labels_are_the_teacher() {
    let windows = windows();
    let labels = Labels::open(&make(Kind::Full, &windows).path).expect("opens");
    // Not listed anywhere: full labels suit every temperature.
    let mut reader = labels.at(3.5).expect("any temperature");
    for window in 0..windows.windows.len() {
        let soft = reader.soft(window).expect("labels");
        let rows = logits(&windows, window);
        assert_eq!(soft.rows(model().vocab_size()), rows.len());
        let Soft::Full { logits } = soft else { panic!("full") };
        for (stored, row) in logits.chunks(model().vocab_size()).zip(&rows) {
            let (p, q) = (softened(row, 3.5), softened(stored, 3.5));
            let kl: f64 = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum();
            assert!((0.0..1e-6).contains(&kl), "{kl}");
        }
    }
}

#[test]
fn sampled_labels_are_unbiased() {
    // The mean over draws of -ln(student) estimates the cross-entropy to the teacher: within four standard errors.
    let windows = windows();
    let labels = Labels::open(&make(Kind::Sampled(200), &windows).path).expect("opens");
    for t in TEMPERATURES {
        let (mut found, mut expected, mut variance) = (0.0, 0.0, 0.0);
        for window in 0..windows.windows.len() {
            let Soft::Sampled { n, ids } = labels.at(t).expect("listed").soft(window).expect("labels") else {
                panic!("sampled")
            };
            for (i, row) in logits(&windows, window).iter().enumerate() {
                let p = softened(row, t);
                // Some student: the teacher, reversed in part.
                let student = softened(
                    &row.iter().enumerate().map(|(i, x)| x * (0.5 + (i % 7) as f32 * 0.1)).collect::<Vec<_>>(),
                    t,
                );
                let mean: f64 = p.iter().zip(&student).map(|(p, q)| -p * q.ln()).sum();
                variance += p.iter().zip(&student).map(|(p, q)| p * (q.ln() + mean).powi(2)).sum::<f64>() / n as f64;
                expected += mean;
                found += ids[n * i..][..n].iter().map(|&id| -student[id as usize].ln()).sum::<f64>() / n as f64;
            }
        }
        let errors = (found - expected) / variance.sqrt();
        assert!(errors.abs() < 4.0, "T = {t}: {errors} standard errors");
    }
}

#[test]
fn draws_depend_on_the_seed_alone() {
    let windows = windows();
    let made = make(Kind::Sampled(4), &windows);
    assert_eq!(fs::read(&made.path).expect("read"), fs::read(make(Kind::Sampled(4), &windows).path).expect("read"));
    let other = Settings { seed: 8, ..settings(Kind::Sampled(4)) };
    let path = made.folder.path().join("other");
    Plan::new(&path, model(), &windows, other)
        .expect("a plan")
        .write(Existing::Refuse, &progress::Silent)
        .expect("labels");
    let draws = |path| match Labels::open(path).expect("opens").at(1.0).expect("listed").soft(0).expect("labels") {
        Soft::Sampled { ids, .. } => ids,
        _ => panic!("sampled"),
    };
    assert_ne!(draws(&made.path), draws(&path));
}

#[test]
fn an_interrupted_run_goes_on_to_the_same_bytes() {
    let windows = windows();
    for kind in [Kind::TopK(8), Kind::Sampled(3), Kind::Full] {
        let whole = make(kind, &windows);
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("labels");
        let plan = Plan::new(&path, model(), &windows, settings(kind)).expect("a plan");
        let mut file = plan.open().expect("begins");
        plan.window(&file, 0).expect("labels");
        plan.window(&file, 1).expect("labels");
        file.record(2).expect("recorded");
        plan.window(&file, 2).expect("labels that are not recorded");
        drop(file);
        assert!(!path.exists());
        let partial = folder.path().join("labels.partial");
        let interrupted = fs::read(&partial).expect("read");
        let written = plan.write(Existing::Refuse, &progress::Silent).expect("goes on");
        assert_eq!((written.resumed, written.damaged), (windows.predictions_of(2).start, 0));
        assert_eq!(written.resumed + written.made, windows.predictions());
        assert_eq!(fs::read(&path).expect("read"), fs::read(&whole.path).expect("read"), "{kind}");

        // The first byte of the last column in window 1.
        let (spec, at) = (plan.columns.last().expect("columns"), plan.file.offsets().last().expect("offsets"));
        let row = spec.shape[1..].iter().product::<usize>() * spec.dtype.size().expect("whole bytes");
        let mut damaged = interrupted;
        damaged[*at as usize + windows.predictions_of(1).start * row] ^= 1;
        fs::write(&partial, damaged).expect("write");
        let written = plan.write(Existing::Overwrite, &progress::Silent).expect("goes on");
        assert_eq!(
            (written.resumed, written.damaged),
            (windows.predictions_of(1).start, windows.predictions_of(1).len())
        );
        assert_eq!(fs::read(&path).expect("read"), fs::read(&whole.path).expect("read"), "{kind}");
    }
}

#[test]
fn an_unfinished_file_of_something_else_is_refused_by_name() {
    let windows = windows();
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labels");
    drop(Plan::new(&path, model(), &windows, settings(Kind::TopK(8))).expect("a plan").open().expect("begins"));
    let refused = |windows: &Windows, settings| {
        let message = Plan::new(&path, model(), windows, settings).expect_err("refused").to_string();
        assert!(message.contains("labels.partial") && message.contains("remove it"), "{message}");
        message
    };
    assert!(refused(&windows, settings(Kind::TopK(9))).contains("kind topk:8, not topk:9"));
    let two = Settings { temperatures: vec![1.0, 3.0], ..settings(Kind::TopK(8)) };
    assert!(refused(&windows, two).contains("temperatures 1,2,4, not 1,3"));
    let mut tokens = windows.tokens_of(0).to_vec();
    tokens.resize(windows.tokens.len(), 5);
    assert!(
        refused(&Windows::new(&[tokens.clone()], 16, None).expect("cuts"), settings(Kind::TopK(8)))
            .contains("another text")
    );
    // As many tokens, windows and predictions, and other tokens.
    let mut parts: Vec<Vec<u32>> = windows.documents.iter().map(|d| windows.tokens[d.clone()].to_vec()).collect();
    parts[0][3] ^= 1;
    assert!(refused(&Windows::new(&parts, 16, None).expect("cuts"), settings(Kind::TopK(8))).contains("another text"));
    let partial = folder.path().join("labels.partial");
    let mut old = fs::read(&partial).expect("read");
    let at = old.windows(19).position(|w| w == br#"distill.labels":"2""#).expect("its version");
    old[at + 17] = b'1';
    fs::write(&partial, &old).expect("write");
    assert!(refused(&windows, settings(Kind::TopK(8))).contains("another version of the format"));
    old[at + 17] = b'2';
    let text = format::head(&old).len();
    let context = old.windows(4).position(|w| w == br#""16""#).expect("its context");
    for at in [text, context + 1] {
        let mut damaged = old.clone();
        damaged[at] ^= 1;
        fs::write(&partial, damaged).expect("write");
        assert!(refused(&windows, settings(Kind::TopK(8))).contains("is damaged: its text or its header"), "{at}");
    }
    fs::write(&partial, "something").expect("write");
    assert!(refused(&windows, settings(Kind::TopK(8))).contains("is no unfinished labels file"));
}

#[test]
fn labels_of_something_else_are_refused_with_the_way_out() {
    let windows = windows();
    let made = make(Kind::TopK(4), &windows);
    let labels = Labels::open(&made.path).expect("opens");
    labels.expect_windows(&windows).expect("the same text");
    labels.expect_teacher(&model().files).expect("the same teacher");
    labels.expect_tokenizer(&model().text).expect("the same tokenizer");

    let other = Windows::new(&[windows.tokens[1..].to_vec()], 16, None).expect("cuts");
    let says = |e: crate::Result<()>| e.expect_err("refused").to_string();
    assert!(says(labels.expect_windows(&other)).contains("differs from token 0 on; make labels of its own"));
    let longer = Windows::new(std::slice::from_ref(&windows.tokens), 32, None).expect("cuts");
    assert!(says(labels.expect_windows(&longer)).contains("windows are of 16 tokens, not 32"));
    let mut teacher = model().files.clone();
    teacher.tensors.swap_remove("model.norm.weight");
    assert!(says(labels.expect_teacher(&teacher)).contains("teacher tiny, whose tensors are not those of"));
    let (tokenizer, _) = crate::testing::corpus();
    let tokenizer = store::TextTokenizer::new(tokenizer).expect("encodes");
    assert!(says(labels.expect_tokenizer(&tokenizer)).contains("tokens of tiny's tokenizer"));
    let e = labels.at(3.0).expect_err("not listed").to_string();
    assert!(e.contains("at temperature 1,2,4, not 3") && e.contains("--temperature 3"), "{e}");
}

#[test]
fn each_window_has_the_labels_of_its_own_tokens_in_any_order() {
    let windows = windows();
    let labels = Labels::open(&make(Kind::TopK(4), &windows).path).expect("opens");
    let mut reader = labels.at(1.0).expect("listed");
    for window in [3, 0, 2, 1, 0] {
        let Soft::TopK { ids, .. } = reader.soft(window).expect("labels") else { panic!("top-k") };
        let best: Vec<u32> = logits(&windows, window)
            .iter()
            .map(|row| (0u32..).zip(row).fold((0, f32::MIN), |m, (i, &x)| if x > m.1 { (i, x) } else { m }).0)
            .collect();
        assert_eq!(ids.iter().step_by(4).copied().collect::<Vec<_>>(), best);
    }
}

#[test]
fn tokens_of_large_vocabularies_take_four_bytes() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("labels");
    let header = format::Header {
        settings: settings(Kind::Sampled(2)),
        context: 8,
        vocab_size: 70_000,
        teacher: "large".into(),
        teacher_hash: String::new(),
        tokenizer_hash: String::new(),
    };
    let windows = Windows::new(&[vec![65_536, 5]], 8, None).expect("two tokens");
    let mut specs = format::fixed(&windows).to_vec();
    specs.extend(format::columns(&header.settings, 1, header.vocab_size));
    let plan = store::safetensors::plan(&path, &specs, &header.metadata()).expect("a plan");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 0);
    let mut put =
        |tensor: usize, data: &[u8]| bytes[plan.offsets()[tensor] as usize..][..data.len()].copy_from_slice(data);
    let words = |words: &[u32]| words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
    let range: Vec<u8> = [0i64, 2].iter().flat_map(|n| n.to_le_bytes()).collect();
    let (text, ids) = (words(&windows.tokens), words(&[1, 2, 3, 69_999, 5, 6]));
    let head = format::checksum(&[plan.header(), &text, &range, &range].map(format::hashed));
    let of = |ids: &[u8]| format::checksum(&[ids].map(format::hashed));
    let parts = [text, range.clone(), range, [head, of(&ids)].concat(), ids];
    parts.iter().enumerate().for_each(|(tensor, data)| put(tensor, data));
    fs::write(&path, &bytes).expect("written");
    let labels = Labels::open(&path).expect("opens");
    let soft = labels.at(2.0).expect("listed").soft(0).expect("labels");
    assert_eq!(soft, Soft::Sampled { n: 2, ids: vec![3, 69_999] });

    let ids = plan.offsets()[4] as usize;
    bytes[ids + 14] = 2;
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("written");
        Labels::open(&path).expect("opens").at(2.0).expect("listed").soft(0).expect_err("damaged").to_string()
    };
    let e = read(&bytes);
    assert!(e.contains("is damaged: among predictions 0..1, some are not what was written"), "{e}");
    // So written, with a checksum that is right.
    let checksum = of(&bytes[ids..ids + 24]);
    bytes[plan.offsets()[3] as usize + format::HASH..][..format::HASH].copy_from_slice(&checksum);
    let e = read(&bytes);
    assert!(e.contains("is damaged: among predictions 0..1, token 135535 is outside the vocabulary"), "{e}");
}

fn bytes_of_some() -> &'static [u8] {
    static BYTES: OnceLock<Vec<u8>> = OnceLock::new();
    BYTES.get_or_init(|| fs::read(make(Kind::TopK(2), &windows()).path).expect("read"))
}

/// Opens the file and reads all labels; errors are fine, as long as they come in order.
fn read_all(bytes: &[u8]) -> crate::Result<()> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("labels");
    fs::write(&path, bytes).expect("write");
    let labels = Labels::open(&path)?;
    let temperature = labels.temperatures().first().copied().unwrap_or(1.0);
    let mut reader = labels.at(temperature)?;
    for window in 0..labels.windows().windows.len() {
        let soft = reader.soft(window)?;
        assert_eq!(soft.rows(labels.vocab_size()), labels.windows().predictions_of(window).len());
    }
    Ok(())
}

#[test]
fn every_truncation_is_refused() {
    let bytes = bytes_of_some();
    for len in (0..bytes.len()).step_by(7).chain([bytes.len() - 1]) {
        assert!(read_all(&bytes[..len]).is_err(), "{len} of {}", bytes.len());
    }
    read_all(bytes).expect("the file itself");
}

#[test]
fn what_contradicts_itself_is_named() {
    let header = |bytes: &[u8]| 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let says = |from: &str, to: &str| {
        let bytes = bytes_of_some();
        let end = header(bytes);
        let text = String::from_utf8(bytes[8..end].to_vec()).expect("JSON");
        assert!(text.contains(from), "{text}");
        let mut text = text.replacen(from, to, 1).trim_end().to_string();
        text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
        let changed = [&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &bytes[end..]].concat();
        read_all(&changed).expect_err(to).to_string()
    };
    assert!(
        says("qdistill.labels\":\"2\"", "qdistill.labels\":\"1\"").contains("version 1; this program reads version 2")
    );
    assert!(says("qdistill.labels", "qdistill.else").contains("no labels file"));
    assert!(says("topk:2", "topk:3").contains("tensor ids is U16"));
    assert!(says("topk:2", "topk:0").contains("qdistill.kind"));
    assert!(says("\"1,2,4\"", "\"1,2\"").contains("tensor log_normalisers is"));
    assert!(says("\"1,2,4\"", "\"1,2,2\"").contains("there twice"));
    assert!(says("\"1,2,4\"", "\"1,2,-4\"").contains("between 0.1 and 100, not be -4"));

    assert!(says("qdistill.seed\":\"7\"", "qdistill.seed\":\"8\"").contains("its header is not what was written"));
    assert!(says("qdistill.context\":\"16\"", "qdistill.context\":\"9\"").contains("context of 9"));
    assert!(says("qdistill.vocab_size\":\"", "qdistill.vocab_size\":\"-").contains("not a number"));
    assert!(says("qdistill.vocab_size\":\"", "qdistill.vocab_size\":\"99999").contains("no vocabulary is larger"));
    assert!(says("\"log_rest\"", "\"log_resi\"").contains("tensor log_rest is missing"));
    assert!(read_all(b"no file").expect_err("no file").to_string().contains("no safetensors file"));
}

/// The file with other labels, and checksums that are right.
fn forged(made: &Made, column: &str, change: impl Fn(&mut [u8])) -> String {
    let mut bytes = fs::read(&made.path).expect("read");
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let json: serde_json::Value = serde_json::from_slice(&bytes[8..header]).expect("JSON");
    let at = |name: &str| {
        let offsets = json[name]["data_offsets"].as_array().expect("offsets");
        let [start, end] = [0, 1].map(|i| header + offsets[i].as_u64().expect("a number") as usize);
        start..end
    };
    change(&mut bytes[at(column)]);
    let predictions = windows().predictions_of(0).len();
    let names = ["ids", "log_probs", "log_normalisers", "log_rest"].iter().filter(|n| json.get(**n).is_some());
    let parts = names.map(|name| {
        let row = at(name).len() / windows().predictions();
        format::hashed(&bytes[at(name)][..row * predictions])
    });
    let checksum = format::checksum(&parts.collect::<Vec<_>>());
    bytes[at("blake3")][format::HASH..2 * format::HASH].copy_from_slice(&checksum);
    read_all(&bytes).expect_err("refused").to_string()
}

#[test]
fn labels_that_cannot_be_are_refused() {
    let made = make(Kind::TopK(4), &windows());
    let twice = forged(&made, "ids", |ids| ids.copy_within(8..10, 12));
    assert!(
        twice.contains("is damaged: among predictions 0..15, token ") && twice.contains("is there twice"),
        "{twice}"
    );
    let beyond = forged(&made, "ids", |ids| ids[9] = 0xff);
    assert!(beyond.contains("is outside the vocabulary"), "{beyond}");
    let sums = forged(&made, "log_rest", |rest| rest[12..16].copy_from_slice(&(-0.01f32).to_le_bytes()));
    assert!(sums.contains("probabilities sum to ") && sums.contains(", not 1"), "{sums}");
    for column in ["log_probs", "log_rest"] {
        let nan = forged(&made, column, |values| values[..4].fill(0xff));
        assert!(nan.contains("probabilities sum to NaN"), "{nan}");
    }
    let full = make(Kind::Full, &windows());
    let sums = forged(&full, "log_probs", |values| values[2000..2200].fill(0));
    assert!(sums.contains(", not 1"), "{sums}");
    let nan = forged(&full, "log_probs", |values| values[2000..2002].fill(0xff));
    assert!(nan.contains("sum to NaN"), "{nan}");
    let above = forged(&make(Kind::Sampled(3), &windows()), "ids", |ids| ids[1] = 0x7f);
    assert!(above.contains("is outside the vocabulary"), "{above}");
}

#[test]
fn every_flipped_bit_is_noticed() {
    let whole = bytes_of_some();
    for (n, at) in (0..whole.len()).step_by(61).enumerate() {
        let mut bytes = whole.to_vec();
        bytes[at] ^= 1 << (n % 8);
        // Of a name in the header it may change what is said, not that something is.
        assert!(read_all(&bytes).is_err(), "bit {} of byte {at} of {}", n % 8, whole.len());
    }
}

#[test]
fn other_files_are_not_replaced() {
    let made = make(Kind::TopK(2), &windows());
    let check = |path: &Path, existing| ResumableFile::check::<&Path>(path, Form::Labels, existing, &[]);
    assert!(check(&made.path, Existing::Refuse).expect_err("there").to_string().contains("exists already"));
    check(&made.path, Existing::Overwrite).expect("labels");
    check(&made.folder.path().join("none"), Existing::Refuse).expect("nothing is there");
    let other = made.folder.path().join("thesis");
    fs::write(&other, "").expect("written");
    check(&other, Existing::Overwrite).expect("nothing is lost");
    for text in ["my work".as_bytes(), &fs::read(format!("{FIXTURE}/model.safetensors")).expect("weights")] {
        fs::write(&other, text).expect("written");
        let refused = check(&other, Existing::Overwrite).expect_err("foreign").to_string();
        assert!(refused.contains("thesis: is not a labels file that one of these programs wrote"), "{refused}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn no_mutation_does_harm(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), head in any::<bool>()) {
        let mut bytes = bytes_of_some().to_vec();
        let len = if head { bytes.len().min(1200) } else { bytes.len() };
        changes.iter().for_each(|(at, value)| bytes[at.index(len)] = *value);
        // Errors are as good as labels; panics and hangs are not.
        let _ = read_all(&bytes);
    }
}
