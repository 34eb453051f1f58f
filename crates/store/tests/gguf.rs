//! Faults and mutations: the parser says what is wrong and where, at once, and never panics.

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use schemes::GgmlType;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use store::Bytes;
use store::gguf::{Array, Plan, PlannedTensor, Value, parse, read};

/// The system's allocator, counting what this thread asks for.
struct Counting;

thread_local! {
    static ASKED: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get().saturating_add(layout.size()));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ASKED.set(ASKED.get().saturating_add(size));
        // SAFETY: the caller's promises are passed on.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Reads a file; how many bytes that asked for in all, for each byte of the file.
fn read_counting(bytes: Vec<u8>) -> (usize, std::time::Duration) {
    let (len, bytes) = (bytes.len(), Bytes::from(bytes));
    let (before, start) = (ASKED.get(), std::time::Instant::now());
    let _ = read(path(), &bytes);
    let asked = ASKED.get() - before;
    (asked.saturating_sub(100_000) / len.max(1), start.elapsed())
}

/// Cases of a property: 10,000, or what `FUZZ_CASES` says.
fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(10_000)
}

fn path() -> &'static Path {
    Path::new("model.gguf")
}

/// A file of one tiny block with every kind of value.
fn small() -> (Vec<u8>, Plan) {
    let metadata: Vec<(String, Value)> = [
        ("general.architecture", "llama".into()),
        ("llama.attention.head_count", Value::U32(2)),
        ("llama.embedding_length", Value::U32(64)),
        ("llama.rope.freq_base", Value::F32(1e4)),
        ("t.u8", Value::U8(1)),
        ("t.i8", Value::I8(-1)),
        ("t.u16", Value::U16(2)),
        ("t.i16", Value::I16(-2)),
        ("t.i32", Value::I32(-3)),
        ("t.u64", Value::U64(4)),
        ("t.i64", Value::I64(-4)),
        ("t.f64", Value::F64(0.5)),
        ("t.bool", Value::Bool(true)),
        ("tokenizer.ggml.model", "gpt2".into()),
        ("tokenizer.ggml.pre", "smollm".into()),
        ("tokenizer.ggml.tokens", Value::Array(Array::String(["<s>", "a", "b", "ab"].into_iter().collect()))),
        ("tokenizer.ggml.merges", Value::Array(Array::String(["a b"].into_iter().collect()))),
        ("tokenizer.ggml.token_type", Value::Array(Array::I32(vec![3, 1, 1, 1]))),
        ("t.floats", Value::Array(Array::F32(vec![1.0, 2.0]))),
        ("t.bools", Value::Array(Array::Bool(vec![true, false]))),
        ("split.count", Value::U16(1)),
    ]
    .map(|(k, v)| (k.to_string(), v))
    .into();
    let tensors = [
        PlannedTensor::new("token_embd.weight", GgmlType::Q8_0, &[4, 64]),
        PlannedTensor::new("blk.0.attn_q.weight", GgmlType::Q4_0, &[64, 64]),
        PlannedTensor::new("output_norm.weight", GgmlType::F32, &[64]),
        PlannedTensor::new("extra", GgmlType::F16, &[1, 3, 1, 5]),
    ];
    let plan = Plan::new(path(), &metadata, &tensors).expect("a fine file");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 7);
    (bytes, plan)
}

/// Offset of `needle` in the file, plus `skip`.
fn find(bytes: &[u8], needle: &str, skip: usize) -> usize {
    bytes.windows(needle.len()).position(|w| w == needle.as_bytes()).expect("there") + needle.len() + skip
}

/// The error of the small file with `with` written at `at`.
fn patched(at: usize, with: &[u8]) -> String {
    let (mut bytes, _) = small();
    bytes[at..at + with.len()].copy_from_slice(with);
    parse(path(), &bytes).expect_err("damaged").to_string()
}

#[test]
fn a_file_comes_back_as_planned() {
    let (bytes, plan) = small();
    let file = parse(path(), &bytes).expect("fine");
    assert_eq!((file.version, file.alignment, file.tensors.len()), (3, 32, 4));
    for (i, t) in file.tensors.iter().enumerate() {
        assert_eq!(file.range(t).start as u64, plan.offset(i));
        assert_eq!(t.len, plan.tensor_len(i));
    }
    let at = plan.value_offset("tokenizer.ggml.pre").expect("a key") as usize;
    assert_eq!(&bytes[at..at + 6], b"smollm");
    let model = read(path(), &Bytes::from(bytes.clone())).expect("a model");
    assert!(model.tensors.contains_key("model.layers.0.self_attn.q_proj.weight"));
    let again: Vec<(String, Value)> = file.metadata.into_iter().collect();
    let tensors: Vec<PlannedTensor> = file
        .tensors
        .into_iter()
        .map(|t| PlannedTensor { name: t.name, ggml_type: t.ggml_type, dims: t.dims })
        .collect();
    let replanned = Plan::new(path(), &again, &tensors).expect("fine");
    assert_eq!(replanned.header(), &bytes[..plan.offset(0) as usize], "same input, same bytes");
}

