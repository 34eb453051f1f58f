//! Calibration: the largest absolute activation of each input column of each linear layer.

use ndarray::{Array1, ArrayView2, Axis};
use progress::{Progress, Unit};
use safetensors::tensor::{Dtype, SafeTensors, TensorView, serialize};
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

/// Version of the file format; another major number is refused.
const VERSION: &str = "1";

/// The metadata key that marks the file: version and tokens.
const KEY: &str = store::output::provenance::CALIBRATION_KEY;

/// Errors of calibration.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Reading or writing the file.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file is not a calibration of this version.
    #[error("{path}: not a calibration file: {what}")]
    Format {
        /// The file.
        path: PathBuf,
        /// Description of the mistake.
        what: String,
    },
    /// Running the model.
    #[error(transparent)]
    Runtime(#[from] runtime::Error),
    /// The text gives no tokens.
    #[error("the calibration text is empty")]
    Empty,
    /// An activation overflowed.
    #[error(
        "{0} is not finite; the checkpoint or the text is at fault (qinspect weights names weights that are NaN or infinite)"
    )]
    NotFinite(String),
}

/// Activation statistics of one model on one text.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Calibration {
    modules: BTreeMap<String, Vec<f32>>,
    /// Tokens seen.
    pub tokens: usize,
}

impl Calibration {
    /// Runs `model` over sequences of tokens and collects.
    ///
    /// # Errors
    /// [`Error::Empty`], [`Error::NotFinite`], or what the runtime says.
    pub fn collect(
        model: &runtime::Transformer,
        sequences: &[Vec<u32>],
        progress: &dyn Progress,
    ) -> Result<Self, Error> {
        let tokens: usize = sequences.iter().map(Vec::len).sum();
        if tokens == 0 {
            return Err(Error::Empty);
        }
        let mut collector = Collector::default();
        progress.start("calibrating", Some(tokens as u64), Unit::Tokens);
        for sequence in sequences {
            model.hidden_observed(&[sequence], &mut collector)?;
            progress.advance(sequence.len() as u64);
        }
        progress.finish();
        collector.finish(tokens)
    }

    /// Statistics known from elsewhere: for each module the absmax of its input columns.
    pub fn new(modules: impl IntoIterator<Item = (String, Vec<f32>)>, tokens: usize) -> Self {
        Calibration { modules: modules.into_iter().collect(), tokens }
    }

    /// Absmax of each input column of a module.
    pub fn module(&self, name: &str) -> Option<&[f32]> {
        self.modules.get(name).map(Vec::as_slice)
    }

    /// Modules with statistics.
    pub fn modules(&self) -> impl Iterator<Item = (&str, &[f32])> {
        self.modules.iter().map(|(n, v)| (n.as_str(), v.as_slice()))
    }

    /// The file's bytes: safetensors, one F32 tensor `MODULE.input_absmax` for each module.
    ///
    /// # Errors
    /// [`Error::Format`] when the statistics can't be serialized.
    pub fn to_bytes(&self) -> Result<Vec<u8>, Error> {
        let format = |what: String| Error::Format { path: PathBuf::new(), what };
        let raw: Vec<(String, Vec<u8>, usize)> = self
            .modules
            .iter()
            .map(|(name, v)| {
                (format!("{name}.input_absmax"), v.iter().flat_map(|x| x.to_le_bytes()).collect(), v.len())
            })
            .collect();
        let mut views = Vec::with_capacity(raw.len());
        for (name, bytes, len) in &raw {
            let view = TensorView::new(Dtype::F32, vec![*len], bytes).map_err(|e| format(e.to_string()))?;
            views.push((name.as_str(), view));
        }
        // One entry only: several would come in the map's random order, and the same
        // statistics must give the same bytes.
        let metadata = HashMap::from([(KEY.to_string(), format!("{VERSION}:{}", self.tokens))]);
        serialize(views, Some(metadata)).map_err(|e| format(e.to_string()))
    }

