//! What happened in each step and validation: lines of JSON beside the model.

use crate::error::{Error, Result};
use serde::Serialize;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file in the output's folder.
pub const FILE: &str = "metrics.jsonl";

/// Appends lines. There are no times in them: the same training writes the same bytes.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// None before there is a model: a training that fails early leaves nothing behind.
    file: Option<File>,
    /// Lines until then.
    early: String,
}

impl Metrics {
    /// A file that appears in the folder when it is first made durable.
    pub fn begin(folder: &Path) -> Self {
        Self { path: folder.join(FILE), file: None, early: String::new() }
    }

    /// What is there up to `step`: later lines are of work that is lost, and will be done again.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resume(folder: &Path, step: usize) -> Result<Self> {
        let path = folder.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(Error::io(&path))?;
        let is_kept = |line: &&str| {
            let value: Option<serde_json::Value> = serde_json::from_str(line).ok();
            value.and_then(|v| v.get("step")?.as_u64()).is_some_and(|at| at <= step as u64)
        };
        let kept: String = text.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
        store::output::write_file(&path, kept.as_bytes())?;
        let file = File::options().append(true).open(&path).map_err(Error::io(&path))?;
        Ok(Self { path, file: Some(file), early: String::new() })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what).map_err(|e| Error::malformed(&self.path, e))?;
        match &mut self.file {
            Some(file) => writeln!(file, "{line}").map_err(Error::io(&self.path))?,
            None => self.early.extend([&line, "\n"]),
        }
        Ok(())
    }

    /// Makes it durable.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        let file = match self.file.take() {
            Some(file) => file,
            None => {
                store::output::write_file(&self.path, self.early.as_bytes())?;
                self.early.clear();
                File::options().append(true).open(&self.path).map_err(Error::io(&self.path))?
            }
        };
        self.file.insert(file).sync_data().map_err(Error::io(&self.path))
    }
}
