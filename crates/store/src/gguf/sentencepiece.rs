//! tokenizer.model: pieces, scores and types of a SentencePiece model (a protobuf message).

/// A piece.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Piece {
    pub text: String,
    pub score: f32,
    /// SentencePiece's type, which GGUF's token types follow: 1 normal, 2 unknown, 3 control, 4 user-defined, 5 unused,
    /// 6 byte.
    pub kind: i32,
}

/// A SentencePiece model.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SentencePiece {
    pub pieces: Vec<Piece>,
    /// The algorithm: 1 Unigram, 2 BPE.
    pub algorithm: u64,
}

/// A field of a message.
enum Field<'a> {
    Varint(u64),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
    /// Eight bytes, which no field that is read here has.
    Fixed64,
}

/// The fields of a message with their numbers.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn varint(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let (&byte, rest) = self.0.split_first()?;
            self.0 = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn take(&mut self, bytes: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(bytes)?;
        self.0 = rest;
        Some(taken)
    }

    fn field(&mut self) -> Option<(u64, Field<'a>)> {
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => {
                self.take(8)?;
                Field::Fixed64
            }
            2 => {
                let length = usize::try_from(self.varint()?).ok()?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(self.take(4)?.try_into().ok()?),
            _ => return None,
        };
        Some((tag >> 3, field))
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Field<'a>), String>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.0 = &[];
        }
        Some(field.ok_or_else(|| "tokenizer.model is cut off or no SentencePiece model".into()))
    }
}

/// Reads a model.
pub(super) fn read(bytes: &[u8]) -> Result<SentencePiece, String> {
    let mut out = SentencePiece { pieces: Vec::new(), algorithm: 1 };
    for field in Fields(bytes) {
        match field? {
            (1, Field::Bytes(message)) => out.pieces.push(piece(message, out.pieces.len())?),
            // The trainer's settings.
            (2, Field::Bytes(message)) => {
                for field in Fields(message) {
                    if let (3, Field::Varint(algorithm)) = field? {
                        out.algorithm = algorithm;
                    }
                }
            }
            _ => {}
        }
    }
    if out.pieces.is_empty() {
        return Err("tokenizer.model holds no pieces".into());
    }
    Ok(out)
}

fn piece(message: &[u8], id: usize) -> Result<Piece, String> {
    let mut out = Piece { text: String::new(), score: 0.0, kind: 1 };
    for field in Fields(message) {
        match field? {
            (1, Field::Bytes(text)) => {
                let text = std::str::from_utf8(text);
                out.text = text.map_err(|_| format!("tokenizer.model: piece {id} is not UTF-8 text"))?.into();
            }
            (2, Field::Fixed32(score)) => out.score = f32::from_le_bytes(score),
            (3, Field::Varint(kind)) => {
                let known = i32::try_from(kind).ok().filter(|kind| (1..=6).contains(kind));
                out.kind = known.ok_or_else(|| format!("tokenizer.model: piece {id} has the unknown type {kind}"))?;
            }
            _ => {}
        }
    }
    if !out.score.is_finite() {
        return Err(format!("tokenizer.model: piece {id} has the score {}", out.score));
    }
    Ok(out)
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    fn varint(mut value: u64, out: &mut Vec<u8>) {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    }

    fn message(number: u8, body: &[u8], out: &mut Vec<u8>) {
        out.push(number << 3 | 2);
        varint(body.len() as u64, out);
        out.extend_from_slice(body);
    }

    /// The bytes of a model.
    pub fn bytes(model: &SentencePiece) -> Vec<u8> {
        let mut out = Vec::new();
        for piece in &model.pieces {
            let mut body = Vec::new();
            message(1, piece.text.as_bytes(), &mut body);
            body.push(2 << 3 | 5);
            body.extend_from_slice(&piece.score.to_le_bytes());
            body.push(3 << 3);
            varint(piece.kind as u64, &mut body);
            message(1, &body, &mut out);
        }
        let mut trainer = vec![3 << 3];
        varint(model.algorithm, &mut trainer);
        message(2, &trainer, &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_round_trip(pieces in prop::collection::vec((".*", -1e6f32..1e6, 1i32..7), 1..20), algorithm in 1u64..5) {
            let pieces = pieces.into_iter().map(|(text, score, kind)| Piece { text, score, kind }).collect();
            let model = SentencePiece { pieces, algorithm };
            prop_assert_eq!(read(&testing::bytes(&model)), Ok(model));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_cut_is_refused_or_has_fewer_pieces(cut in 1usize..60) {
            let piece = |i: usize| Piece { text: format!("piece {i}"), score: -(i as f32), kind: 1 };
            let model = SentencePiece { pieces: (0..3).map(piece).collect(), algorithm: 2 };
            let bytes = testing::bytes(&model);
            if let Ok(read) = read(&bytes[..bytes.len() - cut.min(bytes.len())]) {
                prop_assert!(read.pieces.len() < 3 || read.algorithm == 1);
            }
        }
    }
}
