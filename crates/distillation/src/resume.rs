//! The state of a training that is under way: one safetensors file beside the output.
//!
//! For each trained parameter it holds `weight.NAME`, `mean.NAME` and `square.NAME` in F32; the rest is metadata.
//! Parameters that aren't trained are the same as at the start.

use crate::error::{Error, Result};
use crate::metrics::Written;
use crate::model::Parameter;
use crate::optim::{AdamW, Moments};
use crate::train::Validation;
use crate::weights::{self, Entry};
use crate::{checkpoint, metrics};
use candle_core::Tensor;
use indexmap::IndexMap;
use schemes::{FloatType, decode_floats};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use store::{Bytes, DType};

/// The version of the file's layout.
const VERSION: &str = "4";

/// The metadata that holds the checksum of everything else.
const CHECKSUM: &str = "qdistill.blake3";

/// Identity of a training: its settings and the hashes of its inputs, by name.
pub type Identity = IndexMap<String, String>;

/// The fields of some settings.
///
/// # Errors
/// [`Error::Recipe`] for what isn't made of fields.
pub fn fields(settings: &impl Serialize) -> Result<Identity> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => Ok(fields.into_iter().map(|(name, value)| (name, value.to_string())).collect()),
        _ => Err(Error::Recipe("settings without names".into())),
    }
}

/// State to save beside the weights.
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
    /// Files in the output folder.
    pub output: &'a Saved,
}

/// Files in the output folder when the state was saved.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// BLAKE3 of the best model's weights.
    pub weights: String,
    /// The metrics.
    pub metrics: Written,
}

/// Restored state; the weights are in their variables again.
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
    /// Files in the output folder when the state was saved.
    pub output: Saved,
}

/// Saves the state; the file is the old one or the whole new one.
///
/// # Errors
/// What [`weights::write`] says.
pub fn save(path: &Path, identity: &Identity, parameters: &[Parameter], state: &View<'_>) -> Result<()> {
    let mut entries = Vec::with_capacity(3 * parameters.len());
    for (p, moments) in parameters.iter().zip(state.optimizer.moments()) {
        for (kind, tensor) in [("weight", p.var.as_tensor()), ("mean", &moments.mean), ("square", &moments.square)] {
            entries.push(Entry::tensor(format!("{kind}.{}", p.name), tensor));
        }
    }
    let json = |text: serde_json::Result<String>| text.map_err(|e| Error::malformed(path, e));
    let best = json(serde_json::to_string(&state.best))?;
    let metadata = [
        (store::output::provenance::TRAINING_KEY, VERSION.to_string()),
        ("qdistill.identity", json(serde_json::to_string(identity))?),
        ("qdistill.step", state.step.to_string()),
        ("qdistill.waited", state.waited.to_string()),
        ("qdistill.best", best),
        ("qdistill.output", json(serde_json::to_string(state.output))?),
    ];
    let mut metadata: IndexMap<String, String> = metadata.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
    let mut checksum = begin_checksum(&metadata);
    for entry in &entries {
        checksum.update(entry.name.as_bytes());
        entry.each_chunk(|values| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            checksum.update_rayon(&bytes);
            Ok(())
        })?;
    }
    metadata.insert(CHECKSUM.into(), checksum.finalize().to_string());
    weights::write(path, FloatType::F32, &entries, &metadata)
}

/// A checksum of the metadata; names and values of the tensors follow.
fn begin_checksum(metadata: &IndexMap<String, String>) -> blake3::Hasher {
    let mut checksum = blake3::Hasher::new();
    for (key, value) in metadata.iter().filter(|(key, _)| *key != CHECKSUM) {
        checksum.update(format!("{key}\0{value}\0").as_bytes());
    }
    checksum
}

