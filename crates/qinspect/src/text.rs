//! Texts as sequences of tokens.

use crate::{Error, Result};
use qeval::{Bos, Encoder};
use store::Model;

/// A text to run a model on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// What reports call it.
    pub name: String,
    /// The text.
    pub text: String,
}

/// How a text is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// Tokens of the text that are used.
    pub tokens: usize,
    /// Positions of a sequence, a begin-of-sequence token among them.
    pub ctx: usize,
    /// When sequences begin with that token.
    pub bos: Bos,
}

impl Cut {
    /// Checks what can be checked without a text.
    ///
    /// # Errors
    /// [`Error::Request`].
    pub fn check(&self) -> Result<()> {
        if self.tokens == 0 || self.ctx < 2 {
            return Err(Error::Request("--tokens takes at least 1, --ctx at least 2".into()));
        }
        Ok(())
    }

    /// The sequences of a text, one after the other.
    ///
    /// # Errors
    /// When the text gives no tokens, or the tokenizer refuses it.
    pub fn sequences(&self, encoder: &Encoder, text: &Text) -> Result<Vec<Vec<u32>>> {
        self.check()?;
        let ids = encoder.encode(&text.text)?.ids;
        let bos = encoder.bos(self.bos)?;
        let used = &ids[..ids.len().min(self.tokens)];
        if used.is_empty() {
            return Err(Error::Model(format!("{}: the text is empty", text.name)));
        }
        let room = self.ctx - usize::from(bos.is_some());
        Ok(used.chunks(room).map(|part| bos.into_iter().chain(part.iter().copied()).collect()).collect())
    }
}

/// A model's tokenizer.
///
/// # Errors
/// When it has none.
pub fn encoder(model: &Model) -> Result<Encoder> {
    Ok(Encoder::new(model.path.display().to_string(), model.tokenizer()?, model.config()?.bos_token_id)?)
}

/// A note where sequences of `longest` positions go beyond what a model was trained for.
///
/// # Errors
/// When the model has no readable configuration.
pub fn beyond_training(model: &Model, longest: usize) -> Result<Option<String>> {
    let most = model.config()?.max_position;
    Ok((most > 0 && longest > most).then(|| {
        format!("sequences have {longest} positions, but the model was trained for {most}: what comes later is outside its range (--ctx)")
    }))
}
