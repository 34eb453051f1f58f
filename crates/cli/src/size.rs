//! Sizes in bytes on the command line.

/// Parses a size such as `2GB`, `1.5GiB` or `4096`.
///
/// # Errors
/// A message that says what is wrong with `text`.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match &text[digits.len()..] {
        "" | "B" => 1,
        "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        other => return Err(format!("unknown unit '{other}'; use KB, MB, GB, KiB, MiB or GiB")),
    };
    let number: f64 = digits.parse().map_err(|_| format!("'{digits}' is not a number"))?;
    let bytes = number * unit as f64;
    // Beyond 2^53 an f64 isn't exact, and no file is so large.
    if bytes.is_finite() && (1.0..9e15).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err("the size is zero or too large".into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("2GB"), Ok(2_000_000_000));
        assert_eq!(parse("500MiB"), Ok(500 << 20));
        assert_eq!(parse("1.5KiB"), Ok(1536));
        for wrong in ["0", "12XB", "99999999999GB", "-1", "nan", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
