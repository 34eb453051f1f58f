//! Labels of models in tables and plots.

use crate::rows::Row;

/// One label for each row, all of them different: the scheme, and where several rows have the same
/// one, also the shortest end of the path that tells them apart.
pub(super) fn labels(rows: &[Row]) -> Vec<String> {
    let base = |row: &Row| row.scheme.clone().unwrap_or_default();
    let mut out: Vec<String> = Vec::with_capacity(rows.len());
    for (at, row) in rows.iter().enumerate() {
        let same: Vec<usize> = (0..rows.len()).filter(|&i| base(&rows[i]) == base(row)).collect();
        let label = match &row.scheme {
            Some(scheme) if same.len() == 1 => scheme.clone(),
            Some(scheme) if row.is_reference => format!("{scheme} (reference)"),
            Some(scheme) => format!("{scheme} ({})", ending(rows, &same, at)),
            // It couldn't be opened: there is only its name.
            None => ending(rows, &same, at),
        };
        out.push(unused(&out, label));
    }
    out
}

/// The last components of a row's path, as few as tell it from the others of `same`.
fn ending(rows: &[Row], same: &[usize], at: usize) -> String {
    let path = &rows[at].artifact;
    let others = || same.iter().filter(|&&i| i != at && !rows[i].is_reference).map(|&i| rows[i].artifact.as_str());
    let is_alone = |n: &usize| others().all(|o| last(o, *n) != last(path, *n));
    let depth = (1..=components(path).len()).find(is_alone).unwrap_or(1);
    last(path, depth)
}

fn components(path: &str) -> Vec<&str> {
    path.split('/').filter(|part| !part.is_empty() && *part != ".").collect()
}

fn last(path: &str, n: usize) -> String {
    let parts = components(path);
    parts[parts.len().saturating_sub(n)..].join("/")
}

/// The label, with a number if it has been given before: the same path may be named twice.
fn unused(taken: &[String], label: String) -> String {
    let mut next = label.clone();
    let mut number = 2;
    while taken.contains(&next) {
        next = format!("{label} #{number}");
        number += 1;
    }
    next
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels_of(rows: &[(Option<&str>, &str)]) -> Vec<String> {
        let row = |(at, (scheme, path)): (usize, &(Option<&str>, &str))| Row {
            scheme: scheme.map(Into::into),
            artifact: (*path).into(),
            is_reference: at == 0,
            ..Row::default()
        };
        labels(&rows.iter().enumerate().map(row).collect::<Vec<_>>())
    }

    #[test]
    fn a_scheme_alone_is_enough_where_it_is_the_only_one() {
        assert_eq!(labels_of(&[(Some("f16"), "m"), (Some("nf4"), "x/a.gguf")]), ["f16", "nf4"]);
    }

    #[test]
    fn the_shortest_ending_tells_rows_apart() {
        let rows = [
            (Some("f16"), "models/m"),
            (Some("int8-row"), "one/a.gguf"),
            (Some("int8-row"), "one/b.gguf"),
            (Some("int8-row"), "two/b.gguf/"),
            (Some("nf4"), "c.gguf"),
            (Some("f16"), "models/m"),
        ];
        let labels = labels_of(&rows);
        let expected = [
            "f16 (reference)",
            "int8-row (a.gguf)",
            "int8-row (one/b.gguf)",
            "int8-row (two/b.gguf)",
            "nf4",
            "f16 (m)",
        ];
        assert_eq!(labels, expected);
    }

    #[test]
    fn no_two_labels_are_the_same() {
        let twice =
            labels_of(&[(Some("f16"), "m"), (Some("nf4"), "a"), (Some("nf4"), "a"), (None, "junk"), (None, "x/junk")]);
        assert_eq!(twice, ["f16", "nf4 (a)", "nf4 (a) #2", "junk", "x/junk"]);
    }
}
