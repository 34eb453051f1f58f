//! The output policy: the one rule for every output of the four programs.
//!
//! - A destination that exists (a file, or a folder with anything in it) is refused, unless the run was told to
//!   overwrite ([`Existing::Overwrite`], `--overwrite`).
//! - Overwriting replaces only what a program of this project wrote and nobody edited since
//!   ([`super::provenance`]). Every other file, link and subfolder of a folder is kept.
//! - Never replaced: the input or a folder that holds one, the current folder or one that holds it, the home folder,
//!   a mount point, the root.
//! - A symbolic link as the destination is followed; the rules hold for what it leads to.

use super::provenance::{self, Form};
use super::{refuse_same_file, temporary};
use crate::{Error, Result};
use rustix::fs::{Access, StatVfs, access, statvfs};
use std::{
    collections::BTreeMap,
    env,
    ffi::{OsStr, OsString},
    fs::{self, File, Metadata, TryLockError},
    io,
    os::unix::fs::MetadataExt,
    path::Path,
};

/// Treatment of a destination that exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Existing {
    /// Refuse it.
    #[default]
    Refuse,
    /// Replace what a program of this project wrote there; keep all else.
    Overwrite,
}

/// Checks a file that will be written, before any work: as [`super::OutputFile::create`] will, and that it is none
/// of the inputs.
///
/// # Errors
/// [`Error::Exists`], [`Error::Foreign`], [`Error::SameFile`]; a folder that is missing or not writable; a name that
/// is too long.
pub fn check_file<P: AsRef<Path>>(dest: &Path, form: Form, existing: Existing, inputs: &[P]) -> Result<()> {
    refuse_same_file(dest, inputs)?;
    let target = temporary::resolve(dest)?;
    check_parent(&target, dest)?;
    check_replaceable(&target, dest, form, existing)
}

/// Checks a folder that will be written with files of these names, before any work: as
/// [`super::OutputDir::create`] will, and that it neither is nor holds one of the inputs.
///
/// # Errors
/// As [`check_file`]; a folder that is never replaced ([`Error::Protected`]).
pub fn check_folder<P: AsRef<Path>>(dest: &Path, existing: Existing, names: &[&str], inputs: &[P]) -> Result<()> {
    refuse_same_file(dest, inputs)?;
    let target = temporary::resolve(dest)?;
    check_parent(&target, dest)?;
    let longest = names.iter().max_by_key(|name| name.len());
    longest.map_or(Ok(()), |name| check_name(temporary::folder(&target), OsStr::new(name), &dest.join(name)))?;
    let kept = kept_files(&target, dest, existing)?;
    names.iter().try_for_each(|name| kept.refuse(OsStr::new(name), dest))
}

/// Refuses work whose files don't fit on the disk that holds `dest`.
///
/// # Errors
/// [`Error::NoRoom`].
pub fn check_room(dest: &Path, needed: u64) -> Result<()> {
    let target = temporary::resolve(dest)?;
    let Ok(disk) = statvfs(temporary::folder(&target)) else { return Ok(()) };
    let free = free_bytes(&disk);
    if needed > free { Err(Error::NoRoom { path: dest.into(), needed, free }) } else { Ok(()) }
}

/// Bytes that an ordinary user may still write; no bound where the system gives none.
fn free_bytes(disk: &StatVfs) -> u64 {
    if disk.f_blocks == 0 { u64::MAX } else { disk.f_bavail.saturating_mul(disk.f_frsize) }
}

/// The parent folder is there and can be written to, and the name fits.
pub(super) fn check_parent(target: &Path, shown: &Path) -> Result<()> {
    let folder = temporary::folder(target);
    match fs::metadata(folder) {
        Ok(meta) if meta.is_dir() => {}
        Ok(_) => return Err(Error::io(folder, "write to the folder", io::ErrorKind::NotADirectory.into())),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let what = format!("the folder {} does not exist: make it first", folder.display());
            return Err(Error::unsupported(shown, what));
        }
        Err(e) => return Err(Error::io(folder, "write to the folder", e)),
    }
    access(folder, Access::WRITE_OK | Access::EXEC_OK)
        .map_err(|e| Error::io(folder, "write to the folder", e.into()))?;
    check_name(folder, target.file_name().unwrap_or_default(), shown)
}

/// Refuses a file name that the file system of `folder` can't hold.
pub(super) fn check_name(folder: &Path, name: &OsStr, shown: &Path) -> Result<()> {
    let most = statvfs(folder).map_or(255, |disk| disk.f_namemax);
    if name.len() as u64 <= most {
        return Ok(());
    }
    let what = format!("the file name has {} bytes, the file system holds {most}: choose a shorter one", name.len());
    Err(Error::unsupported(shown, what))
}

/// A file's destination is free, or may be replaced.
pub(super) fn check_replaceable(target: &Path, shown: &Path, form: Form, existing: Existing) -> Result<()> {
    let meta = match fs::metadata(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(Error::io(shown, "look at", e)),
        Ok(meta) => meta,
    };
    check_regular(&meta, shown)?;
    if existing == Existing::Refuse {
        return Err(Error::Exists { path: shown.into(), what: "exists already" });
    }
    if meta.len() == 0 {
        return Ok(());
    }
    let found = provenance::form_of(target).map_err(|e| Error::io(shown, "read", e))?;
    match found {
        Some(found) if found == form => Ok(()),
        Some(found) => Err(Error::Foreign {
            path: shown.into(),
            what: format!("is {}, and {} would replace it", found.name(), form.name()),
        }),
        None => Err(Error::Foreign {
            path: shown.into(),
            what: format!("is not {} that one of these programs wrote, or was edited since", form.name()),
        }),
    }
}

