//! Where results go: standard output, and files.

use super::args::OutputArgs;
use super::{Outcome, Usage, legend, page, table};
use crate::rows::Comparison;
use anyhow::{Result, bail};
use report::table::Table;
use std::path::Path;
use store::output::{OutputFile, refuse_same_file};

/// Checks what is asked of the output before any work.
pub fn check(args: &OutputArgs, inputs: &[&Path]) -> Result<()> {
    if args.formats() > 1 {
        bail!(Usage("only one of --json, --markdown and --csv can be printed; --json=FILE writes a file".into()));
    }
    let files: Vec<&Path> = args.json.iter().flatten().chain(&args.html).map(|f| f.as_path()).collect();
    for (at, file) in files.iter().enumerate() {
        refuse_same_file(file, inputs)?;
        // By any other path or link, too.
        if refuse_same_file(file, &files[..at]).is_err() {
            let what = format!("--json and --html would both write {}; give each a file of its own", file.display());
            bail!(Usage(what));
        }
        // Nobody wants to wait for scores that can't be written.
        drop(OutputFile::create(file, None)?);
    }
    Ok(())
}

/// Writes the files, and gives what is printed.
pub fn present(comparison: &Comparison, args: &OutputArgs) -> Result<Outcome> {
    if let Some(Some(path)) = &args.json {
        write(path, comparison.to_json()?.as_bytes())?;
    }
    if let Some(path) = &args.html {
        write(path, page::page(comparison)?.render()?.as_bytes())?;
    }
    let text = match args {
        args if args.prints_json() => comparison.to_json()?,
        args if args.markdown => with_notes(comparison, args)?.to_markdown(),
        args if args.csv => table::table(comparison)?.to_csv(),
        _ => report::stdout_form().render(&with_notes(comparison, args)?),
    };
    let marked = comparison.rows.iter().filter_map(|r| Some((r, r.error.as_ref()?)));
    let problems = marked.map(|(row, error)| marked_line(&row.artifact, row.scheme.as_deref(), error)).collect();
    Ok(Outcome { text, problems })
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

/// The table with what a reader needs below it.
fn with_notes(comparison: &Comparison, args: &OutputArgs) -> Result<Table> {
    let mut table = table::table(comparison)?;
    table.notes = legend::notes(comparison);
    table.notes.extend(if args.verbose { comparison.methods.clone() } else { legend::short(comparison) });
    Ok(table)
}

fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = OutputFile::create(path, None)?;
    file.write_all_at(bytes, 0)?;
    Ok(file.persist()?)
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
    fn a_marked_row_has_one_line() {
        assert_eq!(
            marked_line("a.gguf", None, "a.gguf: cannot open: no such file"),
            "a.gguf: cannot open: no such file"
        );
        assert_eq!(marked_line("a.gguf", Some("nf4"), "NaN"), "a.gguf (nf4): NaN");
        assert_eq!(marked_line("nf4", Some("nf4"), "NaN"), "nf4: NaN");
    }
}
