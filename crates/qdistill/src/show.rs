//! `qdistill show`.

use anyhow::Result;
use cli::{ComputeArgs, Provenance};
use distillation::continuations::{Continuations, Softened, continuations};
use distillation::teacher::Model;
use report::format;
use report::spark::{Glyphs, bar};
use report::table::{Cell, Column, Table, Terminal};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;

/// No view is wider.
const WIDEST: usize = 100;

/// Arguments of `qdistill show`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The teacher: a checkpoint or an artifact.
    #[arg(long, value_name = "MODEL")]
    teacher: PathBuf,
    /// The beginning of a text.
    prompt: String,
    /// Temperatures, separated by commas.
    #[arg(long, value_delimiter = ',', value_parser = super::temperature, default_value = "1,2,4", value_name = "T")]
    temperature: Vec<f64>,
    /// Number of continuations to show.
    #[arg(long, default_value_t = 10, value_parser = super::some, value_name = "N")]
    top: usize,
    /// The text that really follows, such as " glass": its first token is the hard label (by default the most likely).
    #[arg(long, value_name = "TEXT")]
    next: Option<String>,
    /// JSON output.
    #[command(flatten)]
    json: cli::JsonArgs,
    /// Treatment of an existing file.
    #[command(flatten)]
    overwrite: cli::OverwriteArgs,
    /// Device and precision of the teacher.
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Result as `--json` prints it.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Shown {
    /// The teacher.
    teacher: PathBuf,
    /// True if --next gave the hard label; else it is the most likely token.
    hard_label_given: bool,
    #[serde(flatten)]
    found: Continuations,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args) -> Result<String> {
    args.json.check(args.overwrite, &[&args.teacher])?;
    let model = Model::open(&args.teacher, &args.compute.place.device, &args.compute.dtype)?;
    let found = continuations(&model, &args.prompt, args.next.as_deref(), &args.temperature, args.top)?;
    let shown = Shown { teacher: args.teacher.clone(), hard_label_given: args.next.is_some(), found: found.clone() };
    let fields = || Ok(serde_json::to_value(&shown)?);
    let form = report::stdout_form();
    let form = Terminal { width: form.width.min(WIDEST), ..form };
    let text = || view(&found, &args.teacher.display().to_string(), args.next.is_some(), &form);
    let provenance = Provenance::on(&args.compute.place.device).model("teacher", &args.teacher);
    args.json.emit(("qdistill show", &provenance, args.overwrite), fields, text)
}

fn view(found: &Continuations, teacher: &str, given: bool, form: &Terminal) -> Result<String> {
    let about = format!(
        "Teacher  {teacher}, a vocabulary of {}\nPrompt   {} ({} tokens)\n\n",
        format::count(found.vocab_size as u64),
        ending(&format!("{:?}", found.prompt), form.width.saturating_sub("Prompt    (1000 tokens)".len())),
        found.prompt_tokens,
    );
    let mut columns = vec![Column::text("token", "Next token"), Column::number("hard", "Hard\nlabel")];
    columns.extend(found.temperatures.iter().map(|t| {
        let name = format!("T = {}", t.temperature);
        Column::text(name.clone(), name)
    }));
    let mut table = Table::new("", columns);
    let tokens = found.tokens.iter().map(|token| format!("{:>2} {}", token.rank, shown(&token.text)));
    let names: Vec<String> = tokens.collect();
    let bars = Bars::fitting(found, &names, form);
    for (name, token) in names.iter().zip(&found.tokens) {
        let hard = if token.rank == found.hard { "100%" } else { "0" };
        let soft =
            token.probabilities.iter().zip(&bars.longest).map(|(&p, &longest)| Cell::text(bars.cell(p, longest)));
        table.push([name.as_str(), hard].map(Cell::text).into_iter().chain(soft).collect())?;
    }
    let mut summary = |name: &str, hard: &str, of: &dyn Fn(&Softened) -> String| {
        let soft = found.temperatures.iter().map(|t| Cell::text(bars.number(&of(t))));
        table.push([name, hard].map(Cell::text).into_iter().chain(soft).collect())
    };
    summary("   all others", "0", &|t| percent(t.others))?;
    summary("", "", &|_| String::new())?;
    summary("Entropy (nats)", "0", &|t| format::fixed(t.entropy, 2))?;
    summary("As of equal choices", "1", &|t| match t.entropy.exp() {
        n if n < 100.0 => format::significant(n, 3),
        n => format::count(n.round() as u64),
    })?;
    summary("First : third", "", &|t| format::or_absent(t.first_to_third, |r| format::fixed(r, 2)))?;
    let hard = if given { "the text's own next token" } else { "here the most likely token (--next gives the text's)" };
    table.note(format!(
        "Hard label: {hard}. At temperature T every ratio of two probabilities becomes its T-th root; bars are \
         relative to the first of each column."
    ));
    Ok(about + &form.render(&table))
}

