//! Provenance of a result: the command, the program, the date, the machine, and hashes of everything that was read.

use jiff::Timestamp;
use report::page::Section;
use report::table::{Cell, Column, Table};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Origin of a result: command, machine and inputs. Hashes are computed when a result is written, not before.
#[derive(Debug, Clone, Default)]
pub struct Provenance {
    device: Option<String>,
    inputs: Vec<(&'static str, Source)>,
}

#[derive(Debug, Clone)]
enum Source {
    /// A model, hashed tensor by tensor, so that containers of the same tensors have the same hash.
    Model(PathBuf),
    /// A model of which only names and shapes were read.
    Unhashed(PathBuf),
    /// A text, a file of labels: hashed as it lies on disk.
    File(PathBuf),
    /// A text or another file, as it was read.
    Bytes { name: String, blake3: String },
}

/// [`Provenance`] as it stands in JSON.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Record {
    /// The command line, one string for each argument.
    command: Vec<String>,
    /// Time of writing in UTC (RFC 3339); that of SOURCE_DATE_EPOCH, where it is set.
    date: String,
    /// Device that computed, such as `cpu`; none where nothing was computed on one.
    device: Option<String>,
    /// Instruction set of the processor's kernels.
    instruction_set: &'static str,
    /// Threads that computed.
    threads: usize,
    /// Models, texts and other files.
    inputs: Vec<Input>,
}

/// One input of a result.
#[derive(Debug, Serialize, JsonSchema)]
struct Input {
    /// Function of the input, such as `reference` or `text`.
    role: &'static str,
    /// Path or name of the input.
    name: String,
    /// BLAKE3: of a model over names, types, shapes and bytes of its tensors (`qconvert.source_blake3` of artifacts made
    /// from it), of a text over its bytes. None where not all was read.
    blake3: Option<String>,
}

impl Provenance {
    /// The provenance of a result that was computed on `device`.
    pub fn on(device: impl Into<String>) -> Self {
        Provenance { device: Some(device.into()), ..Self::default() }
    }

    /// Adds a model whose tensors were read.
    #[must_use]
    pub fn model(mut self, role: &'static str, path: &Path) -> Self {
        self.inputs.push((role, Source::Model(path.into())));
        self
    }

    /// Adds models whose tensors were read.
    #[must_use]
    pub fn models<'a>(self, role: &'static str, paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        paths.into_iter().fold(self, |all, path| all.model(role, path))
    }

    /// Adds a model of which only names and shapes were read.
    #[must_use]
    pub fn header(mut self, role: &'static str, path: &Path) -> Self {
        self.inputs.push((role, Source::Unhashed(path.into())));
        self
    }

    /// Adds a text or another file by its contents.
    #[must_use]
    pub fn bytes(mut self, role: &'static str, name: &str, contents: &[u8]) -> Self {
        let blake3 = blake3::hash(contents).to_hex().to_string();
        self.inputs.push((role, Source::Bytes { name: name.into(), blake3 }));
        self
    }

    /// Adds files that were read as they lie on disk, such as texts and labels.
    #[must_use]
    pub fn files<'a>(mut self, role: &'static str, paths: impl IntoIterator<Item = &'a PathBuf>) -> Self {
        self.inputs.extend(paths.into_iter().map(|path| (role, Source::File(path.clone()))));
        self
    }

    /// The record, with all hashes.
    pub fn record(&self) -> Record {
        Record {
            command: std::env::args().collect(),
            date: date().to_string(),
            device: self.device.clone(),
            instruction_set: runtime::active_instruction_set(),
            threads: rayon::current_num_threads(),
            inputs: self.inputs.iter().map(|(role, source)| Input::new(role, source)).collect(),
        }
    }
}

impl Input {
    fn new(role: &'static str, source: &Source) -> Self {
        let (name, blake3) = match source {
            // A model that could not be opened has its error in the result.
            Source::Model(path) => (path.display().to_string(), store::open(path).ok().map(|model| model.blake3())),
            Source::File(path) => (path.display().to_string(), file_hash(path).ok()),
            Source::Unhashed(path) => (path.display().to_string(), None),
            Source::Bytes { name, blake3 } => (name.clone(), Some(blake3.clone())),
        };
        Input { role, name, blake3 }
    }
}

fn file_hash(path: &Path) -> std::io::Result<String> {
    let mut hash = blake3::Hasher::new();
    hash.update_reader(std::fs::File::open(path)?)?;
    Ok(hash.finalize().to_hex().to_string())
}

impl Record {
    /// The record as a page's section; `tool` is the program and its version.
    ///
    /// # Errors
    /// When a row doesn't fit, which the columns rule out.
    pub fn section(&self, tool: &str) -> Result<Section, report::Error> {
        let mut table = Table::new("", ["role", "name", "blake3"].map(|key| Column::text(key, key)).into());
        table.columns[0].header = "Input".into();
        table.columns[1].header = "Path".into();
        table.columns[2].header = "BLAKE3".into();
        for input in &self.inputs {
            let hash = input.blake3.clone().map_or_else(Cell::absent, Cell::text);
            table.push(vec![Cell::text(input.role), Cell::text(input.name.clone()), hash])?;
        }
        let device = self.device.as_ref().map_or_else(String::new, |device| format!(" on {device}"));
        let made = format!(
            "Made by {tool} at {}{device}, {} threads, {} kernels.",
            self.date, self.threads, self.instruction_set
        );
        Ok(Section::new("Provenance").prose(made).prose(format!("`{}`", self.command.join(" "))).table(table))
    }
}

/// The time now, to the second, or that of SOURCE_DATE_EPOCH (reproducible-builds.org), so that a build can be repeated byte
/// for byte.
fn date() -> Timestamp {
    let fixed = std::env::var("SOURCE_DATE_EPOCH").ok().and_then(|seconds| seconds.parse().ok());
    let seconds = fixed.unwrap_or_else(|| Timestamp::now().as_second());
    Timestamp::from_second(seconds).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_names_inputs_with_their_hashes() {
        let record =
            Provenance::on("cpu").bytes("text", "a.txt", b"abc").header("model", Path::new("no/such")).record();
        let json = serde_json::to_value(&record).expect("serializes");
        assert_eq!(json["device"], "cpu");
        let hash = "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
        assert_eq!(json["inputs"][0], serde_json::json!({"role": "text", "name": "a.txt", "blake3": hash}));
        assert_eq!(json["inputs"][1]["blake3"], serde_json::Value::Null);
        assert!(json["date"].as_str().is_some_and(|date| date.ends_with('Z')), "{json}");
    }
}
