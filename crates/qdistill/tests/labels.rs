//! `qdistill label` and `qdistill show` as a person runs them, on the fixture.

use assert_cmd::Command;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const MODEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
const PROSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/prose.txt");

fn qdistill(args: &[&str]) -> std::process::Output {
    Command::cargo_bin("qdistill").expect("built").args(args).output().expect("runs")
}

fn text(path: &Path) -> &str {
    path.to_str().expect("plain names")
}

fn good(args: &[&str]) -> (String, String) {
    let out = qdistill(args);
    let words = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let (said, noted) = (words(out.stdout), words(out.stderr));
    assert!(out.status.success(), "{args:?}: {noted}");
    (said, noted)
}

/// One line on standard error that holds `what`, this exit code, and nothing printed.
fn refuses(args: &[&str], code: i32, what: &str) {
    let out = qdistill(args);
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{args:?}: {err}");
    assert!(out.stdout.is_empty() && err.contains(what), "{args:?}: {err}");
    assert!(code == 2 || err.trim_end().lines().count() == 1, "{err}");
}

#[test]
fn labels_are_announced_made_and_readable_elsewhere() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("labels.safetensors");
    let args = ["label", "--teacher", MODEL, "--text", PROSE, "--tokens", "200", "--context", "64", "-o", text(&path)];
    let (said, noted) = good(&args);
    let bytes = fs::read(&path).expect("written");
    let size = report::format::bytes(bytes.len() as u64);
    assert!(noted.contains(&format!("199 predictions in 4 windows of up to 64 tokens, topk:64: {size}")), "{noted}");
    assert!(said.contains(&format!("199 predictions, {size}")), "{said}");

    let file = safetensors::SafeTensors::deserialize(&bytes).expect("a safetensors file");
    let shape = |name| file.tensor(name).expect("there").shape().to_vec();
    assert_eq!((shape("ids"), shape("log_rest"), shape("tokens")), (vec![199, 64], vec![199, 3], vec![200]));

    let again = dir.path().join("again");
    let args = [&args[..10], &[text(&again), "--json"]].concat();
    let json: Value = serde_json::from_str(&good(&args).0).expect("JSON");
    assert_eq!(json["bytes"], bytes.len());
    assert_eq!((&json["predictions"], &json["resumed_predictions"]), (&199.into(), &0.into()));
    assert_eq!(fs::read(&again).expect("written"), bytes, "the same every time");
    assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 2, "nothing is left over");
}

/// A run that has begun its file, and where that lies.
fn begun(args: &[&str], output: &Path) -> (Child, PathBuf) {
    let program = assert_cmd::cargo::cargo_bin("qdistill");
    let mut command = std::process::Command::new(program);
    let child = command.args(args).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("starts");
    let (partial, began) = (output.with_extension("partial"), Instant::now());
    while !partial.exists() && !output.exists() && began.elapsed() < Duration::from_secs(120) {
        std::thread::sleep(Duration::from_millis(1));
    }
    (child, partial)
}

#[test]
fn a_killed_run_goes_on() {
    let dir = TempDir::new().expect("a folder");
    let [whole, killed] = ["whole", "killed"].map(|name| dir.path().join(name));
    let args = |path| ["label", "--teacher", MODEL, "--text", PROSE, "--labels", "full", "--context", "32", "-o", path];
    good(&args(text(&whole)));
    let (mut child, partial) = begun(&args(text(&killed)), &killed);
    child.kill().expect("killed");
    child.wait().expect("ended");
    assert!(partial.exists() && !killed.exists(), "it was killed in time");
    refuses(&[&args(text(&killed))[..], &["--seed", "5"]].concat(), 1, "killed.partial: an interrupted run began");
    good(&args(text(&killed)));
    assert!(!partial.exists());
    assert!(fs::read(&whole).expect("written") == fs::read(&killed).expect("written"), "the same bytes");
}

#[cfg(unix)]
#[test]
fn an_interrupted_run_says_what_stays() {
    let dir = TempDir::new().expect("a folder");
    let path = dir.path().join("labels");
    let output = ["--labels", "full", "--context", "32", "-o", text(&path)];
    let (mut child, partial) = begun(&[&["label", "--teacher", MODEL, "--text", PROSE], &output[..]].concat(), &path);
    let told = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().expect("runs");
    assert!(told.success());
    let mut noted = String::new();
    std::io::Read::read_to_string(child.stderr.as_mut().expect("piped"), &mut noted).expect("UTF-8");
    assert_eq!(child.wait().expect("ended").code(), Some(130), "{noted}");
    assert!(noted.contains("labels.partial stays: the same command goes on with it"), "{noted}");
    assert!(partial.exists() && !path.exists());
}

