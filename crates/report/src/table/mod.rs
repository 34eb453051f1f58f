//! Tables, written for a terminal, Markdown, CSV, JSON or an HTML page.

mod csv;
mod markdown;
mod terminal;

use serde_json::{Map, Value};
use std::borrow::Cow;

use crate::Error;
use crate::format;

pub use terminal::Terminal;

/// A table: columns, rows of cells, and notes below.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Table {
    /// Shown above the table; may be empty.
    pub title: String,
    /// The columns. The first one names the rows.
    pub columns: Vec<Column>,
    /// One cell for each column; a row that is too short is filled up with
    /// empty cells, what is too many is not shown. [`Table::push`] checks.
    pub rows: Vec<Vec<Cell>>,
    /// Reasons to doubt the table's values, shown above it.
    pub warnings: Vec<String>,
    /// Shown below the table, each as a paragraph.
    pub notes: Vec<String>,
}

/// A column of a [`Table`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Column {
    /// The name for machines: CSV header and JSON key.
    pub key: String,
    /// The name for people; may have line breaks.
    pub header: String,
    /// Alignment of the column's cells.
    pub align: Align,
    /// The unit of all its cells, shown below the header.
    pub unit: Option<String>,
    /// Meaning of the column, in a sentence.
    pub help: Option<String>,
    /// The parts that its machine values are taken apart into in CSV, whatever
    /// a row holds; see [`Column::parts`].
    pub parts: Vec<String>,
    /// Only for machines: in CSV and JSON, not shown to people.
    pub machine_only: bool,
}

impl Column {
    /// A column of words.
    pub fn text(key: impl Into<String>, header: impl Into<String>) -> Self {
        Self { key: key.into(), header: header.into(), ..Self::default() }
    }

    /// A column of numbers, aligned right.
    pub fn number(key: impl Into<String>, header: impl Into<String>) -> Self {
        Self { align: Align::Right, ..Self::text(key, header) }
    }

    /// Sets the unit.
    #[must_use]
    pub fn unit(mut self, unit: impl Into<String>) -> Self {
        self.unit = Some(unit.into());
        self
    }

    /// Sets the explanation.
    #[must_use]
    pub fn help(mut self, help: impl Into<String>) -> Self {
        self.help = Some(help.into());
        self
    }

    /// Sets the parts that the column's values have in CSV, in order: `value`, `ci95.low`, `ci95.high`. Without them
    /// the columns of a CSV follow from the values; with them they are the same in every run.
    #[must_use]
    pub fn parts(mut self, parts: &[&str]) -> Self {
        self.parts = parts.iter().map(|&part| part.to_owned()).collect();
        self
    }

    /// Hides the column from people: it is in CSV and JSON only.
    #[must_use]
    pub fn machine_only(mut self) -> Self {
        self.machine_only = true;
        self
    }

    /// Header and unit, line by line, without control characters.
    pub(crate) fn header_lines(&self) -> Vec<String> {
        let header = format::printable(&self.header);
        let unit = self.unit.as_deref().map(|unit| format!("({})", one_line(unit)));
        header.lines().map(str::to_owned).chain(unit).collect()
    }

    /// The header on one line, with its unit.
    pub(crate) fn header_line(&self) -> String {
        self.header_lines().join(" ")
    }
}

/// Alignment of a column's cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Align {
    /// Words.
    #[default]
    Left,
    /// Numbers.
    Right,
    /// Marks.
    Center,
}

/// A cell: text for people, and a value for machines.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Cell {
    /// Text that is shown; line breaks become spaces.
    pub text: String,
    /// The value in CSV and JSON; without it, that is the text.
    pub value: Option<Value>,
    /// Meaning of the cell: good, bad, of less interest.
    pub tone: Tone,
}

impl Cell {
    /// A cell of words.
    pub fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), ..Self::default() }
    }

    /// A cell whose machine value differs from its text.
    ///
    /// Numbers that JSON can't hold (NaN, infinities) become `null`.
    pub fn value(text: impl Into<String>, value: impl Into<Value>) -> Self {
        Self { text: text.into(), value: Some(value.into()), tone: Tone::Normal }
    }

    /// A cell that has no value: a dash for people, nothing for machines.
    #[must_use]
    pub fn absent() -> Self {
        Self { text: format::ABSENT.to_owned(), value: Some(Value::Null), tone: Tone::Muted }
    }

    /// Returns whether a check passed.
    pub fn passed(passed: bool) -> Self {
        let (word, tone) = if passed { ("passed", Tone::Good) } else { ("failed", Tone::Bad) };
        Self::value(word, passed).tone(tone)
    }

    /// Sets the tone.
    #[must_use]
    pub fn tone(mut self, tone: Tone) -> Self {
        self.tone = tone;
        self
    }

    /// The text on one line, without control characters.
    pub(crate) fn line(&self) -> String {
        one_line(&self.text)
    }

    pub(crate) fn machine(&self) -> Value {
        self.value.clone().unwrap_or_else(|| Value::String(self.text.clone()))
    }

    /// The number that the cell's machine value is, or begins with; none for words.
    pub(crate) fn number(&self) -> Option<f64> {
        fn first(value: &Value) -> Option<f64> {
            match value {
                Value::Bool(is_true) => Some(f64::from(u8::from(*is_true))),
                Value::Number(number) => number.as_f64(),
                Value::Array(items) => items.first().and_then(first),
                Value::Object(fields) => fields.values().next().and_then(first),
                Value::Null | Value::String(_) => None,
            }
        }
        self.value.as_ref().and_then(first)
    }
}

