//! Symbolic links among a folder's files. config.json and the files that travel with a model are copied into
//! artifacts, so a link out of the folder could carry a secret along.

use crate::{Error, Result};
use std::{fs, path::Path};

/// Checks that `path`, a file of `folder`, is no link out of it. Links into a Hugging Face cache's `blobs` are fine.
///
/// # Errors
/// When it is such a link, or its target is absent.
pub(super) fn check(folder: &Path, path: &Path) -> Result<()> {
    let io = |e| Error::io(path, "read", e);
    if !fs::symlink_metadata(path).map_err(io)?.is_symlink() {
        return Ok(());
    }
    let shown = fs::read_link(path).map_err(io)?;
    let Ok(target) = fs::canonicalize(path) else {
        return Err(Error::unsupported(path, format!("is a link to {}, which is absent", shown.display())));
    };
    let folder = fs::canonicalize(folder).map_err(|e| Error::io(folder, "read", e))?;
    if target.starts_with(&folder) || is_blob(&folder, &target) {
        return Ok(());
    }
    Err(Error::unsupported(
        path,
        format!(
            "is a link to {}, outside of the folder, and is not followed: put the file itself in its place, or remove \
             the link",
            shown.display()
        ),
    ))
}

/// Returns whether `target` is a blob of the cache that `folder` is a snapshot of (`REPO/snapshots/REVISION`), or of
/// any repository of a Hugging Face cache (`models--OWNER--NAME/blobs/HASH`). Both paths are canonical.
fn is_blob(folder: &Path, target: &Path) -> bool {
    let Some(blobs) = target.parent().filter(|blobs| blobs.ends_with("blobs")) else { return false };
    let Some(repository) = blobs.parent() else { return false };
    let snapshot = folder.strip_prefix(repository.join("snapshots")).is_ok_and(|rest| rest.components().count() > 0);
    let name = |path: &Path| path.file_name().and_then(|n| n.to_str()).unwrap_or_default().to_string();
    let hash = name(target);
    let hashed = matches!(hash.len(), 40 | 64) && hash.bytes().all(|b| b.is_ascii_hexdigit());
    snapshot || (hashed && name(repository).starts_with("models--"))
}

#[cfg(all(test, unix))]
mod tests {
    use crate::{open, testing::*};
    use std::{fs, os::unix::fs::symlink, path::Path};

    fn outcome(folder: &Path) -> Result<Vec<String>, String> {
        let model = open(folder).map_err(|e| e.to_string())?;
        Ok(model.side_files.into_iter().map(|f| f.name).collect())
    }

    #[test]
    fn links_out_of_the_folder_are_refused_by_name() {
        let outside = tempfile::tempdir().expect("temp dir");
        let secret = outside.path().join("secret");
        fs::write(&secret, "{\"key\": 1}").expect("write");
        symlink(&secret, outside.path().join("chain")).expect("link");
        for name in ["notes.txt", "tokenizer.json", "config.json"] {
            for target in [secret.clone(), outside.path().join("chain")] {
                let dir = folder(&config(), &[embedding()], &[]);
                let _ = fs::remove_file(dir.path().join(name));
                symlink(&target, dir.path().join(name)).expect("link");
                let error = outcome(dir.path()).expect_err("refused");
                assert!(error.contains(&format!("{name}: is a link to")) && error.contains("not followed"), "{error}");
            }
        }
        // A relative link, and one by way of a linked folder.
        let dir = folder(&config(), &[embedding()], &[]);
        symlink(outside.path(), dir.path().join("sub")).expect("link");
        assert_eq!(outcome(dir.path()), Ok(vec![]), "folders do not travel");
        symlink("sub/secret", dir.path().join("notes.txt")).expect("link");
        assert!(outcome(dir.path()).expect_err("refused").contains("is a link to sub/secret, outside"));
    }

