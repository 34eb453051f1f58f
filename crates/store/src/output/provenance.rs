//! Marks by which a file shows that a program of this project wrote it.
//!
//! | form | mark |
//! |---|---|
//! | weights in safetensors and GGUF | [`SEAL_KEY`]: BLAKE3 of the header, so that a copy of the metadata in another program's file is no proof |
//! | labels, calibration, logits, training states | a metadata key of their format |
//! | HTML pages | the generator in the head ([`PAGE_GENERATOR`]) |
//! | JSON reports, traces | `"tool": "qeval 0.1.0"` (any of the four programs) in the first lines |
//! | recipes | a comment with the program's name in the first line |
//! | SVG plots | the comment [`PLOT_MARK`] |
//!
//! Files without room for a mark (config.json, tokenizer.json, ...) are listed with their BLAKE3 under
//! [`FILES_KEY`] in the metadata of the weights beside them: edited since, they are no longer known.

use crate::{Bytes, gguf, safetensors};
use indexmap::IndexMap;
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// Metadata key of weights: BLAKE3 of the file's header, with this value and the source's hash as zeros.
pub const SEAL_KEY: &str = "provenance.header_blake3";

/// Metadata key of weights: a JSON object from the names of the files beside them to their BLAKE3.
pub const FILES_KEY: &str = "provenance.files";

/// Placeholder for [`SEAL_KEY`] until the header is known, and for values that are filled in later.
pub const SEAL_PLACEHOLDER: &str = "0000000000000000000000000000000000000000000000000000000000000000";

/// The generator that HTML pages name.
pub const PAGE_GENERATOR: &str = "qinspect, qconvert, qeval or qdistill";

/// The comment in SVG plots.
pub const PLOT_MARK: &str = "<!-- made by qinspect, qconvert, qeval or qdistill -->";

/// The steps and validations of a training, in a student's folder.
pub const METRICS_FILE: &str = "metrics.jsonl";

/// The plot of a training, in a student's folder.
pub const PLOT_FILE: &str = "loss.svg";

/// Metadata key of converted weights: BLAKE3 of the source. It is filled in after the header was sealed.
pub const SOURCE_KEY: &str = "qconvert.source_blake3";

/// Metadata key of soft labels: their version.
pub const LABELS_KEY: &str = "qdistill.labels";

/// Metadata key of a training's state: its version.
pub const TRAINING_KEY: &str = "qdistill.resume";

/// Metadata key of activation statistics: their version.
pub const CALIBRATION_KEY: &str = "qinspect.calibration";

/// Metadata key of logits: the version of the program.
pub const LOGITS_KEY: &str = "qeval.logits";

const PROGRAMS: [&str; 4] = ["qconvert", "qeval", "qdistill", "qinspect"];

/// Lines of a JSON report of which one names the program.
const FIELDS: usize = 4;

/// Bytes of a text in which its mark stands.
const HEAD: u64 = 4096;

/// Kinds of files that the programs write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Weights in GGUF.
    Gguf,
    /// Weights in safetensors.
    Safetensors,
    /// Soft labels.
    Labels,
    /// Activation statistics.
    Calibration,
    /// Logits.
    Logits,
    /// The state of a training under way.
    TrainingState,
    /// An HTML page.
    Page,
    /// A JSON report.
    Report,
    /// A recipe in TOML.
    Recipe,
    /// A trace of requests.
    Trace,
    /// An SVG plot.
    Plot,
    /// Steps and validations of a training.
    Metrics,
}

impl Form {
    /// Noun for the file, with an article.
    pub fn name(self) -> &'static str {
        match self {
            Form::Gguf => "a GGUF file",
            Form::Safetensors => "a safetensors file",
            Form::Labels => "a labels file",
            Form::Calibration => "a calibration file",
            Form::Logits => "a logits file",
            Form::TrainingState => "a training's state",
            Form::Page => "an HTML page",
            Form::Report => "a JSON report",
            Form::Recipe => "a recipe",
            Form::Trace => "a trace",
            Form::Plot => "a plot",
            Form::Metrics => "a training's metrics",
        }
    }
}

/// BLAKE3 of a header whose [`SEAL_KEY`] and late values are still placeholders.
pub(super) fn seal(header: &[u8]) -> String {
    blake3::hash(header).to_hex().to_string()
}

/// The entry of [`FILES_KEY`] for these files.
pub fn files_list<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> String {
    // The last of two files with one name is the one that is written.
    let list: BTreeMap<&str, String> =
        files.into_iter().map(|(name, bytes)| (name, blake3::hash(bytes).to_hex().to_string())).collect();
    serde_json::json!(list).to_string()
}

/// The form of a file that a program of this project wrote; none for any other file.
///
/// # Errors
/// When the file can't be read.
pub(super) fn form_of(path: &Path) -> io::Result<Option<Form>> {
    let mut head = Vec::new();
    File::open(path)?.take(HEAD).read_to_end(&mut head)?;
    if head.starts_with(b"GGUF") {
        return Ok(weights(path, Form::Gguf).map(|found| found.form));
    }
    // A safetensors file begins with the header's length and the header.
    if head.get(8) == Some(&b'{') {
        return Ok(weights(path, Form::Safetensors).map(|found| found.form));
    }
    let text = String::from_utf8_lossy(&head);
    Ok(text_form(&text))
}

