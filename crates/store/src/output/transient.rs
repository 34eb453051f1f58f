//! What a program that is told to stop removes before it ends.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

static LIVE: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());

fn live() -> MutexGuard<'static, BTreeSet<PathBuf>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file or folder that must not outlive the process. Dropped, it is only forgotten: whoever made
/// it removes it or has put it in its place.
#[derive(Debug)]
pub struct Transient(PathBuf);

impl Transient {
    /// Remembers `path`, which exists.
    pub fn new(path: &Path) -> Self {
        // Absolute, so that it is found from any working directory.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
        live().insert(path.clone());
        Transient(path)
    }
}

impl Drop for Transient {
    fn drop(&mut self) {
        live().remove(&self.0);
    }
}

/// Removes every [`Transient`] that is there; for the moment before a program ends on a signal.
/// What can't be removed stays. A rename into place that happens meanwhile either was first, and
/// the destination is whole, or fails.
pub fn remove_transients() {
    for path in live().iter() {
        let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
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
        let _live = [Transient::new(&file), Transient::new(&folder)];
        drop(Transient::new(&kept));
        // Not remove_transients itself: other tests of this process have files of their own.
        let under = |p: &&PathBuf| p.starts_with(dir.path());
        let paths: Vec<PathBuf> = live().iter().filter(under).cloned().collect();
        assert_eq!(paths, [file, folder]);
    }
}
