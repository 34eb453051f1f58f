//! Conditions that a pipeline sets on a comparison: `--fail-if`, `--max-kl`, `--max-size`.

use anyhow::{Result, bail};
use clap::Args;
use cli::{Usage, size};
use report::format;
use report::table::{Cell, Table};
use scoring::rows::{Comparison, Limits, Row};
use serde_json::Value;
use std::str::FromStr;

/// Options that decide the exit code of a comparison.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Gates")]
pub struct GateArgs {
    /// Exit with code 3 if an artifact meets this condition, such as 'kl > 0.05', 'change > 1%' or 'size_bytes > 100MB'
    /// (repeatable). The left side is a column of --csv, or a part of one (kl.ci95.high); change is that of perplexity, 0
    /// for none.
    #[arg(long, value_name = "CONDITION")]
    pub fail_if: Vec<Condition>,
    /// Name the smallest artifact whose mean KL, in nats, is at most this. Exit with code 3 if none is.
    #[arg(long, value_name = "NATS", value_parser = nats)]
    pub max_kl: Option<f64>,
    /// Name the smallest artifact whose weight files take at most this, such as 100MB or 1.5GiB. Exit with code 3 if none is.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub max_size: Option<u64>,
}

impl GateArgs {
    /// The limits for the smallest artifact.
    pub fn limits(&self) -> Limits {
        Limits { max_kl: self.max_kl, max_size_bytes: self.max_size }
    }

    /// Checks that the conditions name columns of the table that will be made, before any work.
    ///
    /// # Errors
    /// [`Usage`] for a column that isn't one.
    pub fn check(&self, columns: &[String]) -> Result<()> {
        self.fail_if.iter().try_for_each(|condition| condition.check_column(columns))
    }

    /// The gates that a comparison fails, a line each.
    pub fn failures(&self, comparison: &Comparison, table: &Table) -> Vec<String> {
        let mut failures = Vec::new();
        for condition in &self.fail_if {
            let rows = comparison.rows.iter().zip(&table.rows).filter(|(row, _)| !row.is_reference);
            failures.extend(rows.filter_map(|(row, cells)| condition.failure(row, table, cells)));
        }
        if !self.limits().is_empty() && comparison.smallest_within_limits.is_none() {
            failures.push(format!("no artifact has {}", self.limits()));
        }
        failures
    }
}

fn nats(text: &str) -> Result<f64, String> {
    text.parse()
        .ok()
        .filter(|x: &f64| x.is_finite() && *x >= 0.0)
        .ok_or_else(|| "a number of nats from 0 up is needed".into())
}

/// A comparison of a column with a number: `kl > 0.05`.
#[derive(Debug, Clone, PartialEq)]
pub struct Condition {
    /// The condition as it was given.
    text: String,
    /// The column's key.
    column: String,
    /// The part of the column's value, such as `ci95.high`.
    part: Option<String>,
    relation: Relation,
    limit: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Relation {
    Above,
    AtLeast,
    Below,
    AtMost,
}

impl Relation {
    /// Longer signs first, so that `>=` isn't read as `>`.
    const ALL: [(&str, Relation); 4] =
        [(">=", Relation::AtLeast), ("<=", Relation::AtMost), (">", Relation::Above), ("<", Relation::Below)];

    fn holds(self, value: f64, limit: f64) -> bool {
        match self {
            Relation::Above => value > limit,
            Relation::AtLeast => value >= limit,
            Relation::Below => value < limit,
            Relation::AtMost => value <= limit,
        }
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || format!("'{text}' is no condition: a column, >, >=, < or <=, and a number, as in 'kl > 0.05'");
        let (at, sign, relation) = Relation::ALL
            .iter()
            .filter_map(|(sign, relation)| Some((text.find(sign)?, *sign, *relation)))
            .min_by_key(|(at, sign, _)| (*at, usize::MAX - sign.len()))
            .ok_or_else(wanted)?;
        let (name, limit) = (text[..at].trim(), text[at + sign.len()..].trim());
        // A text's name may hold dots: only what follows the last known column is a part.
        let (column, part) = match name.split_once('.') {
            Some((column, part)) if !column.contains(':') => (column, Some(part.to_string())),
            _ => (name, None),
        };
        if column.is_empty() {
            return Err(wanted());
        }
        let limit = number(limit).ok_or_else(wanted)?;
        Ok(Condition { text: text.trim().into(), column: column.into(), part, relation, limit })
    }
}

/// A number, a percentage as a share, or a size in bytes.
fn number(text: &str) -> Option<f64> {
    let number = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse::<f64>().ok().or_else(|| size::parse(text).ok().map(|bytes| bytes as f64))?,
    };
    number.is_finite().then_some(number)
}

