//! Labels from disk.

use super::format::{HASH, Header, Kind, checksum, columns, hashed, head, list, text_checksum};
use crate::ops::{exponentials, largest};
use crate::soft::{Soft, Teacher};
use crate::windows::Windows;
use crate::{Error, Result};
use half::f16;
use indexmap::IndexMap;
use rayon::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};
use store::{Bytes, DType, TextTokenizer, safetensors};

/// An opened labels file; labels stay views into it.
#[derive(Debug, Clone)]
pub struct Labels {
    path: PathBuf,
    header: Header,
    windows: Windows,
    columns: IndexMap<String, Bytes>,
    /// One for each window, after that of everything else.
    checksums: Bytes,
}

/// Tolerance for the sum of a whole distribution, which should be 1: in F16 log-probabilities are off by 2^-12 of
/// themselves.
const FULL_TOLERANCE: f64 = 0.01;

/// The same tolerance for k tokens and the rest, which are normalised as they are stored.
const TOP_K_TOLERANCE: f64 = 0.001;

impl Labels {
    /// Opens a labels file and checks everything but the labels themselves, which are checked as they are read.
    ///
    /// # Errors
    /// [`Error::Store`] where it is no well-formed safetensors file, [`Error::Malformed`] where it is no labels file or
    /// contradicts itself.
    pub fn open(path: &Path) -> Result<Self> {
        let bytes = Bytes::map(path)?;
        let contents = safetensors::read(path, &bytes)?;
        let wrong = |what: String| Error::malformed(path, what);
        let header = Header::parse(&contents.metadata).map_err(wrong)?;
        let mut tensors = contents.tensors;
        let mut take = |name: &str, dtype: DType, shape: &[Option<usize>]| {
            let tensor = tensors.swap_remove(name).ok_or_else(|| wrong(format!("tensor {name} is missing")))?;
            let fits = tensor.shape.len() == shape.len()
                && tensor.shape.iter().zip(shape).all(|(found, wanted)| wanted.is_none_or(|w| w == *found));
            match fits && tensor.dtype == dtype {
                true => Ok(tensor.data),
                false => Err(wrong(format!("tensor {name} is {} {:?}, not as needed", tensor.dtype, tensor.shape))),
            }
        };
        let text = [
            take("tokens", DType::U32, &[None])?,
            take("documents", DType::I64, &[None, Some(2)])?,
            take("windows", DType::I64, &[None, Some(2)])?,
        ];
        let tokens: Vec<u32> = words(&text[0]).map(u32::from_le_bytes).collect();
        if let Some(id) = tokens.iter().find(|&&id| id as usize >= header.vocab_size) {
            return Err(wrong(format!("token {id} is outside the vocabulary of {} entries", header.vocab_size)));
        }
        let (documents, windows) = (ranges(&text[1]).map_err(wrong)?, ranges(&text[2]).map_err(wrong)?);
        let windows = Windows::from_parts(tokens, documents, windows, header.context).map_err(wrong)?;
        let checksums = take("blake3", DType::U8, &[Some(windows.windows.len() + 1), Some(HASH)])?;
        let mut labels = IndexMap::new();
        for spec in columns(&header.settings, windows.predictions(), header.vocab_size) {
            let shape: Vec<_> = spec.shape.iter().copied().map(Some).collect();
            labels.insert(spec.name.clone(), take(&spec.name, spec.dtype, &shape)?);
        }
        // Fuzzing reaches what the checksums guard.
        if !cfg!(fuzzing) && checksums[..HASH] != text_checksum(head(&bytes), [&text[0], &text[1], &text[2]]) {
            return Err(wrong("is damaged: its text or its header is not what was written".into()));
        }
        Ok(Self { path: path.into(), header, windows, columns: labels, checksums })
    }

    /// Part of each distribution that the file holds.
    pub fn kind(&self) -> Kind {
        self.header.settings.kind
    }

    /// The temperatures that a training may use; empty where all suit.
    pub fn temperatures(&self) -> &[f64] {
        self.header.settings.listed()
    }

