//! Splitting a model into shards.

use super::TensorSpec;
use indexmap::IndexMap;
use serde_json::{Value, json};
use std::ops::Range;

/// The file of a model that is not split.
pub const SINGLE_FILE: &str = "model.safetensors";

/// The index of a model that is.
pub const INDEX_FILE: &str = "model.safetensors.index.json";

/// One file of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shard {
    /// Name of the shard: [`SINGLE_FILE`], or `model-00001-of-00003.safetensors`.
    pub file: String,
    /// Range of the tensors in the shard.
    pub tensors: Range<usize>,
}

/// Splits `tensors`, in their order, into files of at most `max_bytes` of tensor data.
///
/// Neighbours for which `unit` gives the same text stay in one file (some loaders want a
/// weight and its scales together); a unit larger than `max_bytes` has a file of its own.
pub fn shard<'a>(tensors: &'a [TensorSpec], max_bytes: u64, unit: impl Fn(&'a str) -> &'a str) -> Vec<Shard> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    let (mut start, mut size, mut at) = (0, 0u64, 0);
    while at < tensors.len() {
        let key = unit(&tensors[at].name);
        let end = at + tensors[at..].iter().take_while(|t| unit(&t.name) == key).count();
        let bytes = tensors[at..end].iter().fold(0u64, |n, t| n.saturating_add(t.bytes().unwrap_or(u64::MAX)));
        if at > start && size.saturating_add(bytes) > max_bytes {
            ranges.push(start..at);
            (start, size) = (at, 0);
        }
        size = size.saturating_add(bytes);
        at = end;
    }
    ranges.push(start..tensors.len());
    if let [all] = &ranges[..] {
        return vec![Shard { file: SINGLE_FILE.into(), tensors: all.clone() }];
    }
    let n = ranges.len();
    let name = |i: usize| format!("model-{:05}-of-{n:05}.safetensors", i + 1);
    ranges.into_iter().enumerate().map(|(i, tensors)| Shard { file: name(i), tensors }).collect()
}

/// The text of the index of several shards: `metadata.total_size` and `weight_map`.
pub fn index_json(shards: &[Shard], tensors: &[TensorSpec]) -> String {
    let total: u64 = tensors.iter().filter_map(TensorSpec::bytes).sum();
    let mut map: IndexMap<&str, &str> = IndexMap::with_capacity(tensors.len());
    for shard in shards {
        map.extend(tensors[shard.tensors.clone()].iter().map(|t| (t.name.as_str(), shard.file.as_str())));
    }
    map.sort_keys();
    let map: serde_json::Map<String, Value> = map.into_iter().map(|(k, v)| (k.to_string(), Value::from(v))).collect();
    let mut text = format!("{:#}", json!({"metadata": {"total_size": total}, "weight_map": map}));
    text.push('\n');
    text
}
