//! Tokens as text, piece by piece.

use crate::{Error, Result};
use tokenizers::Tokenizer;
use tokenizers::tokenizer::step_decode_stream;

/// Turns tokens into text as they come. A character is shown once all its bytes are there, and
/// nothing is shown that may turn out to be part of a stop text.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    /// What the tokenizer's stream goes by: tokens, their text so far, tokens of that text.
    ids: Vec<u32>,
    prefix: String,
    prefix_index: usize,
    /// Tokens whose characters are not whole yet.
    open: Vec<u32>,
    /// Text that may be the beginning of a stop text.
    held: String,
    stopped: bool,
}

impl<'a> TextStream<'a> {
    /// An empty text.
    pub fn new(tokenizer: &'a Tokenizer, stops: &'a [String]) -> Self {
        TextStream {
            tokenizer,
            stops,
            ids: Vec::new(),
            prefix: String::new(),
            prefix_index: 0,
            open: Vec::new(),
            held: String::new(),
            stopped: false,
        }
    }

    /// Adds a token; the text that is now certain, which may be empty.
    ///
    /// # Errors
    /// [`Error::Text`] when the tokenizer can't decode it.
    pub fn push(&mut self, token: u32) -> Result<String> {
        let (ids, prefix, index) = (&mut self.ids, &mut self.prefix, &mut self.prefix_index);
        let piece = step_decode_stream(self.tokenizer, vec![token], true, ids, prefix, index).map_err(refused)?;
        match piece {
            Some(piece) => {
                self.open.clear();
                Ok(self.pass(&piece))
            }
            None => {
                self.open.push(token);
                Ok(String::new())
            }
        }
    }

    /// Whether a stop text has come.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// What is left at the end; bytes that are no whole character show as U+FFFD.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(mut self) -> Result<String> {
        if self.stopped {
            return Ok(String::new());
        }
        let rest = self.tokenizer.decode(&self.open, true).map_err(refused)?;
        let shown = self.pass(&rest);
        Ok(if self.stopped { shown } else { shown + &self.held })
    }

    /// Holds back what could begin a stop text, and ends at one.
    fn pass(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop)).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let begins = |at: usize| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..]));
        let keep = self.held.char_indices().map(|(at, _)| at).find(|&at| begins(at)).unwrap_or(self.held.len());
        let rest = self.held.split_off(keep);
        std::mem::replace(&mut self.held, rest)
    }
}

fn refused(e: tokenizers::Error) -> Error {
    Error::Text(format!("the tokenizer can't decode the text: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::testing::encoder;

    fn pieces(text: &str, stops: &[&str]) -> (Vec<String>, String, bool) {
        let encoder = encoder(false);
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut stream = TextStream::new(encoder.tokenizer(), &stops);
        let mut out = Vec::new();
        for id in encoder.encode(text).expect("encodes").ids {
            out.push(stream.push(id).expect("decodes"));
            if stream.is_stopped() {
                break;
            }
        }
        let stopped = stream.is_stopped();
        let rest = stream.finish().expect("decodes");
        (out, rest, stopped)
    }

    #[test]
    fn a_character_comes_when_it_is_whole() {
        let (out, rest, _) = pieces("a€😀b", &[]);
        assert_eq!(out, ["a", "", "", "€", "", "", "", "😀", "b"]);
        assert_eq!(rest, "");
        assert_eq!(pieces("a", &[]).0, ["a"]);
    }

    #[test]
    fn bytes_that_are_no_character_come_at_the_end() {
        let encoder = encoder(false);
        let ids = encoder.encode("a€").expect("encodes").ids;
        let mut stream = TextStream::new(encoder.tokenizer(), &[]);
        let shown: String = ids[..3].iter().map(|&id| stream.push(id).expect("decodes")).collect();
        assert_eq!(shown + &stream.finish().expect("decodes"), "a\u{fffd}");
    }

    #[test]
    fn a_stop_text_is_never_shown() {
        let (out, rest, stopped) = pieces("one END two", &["END"]);
        assert_eq!((out.concat().as_str(), rest.as_str(), stopped), ("one ", "", true));
        // What only looks like one is shown once that is known, or at the end.
        let (out, rest, stopped) = pieces("an E, an EN", &["END"]);
        assert_eq!((out.concat().as_str(), rest.as_str(), stopped), ("an E, an ", "EN", false));
        assert_eq!(pieces("aab", &["ab"]).0.concat(), "a");
        assert_eq!(pieces("x yz", &["z", "yz"]).0.concat(), "x ");
    }
}
