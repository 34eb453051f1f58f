//! Texts, questions and a small model that are built into the program.

use anyhow::{Context, Result, bail};
use cli::Usage;
use scoring::compare::Battery;
use scoring::{Corpus, Error, battery};
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use store::SideFile;

/// Prose to score.
const PROSE: &str = include_str!("../../../corpora/prose.txt");

/// Text to calibrate on; no scored text.
pub const CALIBRATION: &str = include_str!("../../../corpora/calibration.txt");

const BATTERY_16: &str = include_str!("../../../corpora/battery-16.jsonl");
const BATTERY_FACTS: &str = include_str!("../../../corpora/battery-facts.jsonl");

/// The names of what is built in, for messages.
const BUILT_IN: &str = "16, facts and none";

/// The small model's files.
const FIXTURE: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/fixture.rs"));

/// The text that is scored when none is named.
pub fn prose() -> Corpus {
    Corpus { name: "prose.txt".into(), text: PROSE.into() }
}

/// The battery of a name or file; none for `none`.
pub fn battery(name: &str) -> Result<Option<Battery>> {
    let (label, path, text) = match name {
        "none" => return Ok(None),
        "16" => ("16", Path::new("battery-16.jsonl"), BATTERY_16.to_string()),
        "facts" => ("facts", Path::new("battery-facts.jsonl"), BATTERY_FACTS.to_string()),
        file if !Path::new(file).exists() => {
            bail!(Usage(format!(
                "there is no battery '{file}': the built-in ones are {BUILT_IN}, and there is no such file"
            )));
        }
        file => (file, Path::new(file), read(Path::new(file))?),
    };
    let label = Path::new(label).file_name().map_or(label.into(), |n| n.to_string_lossy().into_owned());
    Ok(Some(Battery { name: label, items: battery::parse(path, &text)? }))
}

/// Reads a text from a file, a pipe, or (`-`) standard input. A device is refused, since it may never end.
pub fn read(path: &Path) -> Result<String> {
    let bytes = if path == Path::new("-") { read_standard_input()? } else { read_file(path)? };
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(e) => bail!(
            "{}: is not UTF-8 text (byte {:#04x} at offset {})",
            path.display(),
            e.as_bytes()[e.utf8_error().valid_up_to()],
            e.utf8_error().valid_up_to()
        ),
    }
}

fn read_standard_input() -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::io::stdin().lock().read_to_end(&mut bytes).map_err(|e| Error::io("standard input", "read", e))?;
    Ok(bytes)
}

fn read_file(path: &Path) -> Result<Vec<u8>> {
    let kind = std::fs::metadata(path).map_err(|e| Error::io(path, "read", e))?.file_type();
    if kind.is_char_device() || kind.is_block_device() {
        bail!("{}: is a device, not a file", path.display());
    }
    Ok(std::fs::read(path).map_err(|e| Error::io(path, "read", e))?)
}

/// The small model's tokenizer, to tokenize with where there is no other.
pub fn tokenizer() -> Result<SideFile> {
    let name = "tokenizer.json";
    match FIXTURE.iter().find(|(file, _)| *file == name) {
        Some((_, bytes)) => Ok(SideFile { name: name.into(), data: bytes.to_vec().into() }),
        None => bail!("this build has no model of its own, whose tokenizer is wanted here"),
    }
}

/// Writes the small model into a folder.
pub fn write_fixture(folder: &Path) -> Result<()> {
    if FIXTURE.is_empty() {
        bail!("this build has no model of its own; name one: qeval sweep MODEL");
    }
    for (name, bytes) in FIXTURE {
        let path = folder.join(name);
        std::fs::write(&path, bytes).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use scoring::agreement;

    #[test]
    fn what_is_built_in_is_well_formed() {
        let sixteen = battery("16").expect("well formed").expect("there");
        let prompts: Vec<&str> = sixteen.items.iter().map(|i| i.prompt.as_str()).collect();
        assert_eq!(prompts, agreement::PROMPTS);
        let facts = battery("facts").expect("well formed").expect("there");
        assert!(facts.items.len() >= 120);
        assert_eq!(battery("none").expect("a word"), None);
        assert!(prose().text.len() > 10_000 && !CALIBRATION.is_empty());
    }

    #[test]
    fn files_that_are_not_text_are_refused() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), b"ab\xff").expect("written");
        let e = read(file.path()).expect_err("not text").to_string();
        assert!(e.ends_with("is not UTF-8 text (byte 0xff at offset 2)"), "{e}");
        let e = read(Path::new("no/such/file")).expect_err("not there").to_string();
        assert!(e.starts_with("no/such/file: cannot read"), "{e}");
    }

    #[test]
    fn an_unknown_battery_lists_those_that_are_built_in() {
        let e = battery("17").expect_err("not there");
        assert!(e.is::<Usage>());
        let said = "there is no battery '17': the built-in ones are 16, facts and none, and there is no such file";
        assert_eq!(e.to_string(), said);
    }
}
