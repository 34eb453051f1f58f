//! The bytes of a safetensors file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::read_model(&fuzz::write("model.safetensors", bytes));
});
