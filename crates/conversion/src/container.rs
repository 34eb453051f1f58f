//! The files of an artifact: headers planned, bytes placed, side files carried, all renamed
//! into place at the end.

use crate::Job;
use crate::config;
use crate::error::{Error, Result};
use crate::layout::OutTensor;
use crate::plan::{Plan, Settings, Source, Target};
use indexmap::IndexMap;
use schemes::GgmlType;
use std::ops::Range;
use std::path::Path;
use store::output::provenance::{FILES_KEY, SEAL_KEY, SEAL_PLACEHOLDER, files_list};
use store::output::{Existing, Form, OutputDir, OutputFile, check_file, check_folder};
use store::{DType, gguf, safetensors};

/// An artifact being written.
pub struct Artifact {
    files: Vec<OutputFile>,
    /// Offset of the placeholder for the source's hash, in each file.
    patches: Vec<Option<u64>>,
    /// For each planned weight, file and offset of each tensor.
    places: Vec<Vec<(usize, u64)>>,
    directory: Option<OutputDir>,
    bytes: u64,
    /// True in a rehearsal: encoded bytes are dropped instead of written.
    rehearsed: bool,
    /// Contents of the files besides the weights.
    pub(crate) beside: Beside,
    /// Things that a user should know.
    pub(crate) notes: Vec<String>,
}

/// Contents of an artifact besides its weights, for comparison once it is written. The hash of the source is still its
/// placeholder.
#[derive(Debug, Clone)]
pub enum Beside {
    /// A GGUF model.
    Gguf {
        /// Keys and values in order, of the first file where there are several.
        metadata: Vec<(String, gguf::Value)>,
        /// Tensors that the source has not.
        extra: Vec<gguf::ExtraTensor>,
        /// The name of the first file in its folder, where there are several.
        first: Option<String>,
    },
    /// String metadata of every weight file, and the text of files made for this artifact.
    Directory(IndexMap<String, String>, Vec<(String, String)>),
}

/// An artifact whose bytes are all written, not yet in its place.
pub struct Finished {
    file: Option<OutputFile>,
    directory: Option<OutputDir>,
    bytes: u64,
    /// Contents of the artifact's files besides the weights.
    pub(crate) beside: Beside,
    /// Things that a user should know.
    pub(crate) notes: Vec<String>,
}

impl Finished {
    /// Path of the artifact's files before they are put in place.
    pub fn path(&self) -> &Path {
        match (&self.directory, &self.file) {
            (Some(directory), _) => directory.path(),
            (None, Some(file)) => file.temporary_path(),
            (None, None) => Path::new(""),
        }
    }

    /// Puts it in its place. Gives the bytes of the weight files.
    pub fn persist(self) -> Result<u64> {
        if let Some(directory) = self.directory {
            directory.persist()?;
        }
        if let Some(file) = self.file {
            file.persist()?;
        }
        Ok(self.bytes)
    }
}

/// Destination of the tensors of one weight.
#[derive(Clone, Copy)]
pub struct Sink<'a> {
    artifact: &'a Artifact,
    places: &'a [(usize, u64)],
}

impl Sink<'_> {
    /// Writes bytes at an offset of the weight's tensor `tensor`.
    pub fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        if self.artifact.rehearsed {
            return Ok(());
        }
        let (file, start) = self.places[tensor];
        Ok(self.artifact.files[file].write_all_at(bytes, start + offset)?)
    }
}

impl Artifact {
    /// Without files yet.
    fn empty() -> Self {
        Artifact {
            files: Vec::new(),
            patches: Vec::new(),
            places: Vec::new(),
            directory: None,
            bytes: 0,
            rehearsed: false,
            beside: Beside::Directory(IndexMap::new(), Vec::new()),
            notes: Vec::new(),
        }
    }

    /// Returns the destination of the planned weight number `at`.
    pub fn sink(&self, at: usize) -> Sink<'_> {
        Sink { artifact: self, places: self.places.get(at).map_or(&[], Vec::as_slice) }
    }

    /// Fills in the source's hash, the last bytes that are missing.
    pub fn finish(self, source_hash: &str) -> Result<Finished> {
        for (file, patch) in self.files.iter().zip(&self.patches) {
            if let Some(offset) = patch {
                file.write_all_at(source_hash.as_bytes(), *offset)?;
            }
        }
        let mut files = self.files;
        let file = if self.directory.is_none() { files.pop() } else { None };
        // Within the directory that is still to be put in place.
        for file in files {
            file.persist()?;
        }
        Ok(Finished { file, directory: self.directory, bytes: self.bytes, beside: self.beside, notes: self.notes })
    }
}