impl Condition {
    fn check_column(&self, columns: &[String]) -> Result<()> {
        if columns.contains(&self.column) {
            return Ok(());
        }
        bail!(Usage(format!(
            "--fail-if '{}': no column '{}'; columns are {}",
            self.text,
            self.column,
            columns.join(", ")
        )))
    }

    /// The line on a row that meets the condition. A value that is missing meets it, since nothing shows the opposite.
    fn failure(&self, row: &Row, table: &Table, cells: &[Cell]) -> Option<String> {
        let at = table.columns.iter().position(|c| c.key == self.column)?;
        let value = cells.get(at).and_then(|cell| self.value(cell.value.as_ref()?));
        match value {
            None => Some(format!("{}: {} was not measured (--fail-if '{}')", row.label, self.column, self.text)),
            Some(value) if self.relation.holds(value, self.limit) => Some(format!(
                "{}: {} is {}, {} from the limit (--fail-if '{}')",
                row.label,
                self.column,
                format::significant(value, 4),
                format::significant((value - self.limit).abs(), 3),
                self.text
            )),
            Some(_) => None,
        }
    }

    fn value(&self, value: &Value) -> Option<f64> {
        let part = |name: &str| match name {
            "ci95.low" => value["ci95"][0].as_f64(),
            "ci95.high" => value["ci95"][1].as_f64(),
            name => value[name].as_f64(),
        };
        match (&self.part, value) {
            // A change of perplexity is a ratio in JSON, and a difference to people.
            (Some(name), Value::Object(_)) if self.column.starts_with("change") => Some(part(name)? - 1.0),
            (Some(name), Value::Object(_)) => part(name),
            (None, Value::Object(fields)) => {
                let share = |of: &str| Some(fields.get(of)?.as_f64()? / fields.get("total")?.as_f64()?);
                let ratio = || Some(fields.get("ratio")?.as_f64()? - 1.0);
                let plain = || fields.get("value").or_else(|| fields.get("mean"))?.as_f64();
                plain().or_else(ratio).or_else(|| share("agree")).or_else(|| share("right"))
            }
            (None, value) => value.as_f64(),
            (Some(_), _) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use report::table::Column;
    use serde_json::json;

    fn parse(text: &str) -> Condition {
        text.parse().expect("a condition")
    }

    #[test]
    fn conditions_are_a_column_a_sign_and_a_number() {
        let kl = parse("kl > 0.05");
        assert_eq!((kl.column.as_str(), kl.relation, kl.limit), ("kl", Relation::Above, 0.05));
        assert_eq!((parse("change>=1%").relation, parse("change>=1%").limit), (Relation::AtLeast, 0.01));
        assert_eq!(parse("size_bytes > 100MB").limit, 1e8);
        assert_eq!(parse("kl.ci95.high > 1").part.as_deref(), Some("ci95.high"));
        assert_eq!(parse("kl:my.txt > 1").column, "kl:my.txt");
        for wrong in ["", "kl", "kl >", "> 1", "kl = 1", "kl > x", "kl > inf"] {
            assert!(wrong.parse::<Condition>().is_err_and(|e| e.contains("is no condition")), "{wrong}");
        }
    }

    #[test]
    fn a_row_that_meets_the_condition_is_named_with_its_distance() {
        let mut table = Table::new("t", vec![Column::text("scheme", "Scheme"), Column::number("kl", "KL")]);
        let kl = json!({"mean": 0.27, "ci95": [0.2, 0.3]});
        table.push(vec![Cell::text("int4-g64"), Cell::value("0.27", kl)]).expect("fits");
        let row = Row { label: "int4-g64".into(), ..Row::default() };
        let failure = |text: &str| parse(text).failure(&row, &table, &table.rows[0]);
        let said = failure("kl > 0.05").expect("beyond");
        assert_eq!(said, "int4-g64: kl is 0.2700, 0.220 from the limit (--fail-if 'kl > 0.05')");
        assert_eq!(failure("kl > 0.3"), None);
        assert!(failure("kl.ci95.high >= 0.3").is_some());
        assert!(failure("kl.p99 > 1").expect("missing").contains("was not measured"));
        assert!(parse("bpw > 1").check_column(&["kl".into()]).expect_err("no column").is::<Usage>());
    }

    #[test]
    fn changes_and_shares_are_what_people_see() {
        let value = |text: &str, value: Value| parse(text).value(&value);
        let change = json!({"ratio": 1.02, "ci95": [1.0, 1.03]});
        assert!((value("change > 0", change.clone()).expect("a ratio") - 0.02).abs() < 1e-12);
        assert!((value("change.ci95.high > 0", change).expect("a ratio") - 0.03).abs() < 1e-12);
        assert_eq!(value("agreement < 1", json!({"agree": 3, "total": 4})), Some(0.75));
        assert_eq!(value("battery < 1", json!({"right": 1, "total": 2})), Some(0.5));
        assert_eq!(value("size_bytes > 0", json!(7)), Some(7.0));
    }
}
