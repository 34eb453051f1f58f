//! The teacher: any model that the store opens, checkpoint or artifact, run by the runtime.

use crate::data::read_text;
use crate::soft::{Resident, Soft, Teacher};
use crate::windows::Windows;
use crate::{Error, Result};
use candle_core::{D, Tensor};
use runtime::{Math, Transformer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use store::TextTokenizer;

/// A teacher that has been opened and loaded.
#[derive(Debug)]
pub struct Model {
    /// Path of the model.
    pub path: PathBuf,
    /// Files of the model.
    pub files: store::Model,
    /// Transformer of the model.
    pub transformer: Transformer,
    /// Tokenizer of the model.
    pub text: TextTokenizer,
}

impl Model {
    /// Opens a model to compute on the device of this name, which on a GPU multiplies values of this type.
    ///
    /// # Errors
    /// [`Error::Store`] and [`Error::Runtime`].
    pub fn open(path: &Path, device: &str, dtype: &str) -> Result<Self> {
        let (device, options) = runtime::device_and_options(device, dtype, Math::Exact)?;
        let files = store::open(path)?;
        let text = files.text_tokenizer()?;
        let transformer = Transformer::load_with(&files, &device, &options)?;
        Ok(Self { path: path.into(), files, transformer, text })
    }

    /// Name in labels: that of the file or folder.
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
            return Err(Error::Recipe(format!("{what}; give a shorter context")));
        }
        let mut documents = Vec::with_capacity(files.len());
        for file in files {
            let text = read_text(file)?;
            if !text.is_empty() && text.trim().is_empty() {
                return Err(Error::malformed(file, "holds white space alone"));
            }
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

    /// The error for outputs that are not finite: it names the first weight that is to blame, if one is.
    pub(crate) fn not_finite(&self, what: &str) -> Error {
        let is_broken = |name: &&String| {
            let values = self.files.dense(name).ok().flatten();
            values.is_some_and(|values| values.iter().any(|v| !v.is_finite()))
        };
        let why = self.files.tensors.keys().find(is_broken).map(|name| format!(": so are values of its '{name}'"));
        Error::malformed(&self.path, format!("{what} are NaN or infinite{}", why.unwrap_or_default()))
    }

    /// Hidden states of a window's predictions, `[1, predictions, width]`: nothing is predicted from the last token.
    fn hidden(&self, window: &[u32]) -> Result<Tensor> {
        Ok(self.transformer.hidden(&[&window[..window.len().saturating_sub(1)]], None)?)
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
        let hidden = self.hidden(window)?;
        let predictions = hidden.dim(1)?;
        for first in (0..predictions).step_by(rows_at_a_time.max(1)) {
            let rows = first..(first + rows_at_a_time.max(1)).min(predictions);
            self.transformer.see_logits(&hidden, rows, |logits| see(first, logits))??;
        }
        Ok(())
    }
}

/// Bytes of hidden states that are kept at most: those of 116,508 predictions of a teacher 576 wide.
const KEPT: usize = 256 << 20;

/// A teacher that is run for each window, each time; of windows that come again and again it keeps the hidden states,
/// as many as fit into 256 MiB, so that only the output projection is left to do. Logits would be as many times
/// larger as the vocabulary is than the hidden state.
#[derive(Debug)]
pub struct Online<'a> {
    model: &'a Model,
    windows: &'a Windows,
    temperature: f64,
    /// Hidden states of windows to keep, once they were run.
    kept: BTreeMap<usize, Option<Tensor>>,
    /// Bytes that there is still room for.
    room: usize,
    /// True if logits stay on the model's device.
    resident: bool,
}

impl<'a> Online<'a> {
    /// A teacher for these windows.
    pub fn new(model: &'a Model, windows: &'a Windows, temperature: f64) -> Self {
        let resident = !model.transformer.device().is_cpu();
        Self { model, windows, temperature, kept: BTreeMap::new(), room: KEPT, resident }
    }

    /// Hidden states of a window, kept or run.
    fn hidden(&mut self, window: usize) -> Result<Tensor> {
        if let Some(Some(hidden)) = self.kept.get(&window) {
            return Ok(hidden.clone());
        }
        let hidden = self.model.hidden(self.windows.tokens_of(window))?;
        let bytes = hidden.elem_count() * hidden.dtype().size_in_bytes();
        if let Some(kept) = self.kept.get_mut(&window)
            && let Some(room) = self.room.checked_sub(bytes)
        {
            (self.room, *kept) = (room, Some(hidden.clone()));
        }
        Ok(hidden)
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
        let hidden = self.hidden(window)?;
        let not_finite = || self.model.not_finite(&format!("the logits of window {window}"));
        if self.resident {
            let logits = self.model.transformer.logits(&hidden.get(0)?)?;
            // Of what is finite, zero times it is zero.
            return match (&logits * 0.0)?.sum(D::Minus1)?.sum_all()?.to_scalar::<f32>()? {
                0.0 => Ok(Soft::Resident(Resident(logits))),
                _ => Err(not_finite()),
            };
        }
        let logits = self.model.transformer.see_logits(&hidden, 0..hidden.dim(1)?, <[f32]>::to_vec)?;
        if !logits.iter().all(|x| x.is_finite()) {
            return Err(not_finite());
        }
        Ok(Soft::Full { logits })
    }

    fn keep(&mut self, windows: &[usize]) {
        self.kept.extend(windows.iter().map(|&window| (window, None)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_what_was_run_and_no_more_than_fits() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tiny"));
        let model = Model::open(path, "cpu", "f32").expect("the fixture");
        let windows = Windows::new(&[(0..40).collect()], 8, None).expect("five windows");
        let plain: Vec<Soft> = (0..5).map(|w| Online::new(&model, &windows, 1.0).soft(w).expect("labels")).collect();
        let mut online = Online::new(&model, &windows, 1.0);
        // Two windows of seven predictions in F32, and nearly a third.
        let width = model.transformer.config().hidden_size;
        online.room = 3 * 7 * width * 4 - 1;
        online.keep(&[0, 2, 3, 4]);
        for _ in 0..2 {
            for (w, plain) in plain.iter().enumerate() {
                assert!(online.soft(w).expect("labels") == *plain, "window {w}");
            }
        }
        // As on a GPU: what is labelled stays where it was computed.
        online.resident = true;
        for (w, plain) in plain.iter().enumerate() {
            let Soft::Resident(Resident(logits)) = online.soft(w).expect("labels") else { panic!("not resident") };
            assert_eq!(logits.dims(), [7, model.vocab_size()]);
            let logits = logits.flatten_all().and_then(|l| l.to_vec1()).expect("logits");
            assert!(Soft::Full { logits } == *plain, "window {w}");
        }
        let kept: Vec<usize> = online.kept.iter().filter(|(_, h)| h.is_some()).map(|(w, _)| *w).collect();
        assert_eq!((kept, online.room), (vec![0, 2], 7 * width * 4 - 1));
    }
}
