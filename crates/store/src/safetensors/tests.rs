use super::*;
use ::safetensors::tensor::{TensorView, serialize};
use indexmap::indexmap;

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn error(bytes: Vec<u8>) -> String {
    read(Path::new("dir/x.safetensors"), &Bytes::from(bytes)).expect_err("hostile").to_string()
}

fn entry(dtype: &str, shape: &str, start: u64, end: u64) -> String {
    format!("{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}")
}

#[test]
fn a_file_of_the_library_reads_back() {
    let data: Vec<u8> = (0..12).collect();
    let tensors = vec![
        ("b", TensorView::new(Dtype::F16, vec![2, 3], &data).expect("view")),
        ("a", TensorView::new(Dtype::U8, vec![12], &data).expect("view")),
        ("none", TensorView::new(Dtype::F32, vec![0, 3], &[]).expect("view")),
    ];
    let metadata = [("format".to_string(), "pt".to_string())].into();
    let bytes = Bytes::from(serialize(tensors, Some(metadata)).expect("serialize"));
    let contents = read(Path::new("f"), &bytes).expect("valid");
    assert_eq!(contents.metadata, indexmap! { "format".to_string() => "pt".to_string() });
    let names: Vec<_> =
        contents.tensors.iter().map(|(n, t)| (n.as_str(), t.dtype, t.shape.clone(), t.data.len())).collect();
    assert_eq!(
        names,
        [("none", DType::F32, vec![0, 3], 0), ("b", DType::F16, vec![2, 3], 12), ("a", DType::U8, vec![12], 12)]
    );
    assert_eq!(*contents.tensors["b"].data, data[..]);
}

#[test]
fn frames_are_checked() {
    for (bytes, want) in [
        (vec![1, 2], "2 bytes are no safetensors file"),
        ((1u64 << 40).to_le_bytes().to_vec(), "header length 1099511627776 is over the format's limit of 100000000"),
        (100_000_000u64.to_le_bytes().to_vec(), "the file is cut short: a header of 100000000 bytes, 8 bytes in all"),
        (file(" {}", 0), "the header does not start with '{'"),
        (file("", 4), "the header does not start with '{'"),
        (file("{\"a\"", 0), "header: EOF"),
        (file("{} x", 0), "header: trailing characters"),
        (file("{}", 3), "3 bytes after the last tensor belong to none"),
    ] {
        let error = error(bytes);
        assert!(error.starts_with("dir/x.safetensors: ") && error.contains(want), "{error}");
    }
    let mut latin = file("{\"a\":1}", 0);
    latin[10] = 0xE9;
    assert!(error(latin).contains("not UTF-8 at byte 10"));
}

#[test]
fn entries_are_checked_and_named() {
    let one = |e: String| format!("{{\"w\":{e}}}");
    let two = |a: String, b: String| format!("{{\"v\":{a},\"w\":{b}}}");
    let huge = "[9223372036854775807,2]";
    for (header, data, want) in [
        (one(entry("F16", "[2]", 0, 4)), 2, "data_offsets [0, 4] run past the 2 data bytes"),
        (one(entry("F16", "[2]", 4, 0)), 4, "run backwards"),
        (one(entry("F16", "[2]", 1, 5)), 5, "leave a hole"),
        (two(entry("U8", "[4]", 0, 4), entry("U8", "[4]", 2, 6)), 6, "overlap the tensor before"),
        (two(entry("U8", "[4]", 0, 4), entry("U8", "[4]", 5, 9)), 9, "leave a hole"),
        (one(entry("F16", "[3]", 0, 4)), 4, "F16 [3] needs 6 bytes, data_offsets give 4"),
        (one(entry("F32", huge, 0, 8)), 8, "needs more than 2^64 bytes"),
        (one(entry("U8", "[4294967296,4294967296]", 0, 0)), 0, "needs more than 2^64 bytes"),
        (one(entry("F13", "[2]", 0, 4)), 4, "unknown type F13"),
        (one(entry("C64", "[1]", 0, 8)), 8, "type C64 is not supported"),
        (one(entry("U8", "[-1]", 0, 1)), 1, "invalid value"),
        (one(entry("U8", "[1.5]", 0, 1)), 1, "expected u64"),
        (one(entry("U8", "[18446744073709551616]", 0, 1)), 1, "expected u64"),
        (one("{\"dtype\":\"U8\",\"shape\":[1]}".into()), 1, "missing field `data_offsets`"),
        (one("{\"dtype\":\"U8\",\"dtype\":\"I8\"}".into()), 1, "duplicate field `dtype`"),
        (one("{\"dtype\":\"U8\",\"more\":1}".into()), 1, "unknown field `more`"),
        (one("3".into()), 1, "invalid type"),
        (one(entry("U8", &format!("[{}1]", "1,".repeat(40)), 0, 1)), 1, "more than 32 dimensions"),
        (format!("{{\"w\":{0},\"w\":{0}}}", entry("U8", "[0]", 0, 0)), 0, "two tensors of this name"),
    ] {
        let error = error(file(&header, data));
        assert!(error.starts_with("dir/x.safetensors: ") && error.contains("tensor w: "), "{error}");
        assert!(error.contains(want), "{error} has no '{want}'");
    }
}

