//! Where findings go: standard output, and a page.

use super::Usage;
use super::args::OutputArgs;
use anyhow::{Result, bail};
use report::page::Page;
use report::table::{Table, Terminal};
use serde_json::{Map, Value, json};
use std::path::Path;
use store::output::{Existing, Form, check_file, refuse_same_file, write_file};

/// Version of the JSON.
const VERSION: u32 = 1;

/// No view is wider.
const WIDEST: usize = 100;

/// What a subcommand found, in every form.
pub trait Findings {
    /// The subcommand.
    fn command(&self) -> &'static str;
    /// For people, as wide as the terminal and no wider than 100 columns.
    fn terminal(&self, form: &Terminal) -> Result<String>;
    /// For machines.
    fn json(&self) -> Result<Value>;
    /// The main table, for CSV.
    fn table(&self) -> Result<Table>;
    /// For a browser.
    fn page(&self) -> Result<Page>;
}

/// Checks what is asked of the output before any work.
pub fn check(args: &OutputArgs, inputs: &[&Path]) -> Result<()> {
    if args.prints_json() && args.csv {
        bail!(Usage("only one of --json and --csv can be printed; --json=FILE writes a file".into()));
    }
    check_files(&report_files(args), args.overwrite.existing(), inputs)
}

/// The files that the arguments ask for.
pub fn report_files(args: &OutputArgs) -> Vec<(&Path, Form)> {
    let json = args.json.iter().flatten().map(|f| (f.as_path(), Form::Report));
    json.chain(args.html.iter().map(|f| (f.as_path(), Form::Page))).collect()
}

/// Checks files that will be written.
pub fn check_files(files: &[(&Path, Form)], existing: Existing, inputs: &[&Path]) -> Result<()> {
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

/// Writes the files, and gives what is printed.
pub fn present(findings: &dyn Findings, args: &OutputArgs) -> Result<String> {
    let existing = args.overwrite.existing();
    if let Some(Some(path)) = &args.json {
        write_file(path, Form::Report, existing, json_text(findings)?.as_bytes())?;
    }
    if let Some(path) = &args.html {
        let mut page = findings.page()?;
        page.colophon = format!("Made by {}.", tool());
        write_file(path, Form::Page, existing, page.render()?.as_bytes())?;
    }
    if args.prints_json() {
        return json_text(findings);
    }
    if args.csv {
        return Ok(findings.table()?.to_csv());
    }
    let form = report::stdout_form();
    findings.terminal(&Terminal { width: form.width.min(WIDEST), ..form })
}

fn tool() -> String {
    format!("qinspect {}", env!("CARGO_PKG_VERSION"))
}

fn json_text(findings: &dyn Findings) -> Result<String> {
    let mut all = Map::new();
    all.insert("tool".into(), json!(tool()));
    all.insert("version".into(), json!(VERSION));
    all.insert("command".into(), json!(findings.command()));
    if let Value::Object(fields) = findings.json()? {
        all.extend(fields);
    }
    Ok(format!("{}\n", serde_json::to_string_pretty(&Value::Object(all))?))
}

/// The parts of a view, with blank lines between them.
pub fn paragraphs(parts: &[String]) -> String {
    let parts: Vec<&str> = parts.iter().map(|p| p.trim_end()).filter(|p| !p.is_empty()).collect();
    format!("{}\n", parts.join("\n\n"))
}

/// Names and values in lines no longer than `limit` where words allow that.
pub fn facts(facts: &[(&str, String)], limit: usize) -> String {
    let width = facts.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    facts.iter().map(|(name, value)| wrapped(&format!("{name:width$} "), value, limit)).collect::<Vec<_>>().join("\n")
}

/// Each note as a paragraph of its own.
pub fn notes<'a>(notes: &'a [String], limit: usize) -> impl Iterator<Item = String> + 'a {
    notes.iter().map(move |note| wrapped("note:", note, limit))
}

/// The words of a text after `first`, further lines indented by its length.
fn wrapped(first: &str, text: &str, limit: usize) -> String {
    let indent = first.chars().count();
    let (mut lines, mut line) = (Vec::new(), first.to_string());
    for word in report::format::printable(text).split_whitespace() {
        let is_first = line.chars().count() == indent;
        if !is_first && line.chars().count() + 1 + word.chars().count() > limit {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
        }
        line.push(' ');
        line.push_str(word);
    }
    lines.push(line);
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_wrapped_at_words() {
        let shown = facts(&[("A", "one two three".into()), ("Long", "four".into())], 14);
        assert_eq!(shown, "A     one two\n      three\nLong  four");
        assert_eq!(facts(&[("A", "a-very-long-word b".into())], 8), "A  a-very-long-word\n   b");
        assert_eq!(notes(&["one two".into()], 10).collect::<Vec<_>>(), ["note: one\n      two"]);
    }
}