    #[test]
    fn links_within_the_folder_are_followed() {
        let dir = folder(&config(), &[embedding()], &[]);
        fs::write(dir.path().join("a.txt"), "a").expect("write");
        fs::create_dir(dir.path().join("sub")).expect("mkdir");
        fs::write(dir.path().join("sub/c"), "c").expect("write");
        symlink("a.txt", dir.path().join("b.txt")).expect("link");
        symlink(dir.path().join("sub/c"), dir.path().join("c.txt")).expect("link");
        symlink("b.txt", dir.path().join("d.txt")).expect("link");
        assert_eq!(outcome(dir.path()), Ok(["a.txt", "b.txt", "c.txt", "d.txt"].map(String::from).to_vec()));
        symlink("nothing", dir.path().join("e.txt")).expect("link");
        let model = open(dir.path()).expect("a model");
        assert_eq!(model.side_files.len(), 4);
        assert!(model.warnings.iter().any(|w| w.contains("e.txt: left behind")), "{:?}", model.warnings);
        fs::remove_file(dir.path().join("config.json")).expect("remove");
        symlink("nothing", dir.path().join("config.json")).expect("link");
        assert!(
            outcome(dir.path()).expect_err("refused").contains("config.json: is a link to nothing, which is absent")
        );
    }

    #[test]
    fn a_cache_of_blobs_is_followed() {
        let cache = tempfile::tempdir().expect("temp dir");
        let model = folder(&config(), &[embedding()], &[]);
        let repository = cache.path().join("models--owner--name");
        let snapshot = repository.join("snapshots/0a1b");
        fs::create_dir_all(repository.join("blobs")).expect("mkdir");
        fs::create_dir_all(&snapshot).expect("mkdir");
        let hash = "0123456789abcdef0123456789abcdef01234567";
        for (name, blob) in [("config.json", hash), ("model.safetensors", "short")] {
            fs::copy(model.path().join(name), repository.join("blobs").join(blob)).expect("copy");
            symlink(format!("../../blobs/{blob}"), snapshot.join(name)).expect("link");
        }
        assert_eq!(outcome(&snapshot), Ok(vec![]));
        // A folder of links into the cache, as older versions of the hub's client make it.
        let local = tempfile::tempdir().expect("temp dir");
        for name in ["config.json", "model.safetensors"] {
            symlink(fs::canonicalize(snapshot.join(name)).expect("target"), local.path().join(name)).expect("link");
        }
        assert_eq!(outcome(local.path()), Ok(vec![]));
        // A file of another cache that is no blob, and blobs that are a link themselves.
        fs::write(repository.join("token"), "secret").expect("write");
        symlink("../../token", snapshot.join("notes.txt")).expect("link");
        assert!(outcome(&snapshot).expect_err("refused").contains("notes.txt: is a link to ../../token"));
        let fake = cache.path().join("fake");
        fs::create_dir_all(fake.join("snapshots/1")).expect("mkdir");
        symlink(&repository, fake.join("blobs")).expect("link");
        for name in ["config.json", "model.safetensors"] {
            fs::copy(model.path().join(name), fake.join("snapshots/1").join(name)).expect("copy");
        }
        symlink("../../blobs/token", fake.join("snapshots/1/notes.txt")).expect("link");
        assert!(outcome(&fake.join("snapshots/1")).expect_err("refused").contains("notes.txt: is a link"));
    }

    #[test]
    fn special_files_are_not_opened() {
        let dir = folder(&config(), &[embedding()], &[]);
        let pipe = |name: &str| {
            let path = dir.path().join(name);
            let _ = fs::remove_file(&path);
            rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).expect("pipe");
        };
        pipe("notes.txt");
        assert_eq!(outcome(dir.path()), Ok(vec![]));
        pipe("config.json");
        assert!(outcome(dir.path()).expect_err("refused").contains("config.json: is not a regular file"));
        pipe("alone.gguf");
        assert!(open(&dir.path().join("alone.gguf")).expect_err("refused").to_string().contains("neither a file"));
        fs::remove_file(dir.path().join("config.json")).expect("remove");
        fs::remove_file(dir.path().join("model.safetensors")).expect("remove");
        assert!(outcome(dir.path()).expect_err("refused").contains("alone.gguf: is not a regular file"));
    }
}
