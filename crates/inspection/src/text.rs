//! Texts as sequences of tokens.

use crate::{Error, Result};
use scoring::Encoder;
pub use store::Cut;
use store::Model;

/// A text to run a model on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Text {
    /// Name in reports.
    pub name: String,
    /// The text.
    pub text: String,
}

/// Checks what can be checked of a cut without a text.
///
/// # Errors
/// [`Error::Request`].
pub fn check(cut: &Cut) -> Result<()> {
    if cut.tokens == 0 || cut.ctx < 2 {
        return Err(Error::Request("--tokens takes at least 1, --ctx at least 2".into()));
    }
    Ok(())
}

/// The sequences of a text, one after the other.
///
/// # Errors
/// When the text gives no tokens, or the tokenizer refuses it.
pub fn sequences(cut: &Cut, encoder: &Encoder, text: &Text) -> Result<Vec<Vec<u32>>> {
    check(cut)?;
    let sequences = cut.sequences(&encoder.encode(&text.text)?.ids, encoder.bos(cut.bos)?);
    if sequences.is_empty() {
        return Err(Error::Model(format!("{}: the text is empty", text.name)));
    }
    Ok(sequences)
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
