use super::*;
use crate::Packed;
use crate::model::{LanguageModel, continue_exactly};
use std::ops::ControlFlow;

const TINY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");

fn compute(folder: &Path) -> Compute {
    Compute::on_cpu(None).with_cache(Some(folder)).expect("a folder")
}

fn logits(model: &Packed, tokens: &[u32]) -> Vec<f32> {
    let mut out = Vec::new();
    let all = 0..tokens.len();
    let mut see = |rows: ndarray::ArrayView2<'_, f32>| out = rows.iter().copied().collect();
    model.forward(tokens).and_then(|run| run.logits(all, &mut see)).expect("runs");
    out
}

fn counts(compute: &Compute) -> (u64, u64) {
    let cache = compute.cache.as_ref().expect("a cache");
    (cache.found.load(Ordering::Relaxed), cache.computed.load(Ordering::Relaxed))
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let files = |path: PathBuf| fs::read_dir(path).into_iter().flatten().map(|entry| entry.expect("listed").path());
    files(folder.into()).filter(|path| path.is_dir()).flat_map(files).collect()
}

#[test]
fn kept_passes_give_the_same_bits() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = store::open(Path::new(TINY)).expect("opens");
    let tokens: Vec<u32> = (3..40).collect();
    let plain = Packed::load("m", &files, &Compute::on_cpu(None)).expect("loads");
    for (run, counted) in [(0, (0, 1)), (1, (1, 0))] {
        let compute = compute(dir.path());
        let model = Packed::load("m", &files, &compute).expect("loads");
        assert_eq!(logits(&model, &tokens), logits(&plain, &tokens), "run {run}");
        assert_eq!(counts(&compute), counted, "run {run}");
    }
}

#[test]
fn a_damaged_entry_is_computed_again() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = store::open(Path::new(TINY)).expect("opens");
    let tokens = [5, 6, 7];
    let first = compute(dir.path());
    let right = logits(&Packed::load("m", &files, &first).expect("loads"), &tokens);
    let [entry] = &entries(dir.path())[..] else { panic!("one entry") };
    let sound = fs::read(entry).expect("read");
    let flipped = sound.iter().enumerate().map(|(i, b)| if i == CHECKSUM + 2 { b ^ 64 } else { *b }).collect();
    for damaged in [flipped, sound[..sound.len() - 4].to_vec(), Vec::new()] {
        fs::write(entry, damaged).expect("written");
        let again = compute(dir.path());
        assert_eq!(logits(&Packed::load("m", &files, &again).expect("loads"), &tokens), right);
        assert_eq!(counts(&again), (0, 1));
        assert_eq!(fs::read(entry).expect("read"), sound);
    }
}

#[test]
fn other_models_and_arithmetic_find_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = store::open(Path::new(TINY)).expect("opens");
    let tokens = [5, 6, 7];
    logits(&Packed::load("m", &files, &compute(dir.path())).expect("loads"), &tokens);
    let nothing_found = |files: &store::Model, compute: Compute| {
        logits(&Packed::load("m", files, &compute).expect("loads"), &tokens);
        assert_eq!(counts(&compute).0, 0);
    };
    nothing_found(&files, Compute { kv: Some(runtime::KvType::Int8), ..compute(dir.path()) });
    let mut edited = files.clone();
    let config = edited.config_json.as_mut().and_then(|config| config.as_object_mut()).expect("has a config");
    config.insert("rope_theta".into(), 20_000.0.into());
    nothing_found(&edited, compute(dir.path()));
    let mut edited = files;
    edited.metadata.insert("key".into(), "value".into());
    nothing_found(&edited, compute(dir.path()));
}

#[test]
fn a_continuation_goes_on_where_the_kept_one_ends() {
    let dir = tempfile::tempdir().expect("a folder");
    let files = store::open(Path::new(TINY)).expect("opens");
    let write = |model: &dyn LanguageModel, limit: usize, stop_at: usize| {
        let mut out = Vec::new();
        let mut see = |token| {
            out.push(token);
            if out.len() == stop_at { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        model.greedy(&[9, 8, 7], limit, &mut see).expect("runs");
        out
    };
    let plain = Packed::load("m", &files, &Compute::on_cpu(None)).expect("loads");
    let right = write(&plain, 12, 12);
    for (limit, stop_at) in [(5, 3), (12, 12), (12, 2), (12, 12), (4, 99)] {
        let compute = compute(dir.path());
        let model = Packed::load("m", &files, &compute).expect("loads");
        assert_eq!(write(&model, limit, stop_at), right[..limit.min(stop_at)]);
    }
    let mut exact = Vec::new();
    continue_exactly(&plain, &[9, 8, 7], 3, &mut |t| {
        exact.push(t);
        ControlFlow::Continue(())
    })
    .expect("runs");
    assert_eq!(exact, right[..3]);
}

#[test]
fn only_its_own_folder_is_used() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("thesis.md"), "mine").expect("written");
    let e = Cache::open(dir.path()).expect_err("somebody's folder").to_string();
    assert!(e.ends_with("holds other files: name a new folder for --cache"), "{e}");
    let own = dir.path().join("new");
    for _ in 0..2 {
        let note = Cache::open(&own).expect("its own").note();
        assert_eq!(note, None);
    }
    fs::write(own.join(TAG_FILE), "Signature: 8a477f597d28d172789f06886806bc55\n").expect("written");
    assert!(Cache::open(&own).expect_err("another's").to_string().contains("is no cache of this program"));
    let file = dir.path().join("thesis.md");
    assert!(Cache::open(&file).expect_err("a file").to_string().ends_with("is no folder: name one for --cache"));
}