    /// Reads the file that [`Calibration::to_bytes`] gave.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Format`].
    pub fn load(path: &Path) -> Result<Self, Error> {
        let bytes = std::fs::read(path).map_err(|source| Error::Io { path: path.into(), source })?;
        Self::parse(&bytes).map_err(|what| Error::Format { path: path.into(), what })
    }

    fn parse(bytes: &[u8]) -> Result<Self, String> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| e.to_string())?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let version = metadata.get(KEY).and_then(|v| v.split_once(':'));
        let Some((VERSION, tokens)) = version else {
            return Err("its version is not 1".into());
        };
        let tokens = tokens.parse().map_err(|_| "its token count is not a number".to_string())?;
        let file = SafeTensors::deserialize(bytes).map_err(|e| e.to_string())?;
        let mut modules = BTreeMap::new();
        for (name, tensor) in file.iter() {
            let module = name.strip_suffix(".input_absmax").ok_or_else(|| format!("unexpected tensor {name}"))?;
            if tensor.dtype() != Dtype::F32 || tensor.shape().len() != 1 {
                return Err(format!("tensor {name} is not a vector of F32"));
            }
            let values: Vec<f32> =
                tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
            if values.iter().any(|v| !v.is_finite() || *v < 0.0) {
                return Err(format!("tensor {name} holds a value that is no absmax"));
            }
            modules.insert(module.to_string(), values);
        }
        Ok(Calibration { modules, tokens })
    }
}

/// Gathers the statistics while the model runs.
#[derive(Debug, Default)]
pub struct Collector {
    modules: BTreeMap<String, Array1<f32>>,
}

impl Collector {
    /// The statistics gathered over `tokens` tokens.
    ///
    /// # Errors
    /// [`Error::NotFinite`] with the module.
    pub fn finish(self, tokens: usize) -> Result<Calibration, Error> {
        let mut modules = BTreeMap::new();
        for (name, absmax) in self.modules {
            if absmax.iter().any(|v| !v.is_finite()) {
                return Err(Error::NotFinite(format!("the input of {name}")));
            }
            modules.insert(name, absmax.to_vec());
        }
        Ok(Calibration { modules, tokens })
    }
}

impl runtime::Observer for Collector {
    fn linear_input(&mut self, module: &str, rows: &[f32], cols: usize) {
        let Some(n) = rows.len().checked_div(cols) else { return };
        let Ok(view) = ArrayView2::from_shape((n, cols), &rows[..n * cols]) else { return };
        let absmax = match self.modules.get_mut(module) {
            Some(known) => known,
            None => self.modules.entry(module.to_string()).or_insert_with(|| Array1::zeros(cols)),
        };
        for row in view.axis_iter(Axis(0)) {
            // A NaN must not get lost in a maximum: it stays once seen.
            absmax.zip_mut_with(&row, |m, x| *m = if x.is_nan() || m.is_nan() { f32::NAN } else { m.max(x.abs()) });
        }
    }

    fn residual(&mut self, _layer: usize, _rows: &[f32], _cols: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::Observer;

    #[test]
    fn maxima_by_column_and_the_file_round_trip() {
        let mut c = Collector::default();
        c.linear_input("a", &[1.0, -2.0, 3.0, 0.5], 2);
        c.linear_input("a", &[-4.0, 0.0], 2);
        let stats = c.finish(3).expect("finite");
        assert_eq!(stats.module("a"), Some(&[4.0, 2.0][..]));
        let back = Calibration::parse(&stats.to_bytes().expect("serializes")).expect("parses");
        assert_eq!(back, stats);
        assert!((0..20).all(|_| stats.to_bytes().ok() == back.to_bytes().ok()), "same statistics, same bytes");
    }

    #[test]
    fn nan_is_named_and_other_files_are_refused() {
        let mut c = Collector::default();
        c.linear_input("layer", &[f32::NAN], 1);
        c.linear_input("layer", &[1.0], 1);
        assert!(matches!(c.finish(2), Err(Error::NotFinite(name)) if name == "the input of layer"));
        assert!(Calibration::parse(b"nonsense").is_err());
    }
}
