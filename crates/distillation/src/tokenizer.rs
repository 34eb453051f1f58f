//! A byte-level BPE tokenizer of the GPT-2 kind, trained on the model's own text.

use crate::error::{Error, Result};
use std::collections::HashSet;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper};
use tokenizers::{Tokenizer, TokenizerBuilder};

/// The only special token: it begins and ends documents.
pub const END_OF_TEXT: &str = "<|endoftext|>";
/// Id of the end-of-text token.
pub const END_OF_TEXT_ID: u32 = 0;

/// Trains a tokenizer of `vocabulary` entries.
pub fn train(texts: &[String], vocabulary: usize) -> Result<Tokenizer> {
    let mut trainer = BpeTrainer::builder()
        .vocab_size(vocabulary)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(END_OF_TEXT, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect::<HashSet<char>>())
        .build();
    let mut tokenizer =
        TokenizerBuilder::<BPE, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>::new()
            .with_model(BPE::default())
            .with_pre_tokenizer(Some(ByteLevel::new(false, true, true).into()))
            .with_decoder(Some(ByteLevel::new(false, true, true).into()))
            .build()
            .map_err(|e| Error::Tokenizer(e.to_string()))?;
    tokenizer.train(&mut trainer, texts.iter()).map_err(|e| Error::Tokenizer(e.to_string()))?;
    let json = tokenizer.to_string(false).map_err(|e| Error::Tokenizer(e.to_string()))?;
    let tokenizer: Tokenizer = json.parse().map_err(|e: tokenizers::Error| Error::Tokenizer(e.to_string()))?;
    match tokenizer.get_vocab_size(true) {
        found if found == vocabulary => Ok(tokenizer),
        found => Err(Error::Text(format!(
            "it is too small for a vocabulary of {vocabulary} entries: it gives {found} with all merges"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_any_text() {
        let texts = [crate::testing::TEXT.repeat(4)];
        let tokenizer = train(&texts, 300).expect("enough text");
        assert_eq!(tokenizer.token_to_id(END_OF_TEXT), Some(END_OF_TEXT_ID));
        let text_tokenizer = store::TextTokenizer::new(tokenizer.clone()).expect("encodes");
        for text in ["The whale, the whale!\n\n  ünïcødé — 鯨 \u{1f40b}\t1851", "", " "] {
            let ids = text_tokenizer.encode(text).expect("any text");
            assert_eq!(tokenizer.decode(&ids, false).expect("own ids"), text);
        }
        // A marker in a text ends no document.
        assert!(!text_tokenizer.encode("<|endoftext|>").expect("text").contains(&END_OF_TEXT_ID));
    }

    #[test]
    fn says_when_the_text_is_too_small() {
        let error = train(&["abc".into()], 300).expect_err("three letters");
        assert!(error.to_string().contains("too small"), "{error}");
    }
}
