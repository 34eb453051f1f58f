//! A chat template, rendered with a conversation.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serving::generate::{Message, Template};
use serde_json::json;

fuzz_target!(|source: &[u8]| {
    let Ok(source) = std::str::from_utf8(source) else { return };
    let header = json!({"__metadata__": {
        "qconvert.hf.chat_template.jinja": source,
        "qconvert.hf.tokenizer_config.json": r#"{"bos_token": "<s>", "eos_token": {"content": "</s>"}}"#,
    }})
    .to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    let Ok(model) = store::open(&fuzz::write("template.safetensors", &file)) else { return };
    let Ok(template) = Template::from_model(&model) else { return };
    let messages = [
        Message { role: "system", content: "Be brief." },
        Message { role: "user", content: "Who are you? " },
        Message { role: "assistant", content: "A whale." },
        Message { role: "user", content: "\u{1f40b}" },
    ];
    let _ = template.render(&messages);
});
