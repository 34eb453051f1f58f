//! Paragraphs and lists of facts for a terminal.

use report::table::Terminal;

/// Columns beyond which a view of paragraphs and narrow tables is hard to read.
const WIDEST: usize = 100;

/// The terminal's form, no wider than 100 columns.
pub fn readable(form: &Terminal) -> Terminal {
    Terminal { width: form.width.min(WIDEST), ..*form }
}

/// Joins the parts of a view that aren't empty, with a blank line between them.
pub fn paragraphs(parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(|p| p.trim_end()).filter(|p| !p.is_empty()).collect();
    format!("{}\n", parts.join("\n\n"))
}

/// Lays out names and values, one pair a line, wrapped at `limit` columns where words allow that.
pub fn facts(facts: &[(&str, String)], limit: usize) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| wrapped(&format!("{name:width$} "), value, limit)).collect::<Vec<_>>().join("\n")
}

/// Lays out each note as a paragraph of its own, wrapped at `limit` columns.
pub fn notes<'a>(notes: &'a [String], limit: usize) -> impl Iterator<Item = String> + 'a {
    notes.iter().map(move |note| wrapped("note:", note, limit))
}

/// The words of a text after `first`, further lines indented by its length.
fn wrapped(first: &str, text: &str, limit: usize) -> String {
    let indent = first.chars().count();
    let (mut lines, mut line) = (Vec::new(), first.to_string());
    for word in report::format::printable(text).split_whitespace() {
        let is_first = line.chars().count() == indent;
        if !is_first && line.chars().count() + 1 + word.chars().count() > limit {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_wrapped_at_words() {
        let shown = facts(&[("A", "one two three".into()), ("Long", "four".into())], 14);
        assert_eq!(shown, "A     one two\n      three\nLong  four");
        assert_eq!(facts(&[("A", "a-very-long-word b".into())], 8), "A  a-very-long-word\n   b");
        assert_eq!(notes(&["one two".into()], 10).collect::<Vec<_>>(), ["note: one\n      two"]);
    }
}