/// Meaning of a cell. Each tone has a symbol, so that colour is never alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Tone {
    /// Nothing special.
    #[default]
    Normal,
    /// The value is as one would wish.
    Good,
    /// Worth a look.
    Warning,
    /// Not usable.
    Bad,
    /// The value is of less interest.
    Muted,
}

impl Tone {
    /// The symbol that stands before the cell's text; empty for normal and muted.
    #[must_use]
    pub fn symbol(self) -> &'static str {
        match self {
            Self::Normal | Self::Muted => "",
            Self::Good => "✓",
            Self::Warning => "!",
            Self::Bad => "✗",
        }
    }

    /// The symbol in ASCII.
    #[must_use]
    pub fn ascii_symbol(self) -> &'static str {
        match self {
            Self::Normal | Self::Muted => "",
            Self::Good => "ok",
            Self::Warning => "!",
            Self::Bad => "!!",
        }
    }

    /// The tone as a word, for those who hear the table.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Good => "good",
            Self::Warning => "warning",
            Self::Bad => "bad",
            Self::Muted => "muted",
        }
    }
}

impl Table {
    /// An empty table.
    pub fn new(title: impl Into<String>, columns: Vec<Column>) -> Self {
        Self { title: title.into(), columns, ..Self::default() }
    }

    /// Adds a row.
    ///
    /// # Errors
    ///
    /// [`Error::Row`] if it has another number of cells than there are columns.
    pub fn push(&mut self, row: Vec<Cell>) -> Result<(), Error> {
        if row.len() != self.columns.len() {
            return Err(Error::Row { table: self.title.clone(), cells: row.len(), columns: self.columns.len() });
        }
        self.rows.push(row);
        Ok(())
    }

    /// The table with these warnings added.
    #[must_use]
    pub fn with_warnings(mut self, warnings: impl IntoIterator<Item = String>) -> Self {
        self.warnings.extend(warnings);
        self
    }

    /// Adds a note.
    pub fn note(&mut self, note: impl Into<String>) {
        self.notes.push(note.into());
    }

    /// The table as people see it: without the columns that are for machines.
    pub(crate) fn shown(&self) -> Cow<'_, Self> {
        if !self.columns.iter().any(|column| column.machine_only) {
            return Cow::Borrowed(self);
        }
        let keep = |index: usize| self.columns.get(index).is_none_or(|column| !column.machine_only);
        let mut shown = self.clone();
        shown.columns.retain(|column| !column.machine_only);
        for row in &mut shown.rows {
            let mut index = 0..;
            row.retain(|_| index.next().is_none_or(keep));
        }
        Cow::Owned(shown)
    }

    /// Returns a table with the columns that pass.
    #[must_use]
    pub fn with_columns(&self, passes: impl Fn(&Column) -> bool) -> Self {
        let kept: Vec<usize> = (0..self.columns.len()).filter(|&at| passes(&self.columns[at])).collect();
        let cells = |row: &Vec<Cell>| kept.iter().filter_map(|&at| row.get(at).cloned()).collect();
        Self {
            title: self.title.clone(),
            columns: kept.iter().map(|&at| self.columns[at].clone()).collect(),
            rows: self.rows.iter().map(cells).collect(),
            warnings: self.warnings.clone(),
            notes: self.notes.clone(),
        }
    }

    /// Returns the header, on one line, and the help of each explained column.
    #[must_use]
    pub fn legend(&self) -> Vec<(String, String)> {
        let shown = self.columns.iter().filter(|column| !column.machine_only);
        shown.filter_map(|column| Some((column.header_line(), column.help.clone()?))).collect()
    }

    /// The table for a terminal that is `width` characters wide.
    ///
    /// See [`Terminal`] for an ASCII form.
    #[must_use]
    pub fn to_terminal(&self, width: usize, color: bool) -> String {
        Terminal { width, color, ..Terminal::default() }.render(self)
    }

    /// The table in Markdown (GitHub's pipes).
    #[must_use]
    pub fn to_markdown(&self) -> String {
        markdown::render(&self.shown())
    }

    /// The table as CSV (RFC 4180): keys as header, machine values.
    ///
    /// A value that is an object or an array becomes several columns:
    /// `ppl.value`, and `ppl.ci95.low`, `ppl.ci95.high` for an array of two,
    /// `ppl.ci95.0` and so on for others. A column that names its
    /// [parts](Column::parts) has those and no others.
    #[must_use]
    pub fn to_csv(&self) -> String {
        csv::render(self)
    }

    /// Writes [`Table::to_csv`].
    ///
    /// # Errors
    ///
    /// [`Error::Write`] if `out` refuses it.
    pub fn write_csv(&self, out: &mut impl std::io::Write) -> Result<(), Error> {
        Ok(out.write_all(self.to_csv().as_bytes())?)
    }

    /// The rows as JSON objects from key to machine value.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let rows = self.rows.iter().map(|row| {
            let pairs = self
                .columns
                .iter()
                .enumerate()
                .map(|(index, column)| (column.key.clone(), row.get(index).map_or(Value::Null, Cell::machine)));
            Value::Object(pairs.collect::<Map<_, _>>())
        });
        Value::Array(rows.collect())
    }
}

