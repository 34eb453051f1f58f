use super::*;
use std::{
    os::unix::fs::{MetadataExt, symlink},
    thread,
};

/// A file that is free to be written.
fn create(dest: &Path, len: Option<u64>) -> Result<OutputFile> {
    OutputFile::create(dest, Form::Report, Existing::Refuse, len)
}

/// A JSON report, as programs of this project write it.
const REPORT: &str = "{\n  \"tool\": \"qeval 0.1.0\",\n  \"n\": 1\n}\n";

/// Sealed weights without tensors that list these files.
fn weights(files: &[(&str, &str)]) -> Vec<u8> {
    let list = provenance::files_list(files.iter().map(|(name, text)| (*name, text.as_bytes())));
    let metadata = [(provenance::FILES_KEY, list.as_str()), (provenance::SEAL_KEY, provenance::SEAL_PLACEHOLDER)];
    let metadata = metadata.into_iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let plan = crate::safetensors::plan(Path::new("weights"), &[], &metadata).expect("plans");
    let mut bytes = plan.header().to_vec();
    let at = plan.metadata_value(provenance::SEAL_KEY).expect("a seal").start as usize;
    let seal = provenance::seal(&bytes);
    bytes[at..at + seal.len()].copy_from_slice(seal.as_bytes());
    bytes
}

/// Writes a model of this project: weights, and the files beside them that they list.
fn model(out: &OutputDir, files: &[(&str, &str)]) {
    files.iter().for_each(|(name, text)| out.write(name, text.as_bytes()).expect("write"));
    out.write("model.safetensors", &weights(files)).expect("write");
}

/// A folder with such a model at `dest`.
fn model_at(dest: &Path, files: &[(&str, &str)]) {
    let out = OutputDir::create(dest, Existing::Refuse).expect("create");
    model(&out, files);
    out.persist().expect("persist");
}

fn text(result: Result<impl std::fmt::Debug>) -> String {
    let text = result.expect_err("refused").to_string();
    assert!(!text.contains('\n'), "one line: {text}");
    text
}

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
    let file = create(&dest, Some(8)).expect("create");
    assert!(!dest.exists() && file.temporary_path().parent() == dest.parent());
    thread::scope(|s| {
        for part in 0..4u8 {
            let file = &file;
            s.spawn(move || file.write_all_at(&[part; 2], u64::from(part) * 2).expect("write"));
        }
    });
    drop(file);
    assert!(names(dir.path()).is_empty(), "dropped: nothing is left");

    let file = create(&dest, Some(8)).expect("create");
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
    fs::write(&dest, REPORT).expect("write");
    symlink(&dest, &link).expect("symlink");
    let file = OutputFile::create(&link, Form::Report, Existing::Overwrite, None).expect("create");
    file.write_all_at(b"new", 0).expect("write");
    assert_eq!(fs::read(&dest).expect("read"), REPORT.as_bytes());
    file.persist().expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"new");
    assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
}

#[test]
fn what_exists_is_refused_and_only_our_own_is_overwritten() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("out");
    let check = |form, existing| check_file::<&Path>(&dest, form, existing, &[]);
    check(Form::Report, Existing::Refuse).expect("free");
    fs::write(&dest, REPORT).expect("write");
    let exists = text(check(Form::Report, Existing::Refuse));
    assert!(exists.contains("out: exists already: choose another output, or give --overwrite"), "{exists}");
    check(Form::Report, Existing::Overwrite).expect("ours");
    let other = text(check(Form::Page, Existing::Overwrite));
    assert!(other.contains("is a JSON report, and an HTML page would replace it: not replaced"), "{other}");
    let pages = format!("<!DOCTYPE html><meta name=\"generator\" content=\"{}\">", provenance::PAGE_GENERATOR);
    let plot = format!("<svg>{}</svg>", provenance::PLOT_MARK);
    let ours = [
        (Form::Page, pages.as_str()),
        (Form::Plot, plot.as_str()),
        (Form::Trace, "{\"tool\": \"qeval 0.1.0\"}\n{}\n"),
        (Form::Recipe, "# int4-g64 beside f16 (qinspect layers)\n"),
        (Form::Report, ""),
    ];
    for (form, content) in ours {
        fs::write(&dest, content).expect("write");
        check(form, Existing::Overwrite).unwrap_or_else(|e| panic!("{form:?}: {e}"));
    }
    fs::write(&dest, weights(&[])).expect("write");
    check(Form::Safetensors, Existing::Overwrite).expect("ours");
    let mut edited = weights(&[("a", "b")]);
    let at = edited.windows(5).position(|w| w == b"files").expect("a key");
    edited[at] = b'g';
    fs::write(&dest, edited).expect("write");
    assert!(text(check(Form::Safetensors, Existing::Overwrite)).contains("or was edited since"));
    for foreign in
        ["My thesis", "{\"tool\": 1}", "{\n  \"tool\": \"vim 9\"\n}", "<svg></svg>", "GGUF", "<!DOCTYPE html>"]
    {
        fs::write(&dest, foreign).expect("write");
        for form in [Form::Report, Form::Page, Form::Plot, Form::Gguf, Form::Trace, Form::Recipe, Form::Labels] {
            let refused = text(check(form, Existing::Overwrite));
            assert!(refused.contains("not replaced; move it away"), "{foreign} {form:?}: {refused}");
            assert_eq!(fs::read(&dest).expect("read"), foreign.as_bytes());
        }
    }
}

