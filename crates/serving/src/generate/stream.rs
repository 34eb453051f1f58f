//! Tokens as text, piece by piece.

use scoring::{Error, Result};
use tokenizers::Tokenizer;

/// Turns tokens into text as they come. A character is shown once all its bytes are there, and
/// nothing is shown that may turn out to be part of a stop text.
///
/// Text that continues a prompt is the text of both less that of the prompt, so that a word keeps the space before it
/// even where decoders strip the first space of a text.
#[derive(Debug)]
pub struct TextStream<'a> {
    tokenizer: &'a Tokenizer,
    stops: &'a [String],
    /// Tokens before the open ones that decide how these are decoded.
    before: Vec<u32>,
    /// Tokens whose characters are not whole yet.
    open: Vec<u32>,
    /// Text that may be the beginning of a stop text.
    held: String,
    stopped: bool,
}

/// Tokens of a prompt that the first ones after it are decoded with.
const CONTEXT: usize = 16;

impl<'a> TextStream<'a> {
    /// A text that continues `prompt`.
    pub fn new(tokenizer: &'a Tokenizer, prompt: &[u32], stops: &'a [String]) -> Self {
        TextStream {
            tokenizer,
            stops,
            before: prompt[prompt.len().saturating_sub(CONTEXT)..].to_vec(),
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
        self.open.push(token);
        let piece = self.piece()?;
        if piece.is_empty() || piece.ends_with('\u{fffd}') {
            return Ok(String::new());
        }
        // A token without a text of its own, such as a special one, changes nothing for those after it.
        self.before = std::mem::take(&mut self.open);
        Ok(self.pass(&piece))
    }

    /// The text of the open tokens.
    fn piece(&self) -> Result<String> {
        let decode = |ids: &[u32]| self.tokenizer.decode(ids, true).map_err(refused);
        let before = decode(&self.before)?;
        let all = decode(&[&self.before[..], &self.open].concat())?;
        match all.strip_prefix(&before) {
            Some(piece) => Ok(piece.to_string()),
            // Bytes that are no character with those before them.
            None => decode(&self.open),
        }
    }

    /// Returns whether a stop text has come.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Returns the text that is left at the end; bytes that are no whole character become U+FFFD.
    ///
    /// # Errors
    /// As [`TextStream::push`].
    pub fn finish(mut self) -> Result<String> {
        if self.stopped {
            return Ok(String::new());
        }
        let rest = self.piece()?;
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
    use scoring::text::testing::encoder;

    fn pieces(text: &str, stops: &[&str]) -> (Vec<String>, String, bool) {
        let encoder = encoder(false);
        let stops: Vec<String> = stops.iter().map(|s| s.to_string()).collect();
        let mut stream = TextStream::new(encoder.tokenizer(), &[], &stops);
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
        let mut stream = TextStream::new(encoder.tokenizer(), &[], &[]);
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

    #[test]
    fn the_first_word_keeps_its_space() {
        // As Llama 2's: texts begin with a space that isn't there, and the decoder strips the first one.
        let json = r#"{"added_tokens": [], "pre_tokenizer": null, "post_processor": null,
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "merges": [["▁", "a"], ["▁", "b"]],
                "vocab": {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁a": 4, "▁b": 5}}}"#;
        let tokenizer: Tokenizer = json.parse().expect("loads");
        let after = |prompt: &[u32]| {
            let mut stream = TextStream::new(&tokenizer, prompt, &[]);
            let shown: Vec<String> = [5, 3, 4].iter().map(|&id| stream.push(id).expect("decodes")).collect();
            shown.concat() + &stream.finish().expect("decodes")
        };
        assert_eq!(after(&[4]), " bb a", "after a prompt");
        assert_eq!(after(&[]), "bb a", "a text of its own");
    }
}
