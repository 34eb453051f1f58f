//! Holds a device to what its operations are by definition.

pub mod matrices;
pub mod products;

use crate::{Result, mirror};
use candle_core::Device;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The kernel, or the kind of product.
    pub what: String,
    /// The shape.
    pub case: String,
    /// Numbers that were compared.
    pub numbers: usize,
    /// Number of values whose bits are not the mirror's; none where there is no mirror.
    pub differing: Option<usize>,
    /// The largest difference to the definition in f64, as a share of what it may be; none where bits
    /// are all there is to say.
    pub error: Option<f64>,
    /// Why there is nothing to compare, where the device failed.
    pub failure: Option<String>,
}

impl Checked {
    /// Returns whether nothing is wrong. An error that is not a number is wrong.
    pub fn passed(&self) -> bool {
        self.failure.is_none() && self.differing.unwrap_or(0) == 0 && self.error.is_none_or(|e| e <= 1.0)
    }

    /// Result of a check that a device could not run.
    fn failed(what: String, case: String, failure: String) -> Self {
        Checked { what, case, numbers: 0, differing: None, error: None, failure: Some(failure) }
    }
}

/// Every kernel over odd shapes: on a GPU itself, on the CPU its mirror. A device that fails is not asked again.
pub fn kernels(device: &Device, seed: u64) -> Vec<Checked> {
    let mut all = Vec::new();
    for case in mirror::cases(seed) {
        let found = run(device, &case).map(|found| compared(&case, &found));
        if add(&mut all, device, case.kernel(), &case.name, found).is_break() {
            break;
        }
    }
    all
}

/// Compares the buffers after a launch with the expected ones.
fn compared(case: &mirror::Case, found: &BTreeMap<usize, Vec<u8>>) -> Vec<Checked> {
    let check = |output: &mirror::Output| {
        let bytes = found.get(&output.arg).unwrap_or(&output.mirror);
        Checked {
            what: case.kernel().to_string(),
            case: case.name.clone(),
            numbers: output.numbers(bytes).len(),
            differing: Some(output.differing(bytes)),
            error: output.error(bytes).map(|e| if e == 0.0 { 0.0 } else { e / output.tolerance }),
            failure: None,
        }
    };
    // What a kernel only reads is as it was.
    let input = |(i, arg): (usize, &mirror::Arg)| match (arg, found.get(&i)) {
        (mirror::Arg::Buffer(before), Some(after)) if case.outputs.iter().all(|o| o.arg != i) && before != after => {
            let what = format!("argument {i}, which is only read, was written to");
            Some(Checked::failed(case.kernel().to_string(), case.name.clone(), what))
        }
        _ => None,
    };
    case.outputs.iter().map(check).chain(case.args.iter().enumerate().filter_map(input)).collect()
}

/// Adds what was compared, or the error for which it could not be; breaks off where the device can't be used any more, as after some
/// errors.
pub fn add<E: std::error::Error>(
    all: &mut Vec<Checked>,
    device: &Device,
    what: &str,
    case: &str,
    found: Result<Vec<Checked>, E>,
) -> ControlFlow<()> {
    let error = match found {
        Ok(found) => {
            all.extend(found);
            return ControlFlow::Continue(());
        }
        Err(e) => crate::error::line(&e),
    };
    let (failure, flow) = match device.synchronize() {
        Ok(()) => (error, ControlFlow::Continue(())),
        Err(_) => (
            format!("{error}; the device can't be used any more, and what follows was left out"),
            ControlFlow::Break(()),
        ),
    };
    all.push(Checked::failed(what.into(), case.into(), failure));
    flow
}

/// The buffers that a kernel leaves, by argument; none on the CPU.
#[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
fn run(device: &Device, case: &mirror::Case) -> Result<BTreeMap<usize, Vec<u8>>> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return Ok(crate::cuda::run(device, case)?);
    }
    Ok(BTreeMap::new())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ComputeType, cpu};

    #[test]
    fn the_cpu_passes() {
        let found = kernels(&cpu(), 2);
        let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
        assert!(failed.is_empty() && found.len() > 70, "{failed:?}");
    }

    #[test]
    fn products_on_the_cpu_pass_and_are_not_all_alike() {
        let found = products::products(&cpu(), ComputeType::F32, 3);
        let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert!(found.len() > 100 && found.iter().any(|c| c.error > Some(1e-4)));
    }

    #[test]
    fn what_is_off_fails() {
        let good = Checked {
            what: "a".into(),
            case: "a".into(),
            numbers: 1,
            differing: Some(0),
            error: Some(0.5),
            failure: None,
        };
        assert!(good.passed());
        assert!(!Checked { differing: Some(1), ..good.clone() }.passed());
        assert!(!Checked { error: Some(1.5), ..good.clone() }.passed());
        assert!(!Checked { error: Some(f64::NAN), ..good }.passed());
        assert!(!Checked::failed("a".into(), "a".into(), "no launch".into()).passed());
    }

    #[test]
    fn a_buffer_that_is_only_read_must_stay() {
        let case = mirror::cases(1).into_iter().find(|c| c.kernel() == "add_bias").expect("a case");
        let read = |(i, arg): (usize, &mirror::Arg)| match arg {
            mirror::Arg::Buffer(bytes) if case.outputs.iter().all(|o| o.arg != i) => Some((i, bytes.clone())),
            _ => None,
        };
        let mut left: BTreeMap<usize, Vec<u8>> = case.args.iter().enumerate().filter_map(read).collect();
        assert!(compared(&case, &left).iter().all(Checked::passed));
        left.first_entry().expect("an input").get_mut()[0] ^= 1;
        let failed: Vec<_> = compared(&case, &left).into_iter().filter(|c| !c.passed()).collect();
        assert!(failed.len() == 1 && failed[0].failure.as_ref().is_some_and(|f| f.contains("only read")), "{failed:?}");
    }
}
