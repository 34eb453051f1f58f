//! `qeval logits`.

use crate::args::EngineArgs;
use crate::say_notes;
use anyhow::{Result, bail};
use clap::Args;
use cli::{Outcome, Usage};
use safetensors::tensor::{Dtype, TensorView};
use scoring::model::LanguageModel;
use scoring::{Bos, Encoder, Packed};
use std::path::PathBuf;
use store::output::{Form, check_file, provenance::LOGITS_KEY, write_file};

/// `qeval logits`.
#[derive(Debug, Args)]
pub struct LogitsArgs {
    /// The model.
    #[arg(value_name = "MODEL")]
    pub model: PathBuf,
    /// Token ids, separated by commas.
    #[arg(long, value_delimiter = ',', value_name = "ID", required_unless_present = "prompt")]
    pub ids: Vec<u32>,
    /// A text instead, tokenized without BOS.
    #[arg(long, value_name = "TEXT", conflicts_with = "ids")]
    pub prompt: Option<String>,
    /// File to write: safetensors with `tokens` (I64, n) and `logits` (F32, n x vocabulary).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Treatment of an existing file.
    #[command(flatten)]
    pub overwrite: cli::OverwriteArgs,
    /// Arithmetic and device.
    #[command(flatten)]
    pub engine: EngineArgs,
}

/// `qeval logits`: one sequence through the model, all logits to a file.
pub fn logits(args: &LogitsArgs) -> Result<Outcome> {
    let existing = args.overwrite.existing();
    check_file(&args.output, Form::Logits, existing, &[args.model.as_path()])?;
    let compute = args.engine.compute(None)?;
    let files = store::open(&args.model)?;
    let name = args.model.display().to_string();
    let tokens = match &args.prompt {
        Some(text) => Encoder::new(&name, files.tokenizer()?, None)?.prompt(text, Bos::Never)?,
        // A model without a tokenizer will do.
        None => args.ids.clone(),
    };
    let model = Packed::load(&name, &files, &compute)?;
    say_notes(&name, &files);
    if tokens.is_empty() {
        bail!(Usage("the prompt has no tokens".into()));
    }
    let (mut values, mut vocab) = (Vec::new(), 0);
    model.forward(&tokens)?.logits(0..tokens.len(), &mut |rows| {
        vocab = rows.ncols();
        values.extend(rows.iter().flat_map(|v| v.to_le_bytes()));
    })?;
    let finite = |row: &[u8]| row.chunks_exact(4).all(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite());
    let broken = values.chunks_exact(4 * vocab.max(1)).position(|row| !finite(row));
    let ids: Vec<u8> = tokens.iter().flat_map(|t| i64::from(*t).to_le_bytes()).collect();
    let bytes = safetensors::serialize(
        [
            ("tokens", TensorView::new(Dtype::I64, vec![tokens.len()], &ids)?),
            ("logits", TensorView::new(Dtype::F32, vec![tokens.len(), vocab], &values)?),
        ],
        Some(std::collections::HashMap::from([(LOGITS_KEY.into(), env!("CARGO_PKG_VERSION").into())])),
    )?;
    write_file(&args.output, Form::Logits, existing, &bytes)?;
    Ok(Outcome {
        text: format!("{} x {vocab} logits in {}\n", tokens.len(), args.output.display()),
        problems: broken.map(|at| format!("{name}: logits at position {at} are NaN or infinite")).into_iter().collect(),
        ..Outcome::default()
    })
}
