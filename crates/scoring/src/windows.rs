//! The protocol: the tokens of a text that are scored, and the tokens that the model sees before each.

use crate::{Bos, Error, Result};
use schemars::JsonSchema;
use serde::Serialize;
use std::ops::Range;

/// Program whose rule is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub enum Style {
    /// Windows that cover the text; every token that has a predecessor in its window is scored.
    #[default]
    #[serde(rename = "default")]
    Plain,
    /// llama-perplexity: disjoint chunks, of which the second half is scored.
    #[serde(rename = "llama.cpp")]
    LlamaCpp,
}

/// Rule that cuts a text into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Protocol {
    /// The rule.
    pub style: Style,
    /// Positions of a window, a begin-of-sequence token among them.
    pub ctx: usize,
    /// Text tokens from the start of one window to that of the next; none for windows that
    /// follow each other without overlap.
    pub stride: Option<usize>,
    /// When windows begin with the begin-of-sequence token.
    pub bos: Bos,
    /// Only so many tokens of the text are used.
    pub tokens: Option<usize>,
}

impl Default for Protocol {
    fn default() -> Self {
        Protocol { style: Style::Plain, ctx: 512, stride: None, bos: Bos::Auto, tokens: None }
    }
}

/// A run of tokens that the model sees at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Window {
    /// Tokens that the model sees.
    pub tokens: Vec<u32>,
    /// The positions whose tokens are scored; the logits come from the position before each.
    pub scored: Range<usize>,
    /// Index in the text of the token at the first scored position.
    pub text: usize,
}

impl Window {
    /// The positions whose logits are needed.
    pub fn predicting(&self) -> Range<usize> {
        self.scored.start - 1..self.scored.end - 1
    }

    /// The tokens that are scored.
    pub fn targets(&self) -> &[u32] {
        &self.tokens[self.scored.clone()]
    }
}

/// A text cut into windows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The windows, in order.
    pub windows: Vec<Window>,
    /// The rule in a sentence, with the numbers that came out.
    pub rule: String,
}

impl Windows {
    /// Tokens that are scored.
    pub fn scored(&self) -> usize {
        self.windows.iter().map(|w| w.scored.len()).sum()
    }

    /// Positions of the longest window.
    pub fn longest(&self) -> usize {
        self.windows.iter().map(|w| w.tokens.len()).max().unwrap_or(0)
    }

    /// Lengths of the windows' scored runs.
    pub fn lengths(&self) -> Vec<usize> {
        self.windows.iter().map(|w| w.scored.len()).collect()
    }
}

impl Protocol {
    /// Checks what can be checked without a text.
    ///
    /// # Errors
    /// [`Error::Protocol`].
    pub fn check(&self) -> Result<()> {
        let wrong = |what: String| Err(Error::Protocol(what));
        let least = if self.style == Style::LlamaCpp { 4 } else { 2 };
        if self.ctx < least {
            return wrong(format!("a context of {} positions is too short; at least {least} are needed", self.ctx));
        }
        match (self.stride, self.style) {
            (Some(0), _) => return wrong("a stride of 0 never gets to the end of the text".into()),
            (Some(s), _) if s > self.ctx => {
                return wrong(format!("a stride of {s} would skip text between windows of {}", self.ctx));
            }
            (Some(s), Style::LlamaCpp) if s != self.ctx => {
                return wrong("the llama.cpp protocol has no stride: its chunks are disjoint".into());
            }
            _ => {}
        }
        if self.style == Style::LlamaCpp && self.bos != Bos::Auto {
            return wrong("the llama.cpp protocol has its own rule for BOS: leave --bos at auto".into());
        }
        if self.tokens.is_some_and(|n| n < 2) {
            return wrong("at least 2 tokens are needed to score one".into());
        }
        Ok(())
    }

    /// Cuts a text's tokens into windows.
    ///
    /// `bos` is the token to begin windows with, if they shall begin with one. Under the
    /// llama.cpp protocol `text` begins with that token, as that program's tokenizer adds it,
    /// and the first token of each chunk is replaced by it.
    ///
    /// # Errors
    /// [`Error::Text`] when there is too little text, [`Error::Protocol`] for a protocol that
    /// makes no sense.
    pub fn cut(&self, text: &[u32], bos: Option<u32>) -> Result<Windows> {
        self.check()?;
        match self.style {
            Style::Plain => self.cut_plain(text, bos),
            Style::LlamaCpp => self.cut_llama(text, bos),
        }
    }

