//! `qeval schedule`.

use crate::args::KvArg;
use crate::builtin;
use anyhow::{Context, Result, bail};
use clap::Args;
use cli::ComputeArgs;
use cli::OutputArgs;
use cli::{Findings, Provenance, output};
use cli::{Outcome, Usage};
use progress::Progress;
use report::chart::{Axis, Lane, Span, Timeline};
use report::format;
use report::page::{Fact, Page, Section};
use report::spark::Glyphs;
use report::table::{Cell, Column, Table, Terminal};
use scoring::load::{Compute, Loaded};
use serde_json::Value;
use serving::schedule::{
    self, Contest, Cost, DecodeCost, Figures, Policy, Schedule, Setting, StepCosts, Through, Times, Trace, Unit,
};
use std::path::{Path, PathBuf};
use store::output::{Form, check_file, write_file};

/// The trace that is used when none is named.
const TRACE: &str = include_str!("../../serving/data/trace.jsonl");

/// Name of the built-in trace.
const TRACE_NAME: &str = "trace.jsonl";

/// Arrivals as the trace has them.
const AS_THEY_COME: &str = "as in the trace";

/// Arrivals all at the start.
const AT_ONCE: &str = "all at once";

/// A file of a trace may be so large; what is beyond has more requests than are simulated.
const MAX_BYTES: u64 = 64 << 20;

/// Slots that are drawn; more would be no picture.
const MAX_DRAWN: usize = 64;

/// Requests that a page draws.
const MAX_SPANS: usize = 5_000;

