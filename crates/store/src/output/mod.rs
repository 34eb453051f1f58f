//! Output that is whole or not there: written beside its destination, then renamed into place.
//!
//! A run that is killed leaves a temporary `.NAME.XXXXXX.tmp` behind and the destination as it
//! was. Whoever writes holds a lock on the temporary, which the system drops with the process,
//! so the next run for the same destination can tell what was left behind, and removes it. A
//! program that is told to stop calls [`remove_transients`] and leaves nothing.

mod directory;
mod resumable;
mod same;
mod temporary;
mod transient;

pub use directory::OutputDir;
pub use resumable::ResumableFile;
pub use same::refuse_same_file;
pub use transient::{Transient, remove_transients};

use crate::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::process::{Resource, getrlimit};
use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::NamedTempFile;

/// A file that appears at its destination whole, or not at all. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct OutputFile {
    temporary: NamedTempFile,
    transient: Transient,
    /// Where it goes.
    target: PathBuf,
    /// What errors call it.
    shown: PathBuf,
}

/// Refuses a destination that is a folder, device, pipe or socket.
fn check_replaceable(target: &Path, shown: &Path) -> Result<()> {
    match fs::metadata(target) {
        Ok(meta) if meta.is_dir() => Err(Error::io(shown, "replace", io::ErrorKind::IsADirectory.into())),
        Ok(meta) if !meta.is_file() => {
            Err(Error::unsupported(shown, "is not a regular file; give a path for the output"))
        }
        _ => Ok(()),
    }
}

impl OutputFile {
    /// Starts the file that will be `dest`, with room for `len` bytes where that is known.
    ///
    /// A symlink is followed: what it points to is replaced.
    ///
    /// # Errors
    /// A folder that is missing or not writable, a destination that is a folder or device, or a
    /// disk without room for `len` bytes.
    pub fn create(dest: &Path, len: Option<u64>) -> Result<Self> {
        OutputFile::create_as(dest, dest, len)
    }

    /// The same; errors call it `shown`.
    fn create_as(dest: &Path, shown: &Path, len: Option<u64>) -> Result<Self> {
        let target = temporary::resolve(dest)?;
        check_replaceable(&target, shown)?;
        let make = |builder: &mut tempfile::Builder<'_, '_>, folder: &Path| {
            // The usual permissions of a new file: the system takes the umask off.
            let file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
            let path = file.path().to_path_buf();
            Ok(temporary::hold(file.as_file(), &path)?.then_some((file, path)))
        };
        let (temporary, transient) = temporary::create(&target, shown, make)?;
        if let Some(len) = len {
            reserve(temporary.as_file(), len).map_err(|e| Error::io(shown, "reserve room for it", e))?;
        }
        Ok(OutputFile { temporary, transient, target, shown: shown.into() })
    }

    /// Writes all of `buf` at `offset`; threads may write different parts at once.
    ///
    /// # Errors
    /// [`Error::Io`], such as a full disk.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        self.temporary.as_file().write_all_at(buf, offset).map_err(|e| Error::io(&self.shown, "write", e))
    }

    /// Where the bytes lie until then.
    pub fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Makes the file durable and renames it to its destination.
    ///
    /// # Errors
    /// [`Error::Io`]; the destination is then as it was.
    pub fn persist(self) -> Result<()> {
        let OutputFile { temporary, transient, target, shown } = self;
        temporary.as_file().sync_data().map_err(|e| Error::io(&shown, "write to disk", e))?;
        let renamed = transient.settle(|| temporary.persist(&target));
        renamed.map_err(|e| Error::io(&shown, "rename into place", e.error))?;
        sync_folder(&target, &shown)
    }
}

/// Writes a file that appears whole or not at all.
///
/// # Errors
/// As [`OutputFile::create`]; the destination is then as it was.
pub fn write_file(dest: &Path, bytes: &[u8]) -> Result<()> {
    let file = OutputFile::create(dest, Some(bytes.len() as u64))?;
    file.write_all_at(bytes, 0)?;
    file.persist()
}

/// Asks for `len` bytes of disk, so that a full disk or a limit on the size of files (`ulimit -f`) shows at once.
fn reserve(file: &File, len: u64) -> io::Result<()> {
    if len == 0 {
        return Ok(());
    }
    // Growing beyond it would end the process with a signal.
    if getrlimit(Resource::Fsize).current.is_some_and(|most| len > most) {
        return Err(rustix::io::Errno::FBIG.into());
    }
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::NOSPC) => Err(rustix::io::Errno::NOSPC.into()),
        // Not every file system reserves; all of them set a length.
        Err(_) => file.set_len(len),
    }
}

/// Makes the entry of `target` in its folder durable.
fn sync_folder(target: &Path, shown: &Path) -> Result<()> {
    let synced = File::open(temporary::folder(target)).and_then(|f| f.sync_all());
    match synced {
        // Some file systems don't sync folders; the rename has happened all the same.
        Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Err(Error::io(shown, "write the folder of", e))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
