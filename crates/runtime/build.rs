//! Compiles the kernels in `cuda/` to PTX, where the feature `cuda` is on.

use std::env;
use std::error::Error;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The oldest architecture that the kernels are for; PTX runs on it and on all that came later.
const ARCHITECTURE: &str = "-arch=compute_80";

fn main() -> Result<(), Box<dyn Error>> {
    writeln!(io::stdout(), "cargo::rerun-if-changed=build.rs")?;
    if env::var_os("CARGO_FEATURE_CUDA").is_none() {
        return Ok(());
    }
    let sources = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join("cuda");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    for name in ["NVCC", "CUDA_HOME"] {
        writeln!(io::stdout(), "cargo::rerun-if-env-changed={name}")?;
    }
    writeln!(io::stdout(), "cargo::rerun-if-changed={}", sources.display())?;
    let mut list = String::from("/// The kernels, by file.\nstatic PTX: &[(&str, &str)] = &[\n");
    let mut files = std::fs::read_dir(&sources)?.map(|e| Ok(e?.path())).collect::<Result<Vec<_>, std::io::Error>>()?;
    files.sort();
    for source in files.iter().filter(|f| f.extension().is_some_and(|e| e == "cu")) {
        let name = source.file_stem().and_then(|n| n.to_str()).ok_or("a kernel file has a plain name")?;
        compile(source, &out.join(format!("{name}.ptx")))?;
        list += &format!("    (\"{name}\", include_str!(concat!(env!(\"OUT_DIR\"), \"/{name}.ptx\"))),\n");
    }
    std::fs::write(out.join("kernels.rs"), list + "];\n")?;
    Ok(())
}

fn compile(source: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let nvcc = nvcc();
    let mut command = Command::new(&nvcc);
    // Sums are fused where the kernels say so, and nowhere else: their results don't depend on the compiler.
    command.args(["--ptx", "-O3", "-std=c++17", "--fmad=false", ARCHITECTURE, "-o"]).args([to, source]);
    let ran =
        command.output().map_err(|e| format!("{}: {e}; scripts/build-cuda finds or fetches one", nvcc.display()))?;
    if !ran.status.success() {
        return Err(format!("{}: {}", source.display(), String::from_utf8_lossy(&ran.stderr)).into());
    }
    Ok(())
}

/// `NVCC`, or the one of `CUDA_HOME`, or whichever the shell finds.
fn nvcc() -> PathBuf {
    let home = || env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc")).filter(|p| p.is_file());
    env::var_os("NVCC").map(PathBuf::from).or_else(home).unwrap_or_else(|| "nvcc".into())
}