/// `qeval schedule`.
#[derive(Debug, Args)]
pub struct ScheduleArgs {
    /// Requests in order of arrival, as JSON lines: {"arrival_step": 3, "prompt": 20, "output": 18}, or with
    /// arrival_s in seconds; by default 64 requests that are built in.
    #[arg(value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    /// Requests that are worked on at once.
    #[arg(long, default_value_t = 8, value_name = "N")]
    pub slots: usize,
    /// Prompt tokens that a step reads at most.
    #[arg(long, default_value_t = 512, value_name = "N")]
    pub chunk: u32,
    /// Step costs as 'qeval bench --json' wrote them for one model; by default every step costs one step.
    #[arg(long, value_name = "FILE", conflicts_with = "step_ms")]
    pub costs: Option<PathBuf>,
    /// Milliseconds of a decoding step by batch, such as 1=8.0,8=12.5; linear between.
    #[arg(long, value_delimiter = ',', value_name = "BATCH=MS", value_parser = decode_cost)]
    pub step_ms: Vec<DecodeCost>,
    /// Milliseconds that a prompt token adds to a step, beside --step-ms.
    #[arg(long, default_value_t = 0.0, value_name = "MS", requires = "step_ms")]
    pub prompt_ms: f64,
    /// Replay the trace through this model, with the engine of this program. Takes a while: use a small model.
    #[arg(long, value_name = "MODEL")]
    pub through: Option<PathBuf>,
    /// Type of that model's stored keys and values.
    #[arg(long, value_enum, default_value_t = KvArg::F16, value_name = "TYPE", requires = "through")]
    pub kv: KvArg,
    /// Device of that model.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Write a new trace of the built-in one's shape and do nothing else.
    #[arg(long, value_name = "FILE", conflicts_with = "trace")]
    pub make_trace: Option<PathBuf>,
    /// Seed of --make-trace.
    #[arg(long, default_value_t = 0, value_name = "N", requires = "make_trace")]
    pub seed: u64,
    /// Steps between two arrivals of --make-trace, on average.
    #[arg(long, default_value_t = 6.0, value_name = "STEPS", requires = "make_trace")]
    pub gap: f64,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// Reads `8=12.5`.
fn decode_cost(text: &str) -> Result<DecodeCost, String> {
    let parsed = text
        .split_once('=')
        .and_then(|(batch, ms)| Some(DecodeCost { batch: batch.trim().parse().ok()?, ms: ms.trim().parse().ok()? }));
    parsed.ok_or_else(|| "a batch and milliseconds are wanted, such as 8=12.5".into())
}

/// `qeval schedule`.
pub fn run(args: &ScheduleArgs, progress: &dyn Progress) -> Result<Outcome> {
    if let Some(path) = &args.make_trace {
        return make(path, args);
    }
    let inputs: Vec<&Path> = args.trace.iter().chain(&args.costs).chain(&args.through).map(PathBuf::as_path).collect();
    output::check(&args.output, &inputs)?;
    let (name, trace) = trace(args.trace.as_deref())?;
    let setting = Setting { slots: args.slots, chunk: args.chunk, cost: cost(args)? };
    let mut found = schedule::schedule(&name, &trace, &setting)?;
    let ComputeArgs { place, dtype } = &args.compute;
    let compute = || Compute::on(&place.device, dtype, runtime::Math::Exact, Some(args.kv.ty()));
    // A schedule alone needs no device, but one that was asked for is to be there.
    if args.through.is_none() && place.device != "auto" {
        compute()?;
    }
    if let Some(path) = &args.through {
        let (name, loaded) = (path.display().to_string(), Loaded::open(path, &compute()?, None)?);
        crate::say_notes(&name, &loaded.files);
        found.through = Some(schedule::through(&name, &loaded.model, &trace, &setting, progress)?);
    }
    let provenance =
        Provenance::default().files("trace", &args.trace).files("costs", &args.costs).models("through", &args.through);
    output::present(&View(found), &args.output, &provenance)
}

fn make(path: &Path, args: &ScheduleArgs) -> Result<Outcome> {
    if !(args.gap.is_finite() && (0.0..=1e6).contains(&args.gap)) {
        bail!(Usage(format!("a gap of {} steps is not between 0 and a million", args.gap)));
    }
    let existing = args.output.overwrite.existing();
    check_file::<&Path>(path, Form::Trace, existing, &[])?;
    let trace = schedule::draw(args.seed, args.gap);
    write_file(path, Form::Trace, existing, trace.to_json_lines().as_bytes())?;
    let text = format!("{} requests in {}\n", trace.requests.len(), path.display());
    Ok(text.into())
}

/// The trace of a file, or the one that is built in; and its name.
fn trace(path: Option<&Path>) -> Result<(String, Trace)> {
    let Some(path) = path else {
        return Ok((TRACE_NAME.into(), Trace::parse(Path::new(TRACE_NAME), TRACE)?));
    };
    let size = std::fs::metadata(path).with_context(|| format!("{}: cannot read", path.display()))?.len();
    if size > MAX_BYTES {
        bail!(
            "{}: {} are too much for a trace; at most {}",
            path.display(),
            format::bytes(size),
            format::bytes(MAX_BYTES)
        );
    }
    Ok((path.display().to_string(), Trace::parse(path, &builtin::read(path)?)?))
}

fn cost(args: &ScheduleArgs) -> Result<Cost> {
    if let Some(path) = &args.costs {
        return Ok(Cost::Measured(StepCosts::parse(path, &builtin::read(path)?)?));
    }
    if args.step_ms.is_empty() {
        return Ok(Cost::Unit);
    }
    let costs = StepCosts { decode: args.step_ms.clone(), prompt_ms_per_token: args.prompt_ms };
    costs.check().map_err(|e| Usage(e.to_string()))?;
    Ok(Cost::Measured(costs))
}

/// The findings of `qeval schedule`, to be shown.
struct View(Schedule);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qeval schedule"
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let mut tables = vec![table(&self.0)?];
        tables.extend(self.0.through.as_ref().map(through_table).transpose()?);
        if let Some(last) = tables.last_mut() {
            last.notes.extend(notes(&self.0));
        }
        Ok(tables)
    }

    fn problems(&self) -> Vec<String> {
        let wrong = self.0.through.iter().filter(|t| t.batch_invariant && !t.equal_alone);
        wrong.map(|t| format!("{}: a request got other tokens than it gets alone", t.model)).collect()
    }

    fn terminal(&self, form: &Terminal, verbose: bool) -> Result<String> {
        let tables: Vec<String> = self.tables(verbose)?.iter().map(|table| form.render(table)).collect();
        Ok(tables.join("\n") + &slots_over_time(&self.0, form))
    }

    fn page(&self) -> Result<Page> {
        page(&self.0)
    }
}

/// Strips of characters: the request that each slot works on, over time, for both policies. Empty where there are too
/// many slots.
fn slots_over_time(found: &Schedule, form: &Terminal) -> String {
    if found.setting.slots > MAX_DRAWN {
        return String::new();
    }
    let both = [(Policy::Static, &found.as_they_come.fixed), (Policy::Continuous, &found.as_they_come.continuous)];
    // Both on one scale, that of the longer run.
    let end = both.iter().flat_map(|(_, f)| &f.requests).map(|r| r.finished).fold(0.0, f64::max);
    let lanes = both.map(|(policy, figures)| {
        let title =
            format!("\n{}, slots over {} {}\n", policy.name(), format::significant(end, 3), unit_names(found.unit).0);
        title + &strips(figures, found.setting.slots, end, form.width.min(120), form.glyphs)
    });
    lanes.concat()
}

/// Names of times and rates in a unit.
fn unit_names(unit: Unit) -> (&'static str, &'static str) {
    match unit {
        Unit::Steps => ("steps", "tokens/step"),
        Unit::Seconds => ("s", "tokens/s"),
    }
}