/// Opens the artifact's files beside their destination and writes their headers.
pub fn prepare(source: &Source<'_>, plan: &Plan, job: &Job) -> Result<Artifact> {
    crate::refuse_source(&job.destination, source)?;
    match plan.target {
        Target::Gguf => prepare_gguf(source, plan, job),
        Target::Safetensors => prepare_safetensors(source, plan, job),
    }
}

/// Checks a destination before any work, such as a calibration; `prepare` checks it again.
///
/// # Errors
/// As [`store::output::check_file`] and [`store::output::check_folder`].
pub fn check(source: &Source<'_>, settings: &Settings, destination: &Path, existing: Existing) -> Result<()> {
    crate::refuse_source(destination, source)?;
    let split_gguf = settings.max_shard.is_some() && destination.is_dir();
    if settings.target == Target::Gguf && !split_gguf {
        return Ok(check_file::<&Path>(destination, Form::Gguf, existing, &[])?);
    }
    let mut names = vec!["config.json", safetensors::SINGLE_FILE];
    names.extend(source.model.side_files.iter().map(|f| f.name.as_str()));
    let names = if split_gguf { &[][..] } else { &names[..] };
    Ok(check_folder::<&Path>(destination, existing, names, &[])?)
}

fn tensors(plan: &Plan) -> impl Iterator<Item = &OutTensor> {
    plan.weights.iter().flat_map(|w| &w.laid.tensors)
}

/// Splits one list of offsets into a list for each weight.
fn by_weight(plan: &Plan, mut places: impl Iterator<Item = (usize, u64)>) -> Vec<Vec<(usize, u64)>> {
    plan.weights.iter().map(|w| places.by_ref().take(w.laid.tensors.len()).collect()).collect()
}

fn prepare_safetensors(source: &Source<'_>, plan: &Plan, job: &Job) -> Result<Artifact> {
    let mut metadata = IndexMap::from([("format".to_string(), "pt".to_string())]);
    metadata.extend(config::provenance(source, plan, &job.settings));
    let specs: Vec<safetensors::TensorSpec> = tensors(plan)
        .map(|t| safetensors::TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() })
        .collect();
    let shards = safetensors::shard(&specs, job.settings.max_shard.unwrap_or(u64::MAX), module_of);
    let directory = OutputDir::create(&job.destination, job.existing)?;
    let mut texts = Vec::new();
    if shards.len() > 1 {
        texts.push((safetensors::INDEX_FILE.to_string(), safetensors::index_json(&shards, &specs)));
    }
    texts.extend(config::config_json(source, plan).map(|c| ("config.json".to_string(), config::text(source, &c))));
    metadata.insert(FILES_KEY.into(), beside_list(source, &texts));
    let mut sealed = metadata.clone();
    sealed.insert(SEAL_KEY.into(), SEAL_PLACEHOLDER.into());
    let mut artifact = Artifact::empty();
    let mut places = Vec::with_capacity(specs.len());
    for (i, shard) in shards.iter().enumerate() {
        let planned = safetensors::plan(&job.destination.join(&shard.file), &specs[shard.tensors.clone()], &sealed)?;
        let file = directory.file(&shard.file, Some(planned.file_len()))?;
        file.write_header(planned.header(), planned.metadata_value(SEAL_KEY).map(|r| r.start))?;
        places.extend(planned.offsets().iter().map(|&o| (i, o)));
        artifact.patches.push(planned.metadata_value(config::HASH_KEY).map(|r| r.start));
        artifact.files.push(file);
        artifact.bytes += planned.file_len();
    }
    for side in &source.model.side_files {
        directory.write(&side.name, &side.data)?;
    }
    for (name, text) in &texts {
        directory.write(name, text.as_bytes())?;
    }
    artifact.beside = Beside::Directory(metadata, texts);
    artifact.places = by_weight(plan, places.into_iter());
    artifact.directory = Some(directory);
    Ok(artifact)
}

