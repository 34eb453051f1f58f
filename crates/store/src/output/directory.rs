//! A folder that appears whole, or not at all.

use super::policy::{self, Contents};
use super::{Existing, OutputFile, Transient, sync_folder, temporary};
use crate::{Error, Result, hf};
use rustix::fs::{AtFlags, CWD, RenameFlags, linkat, renameat_with};
use std::{
    collections::BTreeMap,
    ffi::OsString,
    fs::{self, File, FileTimes, Metadata, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
};
use tempfile::TempDir;

/// A folder of files that appears at its destination whole, or not at all. Dropped, it leaves
/// nothing.
///
/// A folder that is there already is exchanged for the new one in one step. Files in it that no program of this
/// project wrote are hard-linked into the new one before, subfolders made again with links in them: each of them
/// has its name in the old or in the new folder at every moment.
#[derive(Debug)]
pub struct OutputDir {
    staging: TempDir,
    /// Keeps the lock on the staging folder.
    lock: File,
    /// Keeps the lock on the folder that is replaced, where a run works in it.
    replaced: Option<File>,
    transient: Transient,
    target: PathBuf,
    shown: PathBuf,
    existing: Existing,
}

impl OutputDir {
    /// Starts the folder that will be `dest`.
    ///
    /// # Errors
    /// As [`super::check_folder`].
    pub fn create(dest: &Path, existing: Existing) -> Result<Self> {
        let target = temporary::resolve(dest)?;
        policy::check_parent(&target, dest)?;
        policy::kept_files(&target, dest, existing)?;
        Self::staged(target, dest, existing, None)
    }

    /// Starts the folder that will replace one that this process has locked.
    pub(super) fn replacing(dest: &Path, lock: File) -> Result<Self> {
        Self::staged(temporary::resolve(dest)?, dest, Existing::Overwrite, Some(lock))
    }

    fn staged(target: PathBuf, dest: &Path, existing: Existing, replaced: Option<File>) -> Result<Self> {
        let make = |builder: &mut tempfile::Builder<'_, '_>, folder: &Path| {
            let staging = builder.permissions(Permissions::from_mode(0o777)).tempdir_in(folder)?;
            let lock = File::open(staging.path())?;
            let path = staging.path().to_path_buf();
            Ok(temporary::hold(&lock, &path)?.then_some(((staging, lock), path)))
        };
        let ((staging, lock), transient) = temporary::create(&target, dest, make)?;
        Ok(OutputDir { staging, lock, replaced, transient, target, shown: dest.into(), existing })
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
        OutputFile::create_own(&self.path().join(name), &shown, len)
    }

    /// Writes the whole file `name`.
    ///
    /// # Errors
    /// As [`OutputDir::file`] and [`OutputFile::write_all_at`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.file(name, Some(bytes.len() as u64))?;
        file.write_all_at(bytes, 0)?;
        file.persist()
    }

    /// Makes the files durable and puts the folder in place.
    ///
    /// # Errors
    /// [`Error::Exists`] where something came to be at the destination meanwhile; as [`OutputDir::create`];
    /// [`Error::Io`]. The destination is then as it was.
    pub fn persist(self) -> Result<()> {
        self.put_in_place().map(drop)
    }

    /// Puts the folder in place, and returns the lock on it, which lasts until it is dropped.
    pub(super) fn put_in_place(mut self) -> Result<File> {
        self.sync()?;
        let contents = match self.replaced {
            Some(_) => policy::locked_contents(&self.target, &self.shown, self.existing),
            None => policy::kept_files(&self.target, &self.shown, self.existing),
        };
        let contents = contents.map_err(|e| self.came_meanwhile(e))?;
        if self.existing == Existing::Overwrite && self.target.exists() {
            self.keep(&contents)?;
            self.transient.settle(|| self.exchange(&contents.owned))?;
        } else {
            // The system replaces an empty folder, and no other.
            let renamed = self.transient.settle(|| fs::rename(self.path(), &self.target));
            renamed.map_err(|e| self.came_meanwhile(Error::io(&self.shown, "rename into place", e)))?;
        }
        // What is there now is empty, or has another name.
        let _ = fs::remove_dir(self.path());
        self.staging.disable_cleanup(true);
        sync_folder(&self.target, &self.shown)?;
        Ok(self.lock)
    }

    /// The destination was free when the work began.
    fn came_meanwhile(&self, error: Error) -> Error {
        let occupied = |e: &io::Error| {
            use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, NotADirectory};
            matches!(e.kind(), AlreadyExists | DirectoryNotEmpty | NotADirectory)
        };
        match error {
            Error::Exists { path, .. } => Error::Exists { path, what: MEANWHILE },
            Error::Io { path, source, .. } if occupied(&source) => Error::Exists { path, what: MEANWHILE },
            other => other,
        }
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

    /// Links what is kept of the old folder into the new one.
    fn keep(&self, contents: &Contents) -> Result<()> {
        for name in &contents.kept {
            if fs::symlink_metadata(self.path().join(name)).is_ok() {
                contents.refuse(name, &self.shown)?;
            }
            link(&self.target.join(name), &self.path().join(name))
                .map_err(|e| Error::io(self.shown.join(name), "link into the new folder", e))?;
        }
        let mode = fs::metadata(&self.target).map(|m| m.permissions());
        mode.and_then(|mode| fs::set_permissions(self.path(), mode))
            .map_err(|e| Error::io(&self.shown, "set the permissions of", e))
    }

    /// Exchanges the staging folder and the destination, then takes the old folder apart.
    fn exchange(&self, owned: &BTreeMap<OsString, Metadata>) -> Result<()> {
        self.swap().map_err(|e| Error::io(&self.shown, "rename into place", e))?;
        retire(self.path(), &self.target, Some(owned)).map_err(|e| {
            // Kept from the next run, which removes what carries a temporary's name.
            let prefix = temporary::folder(&self.target);
            let aside = tempfile::Builder::new().prefix(".replaced.").tempdir_in(prefix);
            let path = aside.and_then(|aside| fs::rename(self.path(), aside.path()).map(|()| aside.keep()));
            let path = path.unwrap_or_else(|_| self.path().to_path_buf());
            let what = format!(
                "written, but files that came into the old folder meanwhile are left in {}: {e}",
                path.display()
            );
            Error::unsupported(&self.shown, what)
        })
    }

    fn swap(&self) -> io::Result<()> {
        match renameat_with(CWD, self.path(), CWD, &self.target, RenameFlags::EXCHANGE) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {
                self.swap_in_steps()
            }
            Err(e) => Err(e.into()),
        }
    }

    /// Exchanges the folders in two steps, where the system can't in one: for a moment the destination isn't there, and
    /// a kill in that moment leaves the old folder under the name of a temporary.
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
        fs::rename(&old, self.path())
    }
}

