//! The known scheme that an unknown name is nearest to.

use crate::{Bits, FloatType, GgmlType, Grouping, Scheme};
use strsim::levenshtein;

/// Names of other tools, without dashes and underscores, and the schemes that they stand for.
const ALIASES: [(&str, &str); 16] = [
    ("fp16", "f16"),
    ("float16", "f16"),
    ("half", "f16"),
    ("bfloat16", "bf16"),
    ("fp32", "f32"),
    ("float32", "f32"),
    ("int4", "int4-g128"),
    ("4bit", "nf4"),
    ("8bit", "int8-outlier"),
    ("llmint8", "int8-outlier"),
    ("awq", "int4-g128"),
    ("gptq", "int4-g128"),
    ("w4a16", "int4-g128"),
    ("w8a16", "int8-row"),
    ("bnb4bit", "nf4"),
    ("bnb8bit", "int8-outlier"),
];

/// Longest name that is compared with the known ones.
const LONGEST: usize = 32;

/// Fewest characters of a name's beginning.
const SHORTEST_BEGINNING: usize = 3;

/// ` (did you mean ggml-q4_0?)` for an error message; empty where no known scheme is near.
pub(crate) fn question(name: &str) -> String {
    nearest(name).map_or(String::new(), |scheme| format!(" (did you mean {scheme}?)"))
}

/// The known scheme that the name most probably means.
fn nearest(name: &str) -> Option<String> {
    let key = plain(name);
    if key.is_empty() || key.len() > LONGEST {
        return None;
    }
    if let Some((_, scheme)) = ALIASES.iter().find(|alias| alias.0 == key) {
        return Some((*scheme).into());
    }
    // llama.cpp's names of types have no prefix.
    let distance_to = |scheme: &String| {
        let known = plain(scheme);
        let bare = known.strip_prefix("ggml").unwrap_or(&known);
        let begins = key.len() >= SHORTEST_BEGINNING && (known.starts_with(&key) || bare.starts_with(&key));
        let edits = levenshtein(&key, &known).min(levenshtein(&key, bare));
        if begins { edits.min(1) } else { edits }
    };
    let (edits, scheme) = known().into_iter().map(|s| (distance_to(&s), s)).min_by_key(|s| s.0)?;
    (edits <= (key.len() / 4).max(1)).then_some(scheme)
}

/// The names that are suggested, the usual ones first.
fn known() -> Vec<String> {
    use {Bits::*, Grouping::Group};
    let mut out = Scheme::all();
    out.extend([32, 64].map(|n| Scheme::Int(Eight, Group(n))));
    out.extend([FloatType::F16, FloatType::BF16, FloatType::F32].map(Scheme::Float));
    out.extend(GgmlType::all().filter(|t| t.is_encodable()).map(Scheme::Ggml));
    out.iter().map(Scheme::to_string).collect()
}

/// Letters and digits alone, in lower case.
fn plain(name: &str) -> String {
    name.chars().filter(char::is_ascii_alphanumeric).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_tools_and_slips_are_recognized() {
        for (name, scheme) in [
            ("q4_0", "ggml-q4_0"),
            ("Q8_0", "ggml-q8_0"),
            ("Q4_K_M", "ggml-q4_k"),
            ("ggml-q4_k_s", "ggml-q4_k"),
            ("iq4_nl", "ggml-iq4_nl"),
            ("ggml_q4_0", "ggml-q4_0"),
            ("int8", "int8-row"),
            ("int4", "int4-g128"),
            ("int4-128", "int4-g128"),
            ("int4_g64", "int4-g64"),
            ("INT8-ROW", "int8-row"),
            ("int8-rows", "int8-row"),
            ("nf4_dq", "nf4-dq"),
            ("w8a8", "w8a8-token"),
            ("fp16", "f16"),
            ("llm.int8", "int8-outlier"),
            ("awq", "int4-g128"),
            ("GPTQ", "int4-g128"),
            ("W4A16", "int4-g128"),
        ] {
            assert_eq!(nearest(name).as_deref(), Some(scheme), "{name}");
            assert!(scheme.parse::<Scheme>().is_ok(), "{scheme}");
            let error = name.parse::<Scheme>().expect_err("unknown").to_string();
            let begin = format!("unknown scheme '{name}' (did you mean {scheme}?); known are f32, ");
            assert!(error.starts_with(&begin), "{error}");
        }
    }

    #[test]
    fn names_far_from_all_schemes_have_no_suggestion() {
        for name in ["", "-", "x", "zstd", "gptq-model", &"q".repeat(10_000)] {
            assert_eq!(nearest(name), None, "{name:.20}");
        }
        let error = "zstd".parse::<Scheme>().expect_err("unknown").to_string();
        assert!(error.starts_with("unknown scheme 'zstd'; known are f32, "), "{error}");
    }

    #[test]
    fn distances_are_levenshteins() {
        for (a, b, edits) in [("", "abc", 3), ("kitten", "sitting", 3), ("q4k", "q4km", 1), ("ab", "ba", 2)] {
            assert_eq!((levenshtein(a, b), levenshtein(b, a)), (edits, edits), "{a} {b}");
        }
    }
}