fn text_form(text: &str) -> Option<Form> {
    let trimmed = text.trim_start();
    let first = trimmed.lines().next().unwrap_or_default();
    // As a field that stands after `before` in its line.
    let is_tool = |line: &str, before: &str| {
        let tool = line.strip_prefix(before).and_then(|line| line.strip_prefix("\"tool\": \""));
        tool.is_some_and(|tool| PROGRAMS.iter().any(|p| tool.strip_prefix(p).is_some_and(|t| t.starts_with(' '))))
    };
    let is_html = trimmed.get(..9).is_some_and(|t| t.eq_ignore_ascii_case("<!doctype"));
    if is_html {
        let mark = format!("content=\"{PAGE_GENERATOR}\"");
        return text.contains(&mark).then_some(Form::Page);
    }
    if trimmed.starts_with("<svg") {
        return text.contains(PLOT_MARK).then_some(Form::Plot);
    }
    if is_tool(first, "{") && first.ends_with('}') {
        return Some(Form::Trace);
    }
    if first == "{" && trimmed.lines().take(FIELDS).any(|line| is_tool(line, "  ")) {
        return Some(Form::Report);
    }
    if first.starts_with('#') && first.ends_with("(qinspect layers)") {
        return Some(Form::Recipe);
    }
    None
}

struct Weights {
    form: Form,
    /// Names and hashes of the files beside them.
    files: BTreeMap<String, String>,
}

/// Reads the seal of a weights file of this project, and the hashes of the files beside it.
fn weights(path: &Path, container: Form) -> Option<Weights> {
    let bytes = Bytes::map(path).ok()?;
    let (metadata, header): (IndexMap<String, String>, usize) = if container == Form::Gguf {
        let file = gguf::parse(path, &bytes).ok()?;
        let text = |(k, v): (&String, &gguf::Value)| Some((k.clone(), v.str()?.to_string()));
        (file.metadata.iter().filter_map(text).collect(), usize::try_from(file.data_offset).ok()?)
    } else {
        let length = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
        let contents = safetensors::read(path, &bytes).ok()?;
        (contents.metadata, usize::try_from(length.checked_add(8)?).ok()?)
    };
    let has = |key: &str| metadata.contains_key(key);
    let known = [
        (LABELS_KEY, Form::Labels),
        (TRAINING_KEY, Form::TrainingState),
        (CALIBRATION_KEY, Form::Calibration),
        (LOGITS_KEY, Form::Logits),
    ];
    if let Some((_, form)) = known.into_iter().find(|(key, _)| has(key)) {
        return (container == Form::Safetensors).then_some(Weights { form, files: BTreeMap::new() });
    }
    let sealed = metadata.get(SEAL_KEY)?;
    // A file without tensors may end before the padding after its header.
    let mut header = bytes.get(..header.min(bytes.len()))?.to_vec();
    for key in [SEAL_KEY, SOURCE_KEY] {
        blank(&mut header, key, metadata.get(key));
    }
    if seal(&header) != *sealed {
        return None;
    }
    let files = metadata.get(FILES_KEY).and_then(|list| serde_json::from_str(list).ok()).unwrap_or_default();
    Some(Weights { form: container, files })
}

/// Puts zeros in place of a value of 64 digits.
fn blank(header: &mut [u8], key: &str, value: Option<&String>) {
    let Some(value) = value.filter(|value| value.len() == SEAL_PLACEHOLDER.len()) else { return };
    let find = |bytes: &[u8], what: &str| bytes.windows(what.len()).position(|part| part == what.as_bytes());
    let Some(at) = find(header, key) else { return };
    if let Some(offset) = find(&header[at..], value) {
        header[at + offset..][..value.len()].copy_from_slice(SEAL_PLACEHOLDER.as_bytes());
    }
}

/// The files in `folder` that programs of this project wrote there and nobody changed since.
///
/// # Errors
/// When the folder or one of its weights can't be read.
pub(super) fn owned_files(folder: &Path) -> io::Result<BTreeMap<OsString, fs::Metadata>> {
    let mut owned = BTreeMap::new();
    let mut listed: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let meta = entry.metadata()?;
        let path = entry.path();
        let container = match path.extension().and_then(|e| e.to_str()) {
            Some("gguf") => Form::Gguf,
            Some("safetensors") => Form::Safetensors,
            _ => continue,
        };
        // Not what a link leads to.
        if !meta.is_file() {
            continue;
        }
        if let Some(found) = weights(&path, container).filter(|found| found.form == container) {
            owned.insert(entry.file_name(), meta);
            found.files.into_iter().for_each(|(name, hash)| listed.entry(name).or_default().push(hash));
        }
    }
    if owned.is_empty() {
        return Ok(owned);
    }
    for (name, hashes) in listed {
        let path = folder.join(&name);
        if !crate::hf::is_plain_name(&name) || !fs::symlink_metadata(&path).is_ok_and(|m| m.is_file()) {
            continue;
        }
        let bytes = Bytes::map(&path).map_err(io::Error::other)?;
        if hashes.contains(&blake3::Hasher::new().update_rayon(&bytes).finalize().to_hex().to_string()) {
            owned.insert(name.into(), fs::symlink_metadata(&path)?);
        }
    }
    for name in [METRICS_FILE, PLOT_FILE] {
        let path = folder.join(name);
        let Ok(meta) = fs::symlink_metadata(&path) else { continue };
        let ours = if name == METRICS_FILE { is_metrics(&path)? } else { form_of(&path)? == Some(Form::Plot) };
        if meta.is_file() && ours {
            owned.insert(name.into(), meta);
        }
    }
    Ok(owned)
}

/// Returns whether every line is a step or a validation, as trainings write them.
fn is_metrics(path: &Path) -> io::Result<bool> {
    if !fs::symlink_metadata(path)?.is_file() {
        return Ok(false);
    }
    let text = fs::read(path)?;
    let line = |line: &[u8]| line.starts_with(b"{\"step\":") && line.ends_with(b"}");
    Ok(text.split(|b| *b == b'\n').all(|text| text.is_empty() || line(text)))
}