    fn cut_plain(&self, text: &[u32], bos: Option<u32>) -> Result<Windows> {
        let lead = usize::from(bos.is_some());
        let capacity = self.ctx - lead;
        let stride = self.stride.unwrap_or(capacity);
        if stride > capacity {
            let what = format!("a stride of {stride} skips text: with BOS a window of {} holds {capacity}", self.ctx);
            return Err(Error::Protocol(what));
        }
        let used = &text[..text.len().min(self.tokens.unwrap_or(usize::MAX))];
        if used.len() + lead < 2 || used.is_empty() {
            let what = format!("the text has {}, too little to score", tokens(used.len()));
            return Err(Error::Text(what));
        }
        let mut windows = Vec::new();
        let (mut start, mut done) = (0, 0);
        while done < used.len() {
            let end = (start + capacity).min(used.len());
            // The first token of a window that begins with it has nothing before it.
            let first = done.max(start + 1 - lead);
            if first < end {
                let tokens: Vec<u32> = bos.into_iter().chain(used[start..end].iter().copied()).collect();
                let scored = first - start + lead..tokens.len();
                windows.push(Window { tokens, scored, text: first });
            }
            (start, done) = (start + stride, end);
        }
        let mut out = Windows { windows, rule: String::new() };
        out.rule = self.plain_rule(used.len(), text.len(), stride, capacity, lead == 1, &out);
        Ok(out)
    }

    fn plain_rule(&self, used: usize, all: usize, stride: usize, capacity: usize, bos: bool, out: &Windows) -> String {
        let which = if used < all { format!("first {used} of {all}") } else { format!("all {used}") };
        let n = out.windows.len();
        let windows = if used <= capacity {
            format!("one window of {} (shorter than the context of {})", used + usize::from(bos), self.ctx)
        } else {
            let overlap = if stride == capacity { "without overlap".into() } else { format!("with stride {stride}") };
            let last = out.windows.last().map_or(0, |w| w.tokens.len());
            let short = if last < self.ctx { format!(", the last of {last}") } else { String::new() };
            format!("{n} windows of {}{short}, {overlap}", self.ctx)
        };
        let windows = if used == capacity { format!("one window of {}", self.ctx) } else { windows };
        let start = if bos { "BOS at the start of each" } else { "no BOS" };
        let scored = match (stride == capacity, bos) {
            (true, true) => "every text token is scored",
            (true, false) => "every token but the first of a window is scored",
            (false, true) => "each token is scored once, in the first window that holds it",
            (false, false) => "each token but the first is scored once, in the first window that holds it",
        };
        format!("{which} tokens, {windows}, {start}; {scored}: {} scored", tokens(out.scored()))
    }

    fn cut_llama(&self, text: &[u32], bos: Option<u32>) -> Result<Windows> {
        let ctx = self.ctx;
        if text.len() < 2 * ctx {
            let what = format!(
                "the llama.cpp protocol needs at least {} tokens for a context of {ctx}; the text has {}",
                2 * ctx,
                text.len()
            );
            return Err(Error::Text(what));
        }
        let used = text.len().min(self.tokens.unwrap_or(usize::MAX));
        if used < ctx {
            return Err(Error::Protocol(format!("{} are less than one chunk of {ctx}", tokens(used))));
        }
        let first = ctx / 2 + 1;
        let windows: Vec<Window> = text[..used]
            .chunks_exact(ctx)
            .enumerate()
            .map(|(i, chunk)| {
                let mut tokens = chunk.to_vec();
                if let Some(bos) = bos {
                    tokens[0] = bos;
                }
                Window { tokens, scored: first..ctx, text: i * ctx + first }
            })
            .collect();
        let mut out = Windows { windows, rule: String::new() };
        let start = if bos.is_some() { "the first token of each replaced by BOS" } else { "no BOS" };
        out.rule = format!(
            "as llama-perplexity: {} chunks of {ctx} without overlap, {start}, tokens {first} to {} of each scored: {} scored",
            out.windows.len(),
            ctx - 1,
            tokens(out.scored())
        );
        Ok(out)
    }
}

