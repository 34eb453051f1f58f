//! Checks against the available memory: a system ends a program that asks for more than it has, without a word.

use crate::recipe::Shape;
use crate::{Error, Result};
use candle_core::Device;
use runtime::memory::available_on;

/// The way out where the model takes too much.
pub(crate) const SMALLER: &str = "make the model smaller";

/// Refuses `bytes` (none where they overflow) for `what` where the device doesn't have as many available, and tells the
/// `way_out`.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check(device: &Device, what: &str, bytes: Option<u64>, way_out: &str) -> Result<()> {
    let available = available_on(device).unwrap_or(isize::MAX as u64);
    if bytes.is_some_and(|bytes| bytes <= available) {
        return Ok(());
    }
    let gib = |bytes: u64| format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30));
    let need = bytes.map_or("more than 16 EiB".into(), gib);
    let has = gib(available);
    let place = if device.is_cpu() { "this machine" } else { "the GPU" };
    Err(Error::Memory(format!("{what} would take {need}, and {place} has {has} available; {way_out}")))
}

/// Refuses a student whose training can't fit, whatever the batch, before it is made.
///
/// # Errors
/// [`Error::Memory`].
pub(crate) fn check_student(device: &Device, shape: &Shape, vocabulary: usize, frozen: bool) -> Result<()> {
    let Shape { layers, hidden, .. } = shape;
    let what = format!("a student of {layers} blocks, {hidden} wide, with {vocabulary} tokens, and its training");
    check(device, &what, shape.training_bytes(vocabulary, frozen), SMALLER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_refused_with_its_size() {
        check(&Device::Cpu, "little", Some(1 << 20), "").expect("a MiB");
        let says = |bytes| check(&Device::Cpu, "much", bytes, "take less").expect_err("too much").to_string();
        assert!(says(Some(1 << 60)).contains("much would take 1073741824.0 GiB, and this machine has "));
        assert!(says(None).contains("more than 16 EiB"));
    }
}
