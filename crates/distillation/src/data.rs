//! Text into batches.

use crate::error::{Error, Result};
use crate::random::{self, ChaCha8Rng};
use crate::tokenizer::END_OF_TEXT_ID;
use rand::Rng;
use rand::seq::SliceRandom;
use std::path::Path;
use store::{TextTokenizer, TrainedOn};
use tokenizers::Tokenizer;

/// Reads a text.
///
/// # Errors
/// [`Error::Io`]; [`Error::Malformed`] for what isn't a file: a device may never end.
pub fn read_text(path: &Path) -> Result<String> {
    if !std::fs::metadata(path).map_err(Error::io(path))?.is_file() {
        return Err(Error::malformed(path, "is not a regular file"));
    }
    std::fs::read_to_string(path).map_err(Error::io(path))
}

/// The tokens of all training text, and the part that is kept for validation.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// Stretches of running text to train on.
    pub train: Vec<Vec<u32>>,
    /// Stretches of running text that are never trained on.
    pub validation: Vec<Vec<u32>>,
    /// Single sentences, to be shuffled.
    pub sentences: Vec<Vec<u32>>,
    /// The texts, by which scoring knows them again.
    pub documents: TrainedOn,
    newline: Vec<u32>,
}

impl Corpus {
    /// Encodes running `texts` and `sentences` (one a line). Every so many windows of `window` tokens, one goes to
    /// validation, so that `share` of the text does.
    pub fn new(
        tokenizer: &Tokenizer,
        texts: &[String],
        sentences: &[String],
        window: usize,
        share: f64,
    ) -> Result<Self> {
        let refused = |e: tokenizers::Error| Error::Tokenizer(e.to_string());
        let tokenizer = TextTokenizer::new(tokenizer.clone()).map_err(refused)?;
        let encode = |text: &str| tokenizer.encode(text).map_err(refused);
        let running = texts.iter().map(|text| encode(text)).collect::<Result<Vec<_>>>()?;
        let lists = sentences.iter().map(|text| encode(text)).collect::<Result<Vec<_>>>()?;
        let documents = TrainedOn::new(running.iter().chain(&lists).map(Vec::as_slice));
        let mut corpus =
            Self { train: vec![], validation: vec![], sentences: vec![], documents, newline: encode("\n")? };
        let period = if share > 0.0 { (1.0 / share).round().max(2.0) as usize } else { usize::MAX };
        for text in running {
            let mut ids = vec![END_OF_TEXT_ID];
            ids.extend(text);
            ids.push(END_OF_TEXT_ID);
            corpus.split(&ids, window, period);
        }
        for line in sentences.iter().flat_map(|s| s.lines()).map(str::trim).filter(|l| !l.is_empty()) {
            corpus.sentences.push(encode(line)?);
        }
        if !corpus.train.iter().any(|span| span.len() > window) {
            return Err(Error::Text(format!("it is shorter than a window of {window} tokens")));
        }
        Ok(corpus)
    }

    fn split(&mut self, ids: &[u32], window: usize, period: usize) {
        let mut span = Vec::new();
        for (i, block) in ids.chunks(window + 1).enumerate() {
            if i % period == period / 2 && block.len() == window + 1 {
                self.validation.push(block.to_vec());
                self.train.push(std::mem::take(&mut span));
            } else {
                span.extend_from_slice(block);
            }
        }
        self.train.push(span);
        self.train.retain(|span| span.len() > 1);
    }

    /// Tokens of running text to train on.
    pub fn training_tokens(&self) -> usize {
        self.train.iter().map(Vec::len).sum()
    }
}

/// Draws batches: each pass over the text cuts it into windows at another offset and shuffles them.
#[derive(Debug)]
pub struct Sampler<'a> {
    corpus: &'a Corpus,
    rng: ChaCha8Rng,
    sentence_share: f64,
    windows: Vec<(usize, usize)>,
    cut_for: usize,
    deck: Vec<usize>,
}

impl<'a> Sampler<'a> {
    /// A sampler whose batches depend on `seed` only.
    pub fn new(corpus: &'a Corpus, sentence_share: f64, seed: u64) -> Self {
        let sentence_share = if corpus.sentences.is_empty() { 0.0 } else { sentence_share };
        let rng = random::stream(seed, random::BATCHES);
        Self { corpus, rng, sentence_share, windows: vec![], cut_for: 0, deck: vec![] }
    }

