//! Texts from files, and the one that is built in.

use crate::args::TextArgs;
use anyhow::{Result, bail};
use inspection::Error;
use inspection::text::Text;

/// The text that models run on when none is named.
const BUILT_IN: &str = include_str!("../../../corpora/calibration.txt");

/// The text that the arguments name.
pub fn text(args: &TextArgs) -> Result<Text> {
    let Some(path) = &args.text else {
        return Ok(Text { name: "calibration.txt (built in)".into(), text: BUILT_IN.into() });
    };
    let bytes = std::fs::read(path).map_err(|e| Error::io(path, "read", e))?;
    let name = path.file_name().map_or_else(|| path.to_string_lossy(), |n| n.to_string_lossy()).into_owned();
    match String::from_utf8(bytes) {
        Ok(text) if text.trim().is_empty() => bail!("{}: the text is empty or only white space", path.display()),
        Ok(text) => Ok(Text { name, text }),
        Err(e) => bail!("{}: is not UTF-8 text (offset {})", path.display(), e.utf8_error().valid_up_to()),
    }
}
