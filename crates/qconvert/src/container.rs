//! The files of an artifact: headers planned, bytes placed, side files carried, all renamed
//! into place at the end.

use crate::config;
use crate::error::{Error, Result};
use crate::layout::OutTensor;
use crate::plan::{Plan, Source, Target};
use crate::{Job, source::Weight};
use indexmap::IndexMap;
use std::path::Path;
use store::output::{OutputDir, OutputFile};
use store::{gguf, safetensors};

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
    let specs: Vec<safetensors::TensorSpec> =
        tensors(plan).map(|t| safetensors::TensorSpec { name: t.name.clone(), dtype: t.dtype, shape: t.shape.clone() }).collect();
    let shards = safetensors::shard(&specs, job.settings.max_shard.unwrap_or(u64::MAX), module_of);
    let directory = OutputDir::create(&job.destination)?;
    let mut artifact = Artifact { files: Vec::new(), patches: Vec::new(), places: Vec::new(), directory: None, bytes: 0 };
    let mut places = Vec::with_capacity(specs.len());
    for (i, shard) in shards.iter().enumerate() {
        let path = directory.path().join(&shard.file);
        let planned = safetensors::plan(&path, &specs[shard.tensors.clone()], &metadata)?;
        let file = OutputFile::create(&path, Some(planned.file_len()))?;
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

fn prepare_gguf(_source: &Source<'_>, _plan: &Plan, _job: &Job) -> Result<Artifact> {
    todo!()
}

#[allow(dead_code)]
fn unused(_: &Weight, _: &Path, _: Error) {
    let _ = gguf::parse;
}