#[test]
fn what_comes_meanwhile_is_not_replaced() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (file, folder) = (dir.path().join("file"), dir.path().join("folder"));
    let out = create(&file, None).expect("create");
    fs::write(&file, "somebody's").expect("write");
    assert!(text(out.persist()).contains("file: came to be while this run worked"));
    assert_eq!(fs::read(&file).expect("read"), b"somebody's");
    let out = OutputDir::create(&folder, Existing::Refuse).expect("create");
    model(&out, &[]);
    fs::create_dir(&folder).expect("mkdir");
    fs::write(folder.join("notes"), "somebody's").expect("write");
    assert!(text(out.persist()).contains("folder: came to be while this run worked"));
    assert_eq!(names(&folder), ["notes"]);
    assert_eq!(names(dir.path()), ["file", "folder"]);
}

#[test]
fn errors_say_what_and_where() {
    let dir = tempfile::tempdir().expect("temp dir");
    let error = |path: &Path, len| create(path, len).expect_err("refused").to_string();
    let missing = dir.path().join("none/out");
    let missing = error(&missing, None);
    assert!(
        missing.contains("none/out: the folder ") && missing.ends_with("none does not exist: make it first"),
        "{missing}"
    );
    assert!(error(dir.path(), None).contains("cannot replace"));
    assert!(error(Path::new("/dev/null"), None).contains("/dev/null: is not a regular file"));
    let full = error(&dir.path().join("full"), Some(1 << 55));
    let numbers = full.contains("full: the disk lacks room: 36028797018963968 bytes are needed, ");
    assert!(numbers && full.contains(" are free; free some or choose another output"), "{full}");
    assert!(check_room(&dir.path().join("full"), 1 << 55).is_err() && check_room(dir.path(), 1).is_ok());
    let long = text(check_file::<&Path>(&dir.path().join("n".repeat(256)), Form::Gguf, Existing::Refuse, &[]));
    assert!(long.contains("the file name has 256 bytes, the file system holds 255: choose a shorter one"), "{long}");
    let folder = dir.path().join("folder");
    let long = text(check_folder::<&Path>(&folder, Existing::Refuse, &["a", &"n".repeat(300)], &[]));
    assert!(long.contains("the file name has 300 bytes"), "{long}");
    assert!(names(dir.path()).is_empty());
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    assert!(error(&file.join("out"), None).contains("cannot write to the folder"));
    let long = dir.path().join("n".repeat(255));
    create(&long, None).expect("a long name has a temporary too").persist().expect("persist");
}

