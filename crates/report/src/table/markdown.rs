//! Markdown with GitHub's pipe tables.

use super::{Align, Cell, Table, one_line};

pub(super) fn render(table: &Table) -> String {
    let mut out = String::new();
    if !table.title.is_empty() {
        out.push_str(&format!("**{}**\n\n", escape(&one_line(&table.title))));
    }
    for warning in &table.warnings {
        out.push_str(&format!("> {} {}\n\n", super::Tone::Warning.symbol(), escape(&one_line(warning))));
    }
    let headers = table
        .columns
        .iter()
        .map(|column| column.header_lines().iter().map(|line| escape(line)).collect::<Vec<_>>().join("<br>"));
    write_row(&mut out, headers);
    let rules = table.columns.iter().map(|column| {
        match column.align {
            Align::Left => ":---",
            Align::Right => "---:",
            Align::Center => ":---:",
        }
        .to_owned()
    });
    write_row(&mut out, rules);
    for row in &table.rows {
        let cells = (0..table.columns.len()).map(|index| row.get(index).map_or(String::new(), cell_text));
        write_row(&mut out, cells);
    }
    for note in &table.notes {
        out.push_str(&format!("\n{}\n", escape(&one_line(note))));
    }
    out
}

fn cell_text(cell: &Cell) -> String {
    let text = escape(&cell.line());
    match cell.tone.symbol() {
        "" => text,
        symbol => format!("{symbol} {text}"),
    }
}

fn write_row(out: &mut String, cells: impl Iterator<Item = String>) {
    out.push('|');
    for cell in cells {
        out.push_str(&format!(" {} |", cell.trim()));
    }
    out.push('\n');
}

/// Escapes what Markdown would take as markup, and the pipe that ends a cell.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (index, c) in text.char_indices() {
        match c {
            '\\' | '|' | '`' | '*' => {
                out.push('\\');
                out.push(c);
            }
            // A bracket alone is plain text, as in an interval.
            ']' if text[index + 1..].starts_with(['(', '[', ':']) => out.push_str("\\]"),
            // Inside a word an underscore is plain text.
            '_' if is_word_edge(text, index) => out.push_str("\\_"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            c => out.push(c),
        }
    }
    out
}

fn is_word_edge(text: &str, index: usize) -> bool {
    let before = text[..index].chars().next_back();
    let after = text[index + 1..].chars().next();
    let is_word = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
    !(is_word(before) && is_word(after))
}

#[cfg(test)]
mod tests {
    use super::super::{Column, samples};
    use super::*;

    #[test]
    fn a_table_of_schemes() {
        insta::assert_snapshot!(render(&samples::schemes()), @r"
        **Quality against the reference**

        | Scheme | Size on<br>disk<br>(MiB) | Perplexity<br>95% CI | Verdict |
        | :--- | ---: | ---: | :--- |
        | f16 | 258.0 | 23.08 [22.2, 24.0] | reference |
        | int8-row | 157.3 | 22.96 [22.0, 23.9] | ✓ indistinguishable |
        | int4-g128 | 109.2 | 31.08 [29.8, 32.3] | ! worse |
        | int4-absmax | 106.1 | 3.7e8 [3.5e8, 3.8e8] | ✗ destroyed |

        2,048 tokens scored; paired block bootstrap.
        ");
    }

    #[test]
    fn markup_is_escaped() {
        assert_eq!(escape("a|b*c`[d](e)<br>&"), r"a\|b\*c\`[d\](e)&lt;br&gt;&amp;");
        assert_eq!(escape("q8_0 _x_"), r"q8_0 \_x\_");
    }

    #[test]
    fn a_pipe_does_not_end_a_cell() {
        let mut table = Table::new("", vec![Column::text("a", "A|B")]);
        table.rows.push(vec![Cell::text("x|y\nz")]);
        assert_eq!(render(&table), "| A\\|B |\n| :--- |\n| x\\|y z |\n");
    }

    #[test]
    fn missing_cells_are_empty() {
        let mut table = Table::new("", vec![Column::text("a", "A"), Column::text("b", "B")]);
        table.rows.push(vec![]);
        assert!(render(&table).ends_with("|  |  |\n"));
    }
}
