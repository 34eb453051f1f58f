//! Renders templates for comparisons with other renderers: each line of standard input is a JSON object with `template`
//! and `variables`, each line of standard output one with `text` or `error`. The date is 29 July 2024, 13:04:05.

use jinja::{Clock, DateTime};
use serde_json::{Map, Value, json};
use std::io::{self, BufRead, Write};

fn main() -> io::Result<()> {
    let clock = Clock::Fixed(DateTime::constant(2024, 7, 29, 13, 4, 5, 0));
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let variables = request["variables"].as_object().cloned().unwrap_or_else(Map::new);
        let template = request["template"].as_str().unwrap_or_default();
        let answer = match jinja::render(template, &variables, &clock) {
            Ok(text) => json!({"text": text}),
            Err(e) => json!({"error": e.to_string()}),
        };
        writeln!(io::stdout().lock(), "{answer}")?;
    }
    Ok(())
}