/// Says which files travel beside the weights, so that a later run knows them as ours.
fn beside_list(source: &Source<'_>, texts: &[(String, String)]) -> String {
    let side_files = source.model.side_files.iter().map(|f| (f.name.as_str(), &f.data[..]));
    files_list(side_files.chain(texts.iter().map(|(name, text)| (name.as_str(), text.as_bytes()))))
}

/// Tensors of one module stay in one shard.
fn module_of(name: &str) -> &str {
    match name.find(".weight") {
        Some(at) => &name[..at],
        None => name.rsplit_once('.').map_or(name, |(module, _)| module),
    }
}

/// Builds the metadata and tensors of a GGUF file besides its weights.
fn gguf_beside(source: &Source<'_>, plan: &Plan, settings: &Settings) -> Result<gguf::HfMetadata> {
    let config = config::float_config_json(source, plan).ok_or_else(|| {
        Error::Request(format!(
            "{}: a GGUF file needs the model's config.json, and there is none",
            source.model.path.display()
        ))
    })?;
    let name = source.model.path.file_stem().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    let mut hf = gguf::metadata_from_hf(&gguf::HfSource {
        path: &source.model.path,
        config: &config,
        config_text: &config::text(source, &config),
        side_files: &source.model.side_files,
        name: &name,
        vocab_rows: source.vocab_rows().unwrap_or_default(),
        file_type: file_type(plan),
    })?;
    let provenance = config::provenance(source, plan, settings);
    hf.metadata.extend(provenance.into_iter().map(|(k, v)| (k, v.as_str().into())));
    Ok(hf)
}

/// Like [`prepare`], for an artifact whose weights are encoded and dropped. Its files are removed with it. Without a
/// destination no files are made, and only their contents are checked.
///
/// # Errors
/// As [`prepare`].
pub fn rehearse(source: &Source<'_>, plan: &Plan, job: &Job) -> Result<Artifact> {
    if !job.destination.as_os_str().is_empty() {
        return Ok(Artifact { rehearsed: true, ..prepare(source, plan, job)? });
    }
    if plan.target == Target::Gguf {
        let beside = gguf_beside(source, plan, &job.settings)?;
        gguf_tensors(plan, &beside, Path::new(&plan.label))?;
    }
    Ok(Artifact { rehearsed: true, ..Artifact::empty() })
}

fn prepare_gguf(source: &Source<'_>, plan: &Plan, job: &Job) -> Result<Artifact> {
    let path = &job.destination;
    let mut hf = gguf_beside(source, plan, &job.settings)?;
    let planned = gguf_tensors(plan, &hf, path)?;
    let parts = gguf_parts(&planned, job.settings.max_shard);
    let directory = if parts.len() > 1 { Some(OutputDir::create(path, job.existing)?) } else { None };
    let mut artifact = Artifact::empty();
    artifact.notes = hf.warnings.iter().map(|w| format!("warning: {w}")).collect();
    // "model" of "model.gguf", but all of "qwen2.5-0.5b".
    let name = path.file_name().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    let prefix = name.strip_suffix(".gguf").unwrap_or(&name);
    let mut places = Vec::with_capacity(planned.len());
    for (i, range) in parts.iter().enumerate() {
        let name = gguf::part_name(prefix, i + 1, parts.len());
        let mut metadata = if parts.len() > 1 { split_keys(i, parts.len(), planned.len()) } else { Vec::new() };
        if i == 0 {
            hf.metadata.append(&mut metadata);
            metadata.clone_from(&hf.metadata);
        }
        metadata.push((SEAL_KEY.into(), SEAL_PLACEHOLDER.into()));
        let shown = if directory.is_some() { path.join(&name) } else { path.clone() };
        let layout = gguf::Plan::new(&shown, &metadata, &planned[range.clone()])?;
        let file = match &directory {
            Some(directory) => directory.file(&name, Some(layout.file_len()))?,
            None => OutputFile::create(path, Form::Gguf, job.existing, Some(layout.file_len()))?,
        };
        file.write_header(layout.header(), layout.value_offset(SEAL_KEY))?;
        places.extend((0..range.len()).map(|t| (i, layout.offset(t))));
        artifact.patches.push(layout.value_offset(config::HASH_KEY));
        artifact.bytes += layout.file_len();
        artifact.files.push(file);
    }
    let count = planned.len() - hf.extra.len();
    for (extra, (file, offset)) in hf.extra.iter().zip(&places[count..]) {
        let bytes: Vec<u8> = extra.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        artifact.files[*file].write_all_at(&bytes, *offset)?;
    }
    artifact.places = by_weight(plan, places.into_iter().take(count));
    let first = directory.as_ref().map(|_| gguf::part_name(prefix, 1, parts.len()));
    artifact.beside = Beside::Gguf { metadata: hf.metadata, extra: hf.extra, first };
    artifact.directory = directory;
    Ok(artifact)
}

