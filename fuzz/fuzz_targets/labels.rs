//! The bytes of a labels file, all windows of which are read. The reader doesn't compare checksums under `cfg(fuzzing)`,
//! so that what they guard is reached.

#![no_main]

use libfuzzer_sys::fuzz_target;
use distillation::{Teacher, labels::Labels};

fuzz_target!(|bytes: &[u8]| {
    let Ok(labels) = Labels::open(&fuzz::write("x.labels", bytes)) else { return };
    let mut temperatures = labels.temperatures().to_vec();
    temperatures.push(1.0);
    for temperature in temperatures {
        let Ok(mut reader) = labels.at(temperature) else { continue };
        for window in 0..labels.windows().windows.len().min(100) {
            let _ = reader.soft(window);
        }
    }
});
