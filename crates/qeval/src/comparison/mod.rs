//! The findings of `compare` and `sweep`: the table, its legend, the page.

mod legend;
mod page;
pub mod table;

use crate::gate::GateArgs;
use anyhow::Result;
use cli::{Findings, Outcome, OutputArgs, Provenance, output};
use report::page::Page;
use report::table::Table;
use scoring::rows::Comparison;
use serde_json::Value;

/// Prints a comparison, writes its files, and applies the gates.
pub fn present(
    comparison: Comparison,
    args: &OutputArgs,
    gates: &GateArgs,
    provenance: &Provenance,
) -> Result<Outcome> {
    let failed_gates = gates.failures(&comparison, &table::table(&comparison)?);
    Ok(Outcome { failed_gates, ..output::present(&Compared(comparison), args, provenance)? })
}

/// A comparison, to be shown.
struct Compared(Comparison);

impl Findings for Compared {
    fn command(&self) -> &'static str {
        "qeval compare"
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, verbose: bool) -> Result<Vec<Table>> {
        let mut table = table::table(&self.0)?;
        table.notes = legend::notes(&self.0);
        table.notes.extend(if verbose { self.0.methods.clone() } else { legend::short(&self.0) });
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        Ok(page::page(&self.0)?)
    }

    fn problems(&self) -> Vec<String> {
        let marked = self.0.rows.iter().filter_map(|r| Some((r, r.error.as_ref()?)));
        marked.map(|(row, error)| marked_line(&row.artifact, row.scheme.as_deref(), error)).collect()
    }
}

/// The line on standard error for a row that is marked.
fn marked_line(artifact: &str, scheme: Option<&str>, error: &str) -> String {
    match scheme {
        // An error in a file names it.
        _ if error.starts_with(artifact) => error.into(),
        Some(scheme) if scheme != artifact => format!("{artifact} ({scheme}): {error}"),
        _ => format!("{artifact}: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_row_has_one_line() {
        assert_eq!(
            marked_line("a.gguf", None, "a.gguf: cannot open: no such file"),
            "a.gguf: cannot open: no such file"
        );
        assert_eq!(marked_line("a.gguf", Some("nf4"), "NaN"), "a.gguf (nf4): NaN");
        assert_eq!(marked_line("nf4", Some("nf4"), "NaN"), "nf4: NaN");
    }
}