#[test]
fn versions_and_magic_are_refused_by_name() {
    for (with, want) in [
        (&b"GGJT"[..], "GGJT"),
        (b"GGUF\x01\0\0\0", "version 1"),
        (b"GGUF\x04\0\0\0", "version 4"),
        (b"GGUF\0\0\0\x03", "big-endian"),
        (b"GGUF\0\0\0\0", "version 0"),
    ] {
        let e = patched(0, with);
        assert!(e.contains(want) && e.contains("offset"), "{e}");
    }
    let (mut bytes, _) = small();
    bytes[4] = 2;
    assert_eq!(parse(path(), &bytes).expect("version 2").version, 2);
}

#[test]
fn counts_and_lengths_near_the_end_of_numbers() {
    let huge = (1u64 << 63).to_le_bytes();
    let (bytes, _) = small();
    let embd = find(&bytes, "token_embd.weight", 0);
    for (at, name) in [
        (8, "tensor count"),
        (16, "key count"),
        (24, "key 0"),
        (find(&bytes, "general.architecture", 4), "general.architecture"),
        (find(&bytes, "tokenizer.ggml.tokens", 8), "tokenizer.ggml.tokens"),
        (find(&bytes, "tokenizer.ggml.tokens", 16), "tokenizer.ggml.tokens, element 0"),
        (find(&bytes, "t.floats", 8), "t.floats"),
        (embd - 25, "tensor 0"),
        (embd + 4, "token_embd.weight"),
        (embd + 12, "token_embd.weight"),
        (embd + 24, "token_embd.weight"),
    ] {
        for value in [huge, u64::MAX.to_le_bytes(), (1u64 << 40).to_le_bytes()] {
            let e = patched(at, &value);
            assert!(e.contains(name) && e.contains("offset") || e.contains("its data end"), "{name}: {e}");
        }
    }
}

#[test]
fn odd_keys_and_tensors_are_named() {
    let (bytes, _) = small();
    let embd = find(&bytes, "token_embd.weight", 0);
    for (at, with, want) in [
        (24, &[0u8][..], "key 0 is empty"),
        (find(&bytes, "t.floats", 4), &[9], "array of arrays"),
        (find(&bytes, "t.floats", 4), &[77], "t.floats"),
        (find(&bytes, "t.bool", 0), &[13], "unknown value type 13"),
        (find(&bytes, "t.bool", 4), &[2], "t.bool: 2 is not a bool"),
        (find(&bytes, "t.u8", 0) - 2, b"i8", "t.i8 appears twice"),
        (embd, &[5], "5 dimensions"),
        (embd + 20, &[40, 1], "ggml type 296"),
        (embd + 20, &[4], "ggml type 4 "),
        (embd + 20, &[12], "rows of q4_k must be multiples of 256"),
        (embd + 24, &[16], "not aligned to 32"),
        (embd + 24, &[32], "leaves a gap"),
        (find(&bytes, "output_norm.weight", 16), &[0, 0], "overlaps"),
        (find(&bytes, "llama.embedding", 0) - 1, &[0xFF], "not UTF-8"),
        (embd - 1, b"\n", "name"),
    ] {
        let e = patched(at, with);
        assert!(e.contains(want), "wanted {want}: {e}");
    }
}

#[test]
fn alignment_must_be_a_power_of_two() {
    let file = |value: Value| {
        let plan = Plan::new(path(), &[("general.alignmenX".into(), value)], &[]).expect("fine");
        let mut bytes = plan.header().to_vec();
        let at = find(&bytes, "general.alignmen", 0);
        bytes[at] = b't';
        parse(path(), &bytes)
    };
    for value in [Value::U32(0), Value::U32(3), Value::U32(24), Value::U64(32), Value::from("32")] {
        let e = file(value).expect_err("refused").to_string();
        assert!(e.contains("general.alignment") && e.contains("offset 24"), "{e}");
    }
    assert_eq!(file(Value::U32(64)).expect("fine").alignment, 64);
}

#[test]
fn every_truncation_is_an_error() {
    let (bytes, plan) = small();
    let needed = (plan.offset(3) + plan.tensor_len(3)) as usize;
    for len in 0..needed {
        assert!(parse(path(), &bytes[..len]).is_err(), "cut at {len}");
    }
    // Padding after the last tensor may be missing.
    assert!(parse(path(), &bytes[..needed]).is_ok());
}