    /// Entries of the teacher's vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.header.vocab_size
    }

    /// The teacher's name.
    pub fn teacher_name(&self) -> &str {
        &self.header.teacher
    }

    /// The text, cut as the teacher saw it.
    pub fn windows(&self) -> &Windows {
        &self.windows
    }

    /// Refuses labels of another teacher.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn expect_teacher(&self, teacher: &store::Model) -> Result<()> {
        if self.header.teacher_hash == teacher.blake3() {
            return Ok(());
        }
        let (made, given) = (&self.header.teacher, teacher.path.display());
        self.refuse(format!("its labels are of the teacher {made}, whose tensors are not those of {given}"))
    }

    /// Refuses labels over the tokens of another tokenizer.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn expect_tokenizer(&self, tokenizer: &TextTokenizer) -> Result<()> {
        if self.header.tokenizer_hash == tokenizer.blake3() {
            return Ok(());
        }
        self.refuse(format!("its labels are over the tokens of {}'s tokenizer, not of this one", self.header.teacher))
    }

    /// Refuses labels of another text, or of one that was cut otherwise.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn expect_windows(&self, windows: &Windows) -> Result<()> {
        if self.windows == *windows {
            return Ok(());
        }
        if self.windows.context != windows.context {
            let (made, given) = (self.windows.context, windows.context);
            return self.refuse(format!("its windows are of {made} tokens, not {given}"));
        }
        let same = self.windows.tokens.iter().zip(&windows.tokens).take_while(|(a, b)| a == b).count();
        self.refuse(format!("its labels are of another text, which differs from token {same} on"))
    }

    fn refuse(&self, what: String) -> Result<()> {
        Err(Error::malformed(&self.path, format!("{what}; make labels of its own with qdistill label")))
    }

    /// The labels at one temperature.
    ///
    /// # Errors
    /// [`Error::Malformed`] where they were not made for it.
    pub fn at(&self, temperature: f64) -> Result<Reader<'_>> {
        let listed = self.temperatures();
        let index = listed.iter().position(|&t| t == temperature);
        if self.kind() != Kind::Full && index.is_none() {
            let what = format!("has labels at temperature {}, not {temperature}", list(listed));
            let way_out = format!("use one of these, or label again with --temperature {temperature}");
            return Err(Error::malformed(&self.path, format!("{what}; {way_out}")));
        }
        Ok(Reader { labels: self, temperature, index: index.unwrap_or(0) })
    }

    /// Rows of a tensor.
    fn rows(&self, column: &str, rows: &Range<usize>) -> &[u8] {
        let Some(bytes) = self.columns.get(column) else { return &[] };
        let each = bytes.len() / self.windows.predictions();
        &bytes[rows.start * each..rows.end * each]
    }

    /// Checks that a window's labels are what was written.
    fn check(&self, window: usize, rows: &Range<usize>) -> Result<()> {
        let parts: Vec<_> = self.columns.keys().map(|column| hashed(self.rows(column, rows))).collect();
        match cfg!(fuzzing) || self.checksums[(window + 1) * HASH..][..HASH] == checksum(&parts) {
            true => Ok(()),
            false => Err(self.damaged(rows, "some are not what was written")),
        }
    }

    fn ids(&self, rows: &Range<usize>) -> impl Iterator<Item = u32> {
        let bytes = self.rows("ids", rows);
        let (narrow, wide) = if self.vocab_size() <= 1 << 16 { (bytes, &[][..]) } else { (&[][..], bytes) };
        words(narrow).map(|id| u32::from(u16::from_le_bytes(id))).chain(words(wide).map(u32::from_le_bytes))
    }

    fn damaged(&self, rows: &Range<usize>, what: &str) -> Error {
        Error::malformed(&self.path, format!("is damaged: among predictions {}..{}, {what}", rows.start, rows.end))
    }
}

/// The labels of a file at one temperature.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    labels: &'a Labels,
    temperature: f64,
    /// Index of the temperature in the file.
    index: usize,
}

