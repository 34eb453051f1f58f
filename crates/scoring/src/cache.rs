//! Results of forward passes, kept in a folder from one run of a program to the next.
//!
//! An entry is named by the BLAKE3 of everything that its bits depend on: the program, the instruction set, the device, the
//! arithmetic, all of the model's files, and the tokens. An entry of another build, machine or model is never found. What
//! is kept are the hidden states after the final norm, a row for each token; logits are computed from them again, which
//! gives the same bits.

use crate::load::Compute;
use crate::{Error, Result};
use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Marks a folder as a cache (bford.info/cachedir), and as one of this program.
const TAG_FILE: &str = "CACHEDIR.TAG";
const TAG: &str =
    "Signature: 8a477f597d28d172789f06886806bc55\n# Hidden states of models, kept by qeval and qinspect.\n";

/// Bytes of an entry's checksum, which stands before its contents.
const CHECKSUM: usize = blake3::OUT_LEN;

/// A folder of entries.
#[derive(Debug)]
pub struct Cache {
    folder: PathBuf,
    /// BLAKE3 of the running program.
    program: blake3::Hash,
    found: AtomicU64,
    computed: AtomicU64,
    /// The first entry that could not be written, and why.
    unwritten: OnceLock<String>,
}

impl Cache {
    /// Opens a cache, and makes its folder where there is none.
    ///
    /// # Errors
    /// [`Error::Io`] where the folder can't be made or written; [`Error::Protocol`] for a folder with other files.
    pub fn open(folder: &Path) -> Result<Self> {
        let failed = |what| move |e| Error::io(folder, what, e);
        if folder.exists() && !folder.is_dir() {
            return Err(Error::Protocol(format!("{}: is no folder: name one for --cache", folder.display())));
        }
        fs::create_dir_all(folder).map_err(failed("create"))?;
        let tag = folder.join(TAG_FILE);
        match fs::read_to_string(&tag) {
            Ok(text) if text == TAG => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                if fs::read_dir(folder).map_err(failed("read"))?.next().is_some() {
                    let what = "holds other files: name a new folder for --cache";
                    return Err(Error::Protocol(format!("{}: {what}", folder.display())));
                }
                store::output::write_own_file(&tag, TAG.as_bytes())?;
            }
            _ => {
                let what = format!("is no cache of this program: its {TAG_FILE} is another's");
                return Err(Error::Protocol(format!("{}: {what}", folder.display())));
            }
        }
        let program = running_program().map_err(failed("name entries of"))?;
        Ok(Cache {
            folder: folder.into(),
            program,
            found: AtomicU64::new(0),
            computed: AtomicU64::new(0),
            unwritten: OnceLock::new(),
        })
    }

    /// Says how many passes were taken from the folder, and whether results could not be kept; none where nothing ran.
    pub fn note(&self) -> Option<String> {
        let (found, computed) = (self.found.load(Ordering::Relaxed), self.computed.load(Ordering::Relaxed));
        let all = found + computed;
        if all == 0 {
            return None;
        }
        let folder = self.folder.display();
        let kept = self.unwritten.get().map_or(String::new(), |why| format!(" Not all could be kept: {why}."));
        Some(format!(
            "{found} of {all} forward passes were taken from {folder}, where earlier runs of this build on this kind of \
             processor kept them; speed is always measured.{kept}"
        ))
    }

    fn path(&self, key: &blake3::Hash) -> PathBuf {
        let name = key.to_hex();
        self.folder.join(&name[..2]).join(&name[2..])
    }

    /// Reads an entry; none where there is none, or a damaged one.
    fn read(&self, key: &blake3::Hash) -> Option<Vec<u8>> {
        let bytes = fs::read(self.path(key)).ok()?;
        let (checksum, contents) = bytes.split_at_checked(CHECKSUM)?;
        let is_sound = blake3::hash(contents).as_bytes()[..] == *checksum;
        is_sound.then(|| {
            self.found.fetch_add(1, Ordering::Relaxed);
            contents.to_vec()
        })
    }

    /// Writes an entry. A failure is no error, since the results stand; [`Cache::note`] tells it.
    fn write(&self, key: &blake3::Hash, contents: &[u8]) {
        self.computed.fetch_add(1, Ordering::Relaxed);
        let path = self.path(key);
        let bytes = [&blake3::hash(contents).as_bytes()[..], contents].concat();
        let written = match path.parent().map(fs::create_dir_all) {
            Some(Err(e)) => Err(store::Error::io(&path, "create the folder of", e)),
            _ => store::output::write_own_file(&path, &bytes),
        };
        if let Err(e) = written {
            self.unwritten.get_or_init(|| e.to_string());
        }
    }
}