/// Both ways of arriving.
fn both_arrivals(found: &Schedule) -> [(&'static str, &Contest); 2] {
    [(AS_THEY_COME, &found.as_they_come), (AT_ONCE, &found.at_once)]
}

fn table(found: &Schedule) -> Result<Table> {
    let title = format!("{} slots, {}", found.setting.slots, found.trace);
    contests(title, "", found.unit, &both_arrivals(found))
}

fn through_table(through: &Through) -> Result<Table> {
    let title = format!("Through {}", through.model);
    let mut table = contests(title, &through.model, through.unit, &[(AS_THEY_COME, &through.contest)])?;
    let rate = |gained: &Figures, seconds: f64| {
        let tokens = gained.throughput * gained.duration;
        format!("{} s ({} tokens/s)", format::significant(seconds, 3), format::significant(tokens / seconds, 3))
    };
    table.note(format!(
        "Through the model, static batching ran for {}, continuous for {}. {}",
        rate(&through.contest.fixed, through.static_seconds),
        rate(&through.contest.continuous, through.continuous_seconds),
        match (through.equal_alone, through.batch_invariant) {
            (true, _) => "Every request got the tokens that it gets alone.",
            (false, true) => "Some request did NOT get the tokens that it gets alone.",
            (false, false) =>
                "Some request got other tokens than alone: on this device the order of sums depends on the batch.",
        }
    ));
    Ok(table)
}

/// Both policies of some contests, simulated or through a model.
fn contests(title: String, through: &str, unit: Unit, contests: &[(&str, &Contest)]) -> Result<Table> {
    let run = [Cell::value("", through), Cell::value("", unit.name())];
    let (unit, rate) = unit_names(unit);
    let time = |key: &str, header: &str| Column::number(key, header).unit(unit);
    let columns = vec![
        Column::text("policy", "Batching, arrivals"),
        Column::text("arrivals", "").machine_only(),
        Column::text("through", "").machine_only(),
        Column::text("unit", "").machine_only(),
        Column::number("throughput", "Throughput").unit(rate),
        time("latency_mean", "Latency\nmean"),
        time("latency_p50", "p50"),
        time("latency_p90", "p90"),
        time("latency_p99", "p99"),
        time("first_token_mean", "First token\nmean"),
        time("first_token_p99", "p99"),
        Column::number("occupancy", "Slots\nin use"),
        Column::number("steps", "Steps"),
        Column::number("throughput_gain", "Throughput\ngain"),
        Column::number("latency_gain", "Latency\ngain"),
    ];
    let mut table = Table::new(title, columns);
    for (arrivals, contest) in contests {
        let gain = |v: f64| Cell::value(format!("{}x", format::fixed(v, 2)), v);
        let gains = [gain(contest.throughput_gain), gain(contest.latency_gain)];
        table.push(figures(arrivals, &run, Policy::Static, &contest.fixed, [Cell::absent(), Cell::absent()]))?;
        table.push(figures(arrivals, &run, Policy::Continuous, &contest.continuous, gains))?;
    }
    Ok(table)
}

fn figures(arrivals: &str, run: &[Cell; 2], policy: Policy, figures: &Figures, gains: [Cell; 2]) -> Vec<Cell> {
    let number = |v: f64| Cell::value(format::significant(v, 3), v);
    let Times { mean, p50, p90, p99 } = figures.latency;
    let times = [figures.throughput, mean, p50, p90, p99, figures.first_token.mean, figures.first_token.p99];
    let name = format!("{}, {arrivals}", policy.name());
    let mut row = vec![Cell::value(name, policy.name()), Cell::text(arrivals)];
    row.extend(run.iter().cloned().chain(times.map(number)));
    row.push(Cell::value(format::percent(figures.occupancy, 1), figures.occupancy));
    row.push(Cell::value(format::count(figures.steps), figures.steps));
    row.extend(gains);
    row
}

fn notes(found: &Schedule) -> Vec<String> {
    let s = &found.shape;
    let mut notes = vec![format!(
        "{}: {} requests, {} output tokens (median {}, longest {}), {} prompt tokens, the last arrival at {}.",
        found.trace,
        format::count(s.requests as u64),
        format::count(s.output_tokens),
        s.median_output,
        s.longest_output,
        format::count(s.prompt_tokens),
        s.last_arrival,
    )];
    if let Some(seconds) = found.seconds_per_step {
        notes.push(format!(
            "Arrivals are in steps; each stands for {} ms, a decoding step with all slots in use.",
            format::significant(1e3 * seconds, 3)
        ));
    }
    notes.extend(found.definitions.iter().cloned());
    notes
}

/// One line for each slot: two shades in turn for its requests, dots where it is empty.
fn strips(figures: &Figures, slots: usize, end: f64, width: usize, glyphs: Glyphs) -> String {
    let (shades, empty) = match glyphs {
        Glyphs::Unicode => (['█', '▒'], '·'),
        Glyphs::Ascii => (['#', '='], '.'),
    };
    let cells = width.saturating_sub(4).max(10);
    let mut out = String::new();
    for slot in 0..slots {
        let mut line = vec![empty; cells];
        for (at, request) in figures.requests.iter().filter(|r| r.slot == slot).enumerate() {
            let cell = |time: f64| (time / end * cells as f64).round() as usize;
            let (from, to) = (cell(request.admitted).min(cells - 1), cell(request.finished).min(cells));
            line[from..to.max(from + 1)].fill(shades[at % 2]);
        }
        out.push_str(&format!("{:>3} {}\n", slot + 1, line.iter().collect::<String>()));
    }
    out
}

fn page(found: &Schedule) -> Result<Page> {
    let mut lanes = Section::new("Slots over time");
    let is_drawn = found.setting.slots <= MAX_DRAWN && found.shape.requests <= MAX_SPANS;
    if !is_drawn {
        lanes = lanes.prose(format!("Not drawn: more than {MAX_DRAWN} slots or {MAX_SPANS} requests."));
    }
    for (arrivals, contest) in both_arrivals(found).into_iter().filter(|_| is_drawn) {
        for (policy, figures) in [(Policy::Static, &contest.fixed), (Policy::Continuous, &contest.continuous)] {
            lanes = lanes.chart(
                &timeline(found, policy, figures, arrivals),
                "Each bar is a request in its slot, from when it was let in to its last token.",
            );
        }
    }
    let mut shown = table(found)?;
    shown.title.clear();
    let mut figures = Section::new("Figures").table(shown);
    if let Some(through) = &found.through {
        figures = figures.table(through_table(through)?);
    }
    let gain = |v: f64| format!("{}x", format::fixed(v, 2));
    let (came, once) = (&found.as_they_come, &found.at_once);
    Ok(Page {
        title: "Static and continuous batching".into(),
        lead: format!(
            "With the trace's arrivals, continuous batching has {} the throughput of static batching, and a mean \
             latency lower by {}; with all requests there at the start, {} and {}.",
            gain(came.throughput_gain),
            gain(came.latency_gain),
            gain(once.throughput_gain),
            gain(once.latency_gain)
        ),
        facts: vec![
            Fact::new("Trace", found.trace.clone()),
            Fact::new("Requests", format::count(found.shape.requests as u64)),
            Fact::new("Slots", found.setting.slots.to_string()),
        ],
        sections: vec![
            figures,
            lanes,
            notes(found).into_iter().fold(Section::new("What the words mean"), Section::prose),
        ],
        ..Page::default()
    })
}

fn timeline(found: &Schedule, policy: Policy, figures: &Figures, arrivals: &str) -> Timeline {
    let span = |(index, r): (usize, &schedule::Served)| Span {
        label: format!(
            "request {}: {} to {}",
            index + 1,
            format::significant(r.admitted, 4),
            format::significant(r.finished, 4)
        ),
        from: r.admitted,
        to: r.finished,
    };
    let lane = |slot: usize| Lane {
        name: format!("slot {}", slot + 1),
        spans: figures.requests.iter().enumerate().filter(|(_, r)| r.slot == slot).map(span).collect(),
    };
    Timeline {
        title: format!("{}, arrivals {arrivals}", policy.name()),
        axis: Axis::linear(unit_names(found.unit).0).from(0.0),
        lanes: (0..found.setting.slots).map(lane).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> Schedule {
        let (name, trace) = trace(None).expect("valid");
        schedule::schedule(&name, &trace, &Setting { slots: 8, chunk: 512, cost: Cost::Unit }).expect("runs")
    }

    #[test]
    fn what_a_terminal_shows() {
        let form = Terminal { width: 100, ..Terminal::default() };
        let table = View(found()).tables(false).expect("fits").remove(0);
        insta::assert_snapshot!(form.render(&table) + &slots_over_time(&found(), &form));
    }

    #[test]
    fn the_page_has_a_timeline_for_each_run() {
        let page = View(found()).page().expect("fits").render().expect("renders");
        // Wide and narrow.
        assert_eq!(page.matches("class=\"chart\"").count(), 8);
        assert!(page.contains("request 64: "));
        let mut many = found();
        many.setting.slots = MAX_DRAWN + 1;
        assert!(super::page(&many).expect("fits").render().expect("renders").contains("Not drawn"));
        assert_eq!(slots_over_time(&many, &Terminal::default()), "");
    }
}