    /// `rows` rows of `tokens + 1` ids.
    pub fn batch(&mut self, rows: usize, tokens: usize) -> Result<Vec<u32>> {
        let mut batch = Vec::with_capacity(rows * (tokens + 1));
        for _ in 0..rows {
            if self.rng.random::<f64>() < self.sentence_share {
                self.sentences(tokens + 1, &mut batch);
            } else {
                let (span, start) = self.window(tokens)?;
                batch.extend_from_slice(&self.corpus.train[span][start..=start + tokens]);
            }
        }
        Ok(batch)
    }

    fn window(&mut self, tokens: usize) -> Result<(usize, usize)> {
        if self.cut_for != tokens || self.windows.is_empty() {
            self.cut(tokens);
        }
        self.windows.pop().ok_or_else(|| Error::Text(format!("no stretch of it holds {tokens} tokens and one more")))
    }

    fn cut(&mut self, tokens: usize) {
        self.windows.clear();
        self.cut_for = tokens;
        for (index, span) in self.corpus.train.iter().enumerate() {
            let Some(last) = span.len().checked_sub(tokens + 1) else { continue };
            let offset = self.rng.random_range(0..tokens).min(last);
            self.windows.extend((offset..=last).step_by(tokens).map(|start| (index, start)));
        }
        self.windows.shuffle(&mut self.rng);
    }

    /// Shuffled sentences, one a line; every second row begins a document.
    fn sentences(&mut self, length: usize, batch: &mut Vec<u32>) {
        let end = batch.len() + length;
        if self.rng.random::<bool>() {
            batch.push(END_OF_TEXT_ID);
        }
        while batch.len() < end {
            if self.deck.is_empty() {
                self.deck = (0..self.corpus.sentences.len()).collect();
                self.deck.shuffle(&mut self.rng);
            }
            if let Some(next) = self.deck.pop() {
                batch.extend_from_slice(&self.corpus.sentences[next]);
                batch.extend_from_slice(&self.corpus.newline);
            }
        }
        batch.truncate(end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn validation_is_never_trained_on() {
        let mut corpus = Corpus {
            train: vec![],
            validation: vec![],
            sentences: vec![],
            documents: TrainedOn::default(),
            newline: vec![7],
        };
        let ids: Vec<u32> = (0..1000).collect();
        corpus.split(&ids, 9, 10);
        assert_eq!(corpus.validation.len(), 10);
        let kept: usize = corpus.validation.iter().map(Vec::len).sum();
        assert_eq!(kept + corpus.training_tokens(), 1000);
        let mut sampler = Sampler::new(&corpus, 0.0, 1);
        for _ in 0..100 {
            for row in sampler.batch(2, 8).expect("long enough").chunks(9) {
                assert!(row.windows(2).all(|w| w[1] == w[0] + 1), "a window crosses a gap: {row:?}");
                assert!(corpus.validation.iter().flatten().all(|id| !row.contains(id)));
            }
        }
    }

    #[test]
    fn a_pass_covers_nearly_everything() {
        let corpus = Corpus {
            train: vec![(0..1000).collect()],
            validation: vec![],
            sentences: vec![],
            documents: TrainedOn::default(),
            newline: vec![],
        };
        let mut sampler = Sampler::new(&corpus, 0.0, 3);
        let mut seen = vec![0; 1000];
        for _ in 0..98 {
            for id in &sampler.batch(1, 10).expect("long enough")[..10] {
                seen[*id as usize] += 1;
            }
        }
        assert!(seen.iter().filter(|&&n| n == 1).count() >= 970);
    }

    #[test]
    fn sentences_begin_rows() {
        let (_, corpus) = testing::corpus();
        let mut sampler = Sampler::new(&corpus, 1.0, 5);
        for row in sampler.batch(20, 16).expect("sentences").chunks(17) {
            let begin = usize::from(row[0] == END_OF_TEXT_ID);
            assert!(corpus.sentences.iter().any(|s| row[begin..].starts_with(&s[..4.min(s.len())])), "{row:?}");
        }
    }
}