#[test]
fn what_cannot_be_labelled_is_said_in_one_line() {
    let dir = TempDir::new().expect("a folder");
    let [empty, latin, output] = ["empty.txt", "latin.txt", "labels"].map(|name| dir.path().join(name));
    fs::write(&empty, "").expect("written");
    fs::write(&latin, b"caf\xe9 and more").expect("written");
    let label = |more: &[&'static str], file: &Path, code, what| {
        let args = ["label", "--teacher", MODEL, "-o", text(&output), "--text", text(file)];
        refuses(&[&args[..], more].concat(), code, what);
    };
    let prose = Path::new(PROSE);
    label(&["--labels", "topk:0"], prose, 2, "topk:K, sampled:N, full");
    label(&["--temperatures", "1,0"], prose, 2, "between 0.1 and 100, not be 0");
    label(&["--temperatures", "1e300"], prose, 2, "between 0.1 and 100");
    label(&["--device", "cuda:900"], prose, 2 - i32::from(cfg!(feature = "cuda")), "cuda:900");
    label(&["--temperatures", "2,2"], prose, 2, "there twice");
    label(&["--labels", "topk:1000000"], prose, 2, "use full");
    label(&["--context", "1"], prose, 2, "nothing to predict");
    label(&["--context", "100000"], prose, 2, "give a shorter context");
    label(&["--device", "abacus"], prose, 2, "unknown device 'abacus'");
    label(&[], &empty, 1, "empty.txt: 0 tokens are too few");
    label(&[], &latin, 1, "latin.txt: stream did not contain valid UTF-8");
    label(&[], &dir.path().join("none"), 1, "none: No such file");
    label(&[], Path::new("/dev/zero"), 1, "/dev/zero: is not a regular file");
    fs::write(&empty, " \n\t ").expect("written");
    label(&[], &empty, 1, "empty.txt: holds white space alone");
    fs::write(&output, "a thesis").expect("written");
    label(&[], prose, 1, "labels: exists already");
    label(&["--overwrite"], prose, 1, "labels: is not a labels file that one of these programs wrote");
    assert_eq!(fs::read_to_string(&output).expect("there"), "a thesis");
    fs::remove_file(&output).expect("removed");
    let same = ["label", "--teacher", MODEL, "--text", text(&latin), "-o", text(&latin)];
    refuses(&same, 1, "output is the input");
    assert_eq!(fs::read_dir(dir.path()).expect("lists").count(), 2, "nothing is left over");
}

#[test]
fn what_comes_next_is_shown() {
    let args = ["show", "--teacher", MODEL, "The sky is", "--temperature", "1,2", "--top", "3"];
    let (view, _) = good(&args);
    assert!(view.contains("T = 1") && view.contains("T = 2") && view.contains("Hard"), "{view}");
    assert!(view.lines().all(|line| line.chars().count() <= 100), "{view}");

    let json = |more: &[&str]| -> Value {
        serde_json::from_str(&good(&[&args[..], &["--json"], more].concat()).0).expect("JSON")
    };
    let found = json(&[]);
    let number = |at: &str| found.pointer(at).and_then(Value::as_f64).expect("a number");
    let root = number("/temperatures/0/first_to_third").sqrt();
    assert!((number("/temperatures/1/first_to_third") - root).abs() < 1e-9 * root);
    assert!(number("/temperatures/1/entropy") > number("/temperatures/0/entropy"));
    let listed: f64 = (0..3).map(|i| number(&format!("/tokens/{i}/probabilities/0"))).sum();
    assert!((listed + number("/temperatures/0/others") - 1.0).abs() < 1e-9);
    assert_eq!((found["hard"].as_u64(), found["tokens"].as_array().map(Vec::len)), (Some(1), Some(3)));

    let unlikely = json(&["--next", "zzz"]);
    assert!(unlikely["hard"].as_u64() > Some(3));
    assert_eq!(
        (&unlikely["hard"], 4),
        (&unlikely["tokens"][3]["rank"], unlikely["tokens"].as_array().map_or(0, Vec::len))
    );
    let show = ["show", "--teacher", MODEL];
    refuses(&[&show[..], &[""]].concat(), 2, "prompt: it has 0 tokens");
    refuses(&[&show[..], &["a", "--next", ""]].concat(), 2, "nothing follows");
    refuses(&[&show[..], &["a", "--temperature", "1,1"]].concat(), 2, "temperature 1 is there twice");
    refuses(&[&show[..], &["a", "--temperature", "1e-300"]].concat(), 2, "between 0.1 and 100");
    refuses(&[&show[..], &["a", "--top", "0"]].concat(), 2, "at least 1");
}
