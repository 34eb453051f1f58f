//! Available memory of this machine and its GPUs.

use candle_core::Device;

/// Bytes that the system could give without swapping; none where it doesn't say. A program that touches more is ended
/// by it without a word, however the allocation went.
pub fn available() -> Option<u64> {
    let info = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix(" kB")?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Available memory of a device: of the machine for the CPU, else of the GPU's own memory.
pub fn available_on(device: &Device) -> Option<u64> {
    #[cfg(feature = "cuda")]
    if !device.is_cpu() {
        return crate::cuda::free_memory(device);
    }
    if device.is_cpu() { available() } else { None }
}

#[cfg(test)]
mod tests {
    #[test]
    fn some_memory_is_available() {
        let machine = if std::path::Path::new("/proc/meminfo").exists() { 1 << 20 } else { 0 };
        assert!(super::available().unwrap_or(0) >= machine);
    }
}
