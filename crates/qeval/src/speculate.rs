//! `qeval speculate`.

use crate::args::{EngineArgs, KvArg};
use crate::models;
use cli::OutputArgs;
use cli::{Findings, Provenance, output};
use cli::{Outcome, Usage};
use serde_json::Value;

use anyhow::{Result, bail};
use clap::Args;
use progress::Progress;
use report::chart::{Axis, Guide, Line, LinePlot};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Tone};
use scoring::load::{Compute, Loaded};
use scoring::{Bos, Error, Failed, agreement, text};
use serving::generate::Settings;
use serving::speculate::{Draft, MAX_GAMMA, Setting, Speculated, Speculation, speculate};
use std::path::{Path, PathBuf};

/// `qeval speculate`.
#[derive(Debug, Args)]
pub struct SpeculateArgs {
    /// The model whose text is wanted.
    #[arg(long, value_name = "MODEL")]
    pub target: PathBuf,
    /// Models that draft, such as quantized forms of it; with the same tokenizer.
    #[arg(long, required = true, num_args = 1.., value_name = "ARTIFACT")]
    pub draft: Vec<PathBuf>,
    /// Numbers of drafted tokens in a pass: a range such as 1..8 (both ends count) or a list such as 1,2,4.
    #[arg(long, default_value = "1..8", value_name = "G", value_parser = gammas)]
    pub gamma: Gammas,
    /// A prompt to continue (repeatable); by default the 16 of the agreement column.
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// Tokens that each prompt is continued by.
    #[arg(long, default_value_t = 32, value_name = "N")]
    pub tokens: usize,
    /// 0 for the most likely token, else sampled.
    #[arg(long, default_value_t = 0.0, value_name = "T")]
    pub temperature: f64,
    /// Seed of what is sampled.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Type of stored keys and values.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv: Option<KvArg>,
    /// Arithmetic and device.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `--gamma`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gammas(Vec<usize>);

/// Reads `1..8` or `1,2,4`.
fn gammas(text: &str) -> Result<Gammas, String> {
    let number = |text: &str| text.trim().parse::<usize>().ok().filter(|g| (1..=MAX_GAMMA).contains(g));
    let list = match text.split_once("..") {
        Some((from, to)) => {
            number(from).zip(number(to.trim_start_matches('='))).map(|(from, to)| (from..=to).collect())
        }
        None => text.split(',').map(number).collect::<Option<Vec<usize>>>(),
    };
    let wrong = || format!("a range such as 1..8 or a list such as 1,2,4 is wanted, of 1 to {MAX_GAMMA}");
    list.filter(|list| !list.is_empty()).map(Gammas).ok_or_else(wrong)
}

/// `qeval speculate`.
pub fn run(args: &SpeculateArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<&Path> = std::iter::once(&args.target).chain(&args.draft).map(PathBuf::as_path).collect();
    output::check(&args.output, &inputs)?;
    if args.tokens == 0 {
        bail!(Usage("--tokens takes at least 1".into()));
    }
    Settings { temperature: args.temperature, ..Settings::default() }.sampler()?;
    let compute = args.engine.compute(args.kv.map(KvArg::ty))?;
    let target = Loaded::open(&args.target, &compute, None)?;
    crate::say_notes(&args.target.display().to_string(), &target.files);
    let (mut drafts, mut failed) = (Vec::with_capacity(args.draft.len()), Vec::new());
    for path in &args.draft {
        match open(path, &target, &compute) {
            Ok(draft) => {
                crate::say_notes(&path.display().to_string(), &draft.files);
                drafts.push(draft);
            }
            Err(e) => failed.push(Failed::new(path, &e)),
        }
    }
    if drafts.is_empty() {
        return Err(models::none_left(&failed));
    }
    let texts: Vec<&str> = match &args.prompt[..] {
        [] => agreement::PROMPTS.into(),
        own => own.iter().map(String::as_str).collect(),
    };
    let prompts = texts.iter().map(|text| Ok(target.encoder.prompt(text, Bos::Auto)?)).collect::<Result<Vec<_>>>()?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    if prompts.iter().any(Vec::is_empty) {
        bail!(Usage("a prompt has no tokens".into()));
    }
    let most = std::iter::once(&target).chain(&drafts).map(|m| m.model.transformer().config().max_position).min();
    if most.is_some_and(|most| longest.saturating_add(args.tokens) > most) {
        let most = most.unwrap_or(0);
        bail!(Usage(format!("{longest} tokens of a prompt and {} more exceed the context of {most}", args.tokens)));
    }
    let names: Vec<String> = drafts.iter().map(|d| d.path.display().to_string()).collect();
    let setting = Setting {
        tokens: args.tokens,
        gammas: args.gamma.0.clone(),
        temperature: args.temperature,
        seed: args.seed,
        kv: target.model.kv(),
        engine_math: args.engine.engine_math.name(),
    };
    let candidates: Vec<Draft<'_>> =
        drafts.iter().zip(&names).map(|(d, name)| Draft { name, model: &d.model }).collect();
    let name = args.target.display().to_string();
    let target = Draft { name: &name, model: &target.model };
    let mut found = speculate(target, &candidates, &prompts, &setting, progress)?;
    found.failed.splice(..0, failed);
    if found.drafts.is_empty() {
        return Err(models::none_left(&found.failed));
    }
    let provenance = Provenance::on(runtime::device_name(&compute.device))
        .model("target", &args.target)
        .models("draft", &args.draft);
    output::present(&View(found), &args.output, &provenance)
}

/// Opens a draft, which must have the target's tokenizer.
fn open(path: &Path, target: &Loaded, compute: &Compute) -> scoring::Result<Loaded> {
    let draft = Loaded::open(path, compute, Some(target))?;
    match text::difference(&target.encoder, &draft.encoder) {
        None => Ok(draft),
        Some(difference) => {
            let (draft, target) = (path.display(), target.path.display());
            Err(Error::Model(format!("{draft} can't draft for {target}: {difference}")))
        }
    }
}

/// The findings of `qeval speculate`, to be shown.
struct View(Speculation);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qeval speculate"
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        Ok(vec![table(&self.0)?])
    }

    fn page(&self) -> Result<Page> {
        page(&self.0)
    }

    fn problems(&self) -> Vec<String> {
        self.0.failed.iter().map(Failed::to_string).collect()
    }
}

