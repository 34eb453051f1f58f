//! Output of a command's findings: standard output, and files.

use crate::exit::{Outcome, Usage};
use crate::overwrite::OverwriteArgs;
use crate::provenance::{Provenance, Record};
use anyhow::{Result, bail};
use clap::Args;
use report::page::Page;
use report::table::{Table, Terminal};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use store::output::provenance::PAGE_GENERATOR;
use store::output::{Existing, Form, check_file, refuse_same_file, write_file};

/// Options that say in which form findings are printed, and which files are written.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct OutputArgs {
    /// Print JSON instead of the tables; with a file, write it there and print the tables.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "FILE")]
    pub json: Option<Option<PathBuf>>,
    /// Print the tables in Markdown.
    #[arg(long)]
    pub markdown: bool,
    /// Print the tables as CSV.
    #[arg(long)]
    pub csv: bool,
    /// Print every rule and definition below the tables, not only the short form.
    #[arg(long)]
    pub verbose: bool,
    /// Also write a self-contained HTML page with tables and plots.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Treatment of existing files.
    #[command(flatten)]
    pub overwrite: OverwriteArgs,
}

impl OutputArgs {
    /// Returns whether JSON goes to standard output.
    pub fn prints_json(&self) -> bool {
        matches!(self.json, Some(None))
    }

    /// The number of formats that are asked for on standard output.
    fn formats(&self) -> usize {
        usize::from(self.prints_json()) + usize::from(self.markdown) + usize::from(self.csv)
    }
}

/// `--json[=FILE]` of commands whose result has no other form than a few lines.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Output")]
pub struct JsonArgs {
    /// Print JSON; with a file, write it there and print the text.
    #[arg(long, num_args = 0..=1, require_equals = true, value_name = "FILE")]
    json: Option<Option<PathBuf>>,
}

impl JsonArgs {
    /// Returns whether standard output is for JSON.
    pub fn prints(&self) -> bool {
        matches!(self.json, Some(None))
    }

    /// Checks before any work that the file may be written.
    ///
    /// # Errors
    /// That of [`check_file`].
    pub fn check(&self, overwrite: OverwriteArgs, inputs: &[&Path]) -> Result<()> {
        self.json
            .iter()
            .flatten()
            .try_for_each(|file| Ok(check_file(file, Form::Report, overwrite.existing(), inputs)?))
    }

    /// Writes the JSON of `fields` where that is asked for, and returns the text for standard output.
    ///
    /// # Errors
    /// When the file can't be written or a value can't be serialized.
    pub fn emit(
        &self,
        (command, provenance, overwrite): (&str, &Provenance, OverwriteArgs),
        fields: impl FnOnce() -> Result<Value>,
        text: impl FnOnce() -> Result<String>,
    ) -> Result<String> {
        let Some(file) = &self.json else { return text() };
        let json = json_with_header(command, Some(&provenance.record()), fields()?)?;
        let Some(file) = file else { return Ok(json) };
        write_file(file, Form::Report, overwrite.existing(), json.as_bytes())?;
        text()
    }
}