/// Bars with numbers behind them.
struct Bars {
    /// Probability of each column's longest bar.
    longest: Vec<f64>,
    width: usize,
    glyphs: Glyphs,
}

impl Bars {
    /// Characters of a number.
    const NUMBER: usize = 6;

    fn fitting(found: &Continuations, names: &[String], form: &Terminal) -> Self {
        let longest = found.tokens.first().map_or(vec![], |t| t.probabilities.clone());
        let names = names.iter().map(|n| n.chars().count()).max().unwrap_or(0).max("As of equal choices".len());
        // Names, hard labels, and two spaces beside each column.
        let left = form.width.saturating_sub(names + 2 + 5 + 2);
        let each = left / found.temperatures.len().max(1);
        Self { longest, width: each.saturating_sub(Self::NUMBER + 3).clamp(4, 24), glyphs: form.glyphs }
    }

    fn cell(&self, share: f64, longest: f64) -> String {
        let drawn = bar(share / longest.max(f64::MIN_POSITIVE), self.width, self.glyphs);
        format!("{drawn} {:>1$}", percent(share), Self::NUMBER)
    }

    /// A number where those behind bars are.
    fn number(&self, text: &str) -> String {
        format!("{text:>0$}", self.width + 1 + Self::NUMBER)
    }
}

/// A share with three digits at most.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    match percent {
        p if p >= 9.995 || p == 0.0 => format!("{p:.1}%"),
        p if p >= 0.005 => format!("{p:.2}%"),
        p => format!("{p:.0e}%"),
    }
}

/// The text, or `...` and its end: what the teacher saw last matters most.
fn ending(text: &str, width: usize) -> String {
    match text.chars().count().checked_sub(width) {
        None | Some(0) => text.to_string(),
        Some(over) => format!("...{}", text.chars().skip(over + 3).collect::<String>()),
    }
}

/// A token as a reader sees where it begins and ends.
fn shown(text: &str) -> String {
    const LONGEST: usize = 20;
    let text = match text.chars().count() > LONGEST {
        true => format!("{}...", text.chars().take(LONGEST - 3).collect::<String>()),
        false => text.to_string(),
    };
    format!("{text:?}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use distillation::continuations::Token;

    #[test]
    fn the_view() {
        let token = |rank: usize, text: &str, probabilities: [f64; 2]| Token {
            rank,
            id: rank as u32,
            text: text.into(),
            probabilities: probabilities.into(),
        };
        let at = |temperature, entropy, ratio, others| Softened {
            temperature,
            entropy,
            first_to_third: Some(ratio),
            others,
        };
        let found = Continuations {
            prompt: "She poured the milk into the".into(),
            prompt_tokens: 6,
            vocab_size: 49_152,
            hard: 4011,
            temperatures: vec![at(1.0, 2.9, 2.24, 0.4), at(2.0, 6.123, 1.5, 0.97)],
            tokens: vec![
                token(1, " bowl", [0.3, 0.012]),
                token(2, " \n", [0.2, 0.01]),
                token(3, " a very long token indeed", [0.13, 0.008]),
                token(4011, " pitch", [0.000_012, 1e-6]),
            ],
        };
        let form = Terminal { width: 80, ..Terminal::default() };
        let text = view(&found, "models/teacher", true, &form).expect("rows fit");
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        insta::assert_snapshot!(text);
        let narrow =
            view(&found, "t", false, &Terminal { width: 40, glyphs: Glyphs::Ascii, ..form }).expect("rows fit");
        insta::assert_snapshot!(narrow);
    }
}
