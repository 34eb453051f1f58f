//! The little markup that texts of a page may have.

use crate::chart::escape;

/// The text as HTML: `code` between backquotes, and references to footnotes
/// that exist (`[^1]`). Everything else is escaped.
pub(super) fn html(text: &str, footnotes: usize) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut rest = text;
    loop {
        let Some(start) = rest.find(['`', '[']) else {
            out.push_str(&escape(rest));
            return out;
        };
        out.push_str(&escape(&rest[..start]));
        rest = &rest[start..];
        let taken = code(rest).or_else(|| reference(rest, footnotes));
        let (markup, length) = taken.unwrap_or_else(|| (rest[..1].to_owned(), 1));
        out.push_str(&markup);
        rest = &rest[length..];
    }
}

/// The paragraphs of a text, without their line breaks.
pub(super) fn paragraphs(text: &str) -> impl Iterator<Item = String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let paragraphs: Vec<String> =
        lines.split(|line| line.is_empty()).filter(|lines| !lines.is_empty()).map(|lines| lines.join(" ")).collect();
    paragraphs.into_iter()
}

/// Code at the beginning of the text, and how many bytes it takes.
fn code(text: &str) -> Option<(String, usize)> {
    let inside = text.strip_prefix('`')?;
    let end = inside.find('`').filter(|&end| end > 0)?;
    Some((format!("<code>{}</code>", escape(&inside[..end])), end + 2))
}

/// A reference at the beginning of the text, and how many bytes it takes.
fn reference(text: &str, footnotes: usize) -> Option<(String, usize)> {
    let inside = text.strip_prefix("[^")?;
    let end = inside.find(']')?;
    let number: usize = inside[..end].parse().ok()?;
    (1..=footnotes).contains(&number).then(|| (format!("<sup><a href=\"#note-{number}\">{number}</a></sup>"), end + 3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_and_references_are_marked() {
        assert_eq!(html("`a<b` is so.[^1]", 1), "<code>a&lt;b</code> is so.<sup><a href=\"#note-1\">1</a></sup>");
    }

    #[test]
    fn what_is_no_markup_stays() {
        for text in ["[22.1, 24.0]", "[^2]", "[^x]", "`open", "``", "é[^", "[^99999999999999999999]"] {
            assert_eq!(html(text, 1), text);
        }
    }

    #[test]
    fn blank_lines_separate_paragraphs() {
        let found: Vec<_> = paragraphs("one\ntwo\n\n \nthree\n").collect();
        assert_eq!(found, ["one two", "three"]);
    }
}
