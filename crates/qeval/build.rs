//! Embeds the fixture model, so that `qeval sweep` runs from anywhere.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    // Asked for when it runs: a target directory may be shared by several checkouts.
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("../..");
    let fixture = root.join("fixtures/tiny");
    let watched = if fixture.is_dir() { &fixture } else { &root.join("fixtures") };
    writeln!(io::stdout(), "cargo::rerun-if-changed={}", watched.display())?;
    let mut code = String::from("&[\n");
    // Before the fixture is made, the list is empty: the program says so.
    for path in if fixture.is_dir() { files(&fixture)? } else { Vec::new() } {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let path = path.canonicalize()?.display().to_string();
        code.push_str(&format!("    ({name:?}, include_bytes!({path:?})),\n"));
    }
    code.push_str("]\n");
    fs::write(PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("fixture.rs"), code)
}

/// The model's files in order of their names: its configuration, tokenizer and weights.
fn files(fixture: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for entry in fs::read_dir(fixture)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json" || e == "safetensors") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}
