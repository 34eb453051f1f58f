//! Running text as tokens.
//!
//! The names of special tokens in a text (`<|im_end|>`) are read as ordinary text, as
//! llama-perplexity reads them: no text can put a chat marker into the model's input.

use std::collections::BTreeMap;
use tokenizers::Tokenizer;

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
        let with = tokenizer.encode("a", true)?;
        let without = tokenizer.encode("a", false)?;
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

    /// Tokens of a text, without BOS.
    ///
    /// # Errors
    /// The tokenizer's.
    pub fn encode(&self, text: &str) -> tokenizers::Result<Vec<u32>> {
        Ok(self.tokenizer.encode(text, false)?.get_ids().to_vec())
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
