//! The text of a config.json beside a well-formed weights file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::{fs, path::PathBuf, sync::OnceLock};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

/// A folder with the fixture's weights and tokenizer.
fn folder() -> PathBuf {
    let folder = fuzz::scratch().join("model");
    fs::create_dir_all(&folder).expect("a scratch folder");
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../fixtures/tiny");
    for name in ["model.safetensors", "tokenizer.json", "tokenizer_config.json"] {
        fs::copy(format!("{fixture}/{name}"), folder.join(name)).expect("the fixture");
    }
    folder
}

fuzz_target!(|text: &[u8]| {
    let folder = FOLDER.get_or_init(folder);
    fs::write(folder.join("config.json"), text).expect("a scratch file");
    if let Ok(model) = store::open(folder) {
        let _ = model.config();
        let _ = model.shape("model.layers.0.mlp.down_proj");
        let _ = model.linear("lm_head");
    }
});
