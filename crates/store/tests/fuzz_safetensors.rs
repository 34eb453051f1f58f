//! Random and mutated safetensors files: the reader answers at once, in memory bounded by the
//! file, and never panics. `FUZZ_CASES` sets the number of cases (10,000 unless given).

use proptest::{prelude::*, test_runner::Config};
use std::{
    alloc::{GlobalAlloc, Layout, System},
    cell::Cell,
    path::Path,
};
use store::{Bytes, DType, safetensors};

struct Counting;

thread_local! {
    static LIVE: Cell<usize> = const { Cell::new(0) };
    static PEAK: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator; only counters are kept beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LIVE.try_with(|live| {
            live.set(live.get().saturating_add(layout.size()));
            let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
        });
        // SAFETY: the caller's layout, unchanged.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        let _ = LIVE.try_with(|live| live.set(live.get().saturating_sub(layout.size())));
        // SAFETY: the caller's pointer and layout, unchanged.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Bytes of a file with a header of `text` and `data` bytes.
fn file(text: &str, data: usize) -> Vec<u8> {
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// A valid file of a few tensors.
fn valid(seed: u64) -> Vec<u8> {
    let types = [DType::F16, DType::I8, DType::F32, DType::U8, DType::I64, DType::BF16];
    let specs: Vec<_> = (0..seed % 5)
        .map(|i| safetensors::TensorSpec {
            name: format!("model.layers.{i}.weight"),
            dtype: types[((seed >> 3) + i) as usize % types.len()],
            shape: vec![(seed >> 5) as usize % 4, 1 + i as usize][..1 + (seed as usize >> 2) % 2].to_vec(),
        })
        .collect();
    let metadata = [("format".to_string(), "pt".to_string()), ("note".to_string(), "\"\u{e9}\\".to_string())].into();
    let plan = safetensors::plan(Path::new("f"), &specs, &metadata).expect("a plan");
    let mut bytes = plan.header().to_vec();
    bytes.resize(plan.file_len() as usize, 1);
    bytes
}

#[derive(Debug, Clone)]
enum Mutation {
    Set(usize, u8),
    Cut(usize),
    Insert(usize, Vec<u8>),
    Length(u64),
    /// Replaces the n-th run of digits.
    Number(usize, u64),
    /// Repeats a part of the file.
    Repeat(usize, usize),
}

fn mutation() -> impl Strategy<Value = Mutation> {
    let hard = prop::sample::select(vec![0, 1, 7, u64::MAX, 1 << 63, (1 << 63) - 1, 1 << 32, 1 << 40, 99_999_999]);
    let pieces =
        prop::sample::select(vec!["{", "}", "[", "]", ",", "\"", ":", "null", "1e9", "-1", "__metadata__", "\\u"]);
    prop_oneof![
        (any::<usize>(), any::<u8>()).prop_map(|(at, b)| Mutation::Set(at, b)),
        any::<usize>().prop_map(Mutation::Cut),
        (any::<usize>(), prop::collection::vec(any::<u8>(), 1..20)).prop_map(|(at, b)| Mutation::Insert(at, b)),
        (any::<usize>(), pieces).prop_map(|(at, p)| Mutation::Insert(at, p.into())),
        prop_oneof![hard.clone(), 0u64..400].prop_map(Mutation::Length),
        (0usize..40, prop_oneof![hard, 0u64..40]).prop_map(|(n, v)| Mutation::Number(n, v)),
        (any::<usize>(), any::<usize>()).prop_map(|(a, b)| Mutation::Repeat(a, b)),
    ]
}

fn apply(mutation: &Mutation, bytes: &mut Vec<u8>) {
    let len = bytes.len().max(1);
    match mutation {
        Mutation::Set(at, b) => {
            if let Some(byte) = bytes.get_mut(at % len) {
                *byte = *b;
            }
        }
        Mutation::Cut(at) => bytes.truncate(at % len),
        Mutation::Insert(at, more) => {
            let at = at % len.min(bytes.len() + 1);
            bytes.splice(at..at, more.iter().copied());
            fix_length(bytes, more.len() as i64);
        }
        Mutation::Length(n) => {
            let n = n.to_le_bytes();
            bytes.iter_mut().zip(n).for_each(|(b, n)| *b = n);
        }
        Mutation::Number(n, value) => {
            let digit = |i: usize| i >= 8 && bytes[i].is_ascii_digit();
            let starts: Vec<usize> = (0..bytes.len()).filter(|&i| digit(i) && !digit(i - 1)).collect();
            if let Some(&start) = starts.get(n % starts.len().max(1)) {
                let end = (start..bytes.len()).find(|&i| !digit(i)).unwrap_or(bytes.len());
                let text = value.to_string();
                let grown = text.len() as i64 - (end - start) as i64;
                bytes.splice(start..end, text.bytes());
                fix_length(bytes, grown);
            }
        }
        Mutation::Repeat(a, b) => {
            let (a, b) = (a % len, b % len);
            let part = bytes.get(a.min(b)..a.max(b)).unwrap_or_default().to_vec();
            bytes.splice(a.min(b)..a.min(b), part);
        }
    }
}

/// Keeps the header's length right, so that mutations reach past the first check.
fn fix_length(bytes: &mut [u8], grown: i64) {
    if let Some(head) = bytes.first_chunk_mut::<8>() {
        *head = u64::from_le_bytes(*head).wrapping_add_signed(grown).to_le_bytes();
    }
}

fn cases() -> u32 {
    std::env::var("FUZZ_CASES").ok().and_then(|v| v.parse().ok()).unwrap_or(10_000)
}

proptest! {
    #![proptest_config(Config { cases: cases(), failure_persistence: None, ..Config::default() })]

    #[test]
    fn any_file_is_answered_in_bounded_memory(
        seed in any::<u64>(),
        noise in prop::collection::vec(any::<u8>(), 0..200),
        mutations in prop::collection::vec(mutation(), 0..5),
    ) {
        let mut bytes = match seed % 8 {
            0 => noise,
            1 => file(&String::from_utf8_lossy(&noise), 16),
            _ => valid(seed >> 3),
        };
        mutations.iter().for_each(|m| apply(m, &mut bytes));
        let (len, bytes) = (bytes.len(), Bytes::from(bytes));
        let before = LIVE.get();
        PEAK.set(before);
        let started = std::time::Instant::now();
        let read = safetensors::read(Path::new("fuzzed.safetensors"), &bytes);
        let (used, took) = (PEAK.get() - before, started.elapsed());
        prop_assert!(used <= 64 * len + 65_536, "{used} bytes for a file of {len}");
        prop_assert!(took.as_secs() < 5, "{took:?}");
        match read {
            Ok(contents) => {
                let total: usize = contents.tensors.values().map(|t| t.data.len()).sum();
                prop_assert!(total <= len);
            }
            Err(e) => {
                let text = e.to_string();
                prop_assert!(text.starts_with("fuzzed.safetensors: ") && text.len() < 2000, "{text}");
            }
        }
    }
}

#[test]
fn what_is_planned_reads_back() {
    for seed in 0..400 {
        let bytes = Bytes::from(valid(seed));
        safetensors::read(Path::new("f"), &bytes).expect("valid");
        ::safetensors::SafeTensors::deserialize(&bytes).expect("the library reads it too");
    }
}

#[test]
fn large_hostile_headers_are_refused_in_bounded_memory() {
    let many = |part: &str, n: usize| part.repeat(n);
    let headers = [
        format!("{{\"a\":{{\"dtype\":\"F16\",\"shape\":[{}1]}}}}", many("1,", 500_000)),
        format!("{{\"a\":{}", many("[", 500_000)),
        format!("{{\"a\":{{\"x\":[{}0]}}}}", many("0,", 500_000)),
        format!("{{{}}}", many("\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},", 20_000)),
        format!("{{\"{}\":1}}", many("x", 1_000_000)),
    ];
    for header in headers {
        let bytes = Bytes::from(file(&header, 0));
        let before = LIVE.get();
        PEAK.set(before);
        let error = safetensors::read(Path::new("f"), &bytes).expect_err("hostile").to_string();
        let used = PEAK.get() - before;
        assert!(used < 8 * bytes.len(), "{used} bytes: {error}");
        assert!(error.len() < 1000, "{error}");
    }
}
