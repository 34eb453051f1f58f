//! One pass of the teacher, labels to disk.

use super::format::{HASH, Header, Settings, checksum, columns, fixed, hashed, head, key, text_checksum};
use super::row::{RowMaker, Scratch};
use crate::teacher::Model;
use crate::windows::Windows;
use crate::{Error, Result};
use progress::{Progress, Unit};
use rayon::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use store::output::{Existing, Form, ResumableFile};
use store::safetensors::{self, TensorSpec};
use store::{Bytes, DType};

/// Floats of logits that exist at a time.
const CHUNK: usize = 1 << 23;

/// Time after which finished windows are secured against an interruption.
const EVERY: Duration = Duration::from_secs(2);

/// Tensors before those with a row for each prediction: three of the text, and checksums.
const FIXED: usize = 4;

/// Index of the section that holds the checksums.
const CHECKSUMS: usize = 3;

/// A labels file that is to be made; its size is known.
#[derive(Debug)]
pub struct Plan<'a> {
    teacher: &'a Model,
    windows: &'a Windows,
    header: Header,
    pub(super) columns: Vec<TensorSpec>,
    pub(super) file: safetensors::Plan,
    path: PathBuf,
}

/// Results of carrying out a plan.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Written {
    /// Predictions that an earlier, interrupted run had made.
    pub resumed: usize,
    /// Predictions of that run from the first damaged one on: they were made again.
    pub damaged: usize,
    /// Predictions that this run made.
    pub made: usize,
    /// Duration in seconds.
    pub seconds: f64,
}

impl<'a> Plan<'a> {
    /// Plans the labels of all windows for the file `path`. This reads the teacher's weights once, for their hash.
    ///
    /// # Errors
    /// [`Error::Labels`] for settings that make no sense, [`Error::Malformed`] for an unfinished file of other settings,
    /// text or teacher.
    pub fn new(path: &Path, teacher: &'a Model, windows: &'a Windows, settings: Settings) -> Result<Self> {
        settings.check(teacher.vocab_size())?;
        let header = Header {
            context: windows.context,
            vocab_size: teacher.vocab_size(),
            teacher: teacher.name(),
            teacher_hash: teacher.files.blake3(),
            tokenizer_hash: teacher.text.blake3(),
            settings,
        };
        let columns = columns(&header.settings, windows.predictions(), header.vocab_size);
        let mut specs = fixed(windows).to_vec();
        specs.extend(columns.iter().cloned());
        let file = safetensors::plan(path, &specs, &header.metadata())?;
        let plan = Self { teacher, windows, header, columns, file, path: path.into() };
        plan.check_partial()?;
        Ok(plan)
    }

    /// Bytes of the file.
    pub fn file_len(&self) -> u64 {
        self.file.file_len()
    }

    /// The teacher's hash.
    pub fn teacher_hash(&self) -> &str {
        &self.header.teacher_hash
    }

    /// Makes the labels; goes on with `NAME.partial` where an interrupted run left one.
    ///
    /// # Errors
    /// [`Error::Store`] where the file can't be written or the disk lacks room; [`Error::Labels`] where the teacher's
    /// logits are not finite.
    pub fn write(&self, existing: Existing, progress: &dyn Progress) -> Result<Written> {
        let mut file = self.open()?;
        let done = usize::try_from(file.steps()).unwrap_or(usize::MAX).min(self.windows.windows.len());
        let first = self.intact(done)?;
        let (resumed, damaged) = (self.before(first), self.before(done) - self.before(first));
        let began = Instant::now();
        progress.start("label", Some(self.windows.predictions() as u64), Unit::Tokens);
        progress.advance(resumed as u64);
        if let Err(e) = self.windows_from(first, &mut file, progress) {
            // Nothing would be lost, and the file would only be in the way of another teacher.
            return if file.steps() == 0 { file.discard().map_or_else(|e| Err(e.into()), |()| Err(e)) } else { Err(e) };
        }
        file.persist(Form::Labels, existing)?;
        progress.finish();
        let made = self.windows.predictions() - resumed;
        Ok(Written { resumed, damaged, made, seconds: began.elapsed().as_secs_f64() })
    }

    fn windows_from(&self, first: usize, file: &mut ResumableFile, progress: &dyn Progress) -> Result<()> {
        let mut secured = Instant::now();
        for window in first..self.windows.windows.len() {
            self.window(file, window)?;
            progress.advance(self.windows.predictions_of(window).len() as u64);
            if secured.elapsed() > EVERY {
                file.record(window as u64 + 1)?;
                secured = Instant::now();
            }
        }
        Ok(())
    }

    /// Predictions of the windows before this one.
    fn before(&self, window: usize) -> usize {
        if window < self.windows.windows.len() {
            self.windows.predictions_of(window).start
        } else {
            self.windows.predictions()
        }
    }

    /// Counts the windows at the start of the unfinished file, up to `done`, that are still as they were written.
    fn intact(&self, done: usize) -> Result<usize> {
        let bytes = Bytes::map(&ResumableFile::partial_path(&self.path)?)?;
        let rows = |(spec, &at): (&TensorSpec, &u64), rows: &Range<usize>| {
            let [from, to] = [rows.start, rows.end].map(|row| (at + row as u64 * row_bytes(spec)) as usize);
            hashed(&bytes[from..to])
        };
        let whole = |&window: &usize| {
            let predictions = self.windows.predictions_of(window);
            let columns = self.columns.iter().zip(&self.file.offsets()[FIXED..]);
            let parts: Vec<_> = columns.map(|column| rows(column, &predictions)).collect();
            bytes[self.checksum_at(window) as usize..][..HASH] == checksum(&parts)
        };
        Ok((0..done).take_while(whole).count())
    }

