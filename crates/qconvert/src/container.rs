//! The files of an artifact: headers planned, bytes placed, side files carried, all renamed
//! into place at the end.

use crate::Job;
use crate::config;
use crate::error::{Error, Result};
use crate::layout::OutTensor;
use crate::plan::{Plan, Source, Target};
use indexmap::IndexMap;
use schemes::GgmlType;
use store::output::{OutputDir, OutputFile};
use store::{DType, gguf, safetensors};

/// An artifact being written.
pub struct Artifact {
    files: Vec<OutputFile>,
    /// Where the hash of the source goes in each file.
    patches: Vec<Option<u64>>,
    /// For each planned weight, file and offset of each tensor.
    places: Vec<Vec<(usize, u64)>>,
    directory: Option<OutputDir>,
    bytes: u64,
}

/// Where the tensors of one weight go.
#[derive(Clone, Copy)]
pub struct Sink<'a> {
    artifact: &'a Artifact,
    places: &'a [(usize, u64)],
}

impl Sink<'_> {
    /// Writes bytes at an offset of the weight's tensor `tensor`.
    pub fn write(&self, tensor: usize, offset: u64, bytes: &[u8]) -> Result<()> {
        let (file, start) = self.places[tensor];
        Ok(self.artifact.files[file].write_all_at(bytes, start + offset)?)
    }
}

impl Artifact {
    /// Where the planned weight number `at` goes.
    pub fn sink(&self, at: usize) -> Sink<'_> {
        Sink { artifact: self, places: &self.places[at] }
    }

    /// Fills in the source's hash and puts everything in place. Gives the bytes of the weight files.
    pub fn finish(self, source_hash: &str) -> Result<u64> {
        for (file, patch) in self.files.iter().zip(&self.patches) {
            if let Some(offset) = patch {
                file.write_all_at(source_hash.as_bytes(), *offset)?;
            }
        }
        for file in self.files {
            file.persist()?;
        }
        if let Some(directory) = self.directory {
            directory.persist()?;
        }
        Ok(self.bytes)
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
    let directory = OutputDir::create(&job.destination)?;
    let mut artifact =
        Artifact { files: Vec::new(), patches: Vec::new(), places: Vec::new(), directory: None, bytes: 0 };
    let mut places = Vec::with_capacity(specs.len());
    for (i, shard) in shards.iter().enumerate() {
        let planned = safetensors::plan(&job.destination.join(&shard.file), &specs[shard.tensors.clone()], &metadata)?;
        let file = directory.file(&shard.file, Some(planned.file_len()))?;
        file.write_all_at(planned.header(), 0)?;
        places.extend(planned.offsets().iter().map(|&o| (i, o)));
        artifact.patches.push(planned.metadata_value(config::HASH_KEY).map(|r| r.start));
        artifact.files.push(file);
        artifact.bytes += planned.file_len();
    }
    if shards.len() > 1 {
        directory.write(safetensors::INDEX_FILE, safetensors::index_json(&shards, &specs).as_bytes())?;
    }
    for side in &source.model.side_files {
        directory.write(&side.name, &side.data)?;
    }
    if let Some(config) = config::config_json(source, plan) {
        directory.write("config.json", format!("{config:#}\n").as_bytes())?;
    }
    artifact.places = by_weight(plan, places.into_iter());
    artifact.directory = Some(directory);
    Ok(artifact)
}

/// Tensors of one module stay in one shard.
fn module_of(name: &str) -> &str {
    match name.find(".weight") {
        Some(at) => &name[..at],
        None => name.rsplit_once('.').map_or(name, |(module, _)| module),
    }
}

fn prepare_gguf(source: &Source<'_>, plan: &Plan, job: &Job) -> Result<Artifact> {
    let path = &job.destination;
    let config = config::float_config_json(source, plan).ok_or_else(|| {
        Error::Request(format!(
            "{}: a GGUF file needs the model's config.json, and there is none",
            source.model.path.display()
        ))
    })?;
    let name = source.model.path.file_stem().map_or_else(|| "model".into(), |n| n.to_string_lossy().into_owned());
    let hf = gguf::metadata_from_hf(&gguf::HfSource {
        path: &source.model.path,
        config: &config,
        side_files: &source.model.side_files,
        name: &name,
        vocab_rows: source.model.config()?.vocab_size,
        file_type: file_type(plan),
    })?;
    let mut metadata = hf.metadata;
    metadata.extend(config::provenance(source, plan, &job.settings).into_iter().map(|(k, v)| (k, v.as_str().into())));
    let mut planned = Vec::new();
    for t in tensors(plan) {
        let ty = t
            .dtype
            .ggml()
            .ok_or_else(|| store::Error::tensor(path, &t.name, format!("GGUF has no type {}", t.dtype)))?;
        planned.push(gguf::PlannedTensor::new(t.name.clone(), ty, &t.shape));
    }
    let count = planned.len();
    planned.extend(
        hf.extra.iter().map(|e| gguf::PlannedTensor::new(e.name.clone(), schemes::GgmlType::F32, &[e.values.len()])),
    );
    let layout = gguf::Plan::new(path, &metadata, &planned)?;
    let file = OutputFile::create(path, Some(layout.file_len()))?;
    file.write_all_at(layout.header(), 0)?;
    for (i, extra) in hf.extra.iter().enumerate() {
        let bytes: Vec<u8> = extra.values.iter().flat_map(|v| v.to_le_bytes()).collect();
        file.write_all_at(&bytes, layout.offset(count + i))?;
    }
    Ok(Artifact {
        files: vec![file],
        patches: vec![layout.value_offset(config::HASH_KEY)],
        places: by_weight(plan, (0..count).map(|i| (0, layout.offset(i)))),
        directory: None,
        bytes: layout.file_len(),
    })
}

/// llama.cpp's number for the type that most weights have (`general.file_type`).
fn file_type(plan: &Plan) -> u32 {
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
            _ => continue,
        };
        *bytes.entry(number).or_insert(0u64) += t.shape.iter().product::<usize>() as u64;
    }
    let quantized = plan.weights.iter().any(|w| w.scheme.is_some());
    let candidates = bytes.into_iter().filter(|(n, _)| !quantized || ![0, 1, 32].contains(n));
    candidates.max_by_key(|c| c.1).map_or(1, |c| c.0)
}
