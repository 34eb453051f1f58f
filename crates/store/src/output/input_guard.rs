//! Refusing to write over what is being read.

use super::temporary::folder;
use crate::{Error, Result};
use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

/// Refuses a destination that is one of the inputs, by path, symlink or hard link; that is a
/// file of an input folder; or that is a folder which holds an input.
///
/// # Errors
/// [`Error::SameFile`].
pub fn refuse_same_file<P: AsRef<Path>>(dest: &Path, inputs: &[P]) -> Result<()> {
    let target = resolved(dest);
    let identity = identity(dest);
    let is_folder = dest.is_dir();
    for input in inputs {
        let input = input.as_ref();
        let path = resolved(input);
        let same = path == target || (identity.is_some() && identity == self::identity(input));
        if same || (is_folder && path.starts_with(&target)) {
            return Err(Error::SameFile { path: dest.into(), input: input.into() });
        }
        if identity.is_none() || is_folder {
            continue;
        }
        for entry in fs::read_dir(input).into_iter().flatten().flatten() {
            if identity == self::identity(&entry.path()) {
                return Err(Error::SameFile { path: dest.into(), input: entry.path() });
            }
        }
    }
    Ok(())
}

/// Device and number of what a path leads to.
fn identity(path: &Path) -> Option<(u64, u64)> {
    fs::metadata(path).ok().map(|m| (m.dev(), m.ino()))
}

/// The absolute path without links; of a path that isn't there yet, that of its folder with the
/// name.
fn resolved(path: &Path) -> PathBuf {
    if let Ok(path) = path.canonicalize() {
        return path;
    }
    match (folder(path).canonicalize(), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}