/// The tensors of a GGUF model, those that the source has not at the end.
fn gguf_tensors(plan: &Plan, hf: &gguf::HfMetadata, path: &Path) -> Result<Vec<gguf::PlannedTensor>> {
    let mut planned = Vec::new();
    for t in tensors(plan) {
        let no_type = || store::Error::tensor(path, &t.name, format!("GGUF has no type {}", t.dtype));
        planned.push(gguf::PlannedTensor::new(t.name.clone(), t.dtype.ggml().ok_or_else(no_type)?, &t.shape));
    }
    let extra = hf.extra.iter();
    planned.extend(extra.map(|e| gguf::PlannedTensor::new(e.name.clone(), GgmlType::F32, &[e.values.len()])));
    Ok(planned)
}

/// Distributes tensors over files, in order: each file holds up to `most` bytes of data, or one tensor.
fn gguf_parts(planned: &[gguf::PlannedTensor], most: Option<u64>) -> Vec<Range<usize>> {
    let most = most.unwrap_or(u64::MAX);
    let (mut parts, mut start, mut bytes) = (Vec::new(), 0, 0u64);
    for (i, tensor) in planned.iter().enumerate() {
        let own = tensor.bytes();
        if i > start && bytes.saturating_add(own) > most {
            parts.push(start..i);
            (start, bytes) = (i, 0);
        }
        bytes = bytes.saturating_add(own);
    }
    parts.push(start..planned.len());
    parts
}

/// The keys by which llama.cpp knows the parts of a model.
fn split_keys(part: usize, parts: usize, tensors: usize) -> Vec<(String, gguf::Value)> {
    let values = [gguf::Value::U16(part as u16), gguf::Value::U16(parts as u16), gguf::Value::I32(tensors as i32)];
    gguf::SPLIT_KEYS.map(String::from).into_iter().zip(values).collect()
}

/// llama.cpp's number for the type that most weights have (`general.file_type`).
fn file_type(plan: &Plan) -> u32 {
    if let Some(number) = plan.file_type {
        return number;
    }
    let mut bytes = std::collections::BTreeMap::new();
    for t in tensors(plan) {
        let number = match t.dtype {
            DType::F32 if t.shape.len() > 1 => 0,
            DType::F16 => 1,
            DType::BF16 => 32,
            DType::Ggml(GgmlType::Q4_0) => 2,
            DType::Ggml(GgmlType::Q4_1) => 3,
            DType::Ggml(GgmlType::Q8_0) => 7,
            DType::Ggml(GgmlType::Q5_0) => 8,
            DType::Ggml(GgmlType::Q5_1) => 9,
            DType::Ggml(GgmlType::Q2_K) => 10,
            DType::Ggml(GgmlType::Q3_K) => 11,
            DType::Ggml(GgmlType::Q4_K) => 14,
            DType::Ggml(GgmlType::Q5_K) => 16,
            DType::Ggml(GgmlType::Q6_K) => 18,
            DType::Ggml(GgmlType::IQ4_NL) => 25,
            DType::Ggml(GgmlType::IQ4_XS) => 30,
            _ => continue,
        };
        *bytes.entry(number).or_insert(0u64) += t.shape.iter().product::<usize>() as u64;
    }
    let quantized = plan.weights.iter().any(|w| w.scheme.is_some());
    let candidates = bytes.into_iter().filter(|(n, _)| !quantized || ![0, 1, 32].contains(n));
    candidates.max_by_key(|c| c.1).map_or(1, |c| c.0)
}