impl Reader<'_> {
    /// The values of this temperature, one a row.
    fn at_temperature(&self, column: &str, rows: &Range<usize>) -> Vec<f32> {
        let values = words(self.labels.rows(column, rows)).map(f32::from_le_bytes);
        values.skip(self.index).step_by(self.labels.temperatures().len()).collect()
    }

    fn top_k(&self, k: usize, rows: &Range<usize>) -> Result<Soft> {
        let normalisers = self.at_temperature("log_normalisers", rows);
        let log_rest = self.at_temperature("log_rest", rows);
        let stored = halves(self.labels.rows("log_probs", rows));
        let by_row = stored.chunks_exact(k).zip(&normalisers);
        let t = self.temperature as f32;
        let log_probs: Vec<f32> = by_row.flat_map(|(row, norm)| row.iter().map(move |lp| lp / t - norm)).collect();
        let sum = |(row, rest): (&[f32], &f32)| row.iter().chain([rest]).map(|&lp| f64::from(lp).exp()).sum();
        self.check_sums(rows, TOP_K_TOLERANCE, log_probs.par_chunks_exact(k).zip(&log_rest).map(sum))?;
        let ids: Vec<u32> = self.labels.ids(rows).collect();
        // The last row that each token was seen in.
        let mut seen = vec![u32::MAX; self.labels.vocab_size()];
        for (row, ids) in (0u32..).zip(ids.chunks_exact(k)) {
            for &id in ids {
                match seen.get_mut(id as usize) {
                    Some(seen) if *seen != row => *seen = row,
                    Some(_) => return Err(self.labels.damaged(rows, &format!("token {id} is there twice"))),
                    None => return Err(self.outside(rows, id)),
                }
            }
        }
        Ok(Soft::TopK { k, ids, log_probs, log_rest })
    }

    fn full(&self, rows: &Range<usize>) -> Result<Soft> {
        let logits = halves(self.labels.rows("log_probs", rows));
        let sum = |room: &mut Vec<f32>, row: &[f32]| {
            let top = largest(row);
            exponentials(row, top, 1.0, room) * f64::from(top).exp()
        };
        self.check_sums(rows, FULL_TOLERANCE, logits.par_chunks_exact(self.vocab_size()).map_init(Vec::new, sum))?;
        Ok(Soft::Full { logits })
    }

    /// Refuses distributions that don't sum to 1.
    fn check_sums(&self, rows: &Range<usize>, tolerance: f64, sums: impl ParallelIterator<Item = f64>) -> Result<()> {
        match sums.find_any(|sum| sum.is_nan() || (sum - 1.0).abs() > tolerance) {
            Some(sum) => Err(self.labels.damaged(rows, &format!("probabilities sum to {sum:.3}, not 1"))),
            None => Ok(()),
        }
    }

    fn outside(&self, rows: &Range<usize>, id: u32) -> Error {
        self.labels.damaged(rows, &format!("token {id} is outside the vocabulary"))
    }

    fn sampled(&self, n: usize, rows: &Range<usize>) -> Result<Soft> {
        let all: Vec<u32> = self.labels.ids(rows).collect();
        if let Some(&id) = all.iter().find(|&&id| id as usize >= self.vocab_size()) {
            return Err(self.outside(rows, id));
        }
        let by_row = all.chunks_exact(n * self.labels.temperatures().len());
        Ok(Soft::Sampled { n, ids: by_row.flat_map(|row| &row[n * self.index..][..n]).copied().collect() })
    }
}

impl Teacher for Reader<'_> {
    fn vocab_size(&self) -> usize {
        self.labels.vocab_size()
    }

    fn temperature(&self) -> f64 {
        self.temperature
    }

    fn row_bytes(&self) -> u64 {
        match self.labels.kind() {
            Kind::TopK(k) => 8 * k as u64 + 4,
            Kind::Sampled(n) => 4 * n as u64,
            Kind::Full => 4 * self.vocab_size() as u64,
        }
    }

    fn soft(&mut self, window: usize) -> Result<Soft> {
        let rows = self.labels.windows.predictions_of(window);
        self.labels.check(window, &rows)?;
        match self.labels.kind() {
            Kind::TopK(k) => self.top_k(k, &rows),
            Kind::Sampled(n) => self.sampled(n, &rows),
            Kind::Full => self.full(&rows),
        }
    }
}

/// Words of N bytes.
fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
    bytes.as_chunks::<N>().0.iter().copied()
}

fn halves(bytes: &[u8]) -> Vec<f32> {
    words(bytes).map(|h| f16::from_le_bytes(h).to_f32()).collect()
}

/// Pairs of begin and end.
fn ranges(bytes: &[u8]) -> Result<Vec<Range<usize>>, String> {
    let at =
        |word: [u8; 8]| usize::try_from(i64::from_le_bytes(word)).map_err(|_| "a range begins below 0".to_string());
    let ends = words(bytes).map(at).collect::<Result<Vec<_>, _>>()?;
    Ok(ends.as_chunks::<2>().0.iter().map(|[start, end]| *start..*end).collect())
}
