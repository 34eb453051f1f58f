//! Soft labels in a file: one pass of the teacher, for any number of trainings.
//!
//! The file is a safetensors file. Row p of each tensor that has a row for each prediction belongs to the p-th
//! prediction, counted window by window; window w predicts `tokens[windows[w][0] + 1 .. windows[w][1]]`.
//!
//! | tensor | type, shape | |
//! |---|---|---|
//! | `tokens` | U32 `[n]` | what the teacher saw |
//! | `documents`, `windows` | I64 [m, 2] | where each begins and ends in `tokens` |
//! | `blake3` | U8 [windows + 1, 32] | checksums: of header and text, then of each window's rows |
//! | `ids` (top-k) | U16 or U32 [predictions, k] | the most likely tokens, the most likely first |
//! | `log_probs` (top-k) | F16 [predictions, k] | their natural log-probabilities at temperature 1 |
//! | `log_normalisers` (top-k) | F32 [predictions, temperatures] | log_prob at T = `log_probs` / T - this |
//! | `log_rest` (top-k) | F32 [predictions, temperatures] | log of the mass outside at T, -inf for none |
//! | `ids` (sampled) | U16 or U32 [predictions, temperatures, n] | draws at each temperature, ascending |
//! | `log_probs` (full) | F16 [predictions, vocabulary] | log-probabilities at temperature 1 |
//!
//! `log_normalisers` are of the rounded `log_probs`: at every listed temperature the k probabilities and the rest sum
//! to 1. What F16 loses is 2e-7 nats of KL on SmolLM2-135M (`scripts/check-labels`), and it saves a third of the file.
//!
//! A checksum is BLAKE3 over the BLAKE3 of each part: of header, `tokens`, `documents`, `windows`; of a window's rows in
//! the tensors that follow. A window's is checked when it is read.
//!
//! String metadata: `qdistill.labels` (the format's version), `.kind` (such as `topk:64`), `.temperatures`,
//! `.context`, `.seed`, `.vocab_size`, `.teacher` (its name), `.teacher_blake3` (over its tensors, as in artifacts
//! made from it), `.tokenizer_blake3` (over vocabulary, merges and BOS).

mod format;
mod reader;
mod row;
mod writer;

pub use format::{Kind, Settings};
pub use reader::{Labels, Reader};
pub use writer::{Plan, Written};

#[cfg(test)]
mod tests;
