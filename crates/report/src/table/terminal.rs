//! Tables for a terminal.

use comfy_table::{Attribute, Cell as Drawn, CellAlignment, Color, ContentArrangement, TableComponent, presets};

use super::{Align, Cell, Column, Table, Tone, one_line};
use crate::format;
use crate::spark::Glyphs;

/// Form of a table in a terminal.
///
/// A table that is wider than the terminal is cut into blocks of columns, one
/// below the other, each beginning with the first column. Cells are never
/// broken inside a word or number; only long words in a left-aligned column go
/// onto several lines, at spaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminal {
    /// Characters that fit on a line.
    pub width: usize,
    /// True if tones have colours, beside their symbols.
    pub color: bool,
    /// Characters that rules and symbols are made of.
    pub glyphs: Glyphs,
}

impl Default for Terminal {
    /// 80 characters, no colour, Unicode.
    fn default() -> Self {
        Self { width: 80, color: false, glyphs: Glyphs::Unicode }
    }
}

/// The space that each column has beside its content.
const PADDING: usize = 2;

/// A left-aligned column is not wrapped into less than this.
const NARROWEST_WRAP: usize = 16;

impl Terminal {
    /// The table as text that ends with a line break.
    #[must_use]
    pub fn render(&self, table: &Table) -> String {
        let table = &*table.shown();
        let mut out = String::new();
        if !table.title.is_empty() {
            out.push_str(&one_line(&table.title));
            out.push_str("\n\n");
        }
        for warning in &table.warnings {
            let text = format!("{} {}", self.symbol(Tone::Warning), one_line(warning));
            out.push_str(&wrap_words(&text, self.width.max(NARROWEST_WRAP)));
            out.push_str("\n\n");
        }
        let blocks = self.blocks(table);
        for (index, (columns, limit)) in blocks.iter().enumerate() {
            if index > 0 {
                out.push('\n');
            }
            self.write_block(&mut out, &self.draw(table, columns, *limit).trim_fmt());
        }
        for note in &table.notes {
            out.push('\n');
            out.push_str(&wrap_words(&one_line(note), self.width.max(NARROWEST_WRAP)));
            out.push('\n');
        }
        out
    }

    /// The columns of each block, and the width at which its words are wrapped.
    fn blocks(&self, table: &Table) -> Vec<(Vec<usize>, usize)> {
        let all: Vec<usize> = (0..table.columns.len()).collect();
        let widths: Vec<usize> = self
            .draw(table, &all, usize::MAX)
            .column_max_content_widths()
            .iter()
            .map(|&width| usize::from(width) + PADDING)
            .collect();
        let Some((&first, others)) = widths.split_first() else {
            return Vec::new();
        };
        let limit = self.width.saturating_sub(first + PADDING).max(NARROWEST_WRAP);
        let mut blocks = vec![vec![0]];
        let mut used = first;
        for (index, &natural) in others.iter().enumerate() {
            let wraps = table.columns[index + 1].align == Align::Left;
            let width = if wraps { natural.min(limit + PADDING) } else { natural };
            let is_alone = blocks.last().is_some_and(|block| block.len() == 1);
            if used + width > self.width && !is_alone {
                blocks.push(vec![0]);
                used = first;
            }
            if let Some(block) = blocks.last_mut() {
                block.push(index + 1);
            }
            used += width;
        }
        blocks.into_iter().map(|columns| (columns, limit)).collect()
    }

    fn draw(&self, table: &Table, columns: &[usize], limit: usize) -> comfy_table::Table {
        let mut drawn = self.empty();
        let header = columns.iter().map(|&index| {
            let column = &table.columns[index];
            Drawn::new(column.header_lines().join("\n")).set_alignment(alignment(column))
        });
        drawn.set_header(header.collect::<Vec<_>>());
        for row in &table.rows {
            let cells = columns.iter().map(|&index| {
                let column = &table.columns[index];
                // The first column is repeated, so it keeps to one line.
                let limit = if index == 0 { usize::MAX } else { limit };
                let cell = row.get(index).cloned().unwrap_or_default();
                self.cell(&cell, column, limit)
            });
            drawn.add_row(cells.collect::<Vec<_>>());
        }
        drawn
    }