#[test]
fn what_killed_runs_left_is_removed_and_what_lives_is_not() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("out");
    let living = create(&dest, None).expect("create");
    let put = |name: &str| fs::write(dir.path().join(name), "left").expect("write");
    put(".out.abc123.tmp");
    put(".out.more.abc123.tmp");
    put(".out.abc.tmp");
    put("out.abc123.tmp");
    fs::create_dir(dir.path().join(".out.def456.tmp")).expect("mkdir");
    fs::write(dir.path().join(".out.def456.tmp/part"), "left").expect("write");
    let second = create(&dest, None).expect("create");
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
    let build = |existing, text: &str| {
        let out = OutputDir::create(&dest, existing).expect("create");
        model(&out, &[("config.json", text)]);
        out
    };
    drop(build(Existing::Refuse, "{}"));
    assert!(names(dir.path()).is_empty(), "dropped: nothing is left");
    build(Existing::Refuse, "{}").persist().expect("persist");
    assert_eq!(names(&dest), ["config.json", "model.safetensors"]);
    let exists = text(OutputDir::create(&dest, Existing::Refuse));
    assert!(exists.contains("model: is a folder that is not empty: choose another output, or give --overwrite"));

    let out = build(Existing::Overwrite, "[]");
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
fn what_others_put_into_a_folder_outlives_its_model() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("model");
    model_at(&dest, &[("config.json", "{}"), ("old.json", "old")]);
    fs::write(dest.join("README.md"), "my notes").expect("write");
    fs::create_dir_all(dest.join("plots/deep")).expect("mkdir");
    fs::write(dest.join("plots/deep/a.svg"), "a plot").expect("write");
    symlink("README.md", dest.join("link")).expect("symlink");
    fs::write(dest.join("metrics.jsonl"), "{\"step\":1}\n").expect("write");
    let kept = fs::metadata(dest.join("README.md")).expect("there").ino();
    let out = OutputDir::create(&dest, Existing::Overwrite).expect("create");
    model(&out, &[("config.json", "[]")]);
    fs::write(dest.join("late.txt"), "came meanwhile").expect("write");
    out.persist().expect("persist");
    assert_eq!(names(&dest), ["README.md", "config.json", "late.txt", "link", "model.safetensors", "plots"]);
    assert_eq!(fs::metadata(dest.join("README.md")).expect("there").ino(), kept);
    assert_eq!(fs::read(dest.join("plots/deep/a.svg")).expect("read"), b"a plot");
    assert_eq!(fs::read_link(dest.join("link")).expect("a link"), Path::new("README.md"));
    assert_eq!(names(dir.path()), ["model"]);

    fs::write(dest.join("config.json"), "[ ]").expect("write");
    let edited = text(check_folder::<&Path>(&dest, Existing::Overwrite, &["config.json"], &[]));
    assert!(edited.contains("model/config.json: was not written by one of these programs, or was edited since"));
    let out = OutputDir::create(&dest, Existing::Overwrite).expect("create");
    model(&out, &[("config.json", "{}")]);
    assert!(text(out.persist()).contains("edited since"));
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"[ ]");
    assert_eq!(names(dir.path()), ["model"]);
}

#[test]
fn the_fallback_without_exchange_replaces_too() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("model");
    model_at(&dest, &[("config.json", "old")]);
    let out = OutputDir::create(&dest, Existing::Overwrite).expect("create");
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
    file.persist(Form::Labels, Existing::Refuse).expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"abcdef");
    assert_eq!(names(dir.path()), ["labels"]);

    fs::write(dir.path().join("labels.partial"), "whole!").expect("write");
    let file = ResumableFile::resume(&dest, 6).expect("only the rename was left");
    assert_eq!(file.steps(), u64::MAX);
    assert!(text(file.persist(Form::Labels, Existing::Refuse)).contains("came to be while this run worked"));
    let file = ResumableFile::resume(&dest, 6).expect("it is still there");
    assert!(text(file.persist(Form::Labels, Existing::Overwrite)).contains("labels: is not a labels file"));
    fs::remove_file(&dest).expect("remove");
    ResumableFile::resume(&dest, 6).expect("resume").persist(Form::Labels, Existing::Refuse).expect("persist");
    assert_eq!(fs::read(&dest).expect("read"), b"whole!");

    let socket = dir.path().join("socket");
    let _listens = std::os::unix::net::UnixListener::bind(&socket).expect("bind");
    let odd = ResumableFile::begin(&socket, 6, |_| Ok(())).expect_err("a socket").to_string();
    assert!(odd.contains("is not a regular file"), "{odd}");
    fs::remove_file(&socket).expect("remove");
    let full = ResumableFile::begin(&dir.path().join("full"), 1 << 55, |_| Ok(())).expect_err("no room").to_string();
    assert!(full.contains("full.partial: the disk lacks room: 36028797018963976 bytes are needed"), "{full}");
    let long = dir.path().join("n".repeat(250));
    assert!(text(ResumableFile::check::<&Path>(&long, Form::Labels, Existing::Refuse, &[])).contains("has 258 bytes"));
    assert_eq!(names(dir.path()), ["labels"]);
}