    /// Offset of a window's checksum.
    fn checksum_at(&self, window: usize) -> u64 {
        self.file.offsets()[CHECKSUMS] + ((window + 1) * HASH) as u64
    }

    /// Labels one window; its checksum is written last.
    pub(super) fn window(&self, file: &ResumableFile, window: usize) -> Result<()> {
        let maker = RowMaker { settings: &self.header.settings, wide_ids: self.columns[0].dtype == DType::U32 };
        let vocab = self.header.vocab_size;
        let begin = self.windows.predictions_of(window).start;
        let mut hashers = vec![blake3::Hasher::new(); self.columns.len()];
        self.teacher.predict(self.windows.tokens_of(window), (CHUNK / vocab).max(1), |first, logits| {
            let first = begin + first;
            let rows = logits
                .par_chunks_exact(vocab)
                .enumerate()
                .map_init(Scratch::default, |scratch, (i, row)| maker.make(row, first + i, scratch));
            // The first that has none is named, whichever thread was first.
            let rows: Vec<Option<_>> = rows.collect();
            let rows = rows.into_iter().enumerate();
            let rows: Result<Vec<_>> =
                rows.map(|(i, row)| row.ok_or_else(|| self.not_finite(window, first + i - begin))).collect();
            let rows = rows?;
            for (column, (spec, offset)) in self.columns.iter().zip(&self.file.offsets()[FIXED..]).enumerate() {
                let part: Vec<u8> = rows.iter().flat_map(|row| &row[column]).copied().collect();
                hashers[column].update_rayon(&part);
                file.write_all_at(&part, offset + first as u64 * row_bytes(spec))?;
            }
            Ok(())
        })?;
        Ok(file.write_all_at(&checksum(&hashers), self.checksum_at(window))?)
    }

    fn not_finite(&self, window: usize, position: usize) -> Error {
        self.teacher.not_finite(&format!("the logits after position {position} of window {window}"))
    }

    /// The unfinished file that is there, or a new one.
    pub(super) fn open(&self) -> Result<ResumableFile> {
        if ResumableFile::partial_path(&self.path)?.exists() {
            return Ok(ResumableFile::resume(&self.path, self.file_len())?);
        }
        let begin = |file: &store::output::OutputFile| {
            file.write_all_at(self.file.header(), 0)?;
            self.fixed().iter().zip(self.file.offsets()).try_for_each(|(bytes, &at)| file.write_all_at(bytes, at))
        };
        Ok(ResumableFile::begin(&self.path, self.file_len(), begin)?)
    }

    /// Tokens, documents, windows, and the checksum of these and the header.
    fn fixed(&self) -> [Vec<u8>; FIXED] {
        let pairs = |ranges: &[Range<usize>]| {
            ranges.iter().flat_map(|r| [r.start, r.end]).flat_map(|n| (n as i64).to_le_bytes()).collect()
        };
        let tokens: Vec<u8> = self.windows.tokens.iter().flat_map(|t| t.to_le_bytes()).collect();
        let (documents, windows): (Vec<u8>, Vec<u8>) = (pairs(&self.windows.documents), pairs(&self.windows.windows));
        let whole = text_checksum(self.file.header(), [&tokens, &documents, &windows]);
        [tokens, documents, windows, whole.to_vec()]
    }

    fn check_partial(&self) -> Result<()> {
        let partial = &ResumableFile::partial_path(&self.path)?;
        if !partial.exists() {
            return Ok(());
        }
        let bytes = Bytes::map(partial)?;
        let same = |(part, &at): (&Vec<u8>, &u64)| bytes.get(at as usize..at as usize + part.len()) == Some(part);
        if bytes.starts_with(self.file.header()) && self.fixed().iter().zip(self.file.offsets()).all(same) {
            return Ok(());
        }
        let what = self.other(partial, &bytes);
        Err(Error::malformed(partial, format!("{what}; remove it to start afresh, or choose another output")))
    }

    /// Describes an unfinished file that is not this plan's.
    fn other(&self, partial: &Path, bytes: &Bytes) -> String {
        let own = bytes.len().checked_sub(8).and_then(|n| bytes.slice(0..n));
        let Some(contents) = own.and_then(|own| safetensors::read(partial, &own).ok()) else {
            return "is no unfinished labels file, or a damaged one".into();
        };
        let began = |what: &str| format!("an interrupted run began this file with {what}");
        let ours = self.header.metadata();
        let (version, theirs) = (ours.get(key::VERSION), contents.metadata.get(key::VERSION));
        match theirs {
            None => return "is no unfinished labels file".into(),
            theirs if theirs != version => return began("another version of the format"),
            _ => {}
        }
        let tensor = |name: &str| contents.tensors.get(name).map_or(&[][..], |t| &t.data);
        let whole = text_checksum(head(bytes), ["tokens", "documents", "windows"].map(tensor));
        if !tensor("blake3").starts_with(&whole) {
            return "is damaged: its text or its header is not what was written".into();
        }
        match ours.iter().find(|(key, value)| contents.metadata.get(*key) != Some(value)) {
            Some((name, _)) if name == key::TEACHER_HASH => began("another teacher"),
            Some((name, _)) if name == key::TOKENIZER_HASH => began("another tokenizer"),
            Some((name, value)) => {
                let other = contents.metadata.get(name).map_or("none", String::as_str);
                began(&format!("{} {other:.60}, not {value}", name.trim_start_matches("qdistill.")))
            }
            None => began("another text"),
        }
    }
}

/// Bytes of one row of a tensor.
fn row_bytes(spec: &TensorSpec) -> u64 {
    (spec.shape[1..].iter().product::<usize>() * spec.dtype.size().unwrap_or(0)) as u64
}