fn tokens(n: usize) -> String {
    if n == 1 { "1 token".into() } else { format!("{n} tokens") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(n: u32) -> Vec<u32> {
        (100..100 + n).collect()
    }

    fn plain(ctx: usize, stride: Option<usize>) -> Protocol {
        Protocol { ctx, stride, ..Protocol::default() }
    }

    /// (first token seen, tokens seen, first position scored, scored, place in the text)
    fn shape(windows: &Windows) -> Vec<(u32, usize, usize, usize, usize)> {
        windows.windows.iter().map(|w| (w.tokens[0], w.tokens.len(), w.scored.start, w.scored.len(), w.text)).collect()
    }

    #[test]
    fn the_table_of_the_reference_values() {
        let protocol = Protocol { tokens: Some(2048), ..Protocol::default() };
        let windows = protocol.cut(&text(4965), None).expect("long enough");
        assert_eq!((windows.scored(), windows.longest()), (2044, 512));
        assert_eq!(shape(&windows)[1], (612, 512, 1, 511, 513));
        assert_eq!(
            windows.rule,
            "first 2048 of 4965 tokens, 4 windows of 512, without overlap, no BOS; every token but the first of a \
             window is scored: 2044 tokens scored"
        );
    }

    #[test]
    fn the_rest_of_a_text_is_a_shorter_window() {
        let windows = plain(4, None).cut(&text(10), None).expect("long enough");
        assert_eq!(shape(&windows), [(100, 4, 1, 3, 1), (104, 4, 1, 3, 5), (108, 2, 1, 1, 9)]);
        assert!(windows.rule.contains("3 windows of 4, the last of 2"), "{}", windows.rule);
        // A rest of one token can't be scored.
        let windows = plain(4, None).cut(&text(9), None).expect("long enough");
        assert_eq!(windows.scored(), 6);
    }

    #[test]
    fn bos_begins_every_window_and_takes_a_position() {
        let windows = plain(4, None).cut(&text(7), Some(1)).expect("long enough");
        assert_eq!(shape(&windows), [(1, 4, 1, 3, 0), (1, 4, 1, 3, 3), (1, 2, 1, 1, 6)]);
        assert_eq!(windows.scored(), 7);
        assert!(windows.rule.contains("BOS at the start of each"), "{}", windows.rule);
    }

    #[test]
    fn with_a_stride_each_token_is_scored_once() {
        for (bos, scored) in [(None, 9), (Some(1), 10)] {
            for stride in 1..=3 {
                let windows = plain(4, Some(stride)).cut(&text(10), bos).expect("long enough");
                let mut places: Vec<usize> =
                    windows.windows.iter().flat_map(|w| w.text..w.text + w.scored.len()).collect();
                assert_eq!(places.len(), scored, "{windows:?}");
                places.dedup();
                assert_eq!(places, (10 - scored..10).collect::<Vec<_>>());
                for w in &windows.windows {
                    assert_eq!(w.targets()[0], 100 + w.text as u32);
                }
            }
        }
        let windows = plain(4, Some(2)).cut(&text(8), None).expect("long enough");
        assert_eq!(shape(&windows), [(100, 4, 1, 3, 1), (102, 4, 2, 2, 4), (104, 4, 2, 2, 6)]);
    }

    #[test]
    fn short_texts() {
        let one = plain(512, None).cut(&text(5), None).expect("two tokens suffice");
        assert_eq!(shape(&one), [(100, 5, 1, 4, 1)]);
        assert!(one.rule.contains("one window of 5 (shorter than the context of 512)"), "{}", one.rule);
        for (n, bos) in [(0, None), (1, None), (0, Some(1))] {
            assert!(matches!(plain(512, None).cut(&text(n), bos), Err(Error::Text(_))), "{n}");
        }
        assert_eq!(plain(512, None).cut(&text(1), Some(1)).expect("BOS precedes it").scored(), 1);
    }

    #[test]
    fn llama_scores_the_second_half_of_whole_chunks() {
        let protocol = Protocol { style: Style::LlamaCpp, ctx: 8, ..Protocol::default() };
        let windows = protocol.cut(&text(30), Some(1)).expect("long enough");
        assert_eq!(shape(&windows), [(1, 8, 5, 3, 5), (1, 8, 5, 3, 13), (1, 8, 5, 3, 21)]);
        assert_eq!(windows.windows[0].predicting(), 4..7);
        assert_eq!(windows.windows[0].targets(), [105, 106, 107]);
        let no_bos = protocol.cut(&text(30), None).expect("long enough");
        assert_eq!(no_bos.windows[1].tokens[0], 108);
        assert!(protocol.cut(&text(15), None).is_err());
        let limited = Protocol { tokens: Some(8), ..protocol };
        assert_eq!(limited.cut(&text(30), None).expect("one chunk").scored(), 3);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let llama = Protocol { style: Style::LlamaCpp, ..Protocol::default() };
        let bad = [
            plain(1, None),
            plain(8, Some(0)),
            plain(8, Some(9)),
            Protocol { tokens: Some(1), ..Protocol::default() },
            Protocol { stride: Some(256), ..llama },
            Protocol { bos: Bos::Never, ..llama },
        ];
        for protocol in bad {
            assert!(matches!(protocol.cut(&text(2000), None), Err(Error::Protocol(_))), "{protocol:?}");
        }
        assert!(plain(8, Some(8)).cut(&text(20), Some(1)).is_err(), "BOS leaves room for 7");
    }
}