fn table(found: &Speculation) -> Result<Table> {
    let columns = vec![
        Column::text("draft", "Draft, gamma"),
        Column::number("gamma", "").machine_only(),
        Column::number("agreement", "Agreement"),
        Column::number("acceptance", "Acceptance"),
        Column::number("expected_per_pass", "Tokens a pass\nexpected"),
        Column::number("tokens_per_pass", "measured"),
        Column::number("draft_cost", "Draft\ncost c"),
        Column::number("pass_cost", "Pass\ncost p"),
        Column::number("predicted", "Speed-up\npredicted"),
        Column::number("predicted_with_pass", "with p"),
        Column::number("measured", "measured"),
        Column::text("outcome", ""),
        Column::text("error", "Error").machine_only(),
    ];
    let mut table = Table::new(format!("Speculating for {}", found.target), columns);
    for draft in &found.drafts {
        for run in &draft.runs {
            let number = |v: f64, digits| Cell::value(format::fixed(v, digits), v);
            let times = |v: f64| Cell::value(format!("{}x", format::fixed(v, 2)), v);
            table.push(vec![
                Cell::value(format!("{}, {}", models::file_name(&draft.name), run.gamma), draft.name.clone()),
                Cell::value("", run.gamma),
                number(draft.agreement, 3),
                run.acceptance.map_or_else(Cell::absent, |a| number(a, 3)),
                number(run.expected_per_pass, 2),
                number(run.tokens_per_pass, 2),
                number(draft.cost, 2),
                number(run.pass_cost, 2),
                times(run.predicted),
                times(run.predicted_with_pass),
                times(run.measured),
                outcome(run, draft.best_measured),
                Cell::absent(),
            ])?;
        }
    }
    models::push_failed(&mut table, &found.failed, "outcome")?;
    table.notes = notes(found);
    Ok(table)
}

fn outcome(run: &Speculated, best: usize) -> Cell {
    match run.measured {
        m if m < 1.0 && run.gamma == best => Cell::text("best, still loses").tone(Tone::Warning),
        m if m < 1.0 => Cell::text("loses").tone(Tone::Warning),
        _ if run.gamma == best => Cell::text("best").tone(Tone::Good),
        _ => Cell::text(""),
    }
}

