//! The road from text to tokens to sequences, the same for scoring, calibration, labels, training and prompts.
//!
//! | part of tokenizer.json | rule |
//! |---|---|
//! | names of special tokens in a text (`<|im_end|>`) | ordinary text, as llama-perplexity reads them: no text can put a chat marker into the model's input ([`TextTokenizer::marked`] is for chat templates) |
//! | truncation, padding | never applied |
//! | normalizer, pre-tokenizer, tokens added as ordinary ones | as they are |
//! | BOS | [`Bos`]: where the post-processor adds one, unless asked otherwise |
//! | other tokens that the post-processor adds | never added |

use crate::panics::caught;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use tokenizers::Tokenizer;

/// When sequences begin with the begin-of-sequence token.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Bos {
    /// BOS where the tokenizer adds one.
    #[default]
    Auto,
    /// In every sequence.
    Always,
    /// In none.
    Never,
}

/// A tokenized text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The tokens, without BOS.
    pub ids: Vec<u32>,
    /// The end of each token in the text, in bytes; never falling.
    pub ends: Vec<usize>,
}

/// A tokenizer for running text: special tokens are ordinary text, nothing is cut off or padded.
#[derive(Debug, Clone)]
pub struct TextTokenizer {
    tokenizer: Tokenizer,
    bos: Option<u32>,
}

impl TextTokenizer {
    /// Sets up a tokenizer.
    ///
    /// # Errors
    /// When the tokenizer fails on any text.
    pub fn new(mut tokenizer: Tokenizer) -> tokenizers::Result<Self> {
        tokenizer.set_encode_special_tokens(true);
        // A stored tokenizer may ask for truncation or padding to a training length.
        let _ = tokenizer.with_truncation(None);
        tokenizer.with_padding(None);
        let with = guarded(|| tokenizer.encode("a", true))?;
        let without = guarded(|| tokenizer.encode("a", false))?;
        let (with, without) = (with.get_ids(), without.get_ids());
        let bos = with.first().copied().filter(|_| with.len() > without.len() && with.first() != without.first());
        Ok(TextTokenizer { tokenizer, bos })
    }

    /// The tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The begin-of-sequence token that the tokenizer puts before texts, if it does.
    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// The token to begin sequences with under a rule. `named` is the begin-of-sequence token that the model's
    /// configuration names. An error of `()`: the rule asks for one, and there is none.
    #[allow(clippy::result_unit_err)]
    pub fn start(&self, rule: Bos, named: Option<u32>) -> Result<Option<u32>, ()> {
        match rule {
            Bos::Never => Ok(None),
            Bos::Auto => Ok(self.bos),
            Bos::Always => self.bos.or(named).map(Some).ok_or(()),
        }
    }

    /// Tokens of a text, without BOS.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        Ok(guarded(|| self.tokenizer.encode_fast(text, false))?.get_ids().to_vec())
    }

    /// Tokens of a text, without BOS, and where they end.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode_with_ends(&self, text: &str) -> tokenizers::Result<Encoded> {
        let encoding = guarded(|| self.tokenizer.encode(text, false))?;
        let mut end = 0;
        let ends = encoding.get_offsets().iter().map(|o| {
            end = end.max(o.1);
            end
        });
        Ok(Encoded { ids: encoding.get_ids().to_vec(), ends: ends.collect() })
    }

    /// Tokens of a text in which the names of special tokens stand for these tokens, as in what a chat template makes.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn marked(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        let mut tokenizer = self.tokenizer.clone();
        tokenizer.set_encode_special_tokens(false);
        Ok(guarded(|| tokenizer.encode_fast(text, false))?.get_ids().to_vec())
    }

    /// The text of tokens, without special ones.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn decode(&self, ids: &[u32]) -> tokenizers::Result<String> {
        guarded(|| self.tokenizer.decode(ids, true))
    }

    /// Tokens by id, without those that only pad the vocabulary.
    pub fn vocabulary(&self) -> BTreeMap<u32, String> {
        let padding = |name: &str| name.starts_with("[PAD") && name.ends_with(']');
        let all = self.tokenizer.get_vocab(true).into_iter();
        all.filter(|(name, _)| !padding(name)).map(|(name, id)| (id, name)).collect()
    }

    /// The merges of a BPE model, in order.
    pub fn merges(&self) -> Option<serde_json::Value> {
        let json = serde_json::to_value(self.tokenizer.get_model()).ok()?;
        json.get("merges").cloned()
    }

    /// BLAKE3 over what decides which tokens a text becomes: vocabulary, merges and BOS. Containers that spell the
    /// same tokenizer differently have the same.
    pub fn blake3(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (id, name) in self.vocabulary() {
            hasher.update(format!("{id}\0{name}\0").as_bytes());
        }
        hasher.update(format!("{}\0{:?}", self.merges().unwrap_or_default(), self.bos).as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}

/// Runs a call of the tokenizers crate, whose panic on a damaged tokenizer becomes an error.
fn guarded<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> tokenizers::Result<T> {
    caught(call).map_err(tokenizers::Error::from).and_then(|result| result)
}

/// Number of tokens of a text that run through a model, and their cut into sequences: for calibration and for
/// observing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of the text that are used.
    pub tokens: usize,
    /// Positions of a sequence, a begin-of-sequence token among them; at least 2.
    pub ctx: usize,
    /// When sequences begin with that token.
    pub bos: Bos,
}