/// Refuses a folder, device, pipe or socket where a file goes.
pub(super) fn check_regular(meta: &Metadata, shown: &Path) -> Result<()> {
    if meta.is_dir() {
        return Err(Error::io(shown, "replace", io::ErrorKind::IsADirectory.into()));
    }
    if !meta.is_file() {
        return Err(Error::unsupported(shown, "is not a regular file; give a path for the output"));
    }
    Ok(())
}

/// The contents of a folder that is to be overwritten.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Files that programs of this project wrote, which are replaced.
    pub(super) owned: BTreeMap<OsString, Metadata>,
    /// All else: it is kept.
    pub(super) kept: Vec<OsString>,
}

impl Contents {
    /// Refuses to write `name` where a file is kept.
    pub(super) fn refuse(&self, name: &OsStr, shown: &Path) -> Result<()> {
        if !self.kept.iter().any(|kept| kept == name) {
            return Ok(());
        }
        let what = "was not written by one of these programs, or was edited since".into();
        Err(Error::Foreign { path: shown.join(name), what })
    }
}

/// A folder's destination is free, or may be overwritten, and no run works in it; gives what is in it.
pub(super) fn kept_files(target: &Path, shown: &Path, existing: Existing) -> Result<Contents> {
    let contents = locked_contents(target, shown, existing)?;
    if target.is_dir() { lock(target, shown).map(|_| contents) } else { Ok(contents) }
}

/// Contents of a folder that this process has locked.
pub(super) fn locked_contents(target: &Path, shown: &Path, existing: Existing) -> Result<Contents> {
    let meta = match fs::symlink_metadata(target) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Contents::default()),
        Err(e) => return Err(Error::io(shown, "look at", e)),
        Ok(meta) => meta,
    };
    if !meta.is_dir() {
        return Err(Error::io(shown, "replace by a folder", io::ErrorKind::NotADirectory.into()));
    }
    let io = |e| Error::io(shown, "list", e);
    let entries = fs::read_dir(target).map_err(io)?;
    let names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>().map_err(io)?;
    refuse_protected(target, shown)?;
    if !names.is_empty() && existing == Existing::Refuse {
        return Err(Error::Exists { path: shown.into(), what: "is a folder that is not empty" });
    }
    let owned = provenance::owned_files(target).map_err(io)?;
    if !names.is_empty() && owned.is_empty() {
        let what = "is a folder without a model that one of these programs wrote, or its weights were edited since";
        return Err(Error::Foreign { path: shown.into(), what: what.into() });
    }
    let kept = names.into_iter().filter(|name| !owned.contains_key(name)).collect();
    Ok(Contents { owned, kept })
}

/// Refuses folders that no run puts another one in place of.
pub(super) fn refuse_protected(target: &Path, shown: &Path) -> Result<()> {
    let Ok(path) = target.canonicalize() else { return Ok(()) };
    let what = if path.parent().is_none() {
        "is the root of the file system"
    } else if env::current_dir().is_ok_and(|cwd| holds(&path, &cwd)) {
        "is the current folder, or holds it"
    } else if env::var_os("HOME").is_some_and(|home| !home.is_empty() && holds(&path, Path::new(&home))) {
        "is the home folder, or holds it"
    } else if is_mount_point(&path) {
        "is a mount point"
    } else {
        return Ok(());
    };
    Err(Error::Protected { path: shown.into(), what })
}

fn holds(folder: &Path, inner: &Path) -> bool {
    inner.canonicalize().is_ok_and(|inner| inner.starts_with(folder))
}

fn is_mount_point(path: &Path) -> bool {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
        if let Ok(found) = statx(CWD, path, AtFlags::empty(), StatxFlags::empty())
            && found.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT)
        {
            return found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT);
        }
    }
    let device = |path: &Path| fs::metadata(path).map(|m| m.dev());
    path.parent().is_some_and(|parent| matches!((device(path), device(parent)), (Ok(a), Ok(b)) if a != b))
}

/// Locks a folder until the handle is closed. A file system without locks gives the handle alone.
pub(super) fn lock(folder: &Path, shown: &Path) -> Result<File> {
    let handle = File::open(folder).map_err(|e| Error::io(shown, "open", e))?;
    match handle.try_lock() {
        Err(TryLockError::WouldBlock) => {
            Err(Error::unsupported(shown, "another run is writing in this folder: choose another output, or wait"))
        }
        Ok(()) | Err(TryLockError::Error(_)) => Ok(handle),
    }
}

/// An error of writing; with needed and free bytes where the disk is full.
pub(super) fn write_error(path: &Path, disk: &Path, what: &'static str, needed: u64, error: io::Error) -> Error {
    let is_full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
    match statvfs(disk) {
        Ok(disk) if is_full => Error::NoRoom { path: path.into(), needed, free: free_bytes(&disk) },
        _ => Error::io(path, what, error),
    }
}
