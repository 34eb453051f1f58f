//! The format of a labels file.

use crate::soft::check_temperature;
use crate::windows::Windows;
use crate::{Error, Result};
use indexmap::IndexMap;
use std::fmt;
use std::str::FromStr;
use store::safetensors::TensorSpec;
use store::{DType, MAX_SIZE};

/// The version that is written and read.
pub(super) const VERSION: &str = "2";

/// The most temperatures of a file.
const MAX_TEMPERATURES: usize = 16;

/// Metadata keys, in the order in which they are written.
pub(super) mod key {
    pub const VERSION: &str = store::output::provenance::LABELS_KEY;
    pub const KIND: &str = "qdistill.kind";
    pub const TEMPERATURES: &str = "qdistill.temperatures";
    pub const CONTEXT: &str = "qdistill.context";
    pub const SEED: &str = "qdistill.seed";
    pub const VOCAB_SIZE: &str = "qdistill.vocab_size";
    pub const TEACHER: &str = "qdistill.teacher";
    pub const TEACHER_HASH: &str = "qdistill.teacher_blake3";
    pub const TOKENIZER_HASH: &str = "qdistill.tokenizer_blake3";
}

/// Part of a distribution that is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The so many most likely tokens and the mass of all others.
    TopK(usize),
    /// This number of draws at each temperature.
    Sampled(usize),
    /// All of it.
    Full,
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |n: &str| n.parse().ok().filter(|&n: &usize| n > 0);
        match text.split_once(':') {
            None if text == "full" => Some(Kind::Full),
            Some(("topk", n)) => number(n).map(Kind::TopK),
            Some(("sampled", n)) => number(n).map(Kind::Sampled),
            _ => None,
        }
        .ok_or_else(|| format!("'{text}' is none of topk:K, sampled:N, full"))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::TopK(k) => write!(f, "topk:{k}"),
            Kind::Sampled(n) => write!(f, "sampled:{n}"),
            Kind::Full => f.write_str("full"),
        }
    }
}

/// Requested labels.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Part of a distribution that is kept.
    pub kind: Kind,
    /// The temperatures that a training may use; full labels suit all, whatever is here.
    pub temperatures: Vec<f64>,
    /// Seed of the draws.
    pub seed: u64,
}

impl Settings {
    /// Checks the settings against a vocabulary.
    ///
    /// # Errors
    /// [`Error::Labels`].
    pub fn check(&self, vocab_size: usize) -> Result<()> {
        let wrong = |what: String| Err(Error::Labels(what));
        match self.kind {
            Kind::TopK(k) if k > vocab_size => {
                return wrong(format!("topk:{k} is more than the {vocab_size} entries of the vocabulary; use full"));
            }
            Kind::Sampled(n) if n > vocab_size => {
                return wrong(format!("sampled:{n} takes more room than full labels; use full"));
            }
            _ => {}
        }
        let t = &self.temperatures;
        if self.kind != Kind::Full && (t.is_empty() || t.len() > MAX_TEMPERATURES) {
            return wrong(format!("{} temperatures; 1 to {MAX_TEMPERATURES} are possible", t.len()));
        }
        t.iter().try_for_each(|&t| check_temperature(t).map(drop)).map_err(Error::Labels)?;
        match t.iter().enumerate().find(|(i, t)| self.temperatures[..*i].contains(t)) {
            Some((_, twice)) => wrong(format!("temperature {twice} is there twice")),
            None => Ok(()),
        }
    }

    /// The temperatures that the file depends on.
    pub(super) fn listed(&self) -> &[f64] {
        if self.kind == Kind::Full { &[] } else { &self.temperatures }
    }
}

/// `1,2,4`.
pub(super) fn list(temperatures: &[f64]) -> String {
    temperatures.iter().map(f64::to_string).collect::<Vec<_>>().join(",")
}

/// Bytes of a checksum.
pub(super) const HASH: usize = blake3::OUT_LEN;

/// The tensors before those with a row for each prediction: tokens, documents, windows, checksums.
pub(super) fn fixed(windows: &Windows) -> [TensorSpec; 4] {
    let fixed = |name: &str, dtype, shape| TensorSpec { name: name.into(), dtype, shape };
    [
        fixed("tokens", DType::U32, vec![windows.tokens.len()]),
        fixed("documents", DType::I64, vec![windows.documents.len(), 2]),
        fixed("windows", DType::I64, vec![windows.windows.len(), 2]),
        fixed("blake3", DType::U8, vec![windows.windows.len() + 1, HASH]),
    ]
}

/// The checksum of several parts: BLAKE3 over theirs.
pub(super) fn checksum<'a>(parts: impl IntoIterator<Item = &'a blake3::Hasher>) -> [u8; HASH] {
    let mut whole = blake3::Hasher::new();
    for part in parts {
        whole.update(part.finalize().as_bytes());
    }
    whole.finalize().into()
}