/// Names the setting in which the saved training differs from this one.
fn difference(saved: &str, identity: &Identity) -> Option<String> {
    let saved: Identity = serde_json::from_str(saved).unwrap_or_default();
    let names = identity.keys().chain(saved.keys());
    let (name, then, now) = names.map(|n| (n, saved.get(n), identity.get(n))).find(|(_, then, now)| then != now)?;
    Some(match (then, now) {
        (Some(then), Some(now)) if then.len().max(now.len()) <= 40 => format!("with {name} {then}, not {now}"),
        (Some(then), None) if then.len() <= 40 => format!("with {name} {then}"),
        _ => format!("with another {name}"),
    })
}

/// Puts the saved weights into `parameters` and returns the rest.
///
/// # Errors
/// [`Error::Resume`] when there is no state, it is of another training, or the file is not whole.
pub fn load(path: &Path, identity: &Identity, parameters: &[Parameter]) -> Result<State> {
    let refuse = |message: String| Error::Resume { path: path.into(), message };
    check_there(path)?;
    let contents = store::safetensors::read(path, &Bytes::map(path)?)?;
    let said = |key: &str| contents.metadata.get(&format!("qdistill.{key}")).map(String::as_str);
    if said("resume") != Some(VERSION) {
        return Err(refuse(format!("is no training state of version {VERSION}; remove it to begin anew")));
    }
    let mut checksum = begin_checksum(&contents.metadata);
    for (name, tensor) in &contents.tensors {
        checksum.update(name.as_bytes());
        checksum.update_rayon(&tensor.data);
    }
    if said("blake3") != Some(checksum.finalize().to_hex().as_str()) {
        return Err(refuse("is damaged: it is not what was saved; remove it and the output to begin anew".into()));
    }
    if let Some(what) = difference(said("identity").unwrap_or_default(), identity) {
        let way_out = "give the same again to resume it, or remove it and the output to begin anew";
        return Err(refuse(format!("was saved by a training {what}; {way_out}")));
    }
    let field = |key: &str| said(key).ok_or_else(|| refuse(format!("its {key} is missing; remove it to begin anew")));
    let number = |key: &str| -> Result<usize> {
        field(key)?.parse().map_err(|_| refuse(format!("its {key} is no number; remove it to begin anew")))
    };
    let (step, waited) = (number("step")?, number("waited")?);
    let best = field("best")?;
    let best = Option::<Validation>::deserialize(&mut serde_json::Deserializer::from_str(best))
        .map_err(|e| refuse(format!("its best validation can't be read ({e}); remove it to begin anew")))?;
    let output = serde_json::from_str(field("output")?)
        .map_err(|e| refuse(format!("what it says of the output can't be read ({e}); remove it to begin anew")))?;
    let tensor = |kind: &str, p: &Parameter| -> Result<Tensor> {
        let name = format!("{kind}.{}", p.name);
        match contents.tensors.get(&name) {
            Some(t) if t.dtype == DType::F32 && t.shape == p.var.dims() => {
                let mut values = vec![0f32; p.var.elem_count()];
                decode_floats(FloatType::F32, &t.data, &mut values);
                Ok(Tensor::from_vec(values, p.var.shape(), p.var.device())?)
            }
            _ => Err(refuse(format!("'{name}' is missing or of another shape; remove the file to begin anew"))),
        }
    };
    let mut moments = Vec::with_capacity(parameters.len());
    for p in parameters {
        p.var.set(&tensor("weight", p)?)?;
        moments.push(Moments { mean: tensor("mean", p)?, square: tensor("square", p)? });
    }
    Ok(State { step, moments, best, waited, output })
}

/// Refuses a state whose best model, or what was measured up to it, is not in the output folder.
///
/// # Errors
/// [`Error::Resume`].
pub fn check_output(path: &Path, folder: &Path) -> Result<()> {
    match [checkpoint::WEIGHTS, metrics::FILE].into_iter().find(|name| !folder.join(name).is_file()) {
        None => Ok(()),
        Some(name) => Err(not_its_output(path, folder, &format!("{name} is no longer in"))),
    }
}

/// The error for a state where a file in the output folder is another than it was.
pub fn displaced(path: &Path, folder: &Path, name: &str) -> Error {
    not_its_output(path, folder, &format!("{name} is another now in"))
}

