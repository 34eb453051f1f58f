//! Holds a device to what its operations are by definition.

pub mod matrices;
pub mod products;

use crate::{Result, mirror};
use candle_core::Device;
use std::collections::BTreeMap;

/// One comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct Checked {
    /// The kernel, or the kind of product.
    pub what: String,
    /// The shape.
    pub case: String,
    /// Numbers that were compared.
    pub numbers: usize,
    /// Those whose bits are not the mirror's; none where there is no mirror.
    pub differing: Option<usize>,
    /// The largest difference to the definition in f64, as a share of what it may be; none where bits
    /// are all there is to say.
    pub error: Option<f64>,
}

impl Checked {
    /// Whether nothing is wrong. An error that is not a number is wrong.
    pub fn passed(&self) -> bool {
        self.differing.unwrap_or(0) == 0 && self.error.is_none_or(|e| e <= 1.0)
    }
}

/// Every kernel over odd shapes: on a GPU itself, on the CPU its mirror.
///
/// # Errors
/// When a kernel can't be launched.
pub fn kernels(device: &Device, seed: u64) -> Result<Vec<Checked>> {
    let mut all = Vec::new();
    for case in mirror::cases(seed) {
        let found = run(device, &case)?;
        for output in &case.outputs {
            let bytes = found.get(&output.arg).unwrap_or(&output.mirror);
            let error = output.error(bytes).map(|e| if e == 0.0 { 0.0 } else { e / output.tolerance });
            all.push(Checked {
                what: case.kernel().to_string(),
                case: case.name.clone(),
                numbers: output.numbers(bytes).len(),
                differing: Some(output.differing(bytes)),
                error,
            });
        }
    }
    Ok(all)
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
        let found = kernels(&cpu(), 2).expect("it runs");
        let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
        assert!(failed.is_empty() && found.len() > 70, "{failed:?}");
    }

    #[test]
    fn products_on_the_cpu_pass_and_are_not_all_alike() {
        let found = products::products(&cpu(), ComputeType::F32, 3).expect("it runs");
        let failed: Vec<_> = found.iter().filter(|c| !c.passed()).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert!(found.len() > 100 && found.iter().any(|c| c.error > Some(1e-4)));
    }

    #[test]
    fn what_is_off_fails() {
        let good = Checked { what: "a".into(), case: "a".into(), numbers: 1, differing: Some(0), error: Some(0.5) };
        assert!(good.passed());
        assert!(!Checked { differing: Some(1), ..good.clone() }.passed());
        assert!(!Checked { error: Some(1.5), ..good.clone() }.passed());
        assert!(!Checked { error: Some(f64::NAN), ..good }.passed());
    }
}