#[test]
fn unsafe_names_are_refused() {
    let model = |key: &str, value: Value| {
        let plan = Plan::new(path(), &[(key.to_string(), value)], &[]).expect("fine");
        read(path(), &Bytes::from(plan.header().to_vec()))
    };
    assert!(model("qconvert.hf...", "x".into()).is_err() && model("qconvert.hf.", "x".into()).is_err());
    assert!(model("qconvert.hf.a.json", Value::U8(1)).is_err());
    let fine = model("qconvert.hf.a.json", "{}".into()).expect("fine");
    assert_eq!((&*fine.side_files[0].name, &*fine.side_files[0].data), ("a.json", &b"{}"[..]));
    assert!(fine.metadata.is_empty() && fine.config_json.is_none());
}

/// The small model in three files, the first without tensors; gives the folder.
fn split(change: impl Fn(usize, &mut Vec<(String, Value)>)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("temp dir");
    let tensors = [
        vec![],
        vec![
            PlannedTensor::new("token_embd.weight", GgmlType::F16, &[4, 64]),
            PlannedTensor::new("blk.0.attn_q.weight", GgmlType::Q4_0, &[64, 64]),
        ],
        vec![PlannedTensor::new("output.weight", GgmlType::F16, &[4, 64])],
    ];
    for (i, tensors) in tensors.iter().enumerate() {
        let mut metadata: Vec<(String, Value)> = vec![
            ("split.no".into(), Value::U16(i as u16)),
            ("split.count".into(), Value::U16(3)),
            ("split.tensors.count".into(), Value::I32(3)),
        ];
        if i == 0 {
            metadata.extend(
                [
                    ("general.architecture", "llama".into()),
                    ("llama.attention.head_count", Value::U32(2)),
                    ("llama.embedding_length", Value::U32(64)),
                    ("llama.feed_forward_length", Value::U32(64)),
                    ("llama.context_length", Value::U32(64)),
                    ("llama.block_count", Value::U32(1)),
                    ("llama.attention.layer_norm_rms_epsilon", Value::F32(1e-5)),
                ]
                .map(|(k, v): (&str, Value)| (k.to_string(), v)),
            );
        }
        change(i, &mut metadata);
        let path = dir.path().join(store::gguf::part_name("m", i + 1, 3));
        let plan = Plan::new(&path, &metadata, tensors).expect("fine");
        let mut bytes = plan.header().to_vec();
        bytes.resize(plan.file_len() as usize, 0);
        std::fs::write(path, bytes).expect("writes");
    }
    dir
}

#[test]
fn models_in_several_files_are_one() {
    let dir = split(|_, _| {});
    let first = dir.path().join("m-00001-of-00003.gguf");
    let model = store::open(&first).expect("opens");
    let q = &model.tensors["model.layers.0.self_attn.q_proj.weight"];
    assert!(q.file.ends_with("m-00002-of-00003.gguf") && q.order != schemes::RowOrder::Natural);
    let config = model.config_json.as_ref().expect("rebuilt");
    assert_eq!((&config["tie_word_embeddings"], &config["vocab_size"]), (&false.into(), &4.into()));

    let folder = store::open(dir.path()).expect("the folder's only model");
    assert_eq!((folder.path, folder.tensors.len()), (first.clone(), 3));

    let error = |path: &Path| store::open(path).expect_err("refused").to_string();
    let second = error(&dir.path().join("m-00002-of-00003.gguf"));
    assert!(second.contains("part 2 of 3") && second.contains("m-00001-of-00003.gguf"), "{second}");
    let renamed = dir.path().join("other.gguf");
    std::fs::copy(&first, &renamed).expect("copies");
    assert!(error(&renamed).contains("-00001-of-00003.gguf"));
    assert!(error(dir.path()).contains("several models (m-00001-of-00003.gguf, other.gguf"));
    std::fs::remove_file(dir.path().join("m-00003-of-00003.gguf")).expect("removes");
    let missing = error(&first);
    assert!(missing.contains("part 1 of 3: m-00003-of-00003.gguf is missing"), "{missing}");

    let set = |at: usize, key: &'static str, value: Value| {
        split(move |i, metadata| {
            if i == at
                && let Some(entry) = metadata.iter_mut().find(|(k, _)| k == key)
            {
                entry.1 = value.clone();
            }
        })
    };
    for (dir, want) in [
        (set(0, "split.tensors.count", Value::I32(4)), "is 4, the parts hold 3"),
        (set(1, "split.no", Value::U16(2)), "split.no is 2, not 1"),
        (set(0, "split.count", Value::U64(1 << 60)), "too many parts"),
    ] {
        let e = error(&dir.path().join("m-00001-of-00003.gguf"));
        assert!(e.contains(want), "{e} has no '{want}'");
    }
}

