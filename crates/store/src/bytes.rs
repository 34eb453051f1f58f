//! Cheaply cloned views of bytes: of a memory map, or owned.

use crate::{Error, Result};
use memmap2::{Advice, Mmap, UncheckedAdvice};
use std::{fmt, fs, fs::File, ops::Deref, ops::Range, path::Path, sync::Arc};

enum Backing {
    Map(Mmap),
    Owned(Vec<u8>),
}

/// A view of bytes that keeps what it views alive. Cloning and slicing copy nothing.
#[derive(Clone)]
pub struct Bytes {
    backing: Arc<Backing>,
    range: Range<usize>,
}

impl Bytes {
    /// Maps a file read-only.
    ///
    /// # Errors
    /// [`Error::Io`] when it can't be opened or mapped; [`Error::Malformed`] for what is no regular file.
    pub fn map(path: &Path) -> Result<Self> {
        let io = |e| Error::io(path, "read", e);
        // Before it is opened: opening a pipe would wait for a writer.
        if !fs::metadata(path).map_err(io)?.is_file() {
            return Err(Error::malformed(path, "is not a regular file"));
        }
        let file = File::open(path).map_err(io)?;
        let meta = file.metadata().map_err(io)?;
        if meta.len() == 0 {
            return Ok(Bytes::from(Vec::new()));
        }
        // SAFETY: the map is read-only and private to this process. Another process that
        // truncates or rewrites the file while it is mapped would be seen here (as with every
        // mapped reader); outputs of this project are renamed into place and never rewritten.
        let map = unsafe { Mmap::map(&file) }.map_err(io)?;
        let range = 0..map.len();
        Ok(Bytes { backing: Arc::new(Backing::Map(map)), range })
    }

    /// The part `range` of this view; none when it lies outside.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let start = self.range.start.checked_add(range.start)?;
        let end = self.range.start.checked_add(range.end)?;
        (start <= end && end <= self.range.end).then(|| Bytes { backing: Arc::clone(&self.backing), range: start..end })
    }

    /// Tells the system that the view will be read from front to back, soon.
    pub fn will_need(&self) {
        if let Backing::Map(map) = &*self.backing {
            // Advice only: a refusal changes nothing but speed.
            let _ = map.advise_range(Advice::WillNeed, self.range.start, self.range.len());
        }
    }

    /// Gives the pages of a mapped view back to the system; they are read again from the
    /// file when touched. Does nothing to owned bytes.
    pub fn release(&self) {
        if let Backing::Map(map) = &*self.backing {
            let page = 4096;
            let start = self.range.start.next_multiple_of(page).min(self.range.end);
            let len = (self.range.end - start) / page * page;
            if len > 0 {
                // SAFETY: the map is a read-only view of a file that nobody writes through it,
                // so dropped pages come back from the file with the same contents.
                let _ = unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, start, len) };
            }
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.backing {
            Backing::Map(map) => &map[self.range.clone()],
            Backing::Owned(vec) => &vec[self.range.clone()],
        }
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for Bytes {
    fn from(vec: Vec<u8>) -> Self {
        let range = 0..vec.len();
        Bytes { backing: Arc::new(Backing::Owned(vec)), range }
    }
}

impl fmt::Debug for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Bytes({})", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn views_stay_inside_and_survive_release() {
        let mut file = tempfile::NamedTempFile::new().expect("temp file");
        let data: Vec<u8> = (0..20_000u32).map(|i| i as u8).collect();
        file.write_all(&data).expect("write");
        let map = Bytes::map(file.path()).expect("map");
        assert_eq!(&*map, &data[..]);
        let part = map.slice(10..15_000).expect("inside");
        part.release();
        assert_eq!(&*part, &data[10..15_000]);
        assert!(part.slice(0..15_000).is_none() && part.slice(usize::MAX..usize::MAX).is_none());
    }
}
