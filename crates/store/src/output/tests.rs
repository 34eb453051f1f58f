use super::*;
use std::{
    os::unix::fs::{MetadataExt, symlink},
    thread,
};

fn names(dir: &Path) -> Vec<String> {
    let name = |e: io::Result<fs::DirEntry>| e.expect("entry").file_name().into_string().expect("UTF-8");
    let mut names: Vec<_> = fs::read_dir(dir).expect("list").map(name).collect();
    names.sort();
    names
}

#[test]
fn a_file_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("out.gguf");
    let file = OutputFile::create(&dest, Some(8)).expect("create");
    assert!(!dest.exists() && file.temporary_path().parent() == dest.parent());
    thread::scope(|s| {
        for part in 0..4u8 {
            let file = &file;
            s.spawn(move || file.write_all_at(&[part; 2], u64::from(part) * 2).expect("write"));
        }
    });
    drop(file);
    assert!(names(dir.path()).is_empty(), "dropped: nothing is left");

    let file = OutputFile::create(&dest, Some(8)).expect("create");
    file.write_all_at(b"ab", 6).expect("write");
    file.persist().expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"\0\0\0\0\0\0ab");
    assert_eq!(names(dir.path()), ["out.gguf"]);
    let fresh = dir.path().join("fresh");
    fs::write(&fresh, "").expect("write");
    let mode = |p: &Path| fs::metadata(p).expect("there").mode();
    assert_eq!(mode(&dest), mode(&fresh), "the permissions of any new file");
}

#[test]
fn an_existing_file_stays_until_the_new_one_is_whole() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (dest, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::write(&dest, "old").expect("write");
    symlink(&dest, &link).expect("symlink");
    let file = OutputFile::create(&link, None).expect("create");
    file.write_all_at(b"new", 0).expect("write");
    assert_eq!(fs::read(&dest).expect("read"), b"old");
    file.persist().expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"new");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
}

#[test]
fn errors_say_what_and_where() {
    let dir = tempfile::tempdir().expect("temp dir");
    let error = |path: &Path, len| OutputFile::create(path, len).expect_err("refused").to_string();
    let missing = dir.path().join("none/out");
    assert!(error(&missing, None).contains("none: cannot write to the folder: "));
    assert!(error(dir.path(), None).contains("cannot replace"));
    assert!(error(Path::new("/dev/null"), None).contains("/dev/null: is not a regular file"));
    let full = error(&dir.path().join("full"), Some(1 << 55));
    assert!(full.contains("full: cannot reserve room for it: "), "{full}");
    assert!(names(dir.path()).is_empty());
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    assert!(error(&file.join("out"), None).contains("cannot write to the folder"));
    let long = dir.path().join("n".repeat(255));
    OutputFile::create(&long, None).expect("a long name has a temporary too").persist().expect("persist");
}

#[test]
fn what_killed_runs_left_is_removed_and_what_lives_is_not() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("out");
    let living = OutputFile::create(&dest, None).expect("create");
    let put = |name: &str| fs::write(dir.path().join(name), "left").expect("write");
    put(".out.abc123.tmp");
    put(".out.more.abc123.tmp");
    put(".out.abc.tmp");
    put("out.abc123.tmp");
    fs::create_dir(dir.path().join(".out.def456.tmp")).expect("mkdir");
    fs::write(dir.path().join(".out.def456.tmp/part"), "left").expect("write");
    let second = OutputFile::create(&dest, None).expect("create");
    let name = |f: &OutputFile| f.temporary_path().file_name().and_then(|n| n.to_str()).expect("UTF-8").to_string();
    let mut want =
        [name(&living), name(&second), ".out.more.abc123.tmp".into(), ".out.abc.tmp".into(), "out.abc123.tmp".into()];
    want.sort();
    assert_eq!(names(dir.path()), want);
    living.persist().expect("its temporary is still there");
}

#[test]
fn a_folder_appears_whole_or_not_at_all() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("model");
    let build = |text: &str| {
        let out = OutputDir::create(&dest).expect("create");
        out.write("config.json", text.as_bytes()).expect("write");
        let file = out.file("model.safetensors", Some(2)).expect("file");
        file.write_all_at(text.as_bytes(), 0).expect("write");
        file.persist().expect("persist");
        out
    };
    drop(build("{}"));
    assert!(names(dir.path()).is_empty(), "dropped: nothing is left");
    build("{}").persist().expect("persist");
    assert_eq!(names(&dest), ["config.json", "model.safetensors"]);

    fs::write(dest.join("old.txt"), "old").expect("write");
    let out = build("[]");
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"{}", "the old one stands until then");
    out.persist().expect("persist");
    assert_eq!(names(&dest), ["config.json", "model.safetensors"]);
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"[]");
    assert_eq!(names(dir.path()), ["model"]);
    let fresh = dir.path().join("fresh");
    fs::create_dir(&fresh).expect("mkdir");
    assert_eq!(fs::metadata(&dest).expect("there").mode(), fs::metadata(&fresh).expect("there").mode());
}