#[test]
fn metadata_are_strings_that_stand_once() {
    for (header, want) in [
        ("{\"__metadata__\":{\"a\":1}}", "__metadata__: key a: invalid type"),
        ("{\"__metadata__\":{\"a\":\"x\",\"a\":\"y\"}}", "__metadata__: key a stands twice"),
        ("{\"__metadata__\":{},\"__metadata__\":{}}", "__metadata__ stands twice"),
        ("{\"__metadata__\":null}", "__metadata__: "),
    ] {
        let error = error(file(header, 0));
        assert!(error.contains(want) && !error.contains(": tensor "), "{error}");
    }
}

#[test]
fn every_truncation_is_refused() {
    let bytes = file(&format!("{{\"w\":{}}}", entry("F16", "[2,3]", 0, 12)), 12);
    for n in 0..bytes.len() {
        error(bytes[..n].to_vec());
    }
}

fn spec(name: &str, dtype: DType, shape: &[usize]) -> TensorSpec {
    TensorSpec { name: name.into(), dtype, shape: shape.to_vec() }
}

#[test]
fn a_planned_file_is_what_the_library_expects() {
    let specs = [
        spec("codes", DType::I8, &[3, 5]),
        spec("s", DType::F16, &[3]),
        spec("q\"", DType::I32, &[2]),
        spec("e", DType::F16, &[0]),
    ];
    let metadata = indexmap! { "a".to_string() => "\"\n\u{1F600}".to_string(), "hash".into() => "0".repeat(16) };
    let plan = plan(Path::new("f"), &specs, &metadata).expect("plan");
    assert_eq!(plan.header().len() % 8, 0);
    let mut bytes = vec![0u8; plan.file_len() as usize];
    bytes[..plan.header().len()].copy_from_slice(plan.header());
    for (i, (spec, &at)) in specs.iter().zip(plan.offsets()).enumerate() {
        let len = spec.bytes().expect("fits") as usize;
        assert_eq!(at as usize % spec.dtype.size().expect("plain"), 0, "{} is aligned", spec.name);
        bytes[at as usize..at as usize + len].fill(i as u8 + 1);
    }
    let place = plan.metadata_value("hash").expect("there");
    bytes[place.start as usize..place.end as usize].copy_from_slice(b"0123456789abcdef");
    assert!(plan.metadata_value("none").is_none());

    let theirs = SafeTensors::deserialize(&bytes).expect("the library reads it");
    for (i, spec) in specs.iter().enumerate() {
        let view = theirs.tensor(&spec.name).expect("there");
        assert_eq!(view.shape(), spec.shape);
        assert!(view.data().iter().all(|b| *b == i as u8 + 1));
    }
    let ours = read(Path::new("f"), &Bytes::from(bytes)).expect("we read it");
    assert_eq!(ours.metadata["hash"], "0123456789abcdef");
    assert_eq!(ours.metadata["a"], metadata["a"]);
    assert_eq!(ours.tensors.len(), 4);
}

#[test]
fn what_cannot_be_planned_is_refused() {
    let plan = |specs: &[TensorSpec]| plan(Path::new("out"), specs, &IndexMap::new()).expect_err("refused").to_string();
    let a = spec("a", DType::F16, &[1]);
    assert!(plan(&[a.clone(), a.clone()]).contains("out: tensor a: "));
    assert!(plan(&[spec("__metadata__", DType::U8, &[1])]).contains("reserved"));
    assert!(plan(&[spec("a", DType::F32, &[usize::MAX, 2])]).contains("overflows"));
    assert!(plan(&[spec("a", DType::U8, &[usize::MAX]), spec("b", DType::U8, &[usize::MAX])]).contains("tensor b"));
}

#[test]
fn shards_keep_units_together() {
    let specs: Vec<_> = ["a.x", "a.y", "b.x", "c.x", "c.y"].iter().map(|n| spec(n, DType::U8, &[10])).collect();
    fn unit(name: &str) -> &str {
        &name[..1]
    }
    let whole = 0..specs.len();
    let files = |max| {
        let shards = shard(&specs, max, unit);
        (shards.iter().map(|s| s.tensors.clone()).collect::<Vec<_>>(), shards[0].file.clone())
    };
    assert_eq!(files(1000), (vec![whole], "model.safetensors".into()));
    assert_eq!(files(30), (vec![0..3, 3..5], "model-00001-of-00002.safetensors".into()));
    assert_eq!(files(1), (vec![0..2, 2..3, 3..5], "model-00001-of-00003.safetensors".into()));
    assert_eq!(shard(&[], 5, unit), [Shard { file: SINGLE_FILE.into(), tensors: 0..0 }]);

    let index: serde_json::Value = serde_json::from_str(&index_json(&shard(&specs, 30, unit), &specs)).expect("JSON");
    assert_eq!(index["metadata"]["total_size"], 50);
    assert_eq!(index["weight_map"]["c.x"], "model-00002-of-00002.safetensors");
}
