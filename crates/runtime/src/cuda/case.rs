//! Launches of the self-test.

use super::launch::{Arg, launch, pointer};
use crate::mirror;
use candle_core::{Device, Result};
use std::collections::BTreeMap;

/// Runs a launch: its buffers, as it leaves them, by argument.
pub fn run(device: &Device, case: &mirror::Case) -> Result<BTreeMap<usize, Vec<u8>>> {
    let device = device.as_cuda_device()?;
    let (mut buffers, mut args) = (BTreeMap::new(), Vec::with_capacity(case.args.len()));
    for (i, arg) in case.args.iter().enumerate() {
        args.push(match arg {
            mirror::Arg::Int(n) => Arg::Int(*n),
            mirror::Arg::Long(n) => Arg::Long(*n),
            mirror::Arg::Float(x) => Arg::Float(*x),
            mirror::Arg::Null => Arg::NULL,
            mirror::Arg::Buffer(bytes) => {
                let slice = device.clone_htod(&bytes[..])?;
                let at = pointer(&slice);
                buffers.insert(i, slice);
                at
            }
        });
    }
    launch(device, &case.launch, &args)?;
    buffers.iter().map(|(i, slice)| Ok((*i, device.clone_dtoh(slice)?))).collect()
}