pub(crate) fn one_line(text: &str) -> String {
    format::printable(text).replace('\n', " ")
}

#[cfg(test)]
pub(crate) mod samples {
    use serde_json::json;

    use super::*;

    pub(crate) fn schemes() -> Table {
        let mut table = Table::new(
            "Quality against the reference",
            vec![
                Column::text("scheme", "Scheme"),
                Column::number("size", "Size on\ndisk").unit("MiB"),
                Column::number("ppl", "Perplexity\n95% CI").help("Lower is better."),
                Column::text("verdict", "Verdict"),
            ],
        );
        let rows = [
            ("f16", "258.0", 23.08, "reference", Tone::Muted),
            ("int8-row", "157.3", 22.96, "indistinguishable", Tone::Good),
            ("int4-g128", "109.2", 31.08, "worse", Tone::Warning),
            ("int4-absmax", "106.1", 365_416_000.0, "destroyed", Tone::Bad),
        ];
        for (scheme, size, ppl, verdict, tone) in rows {
            let text = format::interval(ppl, ppl * 0.96, ppl * 1.04, 4);
            let value = json!({"value": ppl, "ci95": [ppl * 0.5, ppl * 2.0]});
            let row = vec![
                Cell::text(scheme),
                Cell::value(size, size.parse::<f64>().unwrap_or(f64::NAN)),
                Cell::value(text, value),
                Cell::text(verdict).tone(tone),
            ];
            table.push(row).expect("the row fits");
        }
        table.note("2,048 tokens scored; paired block bootstrap.");
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_must_fit() {
        let mut table = Table::new("t", vec![Column::text("a", "A")]);
        let error = table.push(vec![]).expect_err("no cells for one column");
        assert_eq!(error.to_string(), "table \"t\": a row of 0 cells does not fit 1 columns");
    }

    #[test]
    fn json_keeps_machine_values() {
        let mut table = Table::new("", vec![Column::text("a", "A"), Column::number("b", "B\nunit")]);
        table.rows.push(vec![Cell::text("x"), Cell::value("not a number", f64::NAN)]);
        table.rows.push(vec![Cell::absent()]);
        assert_eq!(table.to_json().to_string(), r#"[{"a":"x","b":null},{"a":null,"b":null}]"#);
    }

    #[test]
    fn columns_for_machines_are_not_shown() {
        let columns = vec![Column::text("a", "A"), Column::text("b", "B").machine_only(), Column::text("c", "C")];
        let mut table = Table::new("", columns);
        table.push(vec![Cell::text("x"), Cell::text("hidden"), Cell::text("z")]).expect("fits");
        for shown in [table.to_markdown(), table.to_terminal(80, false)] {
            assert!(shown.contains('x') && shown.contains('z') && !shown.contains("hidden"), "{shown}");
        }
        assert_eq!(table.to_csv(), "a,b,c\r\nx,hidden,z\r\n");
        assert_eq!(table.to_json().to_string(), r#"[{"a":"x","b":"hidden","c":"z"}]"#);
    }

    #[test]
    fn the_legend_names_explained_columns() {
        let legend = samples::schemes().legend();
        assert_eq!(legend, [("Perplexity 95% CI".to_owned(), "Lower is better.".to_owned())]);
    }
}