#[test]
fn what_cannot_be_written_is_named() {
    let plan = |name: &str, ty, shape: &[usize]| {
        Plan::new(path(), &[], &[PlannedTensor::new(name, ty, shape)]).expect_err("refused").to_string()
    };
    let long = "x".repeat(64);
    assert!(plan(&long, GgmlType::F32, &[1]).contains(&long));
    assert!(plan("a", GgmlType::F32, &[1, 1, 1, 1, 1]).contains("5 dimensions"));
    assert!(plan("a", GgmlType::Q8_0, &[2, 48]).contains("multiples of 32"));
    assert!(plan("a", GgmlType::F32, &[usize::MAX, 8]).contains("overflows"));
    for keys in [vec!["a", "a"], vec![""], vec!["sp ace"], vec!["ü"]] {
        let keys: Vec<(String, Value)> = keys.iter().map(|k| (k.to_string(), Value::U8(0))).collect();
        assert!(Plan::new(path(), &keys, &[]).is_err(), "{keys:?}");
    }
}

/// One change to a file.
#[derive(Debug, Clone)]
enum Mutation {
    Flip(usize, u8),
    Cut(usize),
    Number(usize, u64),
    Insert(usize, Vec<u8>),
    Remove(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let number = prop_oneof![
        any::<u64>(),
        Just(u64::MAX),
        Just(1u64 << 63),
        Just((1u64 << 63) - 1),
        Just(1u64 << 40),
        (0u32..64).prop_map(|s| 1u64 << s),
        0u64..20,
    ];
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(a, b)| Mutation::Flip(a, b)),
        any::<usize>().prop_map(Mutation::Cut),
        (any::<usize>(), number).prop_map(|(a, n)| Mutation::Number(a, n)),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..40)).prop_map(|(a, v)| Mutation::Insert(a, v)),
        (any::<usize>(), 1usize..40).prop_map(|(a, n)| Mutation::Remove(a, n)),
    ]
}

fn apply(bytes: &mut Vec<u8>, mutation: &Mutation, header: usize) {
    let at = |a: usize| a % header.min(bytes.len()).max(1);
    match mutation {
        Mutation::Flip(a, b) => {
            let at = at(*a);
            if let Some(x) = bytes.get_mut(at) {
                *x ^= b;
            }
        }
        Mutation::Cut(a) => bytes.truncate(at(*a)),
        Mutation::Number(a, n) => {
            let at = at(*a);
            let end = (at + 8).min(bytes.len());
            if at < end {
                bytes[at..end].copy_from_slice(&n.to_le_bytes()[..end - at]);
            }
        }
        Mutation::Insert(a, v) => {
            let at = at(*a).min(bytes.len());
            bytes.splice(at..at, v.iter().copied());
        }
        Mutation::Remove(a, n) => {
            let at = at(*a).min(bytes.len());
            bytes.drain(at..(at + n).min(bytes.len()));
        }
    }
}

#[test]
fn mutated_files_never_panic_or_hang() {
    let (bytes, plan) = small();
    let header = plan.header().len();
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&prop::collection::vec(mutation(), 1..5), |mutations| {
        let mut bytes = bytes.clone();
        mutations.iter().for_each(|m| apply(&mut bytes, m, header));
        let (asked, time) = read_counting(bytes);
        prop_assert!(asked < 100 && time.as_secs() < 5, "{asked} bytes for each byte, {time:?}");
        Ok(())
    });
    run.expect("no panic");
}

#[test]
fn random_bytes_never_panic_or_hang() {
    let config = Config { cases: cases(), failure_persistence: None, ..Config::default() };
    let run = TestRunner::new(config).run(&prop::collection::vec(any::<u8>(), 0..300), |tail| {
        let mut bytes = b"GGUF\x03\0\0\0".to_vec();
        bytes.extend_from_slice(&tail);
        // Small counts, so that what follows is looked at too.
        for at in [8, 16] {
            if let Some(count) = bytes.get_mut(at..at + 8) {
                count.copy_from_slice(&u64::from(count[0] % 4).to_le_bytes());
            }
        }
        let (asked, time) = read_counting(bytes);
        prop_assert!(asked < 100 && time.as_secs() < 5, "{asked} bytes for each byte, {time:?}");
        Ok(())
    });
    run.expect("no panic");
}
