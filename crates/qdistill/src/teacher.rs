//! The teacher: any model that the store opens, checkpoint or artifact, run by the runtime.

use crate::soft::{Soft, Teacher};
use crate::windows::Windows;
use crate::{Error, Result};
use runtime::{Options, Transformer};
use std::path::{Path, PathBuf};
use store::TextTokenizer;

/// A teacher that has been opened and loaded.
#[derive(Debug)]
pub struct Model {
    /// Where it came from.
    pub path: PathBuf,
    /// Its files.
    pub files: store::Model,
    /// Its transformer.
    pub transformer: Transformer,
    /// Its tokenizer.
    pub text: TextTokenizer,
}

impl Model {
    /// Opens a model to compute on the device of this name, which on a GPU multiplies values of this type.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::Runtime`].
    pub fn open(path: &Path, device: &str, dtype: &str) -> Result<Self> {
        let options = Options { compute: dtype.parse()?, ..Options::default() };
        let device = runtime::device(device, &options)?;
        let files = store::open(path)?;
        let text = files.text_tokenizer()?;
        let transformer = Transformer::load_with(&files, &device, &options)?;
        Ok(Self { path: path.into(), files, transformer, text })
    }

    /// What labels call it: its file's or folder's name.
    pub fn name(&self) -> String {
        let name = self.path.canonicalize().ok().and_then(|p| p.file_name().map(|n| n.to_string_lossy().into_owned()));
        name.unwrap_or_else(|| self.path.display().to_string())
    }

    /// Entries of the vocabulary, padding among them.
    pub fn vocab_size(&self) -> usize {
        self.transformer.config().vocab_size
    }

    /// Cuts text files, a document each, into windows of `context` tokens; of each file only the first `tokens`, if
    /// given. Windows begin with BOS where the tokenizer puts one before texts.
    ///
    /// # Errors
    /// A file that can't be read or isn't UTF-8, a token without a row of the embedding, a context beyond what the
    /// model was made for, or what [`Windows::new`] says.
    pub fn windows(&self, files: &[PathBuf], context: usize, tokens: Option<usize>) -> Result<Windows> {
        let longest = self.transformer.config().max_position;
        if context > longest {
            let what =
                format!("windows of {context} tokens are longer than the {longest} that {} is made for", self.name());
            return Err(Error::Text(format!("{what}; give a shorter context")));
        }
        let mut documents = Vec::with_capacity(files.len());
        for file in files {
            let text = std::fs::read_to_string(file).map_err(Error::io(file))?;
            let mut ids = self.text.encode(&text).map_err(|e| Error::Tokenizer(format!("{}: {e}", file.display())))?;
            ids.truncate(tokens.unwrap_or(usize::MAX));
            let vocab = self.vocab_size();
            if let Some(&id) = ids.iter().chain(self.text.bos().iter()).find(|&&id| id as usize >= vocab) {
                return Err(runtime::Error::Token { id, vocab }.into());
            }
            if ids.len() + usize::from(self.text.bos().is_some()) < 2 {
                return Err(Error::malformed(file, format!("{} tokens are too few to predict one", ids.len())));
            }
            documents.push(ids);
        }
        Windows::new(&documents, context, self.text.bos())
    }

    /// Runs a window and hands the logits of each of its predictions, `rows_at_a_time` of them at a time with the
    /// number of the first, to `see`.
    ///
    /// # Errors
    /// [`Error::Runtime`], or what `see` says.
    pub fn predict(
        &self,
        window: &[u32],
        rows_at_a_time: usize,
        mut see: impl FnMut(usize, &[f32]) -> Result<()>,
    ) -> Result<()> {
        // Nothing is predicted from the last token.
        let inputs = &window[..window.len().saturating_sub(1)];
        let hidden = self.transformer.hidden(&[inputs], None)?;
        for first in (0..inputs.len()).step_by(rows_at_a_time.max(1)) {
            let rows = first..(first + rows_at_a_time.max(1)).min(inputs.len());
            self.transformer.see_logits(&hidden, rows, |logits| see(first, logits))??;
        }
        Ok(())
    }
}

/// A teacher that is run for each window, each time.
#[derive(Debug)]
pub struct Online<'a> {
    model: &'a Model,
    windows: &'a Windows,
    temperature: f64,
}

impl<'a> Online<'a> {
    /// A teacher for these windows.
    pub fn new(model: &'a Model, windows: &'a Windows, temperature: f64) -> Self {
        Self { model, windows, temperature }
    }
}

impl Teacher for Online<'_> {
    fn vocab_size(&self) -> usize {
        self.model.vocab_size()
    }

    fn temperature(&self) -> f64 {
        self.temperature
    }

    fn soft(&mut self, window: usize) -> Result<Soft> {
        let tokens = self.windows.tokens_of(window);
        let mut all = Vec::with_capacity((tokens.len() - 1) * self.vocab_size());
        self.model.predict(tokens, tokens.len(), |_, logits| {
            all.extend_from_slice(logits);
            Ok(())
        })?;
        Ok(Soft::Full { logits: all })
    }
}
