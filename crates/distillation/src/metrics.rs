//! Log of steps and validations: lines of JSON beside the model.

use crate::error::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file in the output's folder.
pub const FILE: &str = store::output::provenance::METRICS_FILE;

/// Appends lines. There are no times in them: the same training writes the same bytes.
#[derive(Debug)]
pub struct Metrics {
    path: PathBuf,
    /// None before there is a model: a training that fails early leaves nothing behind.
    file: Option<File>,
    /// Lines until then.
    early: String,
    /// Bytes of all lines.
    bytes: u64,
    hash: blake3::Hasher,
}

/// Length of the written log, and its hash.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Their BLAKE3.
    pub blake3: String,
}

impl Metrics {
    /// A file that appears in the folder when it is first made durable.
    pub fn begin(folder: &Path) -> Self {
        Self { path: folder.join(FILE), file: None, early: String::new(), bytes: 0, hash: blake3::Hasher::new() }
    }

    /// Continues the log of a saved training: lines after [`Metrics::written`] are of work that is lost and will be
    /// done again, and are cut off. None where the file was changed.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn resume(folder: &Path, was: &Written) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        let text = std::fs::read(&path).map_err(Error::io(&path))?;
        let Some(kept) = usize::try_from(was.bytes).ok().and_then(|bytes| text.get(..bytes)) else { return Ok(None) };
        let mut hash = blake3::Hasher::new();
        if hash.update(kept).finalize().to_string() != was.blake3 {
            return Ok(None);
        }
        store::output::write_own_file(&path, kept)?;
        let file = File::options().append(true).open(&path).map_err(Error::io(&path))?;
        Ok(Some(Self { path, file: Some(file), early: String::new(), bytes: was.bytes, hash }))
    }

    /// Returns length and hash of the log so far.
    pub fn written(&self) -> Written {
        Written { bytes: self.bytes, blake3: self.hash.finalize().to_string() }
    }

    /// Adds a line.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add(&mut self, what: &impl Serialize) -> Result<()> {
        let line = serde_json::to_string(what).map_err(|e| Error::malformed(&self.path, e))? + "\n";
        match &mut self.file {
            Some(file) => file.write_all(line.as_bytes()).map_err(Error::io(&self.path))?,
            None => self.early += &line,
        }
        self.bytes += line.len() as u64;
        self.hash.update(line.as_bytes());
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
                store::output::write_own_file(&self.path, self.early.as_bytes())?;
                self.early.clear();
                File::options().append(true).open(&self.path).map_err(Error::io(&self.path))?
            }
        };
        self.file.insert(file).sync_data().map_err(Error::io(&self.path))
    }
}
