use super::*;
use crate::gpu::launch::Launch;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn mirrors_are_the_operations_as_defined() {
    let mut worst: BTreeMap<String, f64> = BTreeMap::new();
    for case in cases(1) {
        for output in &case.outputs {
            let error = output.error(&output.mirror).unwrap_or(0.0);
            assert!(error <= output.tolerance, "{}: {error:e} of the largest", case.name);
            let most = worst.entry(case.kernel().to_string()).or_default();
            *most = most.max(error);
        }
    }
    // Nothing is left out, and the definitions are not what was computed.
    assert!(worst.len() >= 70 && worst.values().filter(|e| **e > 0.0).count() >= 45, "{worst:?}");
}

/// The request that `scripts/emulate-cuda.d/emulator.cpp` reads.
fn request(case: &Case) -> Vec<u8> {
    let Launch { kernel, grid: (x, y, z), block, shared, .. } = &case.launch;
    let mut lines = format!("kernel {kernel}\ngrid {x} {y} {z}\nblock {block}\nshared {shared}\n");
    let mut data = Vec::new();
    for arg in &case.args {
        lines += &match arg {
            Arg::Int(n) => format!("int {n}\n"),
            Arg::Long(n) => format!("long {n}\n"),
            Arg::Float(v) => format!("float {}\n", v.to_bits()),
            Arg::Null => "null\n".to_string(),
            Arg::Buffer(bytes) => {
                data.extend_from_slice(bytes);
                format!("buffer {}\n", bytes.len())
            }
        };
    }
    [lines.into_bytes(), b"data\n".to_vec(), data].concat()
}

/// Runs a kernel in the emulator: its buffers, as it leaves them, by argument.
fn emulated(emulator: &str, case: &Case) -> BTreeMap<usize, Vec<u8>> {
    let mut child = Command::new(emulator)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("EMULATED_CUDA names the program that scripts/emulate-cuda builds");
    child.stdin.take().expect("piped").write_all(&request(case)).expect("the emulator reads all of it");
    let done = child.wait_with_output().expect("it ends");
    assert!(done.status.success(), "{}: {}", case.name, String::from_utf8_lossy(&done.stderr));
    let mut rest = &done.stdout[..];
    let mut buffers = BTreeMap::new();
    for (i, arg) in case.args.iter().enumerate() {
        if let Arg::Buffer(bytes) = arg {
            let (now, later) = rest.split_at(bytes.len());
            buffers.insert(i, now.to_vec());
            rest = later;
        }
    }
    assert!(rest.is_empty());
    buffers
}

#[test]
#[ignore = "scripts/emulate-cuda runs it"]
fn kernels_give_the_mirrors_bits() {
    let emulator = std::env::var("EMULATED_CUDA").expect("scripts/emulate-cuda sets EMULATED_CUDA");
    let seed = std::env::var("EMULATED_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(1);
    let only = std::env::var("EMULATED_KERNELS").unwrap_or_default();
    let (mut failed, mut launches) = (Vec::new(), 0);
    for case in cases(seed).iter().filter(|case| case.kernel().starts_with(&only)) {
        let buffers = emulated(&emulator, case);
        launches += 1;
        for (arg, bytes) in &buffers {
            let differing = match case.outputs.iter().find(|o| o.arg == *arg) {
                Some(output) => output.differing(bytes),
                // What is not an output is not written.
                None => usize::from(!matches!(&case.args[*arg], Arg::Buffer(before) if before == bytes)),
            };
            if differing > 0 {
                failed.push(format!("{}: argument {arg} differs in {differing} places", case.name));
            }
        }
    }
    if only.is_empty() {
        let listed = Command::new(&emulator).arg("list").output().expect("it lists the kernels").stdout;
        let tried: BTreeSet<String> = cases(seed).iter().map(|c| c.kernel().to_string()).collect();
        let left: Vec<&str> =
            std::str::from_utf8(&listed).expect("names").lines().filter(|n| !tried.contains(*n)).collect();
        assert!(tried.len() > 70 && left.is_empty(), "no launch of {left:?}");
    }
    assert!(failed.is_empty(), "{} of {launches} launches:\n{}", failed.len(), failed.join("\n"));
}
