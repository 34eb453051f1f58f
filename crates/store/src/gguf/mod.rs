//! GGUF: a bounded reader, the names and keys of its models, and the planning of new files.

mod config;
mod cursor;
mod edited;
#[cfg(test)]
mod edited_tests;
mod export;
#[cfg(test)]
mod export_tests;
mod model;
mod names;
mod parse;
mod pre;
mod sentencepiece;
mod split;
mod spm;
#[cfg(test)]
mod spm_tests;
mod tokenizer;
mod value;
mod vocab;
mod write;

pub use export::{ExtraTensor, HfMetadata, HfSource, metadata_from_hf};
pub(crate) use model::NO_CONFIGURATION;
pub use model::{GgufModel, read};
pub use names::{ARCHITECTURES, gguf_to_hf_name, hf_to_gguf_name, reads_bias};
pub use parse::{DEFAULT_ALIGNMENT, GgufFile, TensorInfo, parse};
pub(crate) use split::only_model;
pub use split::{KEYS as SPLIT_KEYS, part_name};
pub use value::{Array, Strings, Value};
pub use write::{NAME_LIMIT, Plan, PlannedTensor};
