//! Output that is whole or not there: written beside its destination, then renamed into place.
//!
//! A run that is killed leaves a temporary `.NAME.XXXXXX.tmp` behind and the destination as it
//! was. Whoever writes holds a lock on the temporary, which the system drops with the process,
//! so the next run for the same destination can tell what was left behind, and removes it. A
//! program that is told to stop calls [`remove_transients`] and leaves nothing.

mod directory;
mod input_guard;
mod policy;
pub mod provenance;
mod resumable;
mod temporary;
mod transient;
mod work;

pub use directory::OutputDir;
pub use input_guard::refuse_same_file;
pub use policy::{Existing, check_file, check_folder, check_room};
pub use provenance::Form;
pub use resumable::ResumableFile;
pub use transient::{Transient, remove_transients};
pub use work::{Begin, WorkFolder};

use crate::{Error, Result};
use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
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
    /// Destination of the file.
    target: PathBuf,
    /// Path as errors show it.
    shown: PathBuf,
    guard: Guard,
}

/// Rule for the file that may lie at a destination when another is renamed there.
#[derive(Debug, Clone, Copy)]
enum Guard {
    /// The output policy decides.
    Policy(Form, Existing),
    /// Anything: the file is one of the run's own.
    Own,
}

impl OutputFile {
    /// Starts the file that will be `dest`, with room for `len` bytes where that is known.
    ///
    /// A symlink is followed: what it points to is replaced.
    ///
    /// # Errors
    /// As [`check_file`]; a disk without room for `len` bytes ([`Error::NoRoom`]).
    pub fn create(dest: &Path, form: Form, existing: Existing, len: Option<u64>) -> Result<Self> {
        let target = temporary::resolve(dest)?;
        policy::check_parent(&target, dest)?;
        policy::check_replaceable(&target, dest, form, existing)?;
        Self::start(target, dest, Guard::Policy(form, existing), len)
    }

    /// Starts a file in a folder, or beside a destination, that the run has for itself: what has its name is replaced.
    /// Errors call it `shown`.
    ///
    /// # Errors
    /// As [`OutputFile::create`], whatever lies at `dest`.
    pub fn create_own(dest: &Path, shown: &Path, len: Option<u64>) -> Result<Self> {
        let target = temporary::resolve(dest)?;
        policy::check_parent(&target, shown)?;
        if let Ok(meta) = fs::metadata(&target) {
            policy::check_regular(&meta, shown)?;
        }
        Self::start(target, shown, Guard::Own, len)
    }

    fn start(target: PathBuf, shown: &Path, guard: Guard, len: Option<u64>) -> Result<Self> {
        let make = |builder: &mut tempfile::Builder<'_, '_>, folder: &Path| {
            // The usual permissions of a new file: the system takes the umask off.
            let file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder)?;
            let path = file.path().to_path_buf();
            Ok(temporary::hold(file.as_file(), &path)?.then_some((file, path)))
        };
        let (temporary, transient) = temporary::create(&target, shown, make)?;
        if let Some(len) = len {
            reserve(temporary.as_file(), len)
                .map_err(|e| policy::write_error(shown, temporary.path(), "reserve room for it", len, e))?;
        }
        Ok(OutputFile { temporary, transient, target, shown: shown.into(), guard })
    }

    /// Writes all of `buf` at `offset`; threads may write different parts at once.
    ///
    /// # Errors
    /// [`Error::Io`], such as a full disk.
    pub fn write_all_at(&self, buf: &[u8], offset: u64) -> Result<()> {
        let written = self.temporary.as_file().write_all_at(buf, offset);
        written.map_err(|e| policy::write_error(&self.shown, self.temporary.path(), "write", buf.len() as u64, e))
    }

    /// Writes the header of weights at the beginning, and its seal where `seal_at` says, by which a later run knows the
    /// file as one of ours ([`provenance`]).
    ///
    /// # Errors
    /// As [`OutputFile::write_all_at`].
    pub fn write_header(&self, header: &[u8], seal_at: Option<u64>) -> Result<()> {
        self.write_all_at(header, 0)?;
        seal_at.map_or(Ok(()), |at| self.write_all_at(provenance::seal(header).as_bytes(), at))
    }

    /// Path of the bytes before they are put in place.
    pub fn temporary_path(&self) -> &Path {
        self.temporary.path()
    }

    /// Makes the file durable and renames it to its destination.
    ///
    /// # Errors
    /// [`Error::Exists`] where something came to be there meanwhile; [`Error::Io`]. The destination is then as it was.
    pub fn persist(self) -> Result<()> {
        let OutputFile { temporary, transient, target, shown, guard } = self;
        temporary.as_file().sync_data().map_err(|e| Error::io(&shown, "write to disk", e))?;
        let renamed = match guard {
            Guard::Policy(_, Existing::Refuse) => transient.settle(|| temporary.persist_noclobber(&target)),
            Guard::Policy(form, existing) => {
                policy::check_replaceable(&target, &shown, form, existing)?;
                transient.settle(|| temporary.persist(&target))
            }
            Guard::Own => transient.settle(|| temporary.persist(&target)),
        };
        renamed.map_err(|e| match e.error.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: shown.clone(), what: directory::MEANWHILE },
            _ => Error::io(&shown, "rename into place", e.error),
        })?;
        sync_folder(&target, &shown)
    }
}

/// Writes a file that appears whole or not at all.
///
/// # Errors
/// As [`OutputFile::create`]; the destination is then as it was.
pub fn write_file(dest: &Path, form: Form, existing: Existing, bytes: &[u8]) -> Result<()> {
    let file = OutputFile::create(dest, form, existing, Some(bytes.len() as u64))?;
    file.write_all_at(bytes, 0)?;
    file.persist()
}

/// Writes a file as [`OutputFile::create_own`] starts it.
///
/// # Errors
/// As [`OutputFile::create_own`]; the destination is then as it was.
pub fn write_own_file(dest: &Path, bytes: &[u8]) -> Result<()> {
    let file = OutputFile::create_own(dest, dest, Some(bytes.len() as u64))?;
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
    // Some systems refuse with another error what the disk could never hold.
    if fstatvfs(file).is_ok_and(|disk| disk.f_blocks > 0 && len > disk.f_bavail.saturating_mul(disk.f_frsize)) {
        return Err(rustix::io::Errno::NOSPC.into());
    }
    match fallocate(file, FallocateFlags::empty(), 0, len) {
        Ok(()) => Ok(()),
        Err(e @ (rustix::io::Errno::NOSPC | rustix::io::Errno::DQUOT)) => Err(e.into()),
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
