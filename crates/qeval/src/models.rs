//! Models in results: their names, how they computed, and those that failed.

use anyhow::{Result, anyhow};
use report::table::{Cell, Column, Table, Tone};
use runtime::KvType;
use scoring::Failed;

/// The cache and the rounding of a run, in words.
pub fn arithmetic(kv: KvType, engine_math: &str) -> String {
    match engine_math {
        "exact" => format!("cache in {kv}"),
        engine => format!("cache in {kv}, activations rounded as {engine} does (--engine-math)"),
    }
}

/// The error where all models failed, and there is nothing to show.
pub fn none_left(failed: &[Failed]) -> anyhow::Error {
    let reasons: Vec<String> = failed.iter().map(Failed::to_string).collect();
    match &reasons[..] {
        [one] => anyhow!("{one}"),
        all => anyhow!("no model is left: {}", all.join("; ")),
    }
}

/// The last part of a path, for tables and plots.
pub fn file_name(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// A row for each model that failed: its name in the first column, a mark in the column `mark`, the reason in `error`.
pub fn push_failed(table: &mut Table, failed: &[Failed], mark: &str) -> Result<()> {
    for f in failed {
        let cell = |(at, column): (usize, &Column)| match column.key.as_str() {
            "error" => Cell::value("", f.error.clone()),
            key if key == mark => Cell::text("failed").tone(Tone::Bad),
            _ if at == 0 => Cell::value(file_name(&f.model), f.model.clone()),
            _ => Cell::absent(),
        };
        table.push(table.columns.iter().enumerate().map(cell).collect())?;
    }
    Ok(())
}
