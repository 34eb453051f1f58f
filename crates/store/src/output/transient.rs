//! Paths that a program removes when it is told to stop.

use std::{
    collections::BTreeMap,
    fs, io, mem,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};
use tempfile::TempDir;

/// Treatment of a path when the program is told to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    /// The path is removed.
    Removed,
    /// The path is removed if it is an empty folder.
    RemovedIfEmpty,
    /// The path stays, and the user is told.
    Stays,
}

/// Paths that exist now, with their treatment. Whoever holds the lock makes, removes or renames a path, so none of
/// these happens in the middle of another.
static LIVE: Mutex<BTreeMap<PathBuf, Fate>> = Mutex::new(BTreeMap::new());

/// Number of attempts to remove a folder, and the pause between them: other threads may still write into it.
const TRIES: usize = 100;
const PAUSE: Duration = Duration::from_millis(5);

fn live() -> MutexGuard<'static, BTreeMap<PathBuf, Fate>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that must not outlive the process. Dropped, it is only forgotten: whoever made
/// it removes it or has put it in its place.
#[derive(Debug)]
pub struct Transient(PathBuf);

impl Transient {
    /// A folder for the time that the program runs.
    ///
    /// # Errors
    /// As [`tempfile::Builder::tempdir`].
    pub fn folder(prefix: &str) -> io::Result<(TempDir, Self)> {
        let mut live = live();
        let folder = tempfile::Builder::new().prefix(prefix).tempdir()?;
        let transient = Self::remember(&mut live, folder.path(), Fate::Removed);
        Ok((folder, transient))
    }

    /// Runs `make`, and registers the path that it made.
    pub(super) fn make<T>(make: impl FnOnce() -> io::Result<Option<(T, PathBuf)>>) -> io::Result<Option<(T, Self)>> {
        let mut live = live();
        Ok(make()?.map(|(made, path)| (made, Self::remember(&mut live, &path, Fate::Removed))))
    }

    /// Remembers an unfinished file that a later run goes on with: the process may leave it, and says so.
    pub(super) fn that_stays(path: &Path) -> Self {
        Self::remember(&mut live(), path, Fate::Stays)
    }

    /// Remembers a folder that has no purpose while nothing is in it.
    pub(super) fn while_empty(path: &Path) -> Self {
        Self::remember(&mut live(), path, Fate::RemovedIfEmpty)
    }

    fn remember(live: &mut BTreeMap<PathBuf, Fate>, path: &Path, fate: Fate) -> Self {
        // Absolute, so that it is found from any working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        live.insert(path.clone(), fate);
        Transient(path)
    }

    /// Puts it in its place with `rename`: a signal comes before or after.
    pub(super) fn settle<R>(&self, rename: impl FnOnce() -> R) -> R {
        let _live = live();
        rename()
    }
}

impl Drop for Transient {
    fn drop(&mut self) {
        live().remove(&self.0);
    }
}

/// Removes every [`Transient`] that is there but those that are to stay, which it gives; for the moment before a
/// program ends on a signal. What can't be removed stays, too. From here on a thread that makes, settles or drops a
/// transient waits, so the caller must end the process: no error that comes of the removal is seen before that.
pub fn remove_transients() -> Vec<PathBuf> {
    let live = live();
    let (stay, go): (Vec<_>, Vec<_>) = live.iter().partition(|(_, fate)| **fate == Fate::Stays);
    for (path, fate) in go {
        if *fate == Fate::Removed {
            remove(path);
        } else {
            let _ = fs::remove_dir(path);
        }
    }
    let stay = stay.into_iter().map(|(path, _)| path.clone()).filter(|path| path.exists()).collect();
    mem::forget(live);
    stay
}

fn remove(path: &Path) {
    if !path.is_dir() {
        let _ = fs::remove_file(path);
        return;
    }
    for _ in 0..TRIES {
        if fs::remove_dir_all(path).is_ok() || !path.exists() {
            return;
        }
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_live_is_removed() {
        let dir = tempfile::tempdir().expect("temp dir");
        let [file, folder, kept] = ["file", "folder", "kept"].map(|n| dir.path().join(n));
        fs::write(&file, "x").expect("writes");
        fs::create_dir(&folder).expect("creates");
        fs::write(folder.join("inside"), "x").expect("writes");
        fs::write(&kept, "x").expect("writes");
        let made = |path: &Path| Transient::make(|| Ok(Some(((), path.into())))).expect("made").expect("something").1;
        let _live = [made(&file), made(&folder)];
        drop(made(&kept));
        // Not remove_transients itself: other tests of this process have files of their own.
        let _stays = Transient::that_stays(&kept);
        let under = |p: &(&PathBuf, &Fate)| p.0.starts_with(dir.path());
        let paths: Vec<(PathBuf, Fate)> = live().iter().filter(under).map(|(p, stays)| (p.clone(), *stays)).collect();
        assert_eq!(paths, [(file, Fate::Removed), (folder, Fate::Removed), (kept, Fate::Stays)]);
    }

    #[test]
    fn a_folder_goes_while_it_is_written_to() {
        let dir = tempfile::tempdir().expect("temp dir");
        let folder = dir.path().join("folder");
        fs::create_dir(&folder).expect("creates");
        // A file each now and then until the folder is gone: some come between its listing and its removal.
        let writer = thread::spawn({
            let folder = folder.clone();
            move || {
                let write = |n: usize| {
                    thread::sleep(Duration::from_micros(50));
                    fs::write(folder.join(n.to_string()), "x")
                };
                (0..1_000).map(write).take_while(Result::is_ok).count()
            }
        });
        while fs::read_dir(&folder).is_ok_and(|mut entries| entries.next().is_none()) {
            thread::yield_now();
        }
        remove(&folder);
        assert!(writer.join().expect("ends") > 0 && !folder.exists());
    }
}
