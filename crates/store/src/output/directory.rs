//! A folder that appears whole, or not at all.

use super::{OutputFile, Transient, sync_folder, temporary};
use crate::{Error, Result, hf};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A folder of files that appears at its destination whole, or not at all. Dropped, it leaves
/// nothing.
///
/// A model folder that is there already is swapped for the new one in one step and then removed.
#[derive(Debug)]
pub struct OutputDir {
    staging: TempDir,
    /// Keeps the lock on the staging folder.
    _lock: File,
    transient: Transient,
    target: PathBuf,
    shown: PathBuf,
}

impl OutputDir {
    /// Starts the folder that will be `dest`.
    ///
    /// # Errors
    /// A parent that is missing or not writable; a destination that is a file, or a folder that
    /// is neither empty nor a plain model folder (config.json, safetensors or GGUF, no subfolders).
    pub fn create(dest: &Path) -> Result<Self> {
        let target = temporary::resolve(dest)?;
        check_replaceable(&target, dest)?;
        let make = |builder: &mut tempfile::Builder<'_, '_>, folder: &Path| {
            let staging = builder.permissions(Permissions::from_mode(0o777)).tempdir_in(folder)?;
            let lock = File::open(staging.path())?;
            let path = staging.path().to_path_buf();
            Ok(temporary::hold(&lock, &path)?.then_some(((staging, lock), path)))
        };
        let ((staging, lock), transient) = temporary::create(&target, dest, make)?;
        Ok(OutputDir { staging, _lock: lock, transient, target, shown: dest.into() })
    }

    /// The folder in which the files lie until then.
    pub fn path(&self) -> &Path {
        self.staging.path()
    }

    /// Starts the file `name` of the folder. Its errors name it at the destination.
    ///
    /// # Errors
    /// As [`OutputFile::create`]; or `name` is not a plain file name.
    pub fn file(&self, name: &str, len: Option<u64>) -> Result<OutputFile> {
        let shown = self.shown.join(name);
        if !hf::is_plain_name(name) {
            return Err(Error::unsupported(shown, "is not a plain file name"));
        }
        OutputFile::create_as(&self.path().join(name), &shown, len)
    }

    /// Writes the whole file `name`.
    ///
    /// # Errors
    /// As [`OutputDir::file`] and [`OutputFile::write_all_at`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.file(name, None)?;
        file.write_all_at(bytes, 0)?;
        file.persist()
    }

    /// Makes the files durable and puts the folder in place.
    ///
    /// # Errors
    /// [`Error::Io`]; the destination is then as it was.
    pub fn persist(self) -> Result<()> {
        self.sync()?;
        check_replaceable(&self.target, &self.shown)?;
        let replaces = self.target.exists();
        let rename = || if replaces { self.swap() } else { fs::rename(self.path(), &self.target) };
        self.transient.settle(rename).map_err(|e| Error::io(&self.shown, "rename into place", e))?;
        if replaces {
            // The staging folder holds what was there before, or nothing.
            let _ = self.staging.close();
        } else {
            let _ = self.staging.keep();
        }
        sync_folder(&self.target, &self.shown)
    }

    fn sync(&self) -> Result<()> {
        let io = |e| Error::io(&self.shown, "write to disk", e);
        for entry in fs::read_dir(self.path()).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_type().map_err(io)?.is_file() {
                File::open(entry.path()).and_then(|f| f.sync_data()).map_err(io)?;
            }
        }
        sync_folder(&self.path().join("."), &self.shown)
    }

    /// Exchanges the staging folder and the destination.
    fn swap(&self) -> io::Result<()> {
        match renameat_with(CWD, self.path(), CWD, &self.target, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
                self.swap_in_steps()
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Where the system can't exchange: for a moment the destination isn't there, and a kill in
    /// that moment leaves the old folder under the name of a temporary.
    pub(super) fn swap_in_steps(&self) -> io::Result<()> {
        let aside = tempfile::Builder::new().prefix(".replaced.").tempdir_in(temporary::folder(&self.target))?;
        let old = aside.path().join("old");
        fs::rename(&self.target, &old)?;
        if let Err(e) = fs::rename(self.path(), &self.target) {
            if let Err(lost) = fs::rename(&old, &self.target) {
                let kept = aside.keep();
                return Err(io::Error::new(lost.kind(), format!("{lost}; the old folder is in {}", kept.display())));
            }
            return Err(e);
        }
        Ok(())
    }
}

/// Only an empty folder and a plain model folder are replaced: nothing that a person would miss.
fn check_replaceable(target: &Path, shown: &Path) -> Result<()> {
    let meta = match fs::symlink_metadata(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(shown, "look at", e)),
        Ok(meta) => meta,
    };
    if !meta.is_dir() {
        return Err(Error::io(shown, "replace by a folder", io::ErrorKind::NotADirectory.into()));
    }
    let io = |e| Error::io(shown, "list", e);
    let (mut empty, mut model) = (true, false);
    for entry in fs::read_dir(target).map_err(io)? {
        let entry = entry.map_err(io)?;
        empty = false;
        if entry.file_type().map_err(io)?.is_dir() {
            let what = format!(
                "holds a folder ({}): not replaced; remove it or choose another output",
                entry.file_name().display()
            );
            return Err(Error::unsupported(shown, what));
        }
        let name = entry.file_name();
        model |=
            name == hf::CONFIG_FILE || Path::new(&name).extension().is_some_and(|e| e == "safetensors" || e == "gguf");
    }
    if empty || model {
        return Ok(());
    }
    Err(Error::unsupported(shown, "is a folder with files that are no model: not replaced; choose another output"))
}
