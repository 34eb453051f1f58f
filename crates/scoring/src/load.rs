//! Models from files, ready to be scored.

use crate::cache::Cache;
use crate::compare::Subject;
use crate::size::{self, Size};
use crate::{Encoder, Error, Packed, Result};
use candle_core::Device;
use runtime::{KvType, Math, Options};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::Model;
use store::TrainedOn;

/// Device and arithmetic that models compute with.
#[derive(Debug, Clone)]
pub struct Compute {
    /// The device.
    pub device: Device,
    /// Rounding of activations to reproduce, and precision of matrix products on a GPU.
    pub options: Options,
    /// Keys and values go through a cache of this type, in scoring too; by default scoring has no
    /// cache, and what continues a text has one in f16.
    pub kv: Option<KvType>,
    /// Store of forward passes from earlier runs.
    pub cache: Option<Arc<Cache>>,
}

impl Compute {
    /// On the CPU.
    pub fn on_cpu(kv: Option<KvType>) -> Self {
        Compute { device: runtime::cpu(), options: Options::default(), kv, cache: None }
    }

    /// On the device of a name, in the type of a name.
    ///
    /// # Errors
    /// [`Error::Device`] for a GPU that can't be used, [`Error::Protocol`] for what can't be had in this build.
    pub fn on(device: &str, dtype: &str, math: Math, kv: Option<KvType>) -> Result<Self> {
        match runtime::device_and_options(device, dtype, math) {
            Ok((device, options)) => Ok(Compute { device, options, kv, cache: None }),
            Err(e @ runtime::Error::Gpu { .. }) => Err(Error::Device(e)),
            Err(e) => Err(Error::Protocol(e.to_string())),
        }
    }

    /// The same with passes that are kept in `folder`, if there is one.
    ///
    /// # Errors
    /// As [`Cache::open`].
    pub fn with_cache(self, folder: Option<&Path>) -> Result<Self> {
        let cache = folder.map(Cache::open).transpose()?.map(Arc::new);
        Ok(Compute { cache, ..self })
    }

    /// Returns a note on the device for reports; none for the CPU.
    pub fn note(&self) -> Option<String> {
        let name = runtime::device_name(&self.device);
        let products = self.options.compute;
        (!self.device.is_cpu()).then(|| format!("computed on {name}, products of {products} (--device, --dtype)"))
    }

    /// Returns the settings for a reference: without a rounding cache, so that the effect of an artifact's cache is
    /// seen.
    pub fn of_reference(&self) -> Self {
        Compute { kv: None, ..self.clone() }
    }
}

/// The name of the tokenizer's file.
const TOKENIZER: &str = "tokenizer.json";

/// A model that has been opened and loaded.
#[derive(Debug)]
pub struct Loaded {
    /// Path that the model was opened from.
    pub path: PathBuf,
    /// Files of the model.
    pub files: Model,
    /// Transformer of the model.
    pub model: Packed,
    /// Tokenizer of the model; shared with the reference where the file is the same.
    pub encoder: Arc<Encoder>,
    /// Sizes of the model's files and weights.
    pub size: Size,
}

impl Loaded {
    /// Opens a model. With a `reference` whose tokenizer file is the same, that one is used.
    ///
    /// # Errors
    /// When a file is not what it should be, the family is not supported, or there is no
    /// tokenizer.
    pub fn open(path: &Path, compute: &Compute, reference: Option<&Loaded>) -> Result<Self> {
        let files = store::open(path)?;
        let size = size::size(&files)?;
        Self::from_files(path, files, size, compute, reference)
    }

    /// A model whose files are open.
    ///
    /// # Errors
    /// As [`Loaded::open`].
    pub fn from_files(
        path: &Path,
        files: Model,
        size: Size,
        compute: &Compute,
        reference: Option<&Loaded>,
    ) -> Result<Self> {
        let name = path.display().to_string();
        let shared = reference.filter(|r| {
            let file = files.side_file(TOKENIZER);
            file.is_some() && file == r.files.side_file(TOKENIZER)
        });
        let encoder = match shared {
            Some(reference) => Arc::clone(&reference.encoder),
            None => Arc::new(Encoder::new(&name, files.tokenizer()?, files.config()?.bos_token_id)?),
        };
        let model = Packed::load(&name, &files, compute)?;
        Ok(Loaded { path: path.into(), files, model, encoder, size })
    }

    /// Returns a note on matrices that the device holds decoded instead of as they are stored.
    fn decoded(&self) -> Option<String> {
        let n = self.model.transformer().decoded_matrices();
        (n > 0).then(|| format!("{n} matrices are held decoded on the GPU, which reads no such form"))
    }

    /// The model as scoring wants it. Compares its weights with the reference's, if given.
    ///
    /// # Errors
    /// As [`size::errors`].
    pub fn subject(&self, reference: Option<&Loaded>) -> Result<Subject<'_>> {
        let weight_error = reference.map(|r| size::errors(&r.files, &self.files)).transpose()?;
        let transformer = self.model.transformer();
        Ok(Subject {
            artifact: self.path.display().to_string(),
            model: &self.model,
            encoder: &self.encoder,
            end: transformer.config().eos_token_ids.clone(),
            size: self.size.clone(),
            resident_bytes: transformer.resident_weight_bytes() as u64,
            max_position: transformer.config().max_position,
            weight_error,
            warnings: self.files.warnings.iter().cloned().chain(self.decoded()).collect(),
            trained_on: TrainedOn::from_metadata(self.files.metadata.get(TrainedOn::KEY)),
        })
    }
}