fn not_its_output(path: &Path, folder: &Path, is: &str) -> Error {
    let message = format!(
        "belongs to the best model so far, whose {is} {}; put it back, or remove this file and the folder to begin anew",
        folder.display()
    );
    Error::Resume { path: path.into(), message }
}

/// Refuses to resume what was not begun.
///
/// # Errors
/// [`Error::Resume`].
pub fn check_there(path: &Path) -> Result<()> {
    if path.exists() {
        return Ok(());
    }
    let what = "there is no interrupted training to resume; leave out --resume to begin one";
    Err(Error::Resume { path: path.into(), message: what.into() })
}

/// The error for beginning where an interrupted training left its state.
pub fn leftover(path: &Path) -> Error {
    let what = "an interrupted training left this; go on with --resume, or begin anew with --overwrite";
    Error::Resume { path: path.into(), message: what.into() }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn what_is_loaded_is_what_was_saved_or_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("state");
        let recipe = testing::train();
        let mut identity = fields(&recipe).expect("fields");
        identity.insert("text".into(), "a".repeat(64));
        let student = testing::student(1);
        let parameters = student.parameters();
        let half = |p: &Parameter| (p.var.ones_like().expect("ones") * 0.5).expect("halves");
        let moments = parameters.iter().map(|p| Moments { mean: half(p), square: half(p) }).collect();
        let optimizer = AdamW::resumed(moments, 3, &recipe);
        let output = Saved { weights: "w".into(), metrics: Written { bytes: 7, blake3: "m".into() } };
        let view = View { step: 3, optimizer: &optimizer, best: None, waited: 1, output: &output };
        save(&path, &identity, &parameters, &view).expect("saved");
        let load = |identity: &Identity| load(&path, identity, &parameters).map_err(|e| e.to_string());
        let state = load(&identity).expect("loads");
        assert_eq!((state.step, state.waited, state.moments.len()), (3, 1, parameters.len()));
        assert_eq!(state.output, output);
        let shapes = state.moments.iter().zip(&parameters).map(|(m, p)| (m.mean.dims(), m.square.dims(), p.var.dims()));
        assert!(shapes.into_iter().all(|(mean, square, var)| mean == var && square == var));
        let loaded = state.moments.iter().flat_map(|m| [&m.mean, &m.square]);
        assert!(loaded.flat_map(testing::flat).all(|v| v == 0.5));

        let other = |name: &str, value: &str| {
            let mut other = identity.clone();
            other.insert(name.into(), value.into());
            load(&other).map(|_| ()).expect_err("another training")
        };
        assert!(other("learning_rate", "0.1").contains("by a training with learning_rate 0.02, not 0.1; give"));
        assert!(other("text", &"b".repeat(64)).contains("with another text; give"));
        assert!(other("invented", "1").contains("with another invented"));
        let mut less = identity.clone();
        less.shift_remove("clip");
        assert!(load(&less).map(|_| ()).expect_err("a setting is gone").contains("by a training with clip 1.0; give"));

        let whole = std::fs::read(&path).expect("read");
        for at in (0..whole.len()).step_by(whole.len() / 50) {
            let mut bytes = whole.clone();
            bytes[at] ^= 4;
            std::fs::write(&path, &bytes).expect("written");
            load(&identity).map(|_| ()).expect_err(&format!("byte {at} of {}", whole.len()));
        }
        let mut bytes = whole.clone();
        *bytes.last_mut().expect("bytes") ^= 1;
        std::fs::write(&path, &bytes).expect("written");
        assert!(load(&identity).map(|_| ()).expect_err("damaged").contains("is damaged"));
        let version = format!("resume\":\"{VERSION}");
        let at = whole.windows(version.len()).position(|w| w == version.as_bytes()).expect("a version");
        let mut bytes = whole.clone();
        bytes[at + version.len() - 1] = b'1';
        std::fs::write(&path, &bytes).expect("written");
        let old = load(&identity).map(|_| ()).expect_err("old");
        assert!(old.contains(&format!("is no training state of version {VERSION}")), "{old}");
    }
}
