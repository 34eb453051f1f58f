//! Texts as tokens: BOS, bytes, and whether two tokenizers are the same.

use crate::{Bos, Error, Protocol, Result, Style, Windows};
use std::collections::BTreeMap;
use store::{Encoded, TextTokenizer};
use tokenizers::Tokenizer;

/// A text to score.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Corpus {
    /// Name in tables.
    pub name: String,
    /// The text.
    pub text: String,
}

/// A model's tokenizer, set to read special tokens as ordinary text.
#[derive(Debug, Clone)]
pub struct Encoder {
    model: String,
    text: TextTokenizer,
    /// The token that the model names as its begin-of-sequence token.
    named: Option<u32>,
}

/// Tokens that stand for any text, where only their number matters; other ones for each `seed`.
pub fn any_tokens(n: usize, seed: usize, vocab_size: usize) -> Vec<u32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + 13) % vocab_size) as u32).collect()
}

impl Encoder {
    /// Wraps a tokenizer. `bos` is the begin-of-sequence token that the model names, if any.
    ///
    /// # Errors
    /// When the tokenizer fails on any text.
    pub fn new(model: impl Into<String>, tokenizer: Tokenizer, bos: Option<u32>) -> Result<Self> {
        let model = model.into();
        let refused = |e: tokenizers::Error| Error::Tokenizer { model: model.clone(), what: e.to_string() };
        let text = TextTokenizer::new(tokenizer).map_err(refused)?;
        Ok(Encoder { model, text, named: bos })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        self.text.tokenizer()
    }

    /// Tokens of a text, without BOS.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn encode(&self, text: &str) -> Result<Encoded> {
        self.text.encode_with_ends(text).map_err(|e| self.refused(&e))
    }

    /// Text of some tokens, special ones left out.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.text.decode(ids).map_err(|e| self.refused(&e))
    }

    fn refused(&self, e: &tokenizers::Error) -> Error {
        Error::Tokenizer { model: self.model.clone(), what: e.to_string() }
    }

    /// The token to begin with under a rule; none when there is to be none.
    ///
    /// # Errors
    /// [`Error::Protocol`] when BOS is asked for and the model has none.
    pub fn bos(&self, rule: Bos) -> Result<Option<u32>> {
        let none = |()| Error::Protocol(format!("{} names no BOS token; use --bos auto or never", self.model));
        self.text.start(rule, self.named).map_err(none)
    }

    /// Tokenizes a prompt, BOS in front if the rule says so.
    ///
    /// # Errors
    /// As [`Encoder::encode`] and [`Encoder::bos`].
    pub fn prompt(&self, text: &str, rule: Bos) -> Result<Vec<u32>> {
        let ids = self.encode(text)?.ids;
        Ok(self.bos(rule)?.into_iter().chain(ids).collect())
    }

    /// Tokens of a text in which the names of special tokens stand for these tokens, as in what a
    /// chat template makes.
    ///
    /// # Errors
    /// [`Error::Tokenizer`].
    pub fn marked(&self, text: &str) -> Result<Vec<u32>> {
        self.text.marked(text).map_err(|e| self.refused(&e))
    }

    /// Cuts a text into windows under a protocol.
    ///
    /// # Errors
    /// As [`Protocol::cut`]; the text is named.
    pub fn windows(&self, corpus: &Corpus, protocol: &Protocol) -> Result<Cut> {
        let named = |e: Error| match e {
            Error::Text(what) => Error::Text(format!("{}: {what}", corpus.name)),
            other => other,
        };
        if corpus.text.trim().is_empty() {
            return Err(Error::Text(format!("{}: the text is empty or only white space", corpus.name)));
        }
        let mut encoded = self.encode(&corpus.text)?;
        let bos = self.bos(protocol.bos)?;
        if let (Style::LlamaCpp, Some(bos)) = (protocol.style, bos) {
            encoded.ids.insert(0, bos);
            encoded.ends.insert(0, 0);
        }
        let windows = protocol.cut(&encoded.ids, bos).map_err(named)?;
        let token_bytes: Vec<usize> = windows
            .windows
            .iter()
            .flat_map(|w| w.text..w.text + w.scored.len())
            .map(|at| bytes_of(&encoded, at))
            .collect();
        let used = protocol.tokens.unwrap_or(usize::MAX).min(encoded.ids.len());
        let used_bytes = encoded.ends[..used].last().copied().unwrap_or(0);
        Ok(Cut { windows, bytes: token_bytes.iter().sum(), token_bytes, used_bytes })
    }
}

/// Bytes of the text that token `at` stands for; 0 within a character that is several tokens.
fn bytes_of(encoded: &Encoded, at: usize) -> usize {
    encoded.ends[at] - at.checked_sub(1).map_or(0, |i| encoded.ends[i])
}

/// A text cut into windows, with its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The windows.
    pub windows: Windows,
    /// Bytes of the scored tokens.
    pub bytes: usize,
    /// Bytes of each scored token.
    pub token_bytes: Vec<usize>,
    /// Bytes of the text from its start to the last token that is used.
    pub used_bytes: usize,
}

/// The reason that the tokens of two models can't be compared one by one; none when they can.
///
/// Names of tokens decide, not the size of the vocabulary: padding entries don't matter.
pub fn difference(reference: &Encoder, artifact: &Encoder) -> Option<String> {
    let (a, b) = (reference.text.vocabulary(), artifact.text.vocabulary());
    let absent = |x: &BTreeMap<u32, String>, y: &BTreeMap<u32, String>| {
        x.iter().find(|(id, name)| y.get(id) != Some(name)).map(|(&id, name)| (id, name.clone()))
    };
    if let Some((id, name)) = absent(&a, &b).or_else(|| absent(&b, &a)) {
        return Some(format!(
            "the tokenizers differ: token {id} ({name:?}) is not the same in both, of {} and {} tokens",
            a.len(),
            b.len()
        ));
    }
    if reference.text.merges() != artifact.text.merges() {
        return Some("the tokenizers differ: the merges of the vocabulary are not the same".into());
    }
    (reference.text.bos() != artifact.text.bos())
        .then(|| "the tokenizers differ: only one begins texts with BOS, or they use different tokens".into())
}