    /// A block with a rule above and below, as long as the one below its header.
    fn write_block(&self, out: &mut String, block: &str) {
        let (heavy, light) = self.rules();
        let is_rule = |line: &&str| line.starts_with(light) && line.chars().all(|c| c == light);
        let length = block.lines().find(is_rule).map_or(0, |line| line.chars().count());
        let rule: String = std::iter::repeat_n(heavy, length).collect();
        for line in [rule.as_str(), block, rule.as_str()] {
            out.push_str(line);
            out.push('\n');
        }
    }

    /// The characters of the outer rules and of the one below the header.
    fn rules(&self) -> (char, char) {
        match self.glyphs {
            Glyphs::Unicode => ('━', '─'),
            Glyphs::Ascii => ('=', '-'),
        }
    }

    /// A table with nothing but a rule below its header.
    fn empty(&self) -> comfy_table::Table {
        let mut drawn = comfy_table::Table::new();
        drawn.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        drawn.set_style(TableComponent::HeaderLines, self.rules().1);
        if self.color {
            drawn.enforce_styling()
        } else {
            drawn.force_no_tty()
        };
        drawn
    }

    fn symbol(&self, tone: Tone) -> &'static str {
        match self.glyphs {
            Glyphs::Unicode => tone.symbol(),
            Glyphs::Ascii => tone.ascii_symbol(),
        }
    }

    fn cell(&self, cell: &Cell, column: &Column, limit: usize) -> Drawn {
        let symbol = self.symbol(cell.tone);
        let mut text = cell.line();
        if self.glyphs == Glyphs::Ascii && text == format::ABSENT {
            text = "-".to_owned();
        }
        if !symbol.is_empty() {
            text = format!("{symbol} {text}");
        }
        if column.align == Align::Left {
            text = wrap_words(&text, limit);
        }
        let drawn = Drawn::new(text).set_alignment(alignment(column));
        if !self.color {
            return drawn;
        }
        match cell.tone {
            Tone::Normal => drawn,
            Tone::Good => drawn.fg(Color::Green),
            Tone::Warning => drawn.fg(Color::Yellow),
            Tone::Bad => drawn.fg(Color::Red),
            Tone::Muted => drawn.add_attribute(Attribute::Dim),
        }
    }
}

fn alignment(column: &Column) -> CellAlignment {
    match column.align {
        Align::Left => CellAlignment::Left,
        Align::Right => CellAlignment::Right,
        Align::Center => CellAlignment::Center,
    }
}

