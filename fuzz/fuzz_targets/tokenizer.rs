//! A tokenizer.json, and texts cut by it.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::json;

fuzz_target!(|text: &[u8]| {
    let Ok(text) = std::str::from_utf8(text) else { return };
    let header = json!({"__metadata__": {"qconvert.hf.tokenizer.json": text}}).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let Ok(model) = store::open(&fuzz::write("tokenizer.safetensors", &file)) else { return };
    if let Ok(tokenizer) = model.text_tokenizer() {
        for text in ["", "Call me Ishmael.", "\u{e9}\u{4e2d}\u{1f40b} <|endoftext|> \n\n\t x"] {
            let _ = tokenizer.encode(text);
        }
    }
});