impl Cut {
    /// Positions of a sequence unless asked otherwise.
    pub const CTX: usize = 512;

    /// The sequences of a tokenized text, one after the other; none of an empty text. `bos` is the token to begin each
    /// with, if any.
    pub fn sequences(&self, ids: &[u32], bos: Option<u32>) -> Vec<Vec<u32>> {
        let used = &ids[..ids.len().min(self.tokens)];
        let room = self.ctx.saturating_sub(usize::from(bos.is_some())).max(1);
        used.chunks(room).map(|part| bos.into_iter().chain(part.iter().copied()).collect()).collect()
    }
}

/// The texts that a model was trained on here: of each document its number of tokens and the BLAKE3 of their ids, in
/// string metadata under [`TrainedOn::KEY`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrainedOn(Vec<(usize, String)>);

impl TrainedOn {
    /// The metadata key. Its value is `TOKENS:BLAKE3`, separated by commas.
    pub const KEY: &str = "qdistill.text_blake3";

    /// Hashes documents, given as tokens without BOS.
    pub fn new<'a>(documents: impl IntoIterator<Item = &'a [u32]>) -> Self {
        let mut all: Vec<(usize, String)> = documents.into_iter().map(|ids| (ids.len(), hash(ids))).collect();
        all.sort();
        all.dedup();
        TrainedOn(all)
    }

    /// From a model's metadata; what isn't understood is left out.
    pub fn from_metadata(value: Option<&String>) -> Self {
        let entry = |entry: &str| {
            let (tokens, hash) = entry.split_once(':')?;
            Some((tokens.parse().ok()?, hash.to_string()))
        };
        TrainedOn(value.into_iter().flat_map(|v| v.split(',')).filter_map(entry).collect())
    }

    /// Returns whether a text begins with one of the documents.
    pub fn holds(&self, ids: &[u32]) -> bool {
        let begins = |(tokens, of): &(usize, String)| *tokens > 0 && ids.get(..*tokens).is_some_and(|p| hash(p) == *of);
        self.0.iter().any(begins)
    }
}

impl std::fmt::Display for TrainedOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let entries: Vec<String> = self.0.iter().map(|(tokens, hash)| format!("{tokens}:{hash}")).collect();
        f.write_str(&entries.join(","))
    }
}

fn hash(ids: &[u32]) -> String {
    let mut hasher = blake3::Hasher::new();
    ids.iter().for_each(|id| {
        hasher.update(&id.to_le_bytes());
    });
    hasher.finalize().to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequences_leave_room_for_bos() {
        let cut = Cut { tokens: 5, ctx: 3, bos: Bos::Auto };
        let ids: Vec<u32> = (10..20).collect();
        assert_eq!(cut.sequences(&ids, None), [vec![10, 11, 12], vec![13, 14]]);
        assert_eq!(cut.sequences(&ids, Some(1)), [vec![1, 10, 11], vec![1, 12, 13], vec![1, 14]]);
        assert!(cut.sequences(&[], Some(1)).is_empty());
    }

    #[test]
    fn a_text_is_known_by_its_tokens() {
        let documents = [vec![1, 2, 3], vec![7, 8]];
        let known = TrainedOn::new(documents.iter().map(Vec::as_slice));
        let read = TrainedOn::from_metadata(Some(&known.to_string()));
        assert_eq!(read, known);
        assert!(read.holds(&[7, 8]) && read.holds(&[1, 2, 3, 4]), "a text that goes on after the document");
        assert!(!read.holds(&[1, 2]) && !read.holds(&[2, 3]) && !read.holds(&[]));
        assert!(!TrainedOn::from_metadata(Some(&"nonsense,3:x".to_string())).holds(&[1, 2, 3]));
    }
}
