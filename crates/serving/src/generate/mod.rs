//! Text from a prompt, as it comes.

mod chat;
mod settings;
mod stream;

pub use chat::{Message, Template};
pub use settings::{Defaults, Settings};
pub use stream::TextStream;

use schemars::JsonSchema;
use scoring::model::Continuation;
use scoring::{Encoder, Error, Result};
use serde::Serialize;
use std::ops::ControlFlow;

/// Reasons that a text ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model wrote an end token.
    EndToken,
    /// A text of [`Settings::stop`] came.
    StopText,
    /// The requested number of tokens was reached.
    Length,
    /// The reader had enough.
    Closed,
}

/// A generated text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Generated {
    /// The tokens, without the end token.
    pub tokens: Vec<u32>,
    /// Their text, without a stop text and what follows it.
    pub text: String,
    /// Reason that it ended.
    pub finish: Finish,
}

/// Continues `prompt` and hands pieces of text to `see` as soon as they are whole characters and
/// can't be the beginning of a stop text, until it breaks off.
///
/// # Errors
/// When the model or its tokenizer fails, or a setting is out of range.
pub fn generate(
    session: &mut dyn Continuation,
    encoder: &Encoder,
    prompt: &[u32],
    end_tokens: &[u32],
    settings: &Settings,
    see: &mut dyn FnMut(&str) -> ControlFlow<()>,
) -> Result<Generated> {
    let mut sampler = settings.sampler()?;
    let mut stream = TextStream::new(encoder.tokenizer(), prompt, &settings.stop);
    let (mut tokens, mut text) = (Vec::new(), String::new());
    let mut show = |piece: &str, text: &mut String| {
        text.push_str(piece);
        if piece.is_empty() { ControlFlow::Continue(()) } else { see(piece) }
    };
    sampler.read(prompt);
    let mut unread = prompt.to_vec();
    let finish = loop {
        if tokens.len() == settings.max_tokens {
            break Finish::Length;
        }
        let logits = session.extend(&unread, 1)?;
        let next = sampler.sample(&logits).map_err(|e| Error::Model(e.to_string()))?;
        if end_tokens.contains(&next) {
            break Finish::EndToken;
        }
        tokens.push(next);
        unread = vec![next];
        let piece = stream.push(next)?;
        if show(&piece, &mut text).is_break() {
            return Ok(Generated { tokens, text, finish: Finish::Closed });
        }
        if stream.is_stopped() {
            break Finish::StopText;
        }
    };
    let _ = show(&stream.finish()?, &mut text);
    Ok(Generated { tokens, text, finish })
}

#[cfg(test)]
mod tests {
    use super::*;
    use scoring::model::testing::{Bigram, Continued};
    use scoring::text::testing::encoder;

    fn run(settings: &Settings, end: &[u32], take: usize) -> (Generated, String) {
        let (model, encoder) = (Bigram::new(257, 0.3), encoder(false));
        let mut seen = String::new();
        let mut pieces = 0;
        let mut session = Continued(&model, Vec::new());
        let out = generate(&mut session, &encoder, &[3], end, settings, &mut |piece| {
            seen.push_str(piece);
            pieces += 1;
            if pieces == take { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (out.expect("runs"), seen)
    }

    #[test]
    fn what_is_seen_is_the_text() {
        let settings = Settings { max_tokens: 20, ..Settings::default() };
        let (out, seen) = run(&settings, &[], usize::MAX);
        assert_eq!((out.tokens.len(), out.finish), (20, Finish::Length));
        assert_eq!(out.text, seen);
        assert_eq!(out.text, encoder(false).decode(&out.tokens).expect("decodes"));
        let (closed, _) = run(&settings, &[], 1);
        assert_eq!(closed.finish, Finish::Closed);
        let (none, seen) = run(&Settings { max_tokens: 0, ..settings }, &[], usize::MAX);
        assert_eq!((none.tokens.len(), seen.as_str()), (0, ""));
    }

    #[test]
    fn end_tokens_and_stop_texts_end_it() {
        let settings = Settings { max_tokens: 20, ..Settings::default() };
        let (free, _) = run(&settings, &[], usize::MAX);
        let (ended, _) = run(&settings, &free.tokens[4..5], usize::MAX);
        assert_eq!((ended.finish, &ended.tokens[..]), (Finish::EndToken, &free.tokens[..ended.tokens.len()]));
        assert!(ended.tokens.len() <= 4);
        let stop: String = free.text.chars().skip(2).take(2).collect();
        let (stopped, seen) = run(&Settings { stop: vec![stop.clone()], ..settings }, &[], usize::MAX);
        assert_eq!((stopped.finish, &stopped.text), (Finish::StopText, &seen));
        assert!(free.text.starts_with(&seen) && !seen.contains(&stop));
    }

    #[test]
    fn the_same_seed_gives_the_same_text() {
        let settings = |seed| Settings { max_tokens: 12, temperature: 1.0, seed, ..Settings::default() };
        assert_eq!(run(&settings(1), &[], usize::MAX).0, run(&settings(1), &[], usize::MAX).0);
        assert_ne!(run(&settings(1), &[], usize::MAX).0, run(&settings(2), &[], usize::MAX).0);
    }
}
