//! A folder with a small model in which the program is run.
//! Each test binary compiles this module for itself and uses a part of it.
#![allow(dead_code)]

use crate::common::{SyntheticModel, write_model};
use assert_cmd::Command;
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// A tensor of a safetensors file.
#[derive(Clone)]
pub struct Stored {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// The tensors in a safetensors file's header, and its data.
pub fn header(bytes: &[u8]) -> (Map<String, Value>, &[u8]) {
    let len = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")) as usize;
    let mut map: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + len]).expect("JSON");
    map.remove("__metadata__");
    (map, &bytes[8 + len..])
}

/// The bytes of a safetensors file.
pub fn write_tensors(tensors: &[Stored]) -> Vec<u8> {
    let (mut map, mut data) = (Map::new(), Vec::new());
    for t in tensors {
        let start = data.len();
        data.extend_from_slice(&t.bytes);
        map.insert(t.name.clone(), json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [start, data.len()]}));
    }
    let text = Value::Object(map).to_string();
    [&(text.len() as u64).to_le_bytes(), text.as_bytes(), &data].concat()
}

/// A folder with a small model in it.
pub struct Place {
    pub dir: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().expect("temp dir");
        write_model(&dir.path().join("model"), &SyntheticModel::default());
        Place { dir }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = Command::new(env!("CARGO_BIN_EXE_qconvert"))
            .args(args)
            .current_dir(self.dir.path())
            .output()
            .expect("runs");
        let text = |b: &[u8]| String::from_utf8_lossy(b).into_owned();
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    }

    /// Runs what must succeed: gives its output.
    pub fn done(&self, args: &[&str]) -> String {
        let (status, out, err) = self.run(args);
        assert_eq!((status, err.as_str()), (0, ""), "{args:?}: {out}");
        out
    }

    /// Changes the model's configuration and tensors.
    pub fn edit(&self, change: impl FnOnce(&mut Value, &mut Vec<Stored>)) {
        let (config_path, path) = (self.path("model/config.json"), self.path("model/model.safetensors"));
        let bytes = std::fs::read(&path).expect("reads");
        let (tensors, data) = header(&bytes);
        let mut tensors: Vec<Stored> = tensors
            .iter()
            .map(|(name, t)| {
                let at = |i: usize| t["data_offsets"][i].as_u64().expect("offset") as usize;
                Stored {
                    name: name.clone(),
                    dtype: t["dtype"].as_str().expect("type").into(),
                    shape: serde_json::from_value(t["shape"].clone()).expect("shape"),
                    bytes: data[at(0)..at(1)].to_vec(),
                }
            })
            .collect();
        let mut config = serde_json::from_slice(&std::fs::read(&config_path).expect("reads")).expect("JSON");
        change(&mut config, &mut tensors);
        std::fs::write(config_path, config.to_string()).expect("writes");
        std::fs::write(path, write_tensors(&tensors)).expect("writes");
    }

    /// Runs what must fail: gives the one line on stderr.
    pub fn fails(&self, code: i32, args: &[&str]) -> String {
        let before = listing(self.dir.path());
        let (status, out, err) = self.run(args);
        assert_eq!((status, out.as_str()), (code, ""), "{args:?}: {err}");
        assert!(code == 2 || err.trim_end().lines().count() == 1, "one line: {err}");
        assert_eq!(listing(self.dir.path()), before, "{args:?} leaves nothing behind");
        err
    }
}

pub fn listing(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = std::fs::read_dir(dir).expect("lists").map(|e| e.expect("entry").path()).collect();
    all.sort();
    all
}
