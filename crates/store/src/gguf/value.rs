//! Typed metadata values.

/// Strings of an array, in one buffer: no more memory than they take in the file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Strings {
    text: String,
    ends: Vec<usize>,
}

impl Strings {
    /// Appends one.
    pub fn push(&mut self, s: &str) {
        self.text.push_str(s);
        self.ends.push(self.text.len());
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// The string at `i`.
    pub fn get(&self, i: usize) -> Option<&str> {
        let end = *self.ends.get(i)?;
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        self.text.get(start..end)
    }

    /// All, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len()).map(|i| self.get(i).unwrap_or_default())
    }
}

impl<S: AsRef<str>> FromIterator<S> for Strings {
    fn from_iter<I: IntoIterator<Item = S>>(iter: I) -> Self {
        let mut out = Strings::default();
        iter.into_iter().for_each(|s| out.push(s.as_ref()));
        out
    }
}

/// An array of one element type. Arrays of arrays are not supported.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Strings),
}

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    I64(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    String(String),
    Array(Array),
}

/// The number of the array type in files.
pub(super) const ARRAY: u32 = 9;

/// Names of the value types by number.
const NAMES: [&str; 13] =
    ["u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64"];

/// The name of a value type; none when unknown.
pub(super) fn type_name(id: u32) -> Option<&'static str> {
    NAMES.get(id as usize).copied()
}

impl Array {
    /// Number of the element type in files.
    pub fn element_type(&self) -> u32 {
        match self {
            Array::U8(_) => 0,
            Array::I8(_) => 1,
            Array::U16(_) => 2,
            Array::I16(_) => 3,
            Array::U32(_) => 4,
            Array::I32(_) => 5,
            Array::F32(_) => 6,
            Array::Bool(_) => 7,
            Array::String(_) => 8,
            Array::U64(_) => 10,
            Array::I64(_) => 11,
            Array::F64(_) => 12,
        }
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        match self {
            Array::U8(v) => v.len(),
            Array::I8(v) => v.len(),
            Array::U16(v) => v.len(),
            Array::I16(v) => v.len(),
            Array::U32(v) => v.len(),
            Array::I32(v) => v.len(),
            Array::U64(v) => v.len(),
            Array::I64(v) => v.len(),
            Array::F32(v) => v.len(),
            Array::F64(v) => v.len(),
            Array::Bool(v) => v.len(),
            Array::String(v) => v.len(),
        }
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The elements as integers, whatever their width; none for floats, bools and strings.
    pub fn integers(&self) -> Option<Vec<i64>> {
        Some(match self {
            Array::U8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::I8(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::U16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::I16(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::U32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::I32(v) => v.iter().map(|&x| i64::from(x)).collect(),
            Array::I64(v) => v.clone(),
            Array::U64(v) => v.iter().map(|&x| i64::try_from(x).ok()).collect::<Option<_>>()?,
            Array::F32(_) | Array::F64(_) | Array::Bool(_) | Array::String(_) => return None,
        })
    }
}

impl Value {
    /// Number of the type in files.
    pub fn type_id(&self) -> u32 {
        match self {
            Value::U8(_) => 0,
            Value::I8(_) => 1,
            Value::U16(_) => 2,
            Value::I16(_) => 3,
            Value::U32(_) => 4,
            Value::I32(_) => 5,
            Value::F32(_) => 6,
            Value::Bool(_) => 7,
            Value::String(_) => 8,
            Value::Array(_) => ARRAY,
            Value::U64(_) => 10,
            Value::I64(_) => 11,
            Value::F64(_) => 12,
        }
    }

    /// Name of the type, for messages.
    pub fn type_name(&self) -> &'static str {
        type_name(self.type_id()).unwrap_or("?")
    }

    /// The value as a non-negative integer, whatever its width.
    pub fn integer(&self) -> Option<u64> {
        match *self {
            Value::U8(v) => Some(v.into()),
            Value::U16(v) => Some(v.into()),
            Value::U32(v) => Some(v.into()),
            Value::U64(v) => Some(v),
            Value::I8(v) => v.try_into().ok(),
            Value::I16(v) => v.try_into().ok(),
            Value::I32(v) => v.try_into().ok(),
            Value::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// The value as a number. An f32 becomes the double with the same shortest decimal form
    /// (1e-5 stays 1e-5).
    pub fn number(&self) -> Option<f64> {
        match *self {
            Value::F32(v) => Some(v.to_string().parse().unwrap_or(f64::from(v))),
            Value::F64(v) => Some(v),
            Value::I8(v) => Some(v.into()),
            Value::I16(v) => Some(v.into()),
            Value::I32(v) => Some(v.into()),
            Value::I64(v) => Some(v as f64),
            _ => self.integer().map(|v| v as f64),
        }
    }

    /// The value as a string.
    pub fn str(&self) -> Option<&str> {
        match self {
            Value::String(s) => Some(s),
            _ => None,
        }
    }

    /// The value as an array of strings.
    pub fn strings(&self) -> Option<&Strings> {
        match self {
            Value::Array(Array::String(s)) => Some(s),
            _ => None,
        }
    }
}

impl From<&str> for Value {
    fn from(s: &str) -> Self {
        Value::String(s.to_string())
    }
}

impl From<String> for Value {
    fn from(s: String) -> Self {
        Value::String(s)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_decimal_form() {
        assert_eq!(Value::F32(1e-5).number(), Some(1e-5));
        assert_eq!(Value::F32(1e6).number(), Some(1e6));
        assert_eq!(Value::I32(-3).number(), Some(-3.0));
        assert_eq!((Value::I32(-3).integer(), Value::U8(3).integer()), (None, Some(3)));
    }

    #[test]
    fn strings_share_a_buffer() {
        let s: Strings = ["a", "", "\u{10ffff}bc"].into_iter().collect();
        assert_eq!(s.iter().collect::<Vec<_>>(), ["a", "", "\u{10ffff}bc"]);
        assert_eq!((s.len(), s.get(1), s.get(3)), (3, Some(""), None));
    }
}
