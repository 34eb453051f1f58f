//! CSV as RFC 4180 has it.

use serde_json::Value;

use super::{Cell, Column, Table};

/// A machine value taken apart: each leaf with its path below the column's key.
type Leaves = Vec<(String, String)>;

pub(super) fn render(table: &Table) -> String {
    let mut records = vec![Vec::new(); table.rows.len() + 1];
    for (index, column) in table.columns.iter().enumerate() {
        let cells: Vec<Leaves> = table.rows.iter().map(|row| leaves(row.get(index))).collect();
        for path in columns_of(column, &cells) {
            records[0].push(format!("{}{path}", column.key));
            for (record, cell) in records[1..].iter_mut().zip(&cells) {
                let text = cell.iter().find(|(name, _)| *name == path);
                record.push(text.map_or(String::new(), |(_, text)| text.clone()));
            }
        }
    }
    let mut bytes = Vec::new();
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(&mut bytes);
    // Memory takes all that is written, and every record has the same columns.
    let written = records.iter().all(|record| writer.write_record(record).is_ok()) && writer.flush().is_ok();
    debug_assert!(written);
    drop(writer);
    String::from_utf8(bytes).unwrap_or_default()
}

/// The columns that a column becomes: those it names, or those its values have.
fn columns_of(column: &Column, cells: &[Leaves]) -> Vec<String> {
    if column.parts.is_empty() {
        return paths(cells);
    }
    column.parts.iter().map(|part| format!(".{part}")).collect()
}

/// Every path of a column, in order of appearance. A value that is missing in
/// one row does not ask for a column of its own when others are taken apart.
fn paths(cells: &[Leaves]) -> Vec<String> {
    let mut paths: Vec<String> = Vec::new();
    for (path, text) in cells.iter().flatten() {
        let missing = path.is_empty() && text.is_empty();
        if !missing && !paths.contains(path) {
            paths.push(path.clone());
        }
    }
    if paths.is_empty() {
        paths.push(String::new());
    }
    paths
}

fn leaves(cell: Option<&Cell>) -> Leaves {
    let mut out = Vec::new();
    if let Some(cell) = cell {
        take_apart(&cell.machine(), String::new(), &mut out);
    }
    out
}

fn take_apart(value: &Value, path: String, out: &mut Leaves) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                take_apart(value, format!("{path}.{key}"), out);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name = match (items.len(), index) {
                    (2, 0) => "low".to_owned(),
                    (2, _) => "high".to_owned(),
                    _ => index.to_string(),
                };
                take_apart(item, format!("{path}.{name}"), out);
            }
        }
        Value::Null => out.push((path, String::new())),
        Value::String(text) => out.push((path, text.clone())),
        Value::Bool(_) | Value::Number(_) => out.push((path, value.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::super::samples;
    use super::*;

    #[test]
    fn intervals_become_columns() {
        let text = render(&samples::schemes()).replace("\r\n", "\n");
        insta::assert_snapshot!(text, @r"
        scheme,size,ppl.value,ppl.ci95.low,ppl.ci95.high,verdict
        f16,258.0,23.08,11.54,46.16,reference
        int8-row,157.3,22.96,11.48,45.92,indistinguishable
        int4-g128,109.2,31.08,15.54,62.16,worse
        int4-absmax,106.1,365416000.0,182708000.0,730832000.0,destroyed
        ");
    }

    #[test]
    fn a_missing_object_leaves_its_columns_empty() {
        let mut table = Table::new("", vec![Column::number("x", "X")]);
        table.rows.push(vec![Cell::absent()]);
        table.rows.push(vec![Cell::value("1", json!({"a": 1, "b": [1, 2, 3]}))]);
        assert_eq!(render(&table), "x.a,x.b.0,x.b.1,x.b.2\r\n,,,\r\n1,1,2,3\r\n");
    }

    #[test]
    fn named_parts_are_the_columns_whatever_the_values() {
        let mut table = Table::new("", vec![Column::number("x", "X").parts(&["value", "ci95.low", "ci95.high"])]);
        let header = "x.value,x.ci95.low,x.ci95.high\r\n";
        table.rows.push(vec![Cell::absent()]);
        assert_eq!(render(&table), format!("{header},,\r\n"));
        table.rows.push(vec![Cell::value("1", json!({"value": 1, "ci95": null}))]);
        table.rows.push(vec![Cell::value("1", json!({"value": 1, "ci95": [0, 2]}))]);
        assert_eq!(render(&table), format!("{header},,\r\n1,,\r\n1,0,2\r\n"));
    }

    #[test]
    fn an_empty_column_keeps_its_key() {
        let mut table = Table::new("", vec![Column::text("a", "A")]);
        table.rows.push(vec![Cell::absent()]);
        assert_eq!(render(&table), "a\r\n\"\"\r\n");
    }

    /// A reader written from RFC 4180's grammar.
    fn parse(text: &str) -> Vec<Vec<String>> {
        let mut records = vec![vec![String::new()]];
        let mut quoted = false;
        let mut chars = text.chars().peekable();
        while let Some(c) = chars.next() {
            let record = records.last_mut().expect("there is a record");
            let field = record.last_mut().expect("there is a field");
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => {
                    chars.next();
                    field.push('"');
                }
                '"' => quoted = !quoted,
                ',' if !quoted => record.push(String::new()),
                '\r' if !quoted && chars.peek() == Some(&'\n') => {
                    chars.next();
                    records.push(vec![String::new()]);
                }
                c => field.push(c),
            }
        }
        assert!(!quoted, "a quote is left open");
        records.pop();
        records
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(
            cells in proptest::collection::vec(
                proptest::collection::vec("[a-z,\"\r\n é|]{0,6}", 3), 0..5),
            keys in proptest::collection::vec("[a-z,\"\n ]{0,4}", 3),
        ) {
            let columns = keys.iter().map(|key| Column::text(key, "")).collect();
            let mut table = Table::new("", columns);
            for row in &cells {
                table.rows.push(row.iter().map(Cell::text).collect());
            }
            let mut expected = vec![keys];
            expected.extend(cells);
            prop_assert_eq!(parse(&render(&table)), expected);
        }
    }
}