#[cfg(any(test, feature = "testing"))]
pub mod testing {
    //! A tokenizer for tests.

    use super::*;

    /// A byte-level BPE tokenizer of single bytes, with the given merges.
    pub fn tokenizer(merges: &[(&str, &str)], bos: bool) -> Tokenizer {
        let alphabet: Vec<char> = {
            let mut a: Vec<char> = tokenizers::pre_tokenizers::byte_level::ByteLevel::alphabet().into_iter().collect();
            a.sort_unstable();
            a
        };
        let mut vocab: Vec<String> = alphabet.iter().map(char::to_string).collect();
        vocab.extend(merges.iter().map(|(a, b)| format!("{a}{b}")));
        let n = vocab.len();
        let vocab: serde_json::Map<String, serde_json::Value> =
            vocab.into_iter().enumerate().map(|(i, t)| (t, i.into())).collect();
        let bytes = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let post = serde_json::json!({
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [n], "tokens": ["<s>"]}}
        });
        let json = serde_json::json!({
            "version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [{"id": n, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true}],
            "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
            "post_processor": if bos { post } else { serde_json::Value::Null },
            "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
                "vocab": vocab, "merges": merges.iter().map(|(a, b)| vec![a, b]).collect::<Vec<_>>()}
        });
        Tokenizer::from_bytes(json.to_string()).expect("a valid tokenizer")
    }

    /// An encoder of single bytes; its vocabulary has 257 entries, 256 is `<s>`.
    pub fn encoder(bos: bool) -> Encoder {
        Encoder::new("test", tokenizer(&[], bos), None).expect("encodes")
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{encoder, tokenizer};
    use super::*;

    #[test]
    fn special_tokens_in_a_text_are_text() {
        let encoder = encoder(false);
        assert_eq!(encoder.encode("<s>").expect("encodes").ids.len(), 3);
        assert_eq!(encoder.decode(&encoder.encode("a <s> b").expect("encodes").ids).expect("decodes"), "a <s> b");
    }

    #[test]
    fn bos_rules() {
        let with = encoder(true);
        assert_eq!(with.bos(Bos::Auto).expect("known"), Some(256));
        assert_eq!(with.prompt("ab", Bos::Auto).expect("encodes").len(), 3);
        assert_eq!(with.prompt("ab", Bos::Never).expect("encodes").len(), 2);
        let without = encoder(false);
        assert_eq!(without.bos(Bos::Auto).expect("known"), None);
        assert!(without.bos(Bos::Always).is_err());
        let named = Encoder::new("test", tokenizer(&[], false), Some(256)).expect("encodes");
        assert_eq!(named.bos(Bos::Always).expect("known"), Some(256));
        assert_eq!(named.bos(Bos::Auto).expect("known"), None);
    }

    #[test]
    fn bytes_are_those_of_the_scored_tokens() {
        let protocol = Protocol { ctx: 4, ..Protocol::default() };
        let corpus = Corpus { name: "c".into(), text: "ab cd\u{e9}fg".into() };
        // Nine bytes as nine tokens: the accented letter is two of them.
        let cut = encoder(false).windows(&corpus, &protocol).expect("long enough");
        assert_eq!(cut.windows.scored(), 6);
        assert_eq!(cut.used_bytes, 9);
        // The first of a window's four is not scored.
        assert_eq!(cut.token_bytes.len(), 6);
        assert_eq!(cut.token_bytes.iter().sum::<usize>(), cut.bytes);
        let all: usize = encoder(true).windows(&corpus, &protocol).expect("long enough").bytes;
        assert_eq!(all, 9, "with BOS every token is scored");
    }

    #[test]
    fn llama_counts_bos_as_the_first_token() {
        let corpus = Corpus { name: "c".into(), text: "abcdefghijklmnop".into() };
        let protocol = Protocol { ctx: 8, style: Style::LlamaCpp, ..Protocol::default() };
        let cut = encoder(true).windows(&corpus, &protocol).expect("17 tokens");
        let encoded = encoder(true).encode(&corpus.text).expect("encodes");
        assert_eq!(cut.windows.windows[0].tokens[..3], [256, encoded.ids[0], encoded.ids[1]]);
        assert_eq!(cut.windows.windows[1].tokens[..2], [256, encoded.ids[8]]);
        assert_eq!(cut.bytes, 6);
    }

    #[test]
    fn empty_texts_are_named() {
        for text in ["", " \n"] {
            let corpus = Corpus { name: "prose.txt".into(), text: text.into() };
            let e = encoder(false).windows(&corpus, &Protocol::default()).expect_err("nothing there");
            assert_eq!(e.to_string(), "prose.txt: the text is empty or only white space");
        }
    }

    #[test]
    fn tokenizers_that_differ_are_told_apart() {
        let make = |merges: &[(&str, &str)], bos| Encoder::new("t", tokenizer(merges, bos), None).expect("encodes");
        let plain = make(&[("a", "b"), ("c", "d")], false);
        assert_eq!(difference(&plain, &plain.clone()), None);
        let fewer = difference(&plain, &make(&[("a", "b")], false)).expect("differs");
        assert!(fewer.contains("259 and 258 tokens"), "{fewer}");
        assert!(difference(&plain, &make(&[("a", "b"), ("c", "d")], true)).is_some());
    }
}