/// The destination of a run that found it free.
pub(super) const MEANWHILE: &str = "came to be while this run worked; its own result is discarded";

/// Gives a file, link or folder a second name; a folder is made again, with links to what is in it.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(from)?;
    if !meta.is_dir() {
        return Ok(linkat(CWD, from, CWD, to, AtFlags::empty())?);
    }
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let name = entry?.file_name();
        link(&from.join(&name), &to.join(&name))?;
    }
    let times = FileTimes::new().set_accessed(meta.accessed()?).set_modified(meta.modified()?);
    File::open(to)?.set_times(times)?;
    fs::set_permissions(to, meta.permissions())
}

/// Removes from `old` what is `owned` or has a second name in `new`, and moves there what came since.
fn retire(old: &Path, new: &Path, owned: Option<&BTreeMap<OsString, Metadata>>) -> io::Result<()> {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    for entry in fs::read_dir(old)? {
        let name = entry?.file_name();
        let (from, to) = (old.join(&name), new.join(&name));
        let meta = fs::symlink_metadata(&from)?;
        let there = fs::symlink_metadata(&to).ok();
        let is_owned = owned.and_then(|owned| owned.get(&name)).is_some_and(|was| same(was, &meta));
        match there {
            Some(there) if meta.is_dir() && there.is_dir() => {
                retire(&from, &to, None)?;
                fs::remove_dir(&from)?;
            }
            Some(there) if same(&there, &meta) => fs::remove_file(&from)?,
            _ if is_owned => fs::remove_file(&from)?,
            None => fs::rename(&from, &to)?,
            Some(_) => return Err(io::Error::from(io::ErrorKind::AlreadyExists)),
        }
    }
    Ok(())
}
