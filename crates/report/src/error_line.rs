//! An error and its causes on one line.

use std::error::Error;

/// Formats an error and its causes on one line. A cause whose text an outer error already contains is left out.
pub fn error_line(error: &(dyn Error + 'static)) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(e) = next {
        let cause = without_backtrace(&e.to_string());
        if !text.contains(&cause) {
            text = if text.is_empty() { cause } else { format!("{text}: {cause}") };
        }
        next = e.source();
    }
    crate::format::printable(&text)
}

/// Cuts off the backtrace that some libraries put into their errors.
fn without_backtrace(text: &str) -> String {
    let is_frame = |line: &&str| line.trim_start().starts_with("0: ");
    text.lines().take_while(|line| !is_frame(line)).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backtrace_is_no_part_of_an_error() {
        let error =
            std::io::Error::other("a sum of [2] and [3]\n   0: candle_core::error::Error::bt\n             at x.rs:3");
        assert_eq!(error_line(&error), "a sum of [2] and [3]");
        assert_eq!(error_line(&std::io::Error::other("plain")), "plain");
    }
}
