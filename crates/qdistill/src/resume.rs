//! The state of a training that is under way: one safetensors file beside the output.
//!
//! For each trained parameter it holds `weight.NAME`, `mean.NAME` and `square.NAME` in F32; the rest is metadata.
//! Parameters that aren't trained are the same as at the start.

use crate::error::{Error, Result};
use crate::model::Parameter;
use crate::optim::{AdamW, Moments};
use crate::train::Validation;
use crate::weights::{self, Entry, Values};
use candle_core::{Device, Tensor};
use indexmap::IndexMap;
use schemes::{FloatType, decode_floats};
use serde::Deserialize;
use std::path::Path;
use store::{Bytes, DType};

/// The version of the file's layout.
const VERSION: &str = "1";

/// What is saved beside the weights.
#[derive(Debug)]
pub struct View<'a> {
    /// Steps done.
    pub step: usize,
    /// The optimizer.
    pub optimizer: &'a AdamW,
    /// The best validation so far.
    pub best: Option<&'a Validation>,
    /// Validations since then.
    pub waited: usize,
}

/// What comes back; the weights are in their variables again.
#[derive(Debug)]
pub struct State {
    /// Steps done.
    pub step: usize,
    /// The optimizer's state.
    pub moments: Vec<Moments>,
    /// The best validation so far.
    pub best: Option<Validation>,
    /// Validations since then.
    pub waited: usize,
}

/// Saves the state; the file is the old one or the whole new one.
///
/// # Errors
/// What [`weights::write`] says.
pub fn save(path: &Path, identity: &str, parameters: &[Parameter], state: &View<'_>) -> Result<()> {
    let mut entries = Vec::with_capacity(3 * parameters.len());
    for (p, moments) in parameters.iter().zip(state.optimizer.moments()) {
        let entry =
            |kind: &str, values| Entry { name: format!("{kind}.{}", p.name), shape: p.var.dims().to_vec(), values };
        entries.push(entry("weight", Values::Var(&p.var)));
        entries.push(entry("mean", Values::Slice(&moments.mean)));
        entries.push(entry("square", Values::Slice(&moments.square)));
    }
    let best = serde_json::to_string(&state.best).map_err(|e| Error::malformed(path, e))?;
    let metadata = [
        ("qdistill.resume", VERSION.to_string()),
        ("qdistill.identity", identity.to_string()),
        ("qdistill.step", state.step.to_string()),
        ("qdistill.waited", state.waited.to_string()),
        ("qdistill.best", best),
    ];
    let metadata: IndexMap<String, String> = metadata.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    weights::write(path, FloatType::F32, &entries, &metadata)
}

/// Puts the saved weights into `parameters` and returns the rest.
///
/// # Errors
/// [`Error::Resume`] when there is no state, it is of another training, or the file is not whole.
pub fn load(path: &Path, identity: &str, parameters: &[Parameter]) -> Result<State> {
    let refuse = |message: String| Error::Resume { path: path.into(), message };
    if !path.exists() {
        let what = "there is no interrupted training to resume; leave out --resume to begin one";
        return Err(refuse(what.into()));
    }
    let contents = store::safetensors::read(path, &Bytes::map(path)?)?;
    let said = |key: &str| contents.metadata.get(&format!("qdistill.{key}")).map(String::as_str);
    if said("resume") != Some(VERSION) {
        return Err(refuse(format!("is no training state of version {VERSION}; remove it to begin anew")));
    }
    if said("identity") != Some(identity) {
        let what = "was saved by a training with other settings, text, teacher or student; give the same again to \
                    resume it, or remove it and the output to begin anew";
        return Err(refuse(what.into()));
    }
    let field = |key: &str| said(key).ok_or_else(|| refuse(format!("its {key} is missing; remove it to begin anew")));
    let number = |key: &str| -> Result<usize> {
        field(key)?.parse().map_err(|_| refuse(format!("its {key} is no number; remove it to begin anew")))
    };
    let (step, waited) = (number("step")?, number("waited")?);
    let best = field("best")?;
    let best = Option::<Validation>::deserialize(&mut serde_json::Deserializer::from_str(best))
        .map_err(|e| refuse(format!("its best validation can't be read ({e}); remove it to begin anew")))?;
    let tensor = |kind: &str, p: &Parameter| -> Result<Vec<f32>> {
        let name = format!("{kind}.{}", p.name);
        match contents.tensors.get(&name) {
            Some(t) if t.dtype == DType::F32 && t.shape == p.var.dims() => {
                let mut values = vec![0f32; p.var.elem_count()];
                decode_floats(FloatType::F32, &t.data, &mut values);
                Ok(values)
            }
            _ => Err(refuse(format!("'{name}' is missing or of another shape; remove the file to begin anew"))),
        }
    };
    let mut moments = Vec::with_capacity(parameters.len());
    for p in parameters {
        p.var.set(&Tensor::from_vec(tensor("weight", p)?, p.var.shape(), &Device::Cpu)?)?;
        moments.push(Moments { mean: tensor("mean", p)?, square: tensor("square", p)? });
    }
    Ok(State { step, moments, best, waited })
}

/// Refuses to begin where an interrupted training left its state.
///
/// # Errors
/// [`Error::Resume`].
pub fn refuse_leftover(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    let what = "an interrupted training left this; go on with --resume, or remove it and the output to begin anew";
    Err(Error::Resume { path: path.into(), message: what.into() })
}

/// Removes the state of a training that is complete.
///
/// # Errors
/// [`Error::Io`].
pub fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path)(e)),
        _ => Ok(()),
    }
}