/// BLAKE3 of one part.
pub(super) fn hashed(bytes: &[u8]) -> blake3::Hasher {
    let mut hasher = blake3::Hasher::new();
    hasher.update_rayon(bytes);
    hasher
}

/// The checksum of a file's header and of its tokens, documents and windows.
pub(super) fn text_checksum(header: &[u8], text: [&[u8]; 3]) -> [u8; HASH] {
    checksum(&[header, text[0], text[1], text[2]].map(hashed))
}

/// The header of a safetensors file, with the length before it.
pub(super) fn head(file: &[u8]) -> &[u8] {
    let len = file.first_chunk().map_or(0, |n| u64::from_le_bytes(*n) as usize);
    &file[..len.saturating_add(8).min(file.len())]
}

/// The tensors with a row for each prediction, in the order in which [`super::row`] makes their parts.
pub(super) fn columns(settings: &Settings, predictions: usize, vocab_size: usize) -> Vec<TensorSpec> {
    let temperatures = settings.listed().len();
    let id = if vocab_size <= 1 << 16 { DType::U16 } else { DType::U32 };
    let column = |name: &str, dtype, row: &[usize]| TensorSpec {
        name: name.into(),
        dtype,
        shape: [&[predictions], row].concat(),
    };
    match settings.kind {
        Kind::TopK(k) => vec![
            column("ids", id, &[k]),
            column("log_probs", DType::F16, &[k]),
            column("log_normalisers", DType::F32, &[temperatures]),
            column("log_rest", DType::F32, &[temperatures]),
        ],
        Kind::Sampled(n) => vec![column("ids", id, &[temperatures, n])],
        Kind::Full => vec![column("log_probs", DType::F16, &[vocab_size])],
    }
}

/// Header of a labels file.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Header {
    pub settings: Settings,
    pub context: usize,
    pub vocab_size: usize,
    pub teacher: String,
    pub teacher_hash: String,
    pub tokenizer_hash: String,
}

impl Header {
    /// The string metadata.
    pub fn metadata(&self) -> IndexMap<String, String> {
        let s = &self.settings;
        [
            (key::VERSION, VERSION.to_string()),
            (key::KIND, s.kind.to_string()),
            (key::TEMPERATURES, list(s.listed())),
            (key::CONTEXT, self.context.to_string()),
            (key::SEED, s.seed.to_string()),
            (key::VOCAB_SIZE, self.vocab_size.to_string()),
            (key::TEACHER, self.teacher.clone()),
            (key::TEACHER_HASH, self.teacher_hash.clone()),
            (key::TOKENIZER_HASH, self.tokenizer_hash.clone()),
        ]
        .map(|(key, value)| (key.to_string(), value))
        .into()
    }

    /// Reads the string metadata back; says what is wrong with them.
    pub fn parse(metadata: &IndexMap<String, String>) -> Result<Self, String> {
        let version = metadata.get(key::VERSION).ok_or("is no labels file: its metadata have no qdistill.labels")?;
        if version != VERSION {
            let what = format!("is a labels file of version {version:.20}; this program reads version {VERSION}");
            return Err(format!("{what}: label the text again"));
        }
        let value = |key: &str| metadata.get(key).ok_or(format!("its metadata have no {key}"));
        fn number<T: FromStr>(key: &str, text: &str) -> Result<T, String> {
            text.parse().map_err(|_| format!("{key} is '{text:.40}', not a number"))
        }
        let temperatures = value(key::TEMPERATURES)?.split(',').filter(|t| !t.is_empty());
        let settings = Settings {
            kind: value(key::KIND)?.parse().map_err(|e| format!("{}: {e}", key::KIND))?,
            temperatures: temperatures.map(|t| number(key::TEMPERATURES, t)).collect::<Result<_, _>>()?,
            seed: number(key::SEED, value(key::SEED)?)?,
        };
        let header = Header {
            context: number(key::CONTEXT, value(key::CONTEXT)?)?,
            vocab_size: number(key::VOCAB_SIZE, value(key::VOCAB_SIZE)?)?,
            teacher: value(key::TEACHER)?.clone(),
            teacher_hash: value(key::TEACHER_HASH)?.clone(),
            tokenizer_hash: value(key::TOKENIZER_HASH)?.clone(),
            settings,
        };
        if header.vocab_size > MAX_SIZE {
            return Err(format!(
                "{} is {}; no vocabulary is larger than {MAX_SIZE}",
                key::VOCAB_SIZE,
                header.vocab_size
            ));
        }
        header.settings.check(header.vocab_size).map_err(|e| e.to_string())?;
        Ok(header)
    }
}
