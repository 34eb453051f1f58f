//! A file that is made over a long time, and goes on where it was interrupted.

use super::{Existing, Form, OutputFile, Transient, policy, sync_folder, temporary};
use crate::{Error, Result};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};

/// Bytes after the file's own that say how far it is.
const COUNTER: u64 = 8;

/// A file that lies beside its destination as `NAME.partial` until it is whole, and is kept when the program ends
/// before. Behind its last byte stands a counter of steps, which is written only after what it counts is on disk.
#[derive(Debug)]
pub struct ResumableFile {
    file: File,
    partial: PathBuf,
    target: PathBuf,
    /// Path as errors show it.
    shown: PathBuf,
    len: u64,
    steps: u64,
    /// Told when a signal ends the program.
    _stays: Transient,
}

impl ResumableFile {
    /// Path of the unfinished file of a destination.
    ///
    /// # Errors
    /// A destination that is a broken link, a folder or a device.
    pub fn partial_path(dest: &Path) -> Result<PathBuf> {
        let target = temporary::resolve(dest)?;
        if let Ok(meta) = fs::metadata(&target) {
            policy::check_regular(&meta, dest)?;
        }
        let mut name = target.into_os_string();
        name.push(".partial");
        Ok(name.into())
    }

    /// Checks both names before any work.
    ///
    /// # Errors
    /// As [`super::check_file`].
    pub fn check<P: AsRef<Path>>(dest: &Path, form: Form, existing: Existing, inputs: &[P]) -> Result<()> {
        let partial = Self::partial_path(dest)?;
        policy::check_file(dest, form, existing, inputs)?;
        policy::check_parent(&partial, &partial)
    }

    /// Begins a file of `len` bytes, whose first parts `fill` writes: the unfinished file appears with them or not at
    /// all. Room for all of it is reserved.
    ///
    /// # Errors
    /// As [`OutputFile::create`], and what `fill` says.
    pub fn begin(dest: &Path, len: u64, fill: impl FnOnce(&OutputFile) -> Result<()>) -> Result<Self> {
        let whole = len.checked_add(COUNTER).ok_or_else(|| Error::unsupported(dest, "the file overflows 2^64"))?;
        let partial = Self::partial_path(dest)?;
        let file = OutputFile::create_own(&partial, &partial, Some(whole))?;
        fill(&file)?;
        file.write_all_at(&0u64.to_le_bytes(), len)?;
        let stays = Transient::that_stays(&partial);
        file.persist()?;
        Self::open(dest, partial, len, stays)
    }

    /// Goes on with the unfinished file of `dest`, which must have been begun with this length.
    ///
    /// # Errors
    /// A file that is missing, of another length, or that another run is writing.
    pub fn resume(dest: &Path, len: u64) -> Result<Self> {
        let partial = Self::partial_path(dest)?;
        let stays = Transient::that_stays(&partial);
        Self::open(dest, partial, len, stays)
    }

    fn open(dest: &Path, partial: PathBuf, len: u64, stays: Transient) -> Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(&partial);
        let file = file.map_err(|e| Error::io(&partial, "open", e))?;
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(Error::unsupported(&partial, "another run is writing it"));
        }
        let found = file.metadata().map_err(|e| Error::io(&partial, "read", e))?.len();
        let steps = if found == len {
            u64::MAX
        } else if Some(found) == len.checked_add(COUNTER) {
            let mut counter = [0; COUNTER as usize];
            file.read_exact_at(&mut counter, len).map_err(|e| Error::io(&partial, "read", e))?;
            u64::from_le_bytes(counter)
        } else {
            let what = format!("has {found} bytes, {len} and a counter are needed; remove it to start afresh");
            return Err(Error::malformed(&partial, what));
        };
        let target = temporary::resolve(dest)?;
        Ok(ResumableFile { file, partial, target, shown: dest.into(), len, steps, _stays: stays })
    }

    /// Steps that are done; [`u64::MAX`] where the file was whole and only its renaming was left.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// Writes all of `buf` at `offset`; threads may write different parts at once.
    ///
    /// # Errors
    /// [`Error::Io`], such as a full disk.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.file.write_all_at(buf, offset).map_err(|e| Error::io(&self.partial, "write", e))
    }

    /// Makes what was written durable, then counts so many steps as done.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn record(&mut self, steps: u64) -> Result<()> {
        self.file.sync_data().map_err(|e| Error::io(&self.partial, "write to disk", e))?;
        self.steps = steps;
        self.write_all_at(&steps.to_le_bytes(), self.len)
    }

    /// Removes the unfinished file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn discard(self) -> Result<()> {
        fs::remove_file(&self.partial).map_err(|e| Error::io(&self.partial, "remove", e))
    }

    /// Takes the counter off, makes the file durable and renames it to its destination.
    ///
    /// # Errors
    /// As [`OutputFile::persist`]; the destination is then as it was, and the unfinished file stays.
    pub fn persist(self, form: Form, existing: Existing) -> Result<()> {
        let disk = |e: io::Error| Error::io(&self.partial, "write to disk", e);
        self.file.sync_data().map_err(disk)?;
        self.file.set_len(self.len).and_then(|()| self.file.sync_data()).map_err(disk)?;
        let renamed = if existing == Existing::Refuse {
            rename_to_free(&self.partial, &self.target)
        } else {
            policy::check_replaceable(&self.target, &self.shown, form, existing)?;
            fs::rename(&self.partial, &self.target)
        };
        renamed.map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => {
                Error::Exists { path: self.shown.clone(), what: super::directory::MEANWHILE }
            }
            _ => Error::io(&self.shown, "rename into place", e),
        })?;
        sync_folder(&self.target, &self.shown)
    }
}

/// Renames a file where nothing has the new name.
fn rename_to_free(from: &Path, to: &Path) -> io::Result<()> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
            fs::hard_link(from, to)?;
            fs::remove_file(from)
        }
        renamed => Ok(renamed?),
    }
}
