//! The program as a person runs it: a student of the fixture, in seconds.

use assert_cmd::Command;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Output;

const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny");
const PROSE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../corpora/prose.txt");

const STUDENT: &str = "hidden = 32\nlayers = 1\nheads = 2\nkv_heads = 1\nintermediate = 48\n";

struct Bench {
    folder: tempfile::TempDir,
}

impl Bench {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("student.toml"), STUDENT).expect("written");
        Self { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn run(&self, args: &[&str]) -> Output {
        let mut command = Command::cargo_bin("qdistill").expect("the program");
        command.current_dir(self.folder.path()).env("RAYON_NUM_THREADS", "2").args(args).output().expect("it runs")
    }

    /// Trains on labels into `out`.
    fn train(&self, out: &str, more: &[&str]) -> Output {
        let fixed = ["train", "--teacher", FIXTURE, "--labels", "labels.safetensors", "-o", out, "--json"];
        let schedule = ["--steps", "12", "--batch", "4", "--warmup", "2", "--validate-every", "4"];
        let schedule = schedule.chunks(2).filter(|flag| !more.contains(&flag[0]));
        let mut args = [&fixed[..], &schedule.collect::<Vec<_>>().concat()].concat();
        if !more.contains(&"--student") {
            args.extend(["--student", "student.toml"]);
        }
        args.extend(more);
        self.run(&args)
    }

    /// Starts a training into `out` that doesn't end by itself; what it says is held.
    fn start_training(&self, out: &str) -> std::process::Child {
        std::process::Command::new(assert_cmd::cargo::cargo_bin("qdistill"))
            .current_dir(self.folder.path())
            .args(["train", "--teacher", FIXTURE, "--labels", "labels.safetensors", "-o", out, "--json"])
            .args(["--steps", "100000", "--batch", "4", "--validate-every", "2", "--student", "student.toml"])
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("it starts")
    }

    fn label(&self) {
        let out = self.run(&[
            "label",
            "--teacher",
            FIXTURE,
            "--text",
            PROSE,
            "--tokens",
            "1500",
            "--context",
            "32",
            "--labels",
            "topk:16",
            "-o",
            "labels.safetensors",
        ]);
        assert!(out.status.success(), "{}", text(&out.stderr));
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn json(out: &Output) -> Value {
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).expect("JSON")
}

fn weights(folder: &Path) -> Vec<u8> {
    std::fs::read(folder.join("model.safetensors")).expect("weights")
}

fn lines(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("metrics.jsonl")).expect("metrics");
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

#[test]
fn a_student_learns_and_opens_elsewhere() {
    let bench = Bench::new();
    bench.label();
    let result = json(&bench.train("student", &["--learning-rate", "0.01"]));
    assert_eq!(result["steps"], 12);
    let (kl, lines) = (|line: &Value| line["kl"].as_f64(), lines(&bench.path("student")));
    let validations: Vec<f64> = lines.iter().filter_map(kl).collect();
    assert_eq!(validations.len(), 3);
    assert!(validations[2] < validations[0], "{validations:?}");
    assert_eq!(lines.iter().filter(|line| line["rate"].is_number()).count(), 12);
    assert!(std::fs::read_to_string(bench.path("student/loss.svg")).expect("a plot").starts_with("<svg"));
    assert!(!bench.path("student.resume.safetensors").exists());
    let model = store::open(&bench.path("student")).expect("it opens");
    let config = model.config().expect("a configuration");
    assert_eq!((config.layers, config.hidden_size, config.vocab_size), (1, 32, 1280));
    assert_eq!(model.metadata["qdistill.teacher"], "tiny");
    let transformer = runtime::Transformer::load(&model, &runtime::cpu()).expect("it runs");
    transformer.hidden(&[&[1, 2, 3]], None).expect("hidden states");
}

#[test]
fn an_interrupted_training_resumes_to_the_same_bytes() {
    let bench = Bench::new();
    bench.label();
    json(&bench.train("whole", &[]));
    // Killed as soon as there is a state, wherever it is then.
    let state = bench.path("part.resume.safetensors");
    let mut child = std::process::Command::new(assert_cmd::cargo::cargo_bin("qdistill"))
        .current_dir(bench.folder.path())
        .env("RAYON_NUM_THREADS", "1")
        .args(["train", "--teacher", FIXTURE, "--labels", "labels.safetensors", "-o", "part", "--json"])
        .args(["--steps", "12", "--batch", "4", "--warmup", "2", "--validate-every", "4", "--student", "student.toml"])
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    let begun = std::time::Instant::now();
    while !state.exists() && begun.elapsed().as_secs() < 120 && child.try_wait().expect("its state").is_none() {
        std::thread::yield_now();
    }
    let _ = child.kill();
    child.wait().expect("it ended");
    if state.exists() {
        let again = bench.train("part", &[]);
        assert!(text(&again.stderr).contains("--resume"), "{}", text(&again.stderr));
        let other = bench.train("part", &["--resume", "--seed", "1"]);
        assert!(text(&other.stderr).contains("with seed 0, not 1"), "{}", text(&other.stderr));
        std::fs::rename(bench.path("part"), bench.path("away")).expect("moved");
        let gone = bench.train("part", &["--resume"]);
        assert_eq!(gone.status.code(), Some(1));
        assert!(text(&gone.stderr).contains("is no longer in part; put it back"), "{}", text(&gone.stderr));
        std::fs::rename(bench.path("away"), bench.path("part")).expect("moved");
        for name in ["model.safetensors", "metrics.jsonl"] {
            let path = bench.path("part").join(name);
            let whole = std::fs::read(&path).expect("bytes");
            std::fs::write(&path, &whole[..100]).expect("cut short");
            let other = bench.train("part", &["--resume"]);
            assert!(text(&other.stderr).contains(&format!("{name} is another now in part")), "{}", text(&other.stderr));
            std::fs::write(&path, &whole).expect("put back");
        }
        // What doesn't change is written again, and parts that are the default's may be asked for.
        std::fs::remove_file(bench.path("part/config.json")).expect("removed");
        json(&bench.train("part", &["--resume", "--parts", "2"]));
        store::open(&bench.path("part")).expect("a whole model");
    }
    assert_eq!(weights(&bench.path("part")), weights(&bench.path("whole")));
    assert_eq!(lines(&bench.path("part")), lines(&bench.path("whole")));
}

#[test]
fn the_teacher_beside_the_student_and_cut_students() {
    let bench = Bench::new();
    std::fs::write(bench.path("text.txt"), &std::fs::read(PROSE).expect("the text")[..6000]).expect("written");
    let train = |out: &str, more: &[&str]| {
        let fixed = ["train", "--teacher", FIXTURE, "--text", "text.txt", "--context", "32", "-o", out, "--json"];
        let schedule = ["--steps", "4", "--batch", "4", "--warmup", "1", "--validate-every", "2"];
        bench.run(&[&fixed[..], &schedule, more].concat())
    };
    let same = json(&train("same", &["--student", "layers:0,1,2,3", "--alpha", "1", "--learning-rate", "1e-9"]));
    assert!(same["best"]["kl"].as_f64().expect("a KL") < 1e-4, "the teacher itself: {same}");
    assert_eq!(same["best_by"], "soft loss (forward divergence at T = 2)");
    let bytes = std::fs::read(bench.path("same/model.safetensors")).expect("weights");
    let said = b"lowest soft loss (forward divergence at T = 2) on the validation text";
    assert!(bytes.windows(said.len()).any(|w| w == said), "the metadata say what chose the model");
    let frozen = ["--student", "layers:0,2", "--freeze", "embeddings", "--divergence", "jensen-shannon"];
    json(&train("cut", &frozen));
    let embedding = |folder: &str| {
        let model = store::open(&bench.path(folder)).expect("it opens");
        model.tensors["model.embed_tokens.weight"].data.to_vec()
    };
    let teacher = store::open(Path::new(FIXTURE)).expect("the fixture");
    assert_eq!(embedding("cut"), teacher.tensors["model.embed_tokens.weight"].data.to_vec());
    let diverged = train("diverged", &["--student", "layers:0", "--learning-rate", "1e30"]);
    assert!(
        diverged.status.code() == Some(1) && text(&diverged.stderr).contains("diverged at step"),
        "{}",
        text(&diverged.stderr)
    );
    assert!(!bench.path("diverged").exists(), "nothing is left behind");
}

#[test]
fn an_artifact_teaches_as_a_checkpoint_does() {
    let bench = Bench::new();
    let model = store::open(Path::new(FIXTURE)).expect("the fixture");
    let source = conversion::Source::new(&model).expect("whole");
    let job = conversion::Job {
        scheme: "int4-g64".parse().expect("a scheme"),
        settings: conversion::Settings::new(conversion::Target::Gguf),
        destination: bench.path("teacher.gguf"),
        existing: Default::default(),
    };
    conversion::convert(&source, &[job], &progress::Silent).expect("converts");
    let label = |teacher: &str, out: &str| {
        let fixed = ["label", "--text", PROSE, "--tokens", "1500", "--context", "32", "--labels", "topk:16"];
        bench.run(&[&fixed[..], &["--teacher", teacher, "-o", out, "--json"]].concat())
    };
    assert_eq!(json(&label("teacher.gguf", "labels.safetensors"))["predictions"], 1499);
    let refused = bench.train("student", &[]);
    assert!(text(&refused.stderr).contains("are not those of"), "another teacher's: {}", text(&refused.stderr));
    let train = |out: &str, from: &[&str]| {
        let fixed = ["train", "--teacher", "teacher.gguf", "-o", out, "--json", "--student", "layers:0,3"];
        let schedule = ["--steps", "4", "--batch", "4", "--warmup", "1", "--validate-every", "2"];
        json(&bench.run(&[&fixed[..], &schedule, from].concat()))
    };
    let from_labels = train("from-labels", &["--labels", "labels.safetensors"]);
    let beside = train("beside", &["--text", PROSE, "--context", "32"]);
    for result in [&from_labels, &beside] {
        assert!(result["best"]["kl"].as_f64().is_some_and(|kl| kl > 0.0), "{result}");
    }
    // The student is a checkpoint, cut from what the artifact's weights decode to.
    let student = store::open(&bench.path("from-labels")).expect("it opens");
    assert_eq!(student.metadata["qdistill.teacher"], "teacher.gguf");
    assert_eq!(student.declared_schemes()["model.layers.1.mlp.up_proj"], "f16");
    let transformer = runtime::Transformer::load(&student, &runtime::cpu()).expect("it runs");
    transformer.hidden(&[&[1, 2, 3]], None).expect("hidden states");
}

#[test]
fn settings_come_from_a_file_and_flags_win() {
    let bench = Bench::new();
    bench.label();
    let flags = ["--alpha", "0.7", "--divergence", "reverse", "--learning-rate", "0.005", "--seed", "3"];
    json(&bench.train("flags", &flags));
    let settings = "[loss]\nalpha = 0.7\ntemperature = 2.0\ndivergence = \"reverse\"\n\
                    [train]\nlearning_rate = 0.005\nseed = 4\nsteps = 1000\n";
    std::fs::write(bench.path("settings.toml"), settings).expect("written");
    // Of the schedule, what the flags say; the seed, too.
    json(&bench.train("file", &["--config", "settings.toml", "--seed", "3"]));
    assert_eq!(weights(&bench.path("file")), weights(&bench.path("flags")));
    json(&bench.train("seed", &["--config", "settings.toml"]));
    assert_ne!(weights(&bench.path("seed")), weights(&bench.path("flags")));
    std::fs::write(bench.path("settings.toml"), "[loss]\nalfa = 0.7\n").expect("written");
    let wrong = bench.train("wrong", &["--config", "settings.toml"]);
    assert!(text(&wrong.stderr).contains("settings.toml") && text(&wrong.stderr).contains("alfa"));
}

#[test]
fn odd_batches_and_the_temperature_of_the_kl() {
    let bench = Bench::new();
    bench.label();
    for batch in ["1", "3"] {
        let out = bench.train(&format!("of-{batch}"), &["--batch", batch, "--temperature", "4"]);
        json(&out);
        assert!(text(&out.stderr).contains("KL to the teacher at T = 4 "), "{}", text(&out.stderr));
    }
}

#[cfg(unix)]
#[test]
fn a_failed_save_stands_in_no_ones_way() {
    let bench = Bench::new();
    bench.label();
    let limited = |kib: usize| {
        let train = "--teacher $0 --labels labels.safetensors --student student.toml -o student --steps 4 --batch 4";
        let program = assert_cmd::cargo::cargo_bin("qdistill");
        let script = format!("ulimit -f $((2 * {kib})) && exec {} train {train} --validate-every 2", program.display());
        let mut shell = Command::new("sh");
        shell.current_dir(bench.folder.path()).args(["-c", &script, FIXTURE]).output().expect("it runs")
    };
    // The weights take about 100 KiB, the state six times as much.
    for kib in [80, 300] {
        let out = limited(kib);
        let message = text(&out.stderr);
        assert!(out.status.code() == Some(1) && message.contains("File too large"), "{:?}: {message}", out.status);
        let left: Vec<_> = std::fs::read_dir(bench.folder.path()).expect("lists").flatten().collect();
        assert_eq!(left.len(), 2, "{left:?}");
    }
    // What was there before stays; an empty folder is as good as none.
    std::fs::create_dir(bench.path("student")).expect("a folder");
    assert_eq!(limited(300).status.code(), Some(1));
    assert_eq!(std::fs::read_dir(bench.path("student")).expect("still there").count(), 0);
    json(&bench.train("student", &[]));
}

#[test]
fn misfits_are_one_line() {
    let bench = Bench::new();
    bench.label();
    let says = |more: &[&str], code: i32, what: &str| {
        let out = bench.train("student", more);
        let message = text(&out.stderr);
        assert!(out.status.code() == Some(code) && message.contains(what), "{:?}: {message}", out.status);
    };
    says(&["--temperature", "3"], 1, "--temperature 3");
    says(&["--alpha", "2"], 2, "alpha must lie between 0 and 1");
    says(&["--student", "bogus"], 2, "'bogus' is none of a FILE.toml");
    says(&["--student", "layers:2,1"], 2, "ascending order");
    says(&["--resume"], 1, "no interrupted training");
    says(&["--student", "layers:9"], 2, "blocks 0 to 3, no 9");
    says(&["--dtype", "q4"], 2, "q4");
    says(&["--batch", "3", "--parts", "2"], 2, "split into 2");
    says(&["--validation-share", "0"], 2, "validation_share must be above 0");
    says(&["--validation-share", "1"], 2, "below 1");
    says(&["--temperature", "1e300"], 2, "between 0.1 and 100");
    says(&["--device", "cuda:900"], 2 - i32::from(cfg!(feature = "cuda")), "cuda:900");
    std::fs::write(bench.path("settings.toml"), "[train]\nsteps = \"many\"\n").expect("written");
    says(&["--config", "settings.toml"], 2, "settings.toml, line 2: invalid type");
    std::fs::write(bench.path("settings.toml"), "[train]\nstep = 3\n").expect("written");
    says(&["--config", "settings.toml"], 2, "settings.toml, line 2: unknown field `step`");
    std::fs::write(bench.path("huge.toml"), STUDENT.replace("32", "4_000_000_000")).expect("written");
    says(&["--student", "huge.toml"], 2, "this machine has ");
    let batch = ["--student", "layers:0,1,2,3", "--batch", "2000000", "--parts", "1"];
    says(&batch, 2, "2000000 windows of 32 tokens leave for their gradients");
    std::fs::create_dir(bench.path("student")).expect("a folder");
    std::fs::write(bench.path("student/precious"), "x").expect("written");
    says(&[], 1, "student: is a folder that is not empty: choose another output, or give --overwrite");
    says(&["--overwrite"], 1, "student: is a folder without a model that one of these programs wrote");
    says(&["--overwrite", "--resume"], 2, "cannot be used with");
}

#[test]
fn an_earlier_student_is_replaced_only_when_asked_and_notes_stay() {
    let bench = Bench::new();
    bench.label();
    json(&bench.train("student", &["--seed", "1"]));
    let (old, into) = (weights(&bench.path("student")), |name: &str| bench.path("student").join(name));
    std::fs::write(into("README.md"), "my notes").expect("written");
    let refused = bench.train("student", &[]);
    assert_eq!(text(&refused.stderr).lines().count(), 1, "{}", text(&refused.stderr));
    assert!(text(&refused.stderr).contains("student: is a folder that is not empty"), "{}", text(&refused.stderr));
    let diverged = bench.train("student", &["--overwrite", "--learning-rate", "1e30", "--seed", "2"]);
    assert_eq!(diverged.status.code(), Some(1));
    assert_eq!(weights(&bench.path("student")), old, "what fails before it has a model leaves the old one");
    json(&bench.train("student", &["--overwrite"]));
    assert_ne!(weights(&bench.path("student")), old);
    assert_eq!(lines(&bench.path("student")).len(), 15, "metrics of the new training alone");
    assert_eq!(std::fs::read(into("README.md")).expect("kept"), b"my notes");
    json(&bench.train("fresh", &[]));
    assert_eq!(weights(&bench.path("student")), weights(&bench.path("fresh")));
    // Edited since, a file is no longer the program's to replace.
    let config = std::fs::read_to_string(into("config.json")).expect("a configuration") + " ";
    std::fs::write(into("config.json"), &config).expect("written");
    let edited = bench.train("student", &["--overwrite"]);
    assert!(
        text(&edited.stderr).contains("student/config.json: was not written by one of"),
        "{}",
        text(&edited.stderr)
    );
    assert_eq!(std::fs::read_to_string(into("config.json")).expect("kept"), config);

    let label = |more: &[&str]| {
        let fixed = ["label", "--teacher", FIXTURE, "--text", PROSE, "--tokens", "1500", "--context", "32"];
        bench.run(&[&fixed[..], &["-o", "labels.safetensors"], more].concat())
    };
    assert!(text(&label(&[]).stderr).contains("labels.safetensors: exists already: choose another output"));
    assert!(label(&["--overwrite"]).status.success());
    std::fs::write(bench.path("labels.safetensors"), "thesis").expect("written");
    assert!(text(&label(&["--overwrite"]).stderr).contains("is not a labels file that one of these programs wrote"));
    let long = "n".repeat(250);
    let long = bench.run(&["label", "--teacher", FIXTURE, "--text", PROSE, "-o", &long]);
    assert!(
        text(&long.stderr).contains("the file name has 258 bytes, the file system holds 255"),
        "{}",
        text(&long.stderr)
    );
}

#[test]
fn of_two_trainings_into_one_folder_the_second_is_refused_at_once() {
    let bench = Bench::new();
    bench.label();
    let mut child = bench.start_training("part");
    let begun = std::time::Instant::now();
    while !bench.path("part").exists() && begun.elapsed().as_secs() < 120 {
        std::thread::yield_now();
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    let mut refused = vec![bench.train("part", &[]), bench.train("part", &["--overwrite"])];
    let state = bench.path("part.resume.safetensors");
    while !state.exists() && begun.elapsed().as_secs() < 120 {
        std::thread::yield_now();
    }
    refused.extend([
        bench.train("part", &[]),
        bench.train("part", &["--overwrite"]),
        bench.train("part", &["--resume"]),
    ]);
    let _ = child.kill();
    child.wait().expect("it ended");
    for out in refused {
        let message = text(&out.stderr);
        assert_eq!((out.status.code(), message.lines().count()), (Some(1), 1), "{message}");
        assert!(message.contains("part: another run is writing in this folder"), "{message}");
    }
    json(&bench.train("part", &["--overwrite"]));
    assert!(!state.exists());
}

#[test]
fn the_self_test_passes_on_the_cpu() {
    let bench = Bench::new();
    let out = bench.run(&["selftest", "--json", "--seed", "5", "--device", "cpu"]);
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value = serde_json::from_slice(&out.stdout).expect("JSON");
    assert_eq!((&found["device"], &found["seed"]), (&"cpu".into(), &5.into()));
    let checks = found["checks"].as_array().expect("checks");
    assert!(checks.len() == 22 && checks.iter().all(|c| c["error"].as_f64().is_some_and(|e| e < 1.0)), "{checks:?}");
}

#[test]
fn draws_have_one_divergence() {
    let bench = Bench::new();
    let fixed = ["label", "--teacher", FIXTURE, "--text", PROSE, "--tokens", "1500", "--context", "32"];
    json(&bench.run(&[&fixed[..], &["--labels", "sampled:4", "-o", "labels.safetensors", "--json"]].concat()));
    let refused = bench.train("student", &["--divergence", "reverse"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("draws give the forward divergence only"), "{}", text(&refused.stderr));
    json(&bench.train("student", &["--divergence", "reverse", "--alpha", "0"]));
}

/// Whoever takes the output away meanwhile is told at the next validation, and what was reached is kept.
#[test]
fn output_that_is_taken_away_is_missed_in_time() {
    let bench = Bench::new();
    bench.label();
    let state = bench.path("part.resume.safetensors");
    let mut child = bench.start_training("part");
    while !state.exists() && child.try_wait().expect("its state").is_none() {
        std::thread::yield_now();
    }
    std::fs::remove_file(bench.path("part/metrics.jsonl")).expect("removed");
    let ended = child.wait_with_output().expect("it ended");
    assert_eq!(ended.status.code(), Some(1));
    assert!(text(&ended.stderr).contains("metrics.jsonl is no longer in part"), "{}", text(&ended.stderr));
    assert!(state.exists());
}