/// The findings of a command, in every form that can be asked for.
pub trait Findings {
    /// Program and command, such as `qeval compare`.
    fn command(&self) -> &'static str;
    /// The fields of the JSON object.
    ///
    /// # Errors
    /// When a value can't be serialized.
    fn json(&self) -> Result<Value>;
    /// The tables, with notes below them; every rule and definition if `verbose`. Markdown and CSV hold exactly these.
    ///
    /// # Errors
    /// When a row doesn't fit its table.
    fn tables(&self, verbose: bool) -> Result<Vec<Table>>;
    /// The view on a terminal; by default the tables.
    ///
    /// # Errors
    /// As for [`Findings::tables`].
    fn terminal(&self, form: &Terminal, verbose: bool) -> Result<String> {
        let tables: Vec<String> = self.tables(verbose)?.iter().map(|table| form.render(table)).collect();
        Ok(tables.join("\n"))
    }
    /// The HTML page. Its colophon is filled in by [`present`].
    ///
    /// # Errors
    /// As for [`Findings::tables`].
    fn page(&self) -> Result<Page>;
    /// Lines for standard error. Any line makes the exit code 1.
    fn problems(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Checks the requested output before any work: one format on standard output, and files that may be written.
///
/// `inputs` are files and folders that no output may replace.
///
/// # Errors
/// [`Usage`], or that of [`check_file`].
pub fn check(args: &OutputArgs, inputs: &[&Path]) -> Result<()> {
    check_with(args, &[], inputs)
}

/// [`check`], for a command that writes the files `more`, too.
///
/// # Errors
/// As for [`check`].
pub fn check_with(args: &OutputArgs, more: &[(&Path, Form)], inputs: &[&Path]) -> Result<()> {
    if args.formats() > 1 {
        bail!(Usage("only one of --json, --markdown and --csv can be printed; --json=FILE writes a file".into()));
    }
    let json = args.json.iter().flatten().map(|f| (f.as_path(), Form::Report));
    let html = args.html.iter().map(|f| (f.as_path(), Form::Page));
    let files: Vec<(&Path, Form)> = json.chain(html).chain(more.iter().copied()).collect();
    check_files(&files, args.overwrite.existing(), inputs)
}

fn check_files(files: &[(&Path, Form)], existing: Existing, inputs: &[&Path]) -> Result<()> {
    let paths: Vec<&Path> = files.iter().map(|(path, _)| *path).collect();
    for (at, (file, form)) in files.iter().enumerate() {
        // By any other path or link, too.
        if refuse_same_file(file, &paths[..at]).is_err() {
            bail!(Usage(format!("two outputs would both write {}; give each a file of its own", file.display())));
        }
        // Nobody wants to wait for findings that can't be written.
        check_file(file, *form, existing, inputs)?;
    }
    Ok(())
}

/// Writes the files that are asked for, and returns the text for standard output.
///
/// # Errors
/// When a file can't be written or a form can't be made.
pub fn present(found: &dyn Findings, args: &OutputArgs, provenance: &Provenance) -> Result<Outcome> {
    let existing = args.overwrite.existing();
    // Hashes are read from disk only for forms that hold them.
    let record = (args.json.is_some() || args.html.is_some()).then(|| provenance.record());
    if let Some(Some(path)) = &args.json {
        write_file(path, Form::Report, existing, json_text(found, record.as_ref())?.as_bytes())?;
    }
    if let (Some(path), Some(record)) = (&args.html, &record) {
        write_page(found.page()?, (found.command(), record), path, existing)?;
    }
    let text = match args {
        args if args.prints_json() => json_text(found, record.as_ref())?,
        args if args.markdown => {
            found.tables(args.verbose)?.iter().map(Table::to_markdown).collect::<Vec<_>>().join("\n")
        }
        args if args.csv => csv(&found.tables(args.verbose)?),
        _ => found.terminal(&report::stdout_form(), args.verbose)?,
    };
    Ok(Outcome { text, problems: found.problems(), ..Outcome::default() })
}

/// Writes `page` to `path`, with the record of its command and inputs at its end.
///
/// # Errors
/// When the file can't be written or the page can't be made.
pub fn write_page(page: Page, (command, record): (&str, &Record), path: &Path, existing: Existing) -> Result<()> {
    let mut page = signed(page, command);
    page.sections.push(record.section(&tool(command))?);
    Ok(write_file(path, Form::Page, existing, page.render()?.as_bytes())?)
}

/// The page with the name of the program that made it, and the mark by which [`store::output`] knows the project's pages.
fn signed(page: Page, command: &str) -> Page {
    Page { colophon: format!("Made by {}.", tool(command)), generator: PAGE_GENERATOR.into(), ..page }
}

/// Name and version of the program in `command` (`qeval compare`), as results and pages carry them. All programs have the
/// workspace's version.
pub fn tool(command: &str) -> String {
    let program = command.split_once(' ').map_or(command, |(program, _)| program);
    format!("{program} {}", env!("CARGO_PKG_VERSION"))
}

/// The JSON text of `found`: its fields after the header of [`json_with_header`].
fn json_text(found: &dyn Findings, record: Option<&Record>) -> Result<String> {
    json_with_header(found.command(), record, found.json()?)
}

/// JSON text of an object's `fields`, indented, with a line end. A header comes first: `tool`, `version` (of the JSON; 1
/// where the fields name none), `command`, and `provenance` where there is one.
///
/// # Errors
/// When a value can't be serialized.
pub fn json_with_header(command: &str, record: Option<&Record>, fields: Value) -> Result<String> {
    let Value::Object(mut fields) = fields else { bail!("the findings of {command} are no JSON object") };
    let name = command.split_once(' ').map_or(command, |(_, name)| name);
    let mut all = Map::new();
    all.insert("tool".into(), json!(tool(command)));
    all.insert("version".into(), fields.shift_remove("version").unwrap_or(json!(1)));
    all.insert("command".into(), json!(name));
    if let Some(record) = record {
        all.insert("provenance".into(), serde_json::to_value(record)?);
    }
    all.extend(fields);
    Ok(format!("{}\n", serde_json::to_string_pretty(&Value::Object(all))?))
}

/// The tables as CSV; consecutive tables with the same columns share one header.
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

#[cfg(test)]
mod tests {
    use super::*;
    use report::table::{Cell, Column};

    #[test]
    fn two_outputs_have_two_paths() {
        let dir = tempfile::tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink(at("real"), at("link")).expect("linked");
        std::fs::write(at("real"), "").expect("written");
        let check = |json: &str, html: &str| {
            let args = OutputArgs {
                json: Some(Some(at(json))),
                html: Some(at(html)),
                overwrite: OverwriteArgs { overwrite: true },
                ..OutputArgs::default()
            };
            super::check(&args, &[])
        };
        assert!(check("a", "b").is_ok());
        for (json, html) in [("a", "a"), ("a", "./a"), ("real", "link")] {
            let e = check(json, html).expect_err("the same file");
            assert!(e.is::<Usage>() && e.to_string().starts_with("two outputs would both write"), "{e}");
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
    fn the_header_comes_first() {
        let text = json_with_header("qeval compare", None, json!({"rows": [], "version": 3})).expect("an object");
        let tool = tool("qeval compare");
        let expected = format!(
            "{{\n  \"tool\": \"{tool}\",\n  \"version\": 3,\n  \"command\": \"compare\",\n  \"rows\": []\n}}\n"
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_page_is_known_as_one_of_ours() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let says = |text: &str| {
            std::fs::write(file.path(), text).expect("written");
            check_file::<&Path>(file.path(), Form::Page, Existing::Overwrite, &[]).map_err(|e| e.to_string())
        };
        let page = signed(Page::default(), "qeval compare");
        assert_eq!(says(&page.render().expect("the template is right")), Ok(()));
        assert_eq!(says(""), Ok(()));
        assert!(says("<!DOCTYPE html>\n<title>My thesis</title>").expect_err("foreign").contains("not replaced"));
    }
}
