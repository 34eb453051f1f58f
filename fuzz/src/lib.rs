//! Helpers of the fuzz targets: scratch files, and reading all that a model holds.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Scratch folder of this process, in memory where the system has `/dev/shm`.
pub fn scratch() -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let folder = parent.join(format!("fuzz-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a scratch folder");
    folder
}

/// Writes `bytes` to the scratch file `name`.
pub fn write(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch().join(name);
    fs::write(&path, bytes).expect("a scratch file");
    path
}

/// Opens a model and reads its configuration, tokenizer, scheme names, and some rows of every matrix. Errors are fine;
/// a panic, a hang, or unbounded memory is a find.
pub fn read_model(path: &Path) {
    let Ok(model) = store::open(path) else { return };
    let _ = model.config();
    let _ = model.text_tokenizer();
    let schemes = model.declared_schemes();
    for module in schemes.keys() {
        let _ = model.shape(module);
        let Ok(layer) = model.linear(module) else { continue };
        let (rows, cols) = (layer.matrix.rows(), layer.matrix.cols());
        if rows == 0 || cols > 1 << 20 {
            continue;
        }
        let mut row = vec![0f32; cols];
        layer.matrix.decode_row(0, &mut row);
        layer.matrix.decode_row(rows - 1, &mut row);
    }
    for name in model.tensors.keys() {
        let _ = model.dense(name);
    }
}
