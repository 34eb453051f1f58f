//! Where results go: standard output, and files.

use super::args::OutputArgs;
use super::{Outcome, Usage, legend, page, table};
use crate::Failed;
use crate::rows::Comparison;
use anyhow::{Result, anyhow, bail};
use report::page::Page;
use report::table::{Cell, Column, Table, Terminal, Tone};
use runtime::KvType;
use serde::Serialize;
use std::path::Path;
use store::output::{Form, check_file, refuse_same_file, write_file};

/// What a command found, in every form that it can be asked for in.
pub trait Findings {
    /// As JSON.
    fn to_json(&self) -> Result<String>;
    /// As tables with what a reader needs below them; all rules if `verbose`.
    fn tables(&self, verbose: bool) -> Result<Vec<Table>>;
    /// What a terminal shows below the tables.
    fn picture(&self, _form: &Terminal) -> String {
        String::new()
    }
    /// As a page.
    fn page(&self) -> Result<Page>;
    /// Lines for standard error; any makes the exit code 1.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

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

/// A value as JSON that people can read, too, with the program's name as its first field.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value)?;
    let tool = format!("{{\n  \"tool\": \"qeval {}\",\n", env!("CARGO_PKG_VERSION"));
    Ok(text.strip_prefix("{\n").map_or_else(|| text.clone(), |rest| tool + rest) + "\n")
}

/// Checks what is asked of the output before any work.
pub fn check(args: &OutputArgs, inputs: &[&Path]) -> Result<()> {
    if args.formats() > 1 {
        bail!(Usage("only one of --json, --markdown and --csv can be printed; --json=FILE writes a file".into()));
    }
    let json = args.json.iter().flatten().map(|f| (f.as_path(), Form::Report));
    let (files, forms): (Vec<&Path>, Vec<Form>) =
        json.chain(args.html.iter().map(|f| (f.as_path(), Form::Page))).unzip();
    for (at, (file, form)) in files.iter().zip(forms).enumerate() {
        // By any other path or link, too.
        if refuse_same_file(file, &files[..at]).is_err() {
            let what = format!("--json and --html would both write {}; give each a file of its own", file.display());
            bail!(Usage(what));
        }
        // Nobody wants to wait for scores that can't be written.
        check_file(file, form, args.overwrite.existing(), inputs)?;
    }
    Ok(())
}

/// Writes the files, and gives what is printed.
pub fn present(found: &dyn Findings, args: &OutputArgs) -> Result<Outcome> {
    let existing = args.overwrite.existing();
    if let Some(Some(path)) = &args.json {
        write_file(path, Form::Report, existing, found.to_json()?.as_bytes())?;
    }
    if let Some(path) = &args.html {
        write_file(path, Form::Page, existing, found.page()?.render()?.as_bytes())?;
    }
    let each = |form: &dyn Fn(&Table) -> String| -> Result<String> {
        let texts: Vec<String> = found.tables(args.verbose)?.iter().map(form).collect();
        Ok(texts.join("\n"))
    };
    let text = match args {
        args if args.prints_json() => found.to_json()?,
        args if args.markdown => each(&Table::to_markdown)?,
        args if args.csv => csv(&found.tables(args.verbose)?),
        _ => {
            let form = report::stdout_form();
            each(&|table| form.render(table))? + &found.picture(&form)
        }
    };
    Ok(Outcome { text, problems: found.problems() })
}

/// The tables as CSV; those with the same columns as one.
fn csv(tables: &[Table]) -> String {
    let (mut out, mut last) = (String::new(), String::new());
    for text in tables.iter().map(Table::to_csv) {
        let (header, rows) = text.split_once("\r\n").unwrap_or((&text, ""));
        match header == last {
            true => out.push_str(rows),
            false if out.is_empty() => out.push_str(&text),
            false => out.push_str(&format!("\n{text}")),
        }
        last = header.into();
    }
    out
}

impl Findings for Comparison {
    fn to_json(&self) -> Result<String> {
        Ok(Comparison::to_json(self)?)
    }

    fn tables(&self, verbose: bool) -> Result<Vec<Table>> {
        let mut table = table::table(self)?;
        table.notes = legend::notes(self);
        table.notes.extend(if verbose { self.methods.clone() } else { legend::short(self) });
        Ok(vec![table])
    }

    fn page(&self) -> Result<Page> {
        Ok(page::page(self)?)
    }

    fn problems(&self) -> Vec<String> {
        let marked = self.rows.iter().filter_map(|r| Some((r, r.error.as_ref()?)));
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
    fn two_outputs_have_two_paths() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink(at("real"), at("link")).expect("linked");
        std::fs::write(at("real"), "").expect("written");
        let check = |json: &str, html: &str| {
            let args = OutputArgs {
                json: Some(Some(at(json))),
                markdown: false,
                csv: false,
                verbose: false,
                html: Some(at(html)),
                overwrite: report::OverwriteArgs { overwrite: true },
            };
            super::check(&args, &[])
        };
        assert!(check("a", "b").is_ok());
        for (json, html) in [("a", "a"), ("a", "./a"), ("real", "link")] {
            let e = check(json, html).expect_err("the same file");
            assert!(e.is::<Usage>() && e.to_string().starts_with("--json and --html would both write"), "{e}");
        }
    }

    #[test]
    fn tables_of_the_same_columns_are_one_in_csv() {
        let table = |key: &str, value: &str| {
            let mut table = Table::new("t", vec![Column::text(key, "")]);
            table.push(vec![Cell::text(value)]).expect("fits");
            table
        };
        assert_eq!(csv(&[table("a", "1"), table("a", "2"), table("b", "3")]), "a\r\n1\r\n2\r\n\nb\r\n3\r\n");
    }

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
