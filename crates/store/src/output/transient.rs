//! What a program that is told to stop removes before it ends.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

/// What is there, and whether it stays.
static LIVE: Mutex<BTreeMap<PathBuf, bool>> = Mutex::new(BTreeMap::new());

fn live() -> MutexGuard<'static, BTreeMap<PathBuf, bool>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that must not outlive the process. Dropped, it is only forgotten: whoever made
/// it removes it or has put it in its place.
#[derive(Debug)]
pub struct Transient(PathBuf);

impl Transient {
    /// Remembers `path`, which exists.
    pub fn new(path: &Path) -> Self {
        Self::remember(path, false)
    }

    /// Remembers an unfinished file that a later run goes on with: the process may leave it, and says so.
    pub fn that_stays(path: &Path) -> Self {
        Self::remember(path, true)
    }

    fn remember(path: &Path, stays: bool) -> Self {
        // Absolute, so that it is found from any working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        live().insert(path.clone(), stays);
        Transient(path)
    }
}

impl Drop for Transient {
    fn drop(&mut self) {
        live().remove(&self.0);
    }
}

/// Removes every [`Transient`] that is there but those that are to stay, which it gives; for the moment before a
/// program ends on a signal. What can't be removed stays, too. A rename into place that happens meanwhile either was
/// first, and the destination is whole, or fails.
pub fn remove_transients() -> Vec<PathBuf> {
    let live = live();
    let (stay, go): (Vec<_>, Vec<_>) = live.iter().partition(|(_, stays)| **stays);
    for (path, _) in go {
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
    }
    stay.into_iter().map(|(path, _)| path.clone()).filter(|path| path.exists()).collect()
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
        let _live = [Transient::new(&file), Transient::new(&folder)];
        drop(Transient::new(&kept));
        // Not remove_transients itself: other tests of this process have files of their own.
        let _stays = Transient::that_stays(&kept);
        let under = |p: &(&PathBuf, &bool)| p.0.starts_with(dir.path());
        let paths: Vec<(PathBuf, bool)> = live().iter().filter(under).map(|(p, stays)| (p.clone(), *stays)).collect();
        assert_eq!(paths, [(file, false), (folder, false), (kept, true)]);
    }
}