/// BLAKE3 of the running program's file.
fn running_program() -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(std::env::current_exe()?)?)?;
    Ok(hasher.finalize())
}

/// The entries of one model under one arithmetic.
#[derive(Debug, Clone)]
pub struct ModelCache {
    cache: Arc<Cache>,
    /// BLAKE3 of everything but the tokens.
    model: blake3::Hash,
}

impl ModelCache {
    /// The entries of a model that is computed as `compute` says.
    pub fn new(cache: &Arc<Cache>, model: &store::Model, compute: &Compute) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(cache.program.as_bytes());
        let Compute { device, options, kv, cache: _ } = compute;
        let device = runtime::device_name(device);
        let metadata: Vec<_> = model.metadata.iter().collect();
        let instruction_set = runtime::active_instruction_set();
        let facts: [&dyn Debug; 6] = [&instruction_set, &device, options, kv, &metadata, &model.config_json];
        for fact in facts {
            hasher.update(format!("{fact:?}\0").as_bytes());
        }
        hasher.update(model.blake3().as_bytes());
        for file in &model.side_files {
            hasher.update(blake3::hash(file.name.as_bytes()).as_bytes());
            hasher.update(blake3::hash(&file.data).as_bytes());
        }
        ModelCache { cache: Arc::clone(cache), model: hasher.finalize() }
    }

    fn key(&self, what: &str, tokens: &[u32]) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.model.as_bytes()).update(what.as_bytes()).update(b"\0");
        for token in tokens {
            hasher.update(&token.to_le_bytes());
        }
        hasher.finalize()
    }

    /// The hidden states of a pass over `tokens`, `width` values for each; none where they are not kept.
    pub(crate) fn states(&self, tokens: &[u32], width: usize) -> Option<Vec<f32>> {
        let bytes = self.cache.read(&self.key("states", tokens))?;
        let (values, []) = bytes.as_chunks() else { return None };
        (Some(values.len()) == tokens.len().checked_mul(width))
            .then(|| values.iter().map(|&v| f32::from_le_bytes(v)).collect())
    }

    /// Keeps the hidden states of a pass over `tokens`.
    pub(crate) fn keep_states(&self, tokens: &[u32], states: &[f32]) {
        let bytes: Vec<u8> = states.iter().flat_map(|v| v.to_le_bytes()).collect();
        self.cache.write(&self.key("states", tokens), &bytes);
    }

    /// The greedy continuation of `prompt` as far as it is kept; none where nothing is.
    pub(crate) fn continuation(&self, prompt: &[u32]) -> Option<Vec<u32>> {
        let bytes = self.cache.read(&self.key("greedy", prompt))?;
        let (tokens, []) = bytes.as_chunks() else { return None };
        Some(tokens.iter().map(|&t| u32::from_le_bytes(t)).collect())
    }

    /// Keeps a greedy continuation of `prompt`.
    pub(crate) fn keep_continuation(&self, prompt: &[u32], tokens: &[u32]) {
        let bytes: Vec<u8> = tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        self.cache.write(&self.key("greedy", prompt), &bytes);
    }
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
