//! Version and properties of the driver, checked before anything relies on them.
//!
//! cudarc takes every code for one that it knows; a newer or a broken driver may have others. So the first calls are made
//! here, with codes as plain numbers.

use std::ffi::{CStr, c_char, c_int, c_uint};

unsafe extern "C" {
    fn cuInit(flags: c_uint) -> c_int;
    fn cuDeviceGetCount(count: *mut c_int) -> c_int;
    fn cuGetErrorString(code: c_int, text: *mut *const c_char) -> c_int;
}

/// Returns whether there is a GPU of that number; if not, why.
pub(super) fn probe(ordinal: usize) -> Result<(), String> {
    // SAFETY: these functions may be called before any other, from any thread; the count lives through the call.
    let (started, count) = unsafe {
        let mut count = 0;
        let started = cuInit(0);
        (if started == 0 { cuDeviceGetCount(&raw mut count) } else { started }, count)
    };
    if started != 0 {
        return Err(format!("the driver gives error {started}{}; see what nvidia-smi says", text(started)));
    }
    match usize::try_from(count) {
        Ok(count) if ordinal < count => Ok(()),
        _ => Err(format!("the driver sees {count} GPUs, counted from 0; see what nvidia-smi -L lists")),
    }
}

/// ` (the driver's words for a code)`, if it has any.
fn text(code: c_int) -> String {
    let mut words: *const c_char = std::ptr::null();
    // SAFETY: the driver sets the pointer to a static string that ends in 0, or leaves it null.
    let words = unsafe {
        let known = cuGetErrorString(code, &raw mut words) == 0 && !words.is_null();
        known.then(|| CStr::from_ptr(words).to_string_lossy())
    };
    words.map_or_else(String::new, |words| format!(" ({})", words.lines().next().unwrap_or_default()))
}