#[test]
fn the_fallback_without_exchange_replaces_too() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("model");
    fs::create_dir(&dest).expect("mkdir");
    fs::write(dest.join("config.json"), "old").expect("write");
    let out = OutputDir::create(&dest).expect("create");
    out.write("config.json", b"new").expect("write");
    out.swap_in_steps().expect("swap");
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"new");
    drop(out);
    assert_eq!(names(dir.path()), ["model"]);
}

#[test]
fn a_resumable_file_goes_on_where_it_was() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("labels");
    let mut file = ResumableFile::begin(&dest, 6, |f| f.write_all_at(b"ab", 0)).expect("begin");
    assert_eq!(names(dir.path()), ["labels.partial"]);
    assert!(ResumableFile::resume(&dest, 6).expect_err("locked").to_string().contains("another run is writing it"));
    file.write_all_at(b"cd", 2).expect("write");
    file.record(1).expect("record");
    file.write_all_at(b"lost", 2).expect("write");
    drop(file);
    let wrong = ResumableFile::resume(&dest, 7).expect_err("another length").to_string();
    assert!(wrong.contains("labels.partial: has 14 bytes") && wrong.contains("remove it"), "{wrong}");
    let file = ResumableFile::resume(&dest, 6).expect("resume");
    assert_eq!(file.steps(), 1);
    file.write_all_at(b"cdef", 2).expect("write");
    file.persist().expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"abcdef");
    assert_eq!(names(dir.path()), ["labels"]);

    fs::write(dir.path().join("labels.partial"), "whole!").expect("write");
    let file = ResumableFile::resume(&dest, 6).expect("only the rename was left");
    assert_eq!(file.steps(), u64::MAX);
    file.persist().expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"whole!");

    let socket = dir.path().join("socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
    let odd = ResumableFile::begin(&socket, 6, |_| Ok(())).expect_err("a socket").to_string();
    assert!(odd.contains("is not a regular file"), "{odd}");
    fs::remove_file(&socket).expect("remove");
    let full = ResumableFile::begin(&dir.path().join("full"), 1 << 55, |_| Ok(())).expect_err("no room").to_string();
    assert!(full.contains("cannot reserve room"), "{full}");
    assert_eq!(names(dir.path()), ["labels"]);
}

#[test]
fn folders_that_a_person_would_miss_are_not_replaced() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("work");
    let create = || OutputDir::create(&dest).map(drop).map_err(|e| e.to_string());
    fs::create_dir(&dest).expect("mkdir");
    assert_eq!(create(), Ok(()));
    fs::write(dest.join("thesis.tex"), "").expect("write");
    assert!(create().expect_err("refused").contains("files that are no model"));
    fs::write(dest.join("config.json"), "").expect("write");
    assert_eq!(create(), Ok(()));
    fs::create_dir(dest.join(".git")).expect("mkdir");
    assert!(create().expect_err("refused").contains("holds a folder (.git)"));
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    assert!(OutputDir::create(&file).expect_err("refused").to_string().contains("file: cannot replace by a folder"));
    let out = OutputDir::create(&dir.path().join("new")).expect("create");
    for name in ["../x", "a/b", "", "."] {
        assert!(out.file(name, None).expect_err("refused").to_string().contains("plain file name"));
    }
}

#[test]
fn the_input_is_never_the_output() {
    let dir = tempfile::tempdir().expect("temp dir");
    let at = |name: &str| dir.path().join(name);
    fs::create_dir(at("model")).expect("mkdir");
    let weights = at("model/model.safetensors");
    fs::write(&weights, "x").expect("write");
    fs::write(at("other"), "x").expect("write");
    symlink(&weights, at("symlink")).expect("symlink");
    fs::hard_link(&weights, at("hardlink")).expect("link");
    symlink(at("model"), at("folder-link")).expect("symlink");
    let refused = |dest: PathBuf, input: &Path| match refuse_same_file(&dest, &[&at("other"), input]) {
        Ok(()) => false,
        Err(Error::SameFile { path, .. }) => path == dest,
        Err(e) => panic!("{e}"),
    };
    for dest in ["symlink", "hardlink", "model/../model/model.safetensors", "folder-link/model.safetensors"] {
        assert!(refused(at(dest), &weights), "{dest}");
        assert!(refused(at(dest), &at("model")), "{dest}: a file of the input folder");
    }
    for dest in ["model", "folder-link", "."] {
        assert!(refused(at(dest), &weights), "{dest} holds the input");
        assert!(refused(at(dest), &at("model")), "{dest}");
    }
    for dest in ["new", "model/new.gguf", "none/new"] {
        assert!(!refused(at(dest), &weights) && !refused(at(dest), &at("model")), "{dest}");
    }
    assert!(!refused(at("hardlink"), &at("none")));
}
