//! A folder that one run works in for long: locked, and started over or gone on with.

use super::{Existing, OutputDir, Transient, check_folder, policy, temporary};
use crate::{Error, Result};
use std::{
    ffi::OsStr,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
};

/// Start of a run in its folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Begin {
    /// In a folder that is empty or not there.
    #[default]
    New,
    /// The run replaces an earlier run's files, once there is something new.
    Overwrite,
    /// The run goes on with the files of an interrupted run.
    Resume,
}

/// A folder that one run works in. The system drops its lock with the process, however that ends.
///
/// What an earlier run left there stays until [`WorkFolder::start`].
#[derive(Debug)]
pub struct WorkFolder {
    path: PathBuf,
    begin: Begin,
    /// True if this run made it.
    made: bool,
    state: Mutex<State>,
    _transient: Option<Transient>,
}

#[derive(Debug)]
struct State {
    lock: File,
    started: bool,
}

impl WorkFolder {
    /// Makes the folder where it isn't there, and locks it, for a run that writes files of these names and reads
    /// `inputs`.
    ///
    /// # Errors
    /// As [`check_folder`]; another run works in the folder.
    pub fn begin<P: AsRef<Path>>(path: &Path, begin: Begin, names: &[&str], inputs: &[P]) -> Result<Self> {
        let target = temporary::resolve(path)?;
        if begin == Begin::Resume {
            let lock = policy::lock(&target, path)?;
            let state = Mutex::new(State { lock, started: true });
            return Ok(Self { path: path.into(), begin, made: false, state, _transient: None });
        }
        let existing = if begin == Begin::Overwrite { Existing::Overwrite } else { Existing::Refuse };
        // Before its contents: what another run has put there so far would lead to a worse error.
        if target.is_dir() {
            drop(policy::lock(&target, path)?);
        }
        check_folder(path, existing, names, inputs)?;
        let made = match fs::create_dir(&target) {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => false,
            Err(e) => return Err(Error::io(path, "create", e)),
        };
        let lock = policy::lock(&target, path)?;
        let contents = policy::locked_contents(&target, path, existing)?;
        let started = contents.owned.is_empty() && contents.kept.is_empty();
        let transient = made.then(|| Transient::while_empty(&target));
        let state = Mutex::new(State { lock, started });
        Ok(Self { path: path.into(), begin, made, state, _transient: transient })
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Start of the run.
    pub fn how(&self) -> Begin {
        self.begin
    }

    /// Returns whether the folder still holds an earlier run's files, all of which the first [`WorkFolder::start`]
    /// replaces.
    pub fn is_old(&self) -> bool {
        !self.state.lock().unwrap_or_else(PoisonError::into_inner).started
    }

    /// Refuses files of these names where the folder holds others that would be kept.
    ///
    /// # Errors
    /// [`Error::Foreign`].
    pub fn check_names<'a>(&self, names: impl IntoIterator<Item = &'a str>) -> Result<()> {
        if !self.is_old() {
            return Ok(());
        }
        let contents = policy::locked_contents(&temporary::resolve(&self.path)?, &self.path, Existing::Overwrite)?;
        names.into_iter().try_for_each(|name| contents.refuse(OsStr::new(name), &self.path))
    }

    /// Has `fill` write the first files, into the folder at the path that it is given. Where an earlier run left
    /// something, the new files replace that in one step.
    ///
    /// # Errors
    /// What `fill` says; as [`OutputDir::persist`]. The folder is then as it was.
    pub fn start<E: From<Error>>(
        &self,
        fill: impl FnOnce(&Path) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.started {
            return fill(&self.path);
        }
        let lock = state.lock.try_clone().map_err(|e| Error::io(&self.path, "lock", e))?;
        let folder = OutputDir::replacing(&self.path, lock)?;
        fill(folder.path())?;
        state.lock = folder.put_in_place()?;
        state.started = true;
        Ok(())
    }
}

impl Drop for WorkFolder {
    fn drop(&mut self) {
        if self.made {
            // Refused, as it should be, when it holds anything.
            let _ = fs::remove_dir(&self.path);
        }
    }
}
