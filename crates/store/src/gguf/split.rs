//! Models in several GGUF files, as llama-gguf-split writes them.
//!
//! The files are `PREFIX-00001-of-0000N.gguf`; the first holds the metadata. Each has the keys
//! `split.no` (from 0), `split.count` and `split.tensors.count`, of all files together.

use super::parse::{GgufFile, parse};
use super::value::Value;
use crate::{Bytes, Error, Result, hf};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The keys of a split.
pub const KEYS: [&str; 3] = ["split.no", "split.count", "split.tensors.count"];

/// More parts than any model has: names have five digits.
const MOST: u64 = 99_999;

/// The GGUF model of a folder that holds no checkpoint: its only GGUF file, or the first of several
/// parts. None where there is no GGUF file, or a safetensors file or config.json beside it.
///
/// # Errors
/// When the folder can't be listed, or holds several models.
pub(crate) fn only_model(folder: &Path) -> Result<Option<PathBuf>> {
    let mut models = Vec::new();
    for entry in fs::read_dir(folder).map_err(|e| Error::io(folder, "list", e))? {
        let path = entry.map_err(|e| Error::io(folder, "list", e))?.path();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if name == hf::CONFIG_FILE || name.ends_with(".safetensors") {
            return Ok(None);
        }
        if name.ends_with(".gguf") && !is_later_part(name) {
            models.push(path);
        }
    }
    models.sort();
    match &models[..] {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        [a, b, ..] => {
            let names = [a, b].map(|p| p.file_name().unwrap_or_default().display().to_string());
            Err(Error::unsupported(
                folder,
                format!("holds several models ({}, ...): give one of them", names.join(", ")),
            ))
        }
    }
}

/// Returns whether a name ends as that of a part that is not the first.
fn is_later_part(name: &str) -> bool {
    let Some((rest, count)) = name.strip_suffix(".gguf").and_then(|n| n.rsplit_once("-of-")) else { return false };
    let number = rest.rsplit_once('-').map_or("", |(_, number)| number);
    let digits = |s: &str| s.len() == 5 && s.bytes().all(|b| b.is_ascii_digit());
    digits(number) && digits(count) && number != "00001"
}

/// One of the files after the first.
pub(super) struct Part {
    pub path: PathBuf,
    pub bytes: Bytes,
    pub file: GgufFile,
}

fn key(file: &GgufFile, key: &str) -> Option<u64> {
    file.metadata.get(key).and_then(Value::integer)
}

/// The name of part `number` (from 1) of `count`.
pub fn part_name(prefix: &str, number: usize, count: usize) -> String {
    format!("{prefix}-{number:05}-of-{count:05}.gguf")
}

/// The files that belong to `first` and come after it; none where it is whole.
///
/// # Errors
/// When `first` is not the first of its parts, is not named as one, or a part is missing or of
/// another split.
pub(super) fn others(path: &Path, first: &GgufFile) -> Result<Vec<Part>> {
    let count = key(first, KEYS[1]).unwrap_or(1);
    if count <= 1 {
        return Ok(Vec::new());
    }
    if count > MOST {
        return Err(Error::malformed(path, format!("the key {} is {count}: too many parts", KEYS[1])));
    }
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    let number = key(first, KEYS[0]).unwrap_or(0) + 1;
    let ending = part_name("", number as usize, count as usize);
    let Some(prefix) = name.strip_suffix(&ending) else {
        return Err(Error::unsupported(
            path,
            format!("is part {number} of {count} and its name does not end in {ending}"),
        ));
    };
    if number != 1 {
        let first = part_name(prefix, 1, count as usize);
        return Err(Error::unsupported(path, format!("is part {number} of {count}: give the first, {first}")));
    }
    (2..=count).map(|number| part(path, prefix, number as usize, count)).collect()
}

fn part(first: &Path, prefix: &str, number: usize, count: u64) -> Result<Part> {
    let path = first.with_file_name(part_name(prefix, number, count as usize));
    if !path.exists() {
        let name = path.file_name().unwrap_or_default().display();
        return Err(Error::unsupported(first, format!("is part 1 of {count}: {name} is missing beside it")));
    }
    let bytes = Bytes::map(&path)?;
    let file = parse(&path, &bytes)?;
    for (name, wanted) in [(KEYS[0], number as u64 - 1), (KEYS[1], count)] {
        let found = key(&file, name);
        if found != Some(wanted) {
            let found = found.map_or_else(|| "missing".into(), |n| n.to_string());
            return Err(Error::malformed(path, format!("the key {name} is {found}, not {wanted}")));
        }
    }
    Ok(Part { path, bytes, file })
}

/// Checks that all parts together have as many tensors as the first says.
pub(super) fn check_count(path: &Path, first: &GgufFile, found: usize) -> Result<()> {
    match key(first, KEYS[2]) {
        Some(said) if key(first, KEYS[1]).is_some_and(|n| n > 1) && said != found as u64 => {
            Err(Error::malformed(path, format!("the key {} is {said}, the parts hold {found} tensors", KEYS[2])))
        }
        _ => Ok(()),
    }
}
