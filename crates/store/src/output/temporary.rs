//! Temporaries beside their destination: named after it, locked while in use, swept when left.

use super::Transient;
use crate::{Error, Result};
use std::{
    ffi::OsStr,
    fs::{self, File, TryLockError},
    io,
    os::unix::{ffi::OsStrExt, fs::MetadataExt},
    path::{Path, PathBuf},
};

/// The end of every temporary's name.
const SUFFIX: &str = ".tmp";

/// Random characters in a temporary's name.
const RANDOM: usize = 6;

/// The most bytes of the destination's name in that of the temporary: names end at 255.
const NAME: usize = 200;

/// Number of attempts to make a temporary that another run swept in the moment of its birth.
const TRIES: usize = 8;

/// The folder that a path lies in.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The path that is really replaced: symlinks followed, `.` and `..` resolved.
pub(super) fn resolve(dest: &Path) -> Result<PathBuf> {
    let link = fs::symlink_metadata(dest).is_ok_and(|m| m.is_symlink());
    if !link && dest.file_name().is_some() {
        return Ok(dest.to_path_buf());
    }
    dest.canonicalize().map_err(|e| Error::io(dest, "resolve", e))
}

/// Makes a temporary for `target` with `make`, which gives it and its path, or none when another run swept it.
pub(super) fn create<T>(
    target: &Path,
    shown: &Path,
    make: impl Fn(&mut tempfile::Builder<'_, '_>, &Path) -> io::Result<Option<(T, PathBuf)>>,
) -> Result<(T, Transient)> {
    let folder = folder(target);
    let prefix = prefix(target);
    sweep(folder, &prefix);
    let prefix = OsStr::from_bytes(&prefix);
    for _ in 0..TRIES {
        let mut builder = tempfile::Builder::new();
        builder.prefix(prefix).suffix(SUFFIX).rand_bytes(RANDOM);
        let made = Transient::make(|| make(&mut builder, folder));
        if let Some(made) = made.map_err(|e| Error::io(shown, "create", e))? {
            return Ok(made);
        }
    }
    Err(Error::io(shown, "create", io::ErrorKind::AlreadyExists.into()))
}

/// `.NAME.`, the start of the names of a destination's temporaries.
fn prefix(target: &Path) -> Vec<u8> {
    let name = target.file_name().unwrap_or_default().as_bytes();
    let mut prefix = vec![b'.'];
    prefix.extend_from_slice(&name[..name.len().min(NAME)]);
    prefix.push(b'.');
    prefix
}

/// Locks a temporary for as long as `handle` is open. False when it was swept meanwhile.
pub(super) fn hold(handle: &File, path: &Path) -> io::Result<bool> {
    match handle.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        // A file system without locks: then no run can sweep either.
        Err(TryLockError::Error(_)) => return Ok(true),
    }
    let mine = handle.metadata()?;
    Ok(fs::symlink_metadata(path).is_ok_and(|m| m.ino() == mine.ino() && m.dev() == mine.dev()))
}

/// Removes what killed runs left behind. Failing to changes nothing but tidiness.
fn sweep(folder: &Path, prefix: &[u8]) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if is_temporary(entry.file_name().as_bytes(), prefix) {
            remove_if_left(&entry.path());
        }
    }
}

fn is_temporary(name: &[u8], prefix: &[u8]) -> bool {
    let random = name.strip_prefix(prefix).and_then(|n| n.strip_suffix(SUFFIX.as_bytes()));
    random.is_some_and(|r| r.len() == RANDOM && r.iter().all(u8::is_ascii_alphanumeric))
}

fn remove_if_left(path: &Path) {
    let Ok(meta) = fs::symlink_metadata(path) else { return };
    if !meta.is_file() && !meta.is_dir() {
        return;
    }
    // Holding the lock while removing: nobody else has it.
    if let Ok(handle) = File::open(path)
        && handle.try_lock().is_ok()
    {
        let _ = if meta.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
}
