//! The bytes of a GGUF file.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::read_model(&fuzz::write("model.gguf", bytes));
});
