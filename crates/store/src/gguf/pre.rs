//! Pre-tokenizers: GGUF names them, tokenizer.json spells them out.

use serde_json::{Value as Json, json};

/// Pre-tokenizer by llama.cpp's name: how it splits text, and the settings that go with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pre {
    /// GPT-2's regular expression, digits apart (SmolLM, StarCoder).
    Smollm,
    /// Qwen's regular expression: single digits.
    Qwen2,
    /// Llama 3's: up to three digits. `ignore_merges` takes whole words from the vocabulary.
    Llama3 {
        /// True if a word in the vocabulary is taken without merging.
        ignore_merges: bool,
    },
    /// GPT-2's regular expression alone.
    Gpt2,
    /// llama.cpp's own rules where a file names none.
    Default,
}

const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// llama.cpp's default, applied one after the other.
const DEFAULT: [&str; 4] = [
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
    r"[0-9][0-9][0-9]",
];

impl Pre {
    /// By the name in `tokenizer.ggml.pre`; names that llama.cpp treats alike are one.
    pub fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "smollm" | "starcoder" | "refact" | "codeshell" => Pre::Smollm,
            "qwen2" | "deepseek-r1-qwen" => Pre::Qwen2,
            "llama-bpe" | "llama3" | "llama-v3" => Pre::Llama3 { ignore_merges: true },
            "smaug-bpe" | "dbrx" => Pre::Llama3 { ignore_merges: false },
            "gpt-2" | "phi-2" | "olmo" => Pre::Gpt2,
            "default" => Pre::Default,
            _ => return None,
        })
    }

    /// The name to write.
    pub fn name(self) -> &'static str {
        match self {
            Pre::Smollm => "smollm",
            Pre::Qwen2 => "qwen2",
            Pre::Llama3 { ignore_merges: true } => "llama-bpe",
            Pre::Llama3 { ignore_merges: false } => "smaug-bpe",
            Pre::Gpt2 => "gpt-2",
            Pre::Default => "default",
        }
    }

    /// Returns whether the vocabulary's words are taken whole.
    pub fn ignore_merges(self) -> bool {
        matches!(self, Pre::Llama3 { ignore_merges: true })
    }

    /// Returns whether llama.cpp puts BOS first when the file doesn't say.
    pub fn adds_bos(self) -> bool {
        self.ignore_merges()
    }

    /// The `pre_tokenizer` of tokenizer.json.
    pub fn pre_tokenizer(self) -> Json {
        match self {
            Pre::Smollm => sequence(vec![json!({"type": "Digits", "individual_digits": true}), byte_level(true, true)]),
            Pre::Qwen2 => sequence(vec![split(QWEN2), byte_level(false, false)]),
            Pre::Llama3 { .. } => sequence(vec![split(LLAMA3), byte_level(true, false)]),
            Pre::Gpt2 => byte_level(true, true),
            Pre::Default => sequence(DEFAULT.into_iter().map(split).chain([byte_level(true, false)]).collect()),
        }
    }

    /// The `normalizer` of tokenizer.json.
    pub fn normalizer(self) -> Json {
        if self == Pre::Qwen2 { json!({"type": "NFC"}) } else { Json::Null }
    }

    /// Recognizes the rules of a tokenizer.json; what is odd about them when it can't.
    pub fn detect(tokenizer: &Json) -> Result<Self, String> {
        let ignore_merges = tokenizer["model"]["ignore_merges"].as_bool().unwrap_or(false);
        let mut steps = Vec::new();
        flatten(&tokenizer["pre_tokenizer"], &mut steps);
        let found =
            [Pre::Smollm, Pre::Qwen2, Pre::Llama3 { ignore_merges }, Pre::Gpt2, Pre::Default].into_iter().find(|pre| {
                let mut own = Vec::new();
                flatten(&pre.pre_tokenizer(), &mut own);
                own == steps
            });
        let Some(pre) = found else {
            return Err(format!(
                "its pre-tokenizer has no name in GGUF that is known here: {}",
                short(&tokenizer["pre_tokenizer"])
            ));
        };
        if ignore_merges && !pre.ignore_merges() {
            return Err(format!("ignore_merges does not go with the {} pre-tokenizer in GGUF", pre.name()));
        }
        match tokenizer["normalizer"]["type"].as_str() {
            None | Some("NFC") => Ok(pre),
            Some(other) => Err(format!("GGUF cannot carry its normalizer {other}")),
        }
    }
}

/// Collects the steps of a pre-tokenizer, without settings that make no difference to the tokens.
fn flatten(pre: &Json, out: &mut Vec<String>) {
    match pre["type"].as_str() {
        Some("Sequence") => {
            pre["pretokenizers"].as_array().into_iter().flatten().for_each(|p| flatten(p, out));
        }
        Some("Digits") => out.push(format!("digits {}", pre["individual_digits"])),
        Some("ByteLevel") => {
            let use_regex = pre["use_regex"].as_bool().unwrap_or(true);
            out.push(format!("bytes {} {use_regex}", pre["add_prefix_space"]));
        }
        Some("Split") if pre["behavior"] == "Isolated" && pre["invert"] == false => {
            out.push(format!("split {}", pre["pattern"]["Regex"]));
        }
        // The same split, said the other way round: only what matches is a word.
        Some("Split") if pre["behavior"] == "Removed" && pre["invert"] == true => {
            out.push(format!("split {}", pre["pattern"]["Regex"]));
        }
        _ => out.push(format!("? {pre}")),
    }
}

fn short(json: &Json) -> String {
    let text = json.to_string();
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

fn sequence(steps: Vec<Json>) -> Json {
    json!({"type": "Sequence", "pretokenizers": steps})
}

fn split(regex: &str) -> Json {
    json!({"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": false})
}

/// Bytes as characters, the step that all of these end with.
pub(super) fn byte_level(trim_offsets: bool, use_regex: bool) -> Json {
    json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": trim_offsets, "use_regex": use_regex})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_detected_from_its_own_rules() {
        for name in ["smollm", "qwen2", "llama-bpe", "smaug-bpe", "gpt-2", "default"] {
            let pre = Pre::from_name(name).expect("known");
            let json = json!({
                "pre_tokenizer": pre.pre_tokenizer(),
                "normalizer": pre.normalizer(),
                "model": {"ignore_merges": pre.ignore_merges()},
            });
            assert_eq!(Pre::detect(&json), Ok(pre));
            assert_eq!(pre.name(), name);
        }
    }

    #[test]
    fn others_are_refused_by_name() {
        let e = Pre::detect(&json!({"pre_tokenizer": {"type": "Metaspace"}})).expect_err("unknown");
        assert!(e.contains("Metaspace"), "{e}");
        let lower = json!({"pre_tokenizer": byte_level(true, true), "normalizer": {"type": "Lowercase"}});
        assert!(Pre::detect(&lower).expect_err("lower case").contains("Lowercase"));
        assert!(Pre::detect(&json!({})).is_err() && Pre::from_name("tekken").is_none());
    }
}