#[test]
fn folders_that_a_person_would_miss_are_not_replaced() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("work");
    let create = || OutputDir::create(&dest, Existing::Overwrite);
    fs::create_dir(&dest).expect("mkdir");
    create().expect("an empty one");
    fs::write(dest.join("thesis.tex"), "").expect("write");
    assert!(text(create()).contains("work: is a folder without a model that one of these programs wrote"));
    // A model that somebody else wrote.
    fs::write(dest.join("config.json"), "{}").expect("write");
    fs::write(dest.join("model.safetensors"), b"\x08\0\0\0\0\0\0\0{}      ").expect("write");
    assert!(text(create()).contains("not replaced; move it away or choose another output"));
    assert_eq!(names(&dest), ["config.json", "model.safetensors", "thesis.tex"]);
    let file = dir.path().join("file");
    fs::write(&file, "").expect("write");
    assert!(text(OutputDir::create(&file, Existing::Overwrite)).contains("file: cannot replace by a folder"));
    let out = OutputDir::create(&dir.path().join("new"), Existing::Refuse).expect("create");
    for name in ["../x", "a/b", "", "."] {
        assert!(text(out.file(name, None)).contains("plain file name"));
    }
}

#[test]
fn folders_of_the_system_and_of_the_shell_are_never_replaced() {
    let refused = |path: &str| text(check_folder::<&Path>(Path::new(path), Existing::Overwrite, &[], &[]));
    assert!(refused("/").contains("/: is the root of the file system: never replaced; name a folder inside it"));
    for current in [".", "..", "../..", "../store"] {
        assert!(refused(current).contains("is the current folder, or holds it"), "{current}");
    }
    if Path::new("/proc/self").exists() {
        assert!(refused("/dev/shm").contains("is a mount point"));
    }
    if let Some(home) = std::env::var("HOME").ok().filter(|home| Path::new(home).parent().is_some()) {
        let refused = refused(&home);
        assert!(refused.contains("is the home folder") || refused.contains("is the current folder"), "{refused}");
    }
}

#[test]
fn a_folder_that_is_worked_in_is_locked() {
    let dir = tempfile::tempdir().expect("temp dir");
    let dest = dir.path().join("student");
    let begin = |begin| WorkFolder::begin::<&Path>(&dest, begin, &["config.json"], &[]);
    let fill = |folder: &Path, content: &str| -> Result<()> {
        write_own_file(&folder.join("config.json"), content.as_bytes())?;
        write_own_file(&folder.join("model.safetensors"), &weights(&[("config.json", content)]))
    };
    drop(begin(Begin::New).expect("begins"));
    assert!(names(dir.path()).is_empty(), "without a start nothing is left");
    let work = begin(Begin::New).expect("begins");
    for how in [Begin::New, Begin::Overwrite, Begin::Resume] {
        assert!(text(begin(how)).contains("student: another run is writing in this folder"), "{how:?}");
    }
    assert!(text(OutputDir::create(&dest, Existing::Overwrite)).contains("another run is writing in this folder"));
    work.start(|folder| fill(folder, "1")).expect("starts");
    drop(work);
    fs::write(dest.join("notes"), "mine").expect("write");
    assert!(text(begin(Begin::New)).contains("is a folder that is not empty"));
    drop(begin(Begin::Resume).expect("goes on"));

    let work = begin(Begin::Overwrite).expect("begins");
    assert!(work.is_old());
    work.start(|_| Err(Error::unsupported(&dest, "fails"))).expect_err("what fill says");
    assert_eq!(
        fs::read(dest.join("config.json")).expect("read"),
        b"1",
        "the old model stays until the new one is whole"
    );
    work.check_names(["config.json", "tokenizer.json"]).expect("ours");
    assert!(text(work.check_names(["notes"])).contains("student/notes: was not written"));
    work.start(|folder| fill(folder, "2")).expect("starts");
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"2");
    assert!(text(begin(Begin::Overwrite)).contains("another run"), "the new folder is locked, too");
    work.start(|folder| fill(folder, "3")).expect("goes on in place");
    drop(work);
    assert_eq!(names(&dest), ["config.json", "model.safetensors", "notes"]);
    assert_eq!(fs::read(dest.join("config.json")).expect("read"), b"3");
    assert_eq!(names(dir.path()), ["student"]);
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