/// Breaks lines at spaces; a word that is longer than the limit stays whole.
fn wrap_words(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len());
    let mut used = 0;
    for word in text.split(' ') {
        let length = word.chars().count();
        if used > 0 && used + 1 + length > limit {
            out.push('\n');
            used = 0;
        } else if used > 0 {
            out.push(' ');
            used += 1;
        }
        out.push_str(word);
        used += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::samples;
    use super::*;

    #[test]
    fn a_table_that_fits() {
        insta::assert_snapshot!(samples::schemes().to_terminal(80, false), @r"
        Quality against the reference

        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
         Scheme       Size on            Perplexity  Verdict
                         disk                95% CI
                        (MiB)
        ─────────────────────────────────────────────────────────────────
         f16            258.0    23.08 [22.2, 24.0]  reference
         int8-row       157.3    22.96 [22.0, 23.9]  ✓ indistinguishable
         int4-g128      109.2    31.08 [29.8, 32.3]  ! worse
         int4-absmax    106.1  3.7e8 [3.5e8, 3.8e8]  ✗ destroyed
        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

        2,048 tokens scored; paired block bootstrap.
        ");
    }

    #[test]
    fn a_narrow_terminal_gets_blocks() {
        insta::assert_snapshot!(samples::schemes().to_terminal(40, false), @r"
        Quality against the reference

        ━━━━━━━━━━━━━━━━━━━━━━
         Scheme       Size on
                         disk
                        (MiB)
        ──────────────────────
         f16            258.0
         int8-row       157.3
         int4-g128      109.2
         int4-absmax    106.1
        ━━━━━━━━━━━━━━━━━━━━━━

        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
         Scheme                 Perplexity
                                    95% CI
        ───────────────────────────────────
         f16            23.08 [22.2, 24.0]
         int8-row       22.96 [22.0, 23.9]
         int4-g128      31.08 [29.8, 32.3]
         int4-absmax  3.7e8 [3.5e8, 3.8e8]
        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
         Scheme       Verdict
        ──────────────────────────────────
         f16          reference
         int8-row     ✓ indistinguishable
         int4-g128    ! worse
         int4-absmax  ✗ destroyed
        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━

        2,048 tokens scored; paired block
        bootstrap.
        ");
    }

    #[test]
    fn ascii_is_ascii() {
        let terminal = Terminal { glyphs: Glyphs::Ascii, ..Terminal::default() };
        let mut table = samples::schemes();
        table.rows.push(vec![Cell::text("q4"), Cell::absent()]);
        let text = terminal.render(&table);
        assert!(text.is_ascii(), "{text}");
        insta::assert_snapshot!(text, @r"
        Quality against the reference

        ==================================================================
         Scheme       Size on            Perplexity  Verdict
                         disk                95% CI
                        (MiB)
        ------------------------------------------------------------------
         f16            258.0    23.08 [22.2, 24.0]  reference
         int8-row       157.3    22.96 [22.0, 23.9]  ok indistinguishable
         int4-g128      109.2    31.08 [29.8, 32.3]  ! worse
         int4-absmax    106.1  3.7e8 [3.5e8, 3.8e8]  !! destroyed
         q4                 -
        ==================================================================

        2,048 tokens scored; paired block bootstrap.
        ");
    }

    #[test]
    fn colour_comes_beside_the_symbol() {
        let table = samples::schemes();
        let plain = table.to_terminal(80, false);
        let colored = table.to_terminal(80, true);
        assert!(!plain.contains('\u{1b}'));
        assert!(colored.contains('\u{1b}'));
        assert!(plain.contains("✗ destroyed"));
        assert!(colored.contains("✗ destroyed"));
    }

    #[test]
    fn long_words_are_wrapped_at_spaces() {
        let mut table = Table::new("", vec![Column::text("a", "Scheme"), Column::text("b", "Why")]);
        table.rows.push(vec![
            Cell::text("int4-g128"),
            Cell::text("576 is not a multiple of 128, so this layout can't hold it"),
        ]);
        insta::assert_snapshot!(table.to_terminal(40, false), @r"
        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
         Scheme     Why
        ──────────────────────────────────────
         int4-g128  576 is not a multiple of
                    128, so this layout can't
                    hold it
        ━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━━
        ");
    }

    #[test]
    fn nothing_to_draw_is_no_fault() {
        assert_eq!(Table::default().to_terminal(80, false), "");
        let table = Table::new("t", vec![Column::text("a", "A")]);
        assert!(table.to_terminal(0, true).contains('A'));
    }

    proptest! {
        #[test]
        fn every_number_stays_whole(
            width in 0usize..120,
            numbers in proptest::collection::vec(
                proptest::collection::vec(any::<f64>(), 5), 1..4),
        ) {
            let columns = (0..5).map(|i| Column::number(format!("c{i}"), "x")).collect();
            let mut table = Table::new("", columns);
            for row in &numbers {
                let cells = row.iter().map(|&x| Cell::text(format!("<{x:e}>")));
                table.rows.push(cells.collect());
            }
            let text = table.to_terminal(width, false);
            for number in numbers.iter().flatten() {
                let number = format!("<{number:e}>");
                prop_assert!(text.contains(&number), "{} in {}", number, text);
            }
        }
    }
}
