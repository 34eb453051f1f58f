//! Reading little-endian values from bytes, with errors that say what and where.

use super::value::{ARRAY, Array, Strings, Value, type_name};
use crate::{Error, Result};
use std::path::Path;

/// Most bytes of a header: metadata and the list of tensors.
const MAX_METADATA: usize = 1 << 30;

pub(super) struct Cursor<'a> {
    path: &'a Path,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    pub fn new(path: &'a Path, bytes: &'a [u8]) -> Self {
        Cursor { path, bytes, at: 0 }
    }

    /// The offset of the next byte.
    pub fn at(&self) -> usize {
        self.at
    }

    /// A malformed file, at an offset.
    pub fn error(&self, at: usize, what: impl AsRef<str>) -> Error {
        Error::malformed(self.path, format!("{} (at offset {at})", what.as_ref()))
    }

    /// A file that is not supported, at an offset.
    pub fn unsupported(&self, at: usize, what: impl AsRef<str>) -> Error {
        Error::unsupported(self.path, format!("{} (at offset {at})", what.as_ref()))
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize, what: impl Fn() -> String) -> Result<&'a [u8]> {
        let end = self.at.checked_add(n).filter(|&end| end <= self.bytes.len() && end <= MAX_METADATA);
        let Some(end) = end else {
            let left = self.bytes.len() - self.at;
            let why = if n > left {
                format!("{}: {n} bytes are needed, {left} are left in the file", what())
            } else {
                format!("{}: the header is longer than {MAX_METADATA} bytes", what())
            };
            return Err(self.error(self.at, why));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, what: impl Fn() -> String) -> Result<[u8; N]> {
        let mut out = [0u8; N];
        out.copy_from_slice(self.take(N, what)?);
        Ok(out)
    }

    pub fn u32(&mut self, what: impl Fn() -> String) -> Result<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    pub fn u64(&mut self, what: impl Fn() -> String) -> Result<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// A string: u64 length, then UTF-8.
    pub fn string(&mut self, limit: usize, what: impl Fn() -> String) -> Result<&'a str> {
        let at = self.at;
        let claimed = self.u64(&what)?;
        let len = usize::try_from(claimed).ok().filter(|&n| n <= limit);
        let Some(len) = len else {
            return Err(self.error(at, format!("{}: length {claimed} exceeds {limit}", what())));
        };
        let bytes = self.take(len, &what)?;
        std::str::from_utf8(bytes).map_err(|_| self.error(at, format!("{} is not UTF-8", what())))
    }

    /// The type and value of `key`.
    pub fn value(&mut self, key: &str) -> Result<Value> {
        let what = || format!("key {key}");
        let at = self.at;
        Ok(match self.u32(what)? {
            0 => Value::U8(u8::from_le_bytes(self.array(what)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(what)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(what)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(what)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(what)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(what)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(what)?)),
            7 => Value::Bool(self.bools(key, 1)?[0]),
            8 => Value::String(self.string(MAX_METADATA, what)?.to_string()),
            ARRAY => Value::Array(self.values(key)?),
            10 => Value::U64(u64::from_le_bytes(self.array(what)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(what)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(what)?)),
            other => return Err(self.error(at, format!("key {key} has the unknown value type {other}"))),
        })
    }

    /// The element type, count and elements of an array.
    fn values(&mut self, key: &str) -> Result<Array> {
        let what = || format!("array {key}");
        let at = self.at;
        let ty = self.u32(what)?;
        let n = self.u64(what)?;
        Ok(match ty {
            0 => Array::U8(self.numbers(key, n, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(key, n, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(key, n, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(key, n, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(key, n, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(key, n, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(key, n, f32::from_le_bytes)?),
            7 => Array::Bool(self.bools(key, n)?),
            8 => Array::String(self.strings(key, n)?),
            10 => Array::U64(self.numbers(key, n, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(key, n, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(key, n, f64::from_le_bytes)?),
            ARRAY => return Err(self.unsupported(at, format!("key {key} is an array of arrays"))),
            other => {
                let known = type_name(other).unwrap_or("unknown");
                return Err(self.error(at, format!("array {key} has the {known} element type {other}")));
            }
        })
    }

    /// `n` numbers of `N` bytes; the length is checked against the file before any allocation.
    fn numbers<const N: usize, T>(&mut self, key: &str, n: u64, read: impl Fn([u8; N]) -> T) -> Result<Vec<T>> {
        let bytes = self.elements(key, n, N)?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect())
    }

    fn bools(&mut self, key: &str, n: u64) -> Result<Vec<bool>> {
        let at = self.at;
        let bytes = self.elements(key, n, 1)?;
        if let Some(i) = bytes.iter().position(|&b| b > 1) {
            return Err(self.error(at + i, format!("key {key}: {} is not a bool", bytes[i])));
        }
        Ok(bytes.iter().map(|&b| b == 1).collect())
    }

    fn elements(&mut self, key: &str, n: u64, size: usize) -> Result<&'a [u8]> {
        let len = usize::try_from(n).ok().and_then(|n| n.checked_mul(size));
        let Some(len) = len else {
            return Err(self.error(self.at, format!("array {key}: {n} elements of {size} bytes overflow")));
        };
        self.take(len, || format!("array {key}"))
    }

    fn strings(&mut self, key: &str, n: u64) -> Result<Strings> {
        let mut out = Strings::default();
        for i in 0..n {
            out.push(self.string(MAX_METADATA, || format!("array {key}, element {i}"))?);
        }
        Ok(out)
    }
}