fn notes(found: &Speculation) -> Vec<String> {
    let setting = &found.setting;
    let differs = found.drafts.iter().flat_map(|d| &d.runs).any(|run| run.equal == Some(false));
    let chosen = match setting.temperature {
        0.0 if differs => "greedily; some run gave other tokens than the target alone, since on this device the order \
                           of sums depends on how many are read at once"
            .to_string(),
        0.0 => "greedily; the target's own tokens came out in every run".to_string(),
        t => format!("sampled at temperature {t}, seed {}", setting.seed),
    };
    let mut notes: Vec<String> = found.failed.iter().map(|failed| format!("{failed}.")).collect();
    notes.push(format!(
        "{} prompts, each continued by {} tokens, {chosen}; {}. The target alone: {} ms a token.",
        found.prompts,
        setting.tokens,
        models::arithmetic(setting.kv, &setting.engine_math),
        format::significant(found.target_ms_per_token, 3)
    ));
    for draft in &found.drafts {
        notes.push(format!(
            "{}: {} ms a token; best with gamma {} (predicted with the pass cost: {}).",
            draft.name,
            format::significant(draft.ms_per_token, 3),
            draft.best_measured,
            draft.best_predicted
        ));
    }
    notes.extend(found.definitions.iter().cloned());
    notes
}

fn page(found: &Speculation) -> Result<Page> {
    let mut shown = table(found)?;
    shown.title.clear();
    let notes = std::mem::take(&mut shown.notes);
    let lines = found.drafts.iter().flat_map(|draft| {
        let line = |name: &str, of: fn(&Speculated) -> f64| Line {
            name: format!("{}, {name}", models::file_name(&draft.name)),
            points: draft.runs.iter().map(|run| (run.gamma as f64, of(run))).collect(),
            band: Vec::new(),
        };
        [line("measured", |r| r.measured), line("predicted", |r| r.predicted_with_pass)]
    });
    let plot = LinePlot {
        title: "Speed-up by drafted tokens in a pass".into(),
        x: Axis::linear("gamma"),
        y: Axis::linear("Multiple of the target's speed"),
        lines: lines.collect(),
        guides: vec![Guide { label: "the target alone".into(), at: 1.0 }],
    };
    Ok(Page {
        title: "Speculative decoding".into(),
        lead: String::new(),
        facts: vec![
            Fact::new("Target", found.target.clone()),
            Fact::new("Prompts", found.prompts.to_string()),
            Fact::new("Tokens of each", found.setting.tokens.to_string()),
        ],
        sections: vec![
            Section::new("Speed-up").chart(&plot, "Below the dashed line, speculation loses.").table(shown),
            notes.into_iter().fold(Section::new("How it was measured"), Section::prose),
        ],
        ..Page::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serving::speculate::{DEFINITIONS, Drafted, VERSION};

    fn found() -> Speculation {
        let run = |gamma: usize, measured: f64| Speculated {
            gamma,
            acceptance: (gamma > 1).then_some(0.81),
            tokens_per_pass: 1.8,
            expected_per_pass: 1.85,
            pass_cost: 1.1,
            predicted: 1.23,
            predicted_with_pass: 1.17,
            measured,
            equal: Some(true),
        };
        let draft = |name: &str, runs: Vec<Speculated>| Drafted {
            name: name.into(),
            agreement: 0.85,
            ms_per_token: 4.1,
            cost: 0.42,
            best_predicted: 2,
            best_measured: 1,
            runs,
        };
        Speculation {
            version: VERSION,
            target: "models/smollm2".into(),
            setting: Setting {
                tokens: 32,
                gammas: vec![1, 2],
                temperature: 0.0,
                seed: 0,
                kv: runtime::KvType::Int8,
                engine_math: "llama.cpp".into(),
            },
            prompts: 16,
            target_ms_per_token: 9.75,
            drafts: vec![
                draft("int4-g64", vec![run(1, 1.2), run(2, 0.9)]),
                draft("int4-absmax", vec![run(1, 0.8), run(2, 0.6)]),
            ],
            failed: vec![Failed { model: "no/such".into(), error: "no/such: cannot open".into() }],
            definitions: DEFINITIONS.map(str::to_string).into(),
        }
    }

    #[test]
    fn what_a_terminal_shows() {
        let form = report::table::Terminal { width: 110, ..Default::default() };
        insta::assert_snapshot!(form.render(&table(&found()).expect("fits")));
        let page = View(found()).page().expect("fits").render().expect("renders");
        assert!(page.contains("int4-absmax, predicted"));
    }

    #[test]
    fn ranges_and_lists() {
        let of = |text: &str| gammas(text).map(|g| g.0);
        assert_eq!(of("1..8"), Ok((1..=8).collect()));
        assert_eq!((of("2..=3"), of("4,1")), (Ok(vec![2, 3]), Ok(vec![4, 1])));
        for wrong in ["", "0..3", "8..1", "x", "1..", "65", "1,,2"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }
}
