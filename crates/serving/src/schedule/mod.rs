//! Static against continuous batching over a trace of requests.
//!
//! Definitions, which stand beside the figures wherever they are shown, are [`DEFINITIONS`].

mod cost;
mod replay;
mod simulate;
mod trace;

pub use cost::{Cost, DecodeCost, StepCosts};
pub use replay::{Through, through};
pub use simulate::{Policy, Run, Served, simulate};
pub use trace::{MAX_REQUESTS, MAX_TOKENS, Request, Shape, Trace, Unit, draw};

use schemars::JsonSchema;
use scoring::stats::quantile;
use scoring::{Error, Result};
use serde::Serialize;

/// Version of the JSON.
pub const VERSION: u32 = 1;

/// Slots that may be asked for.
pub const MAX_SLOTS: usize = 1024;

/// Definitions of the words in reports.
pub const DEFINITIONS: [&str; 5] = [
    "Static batching: once all slots are empty, as many requests as wait then (in order of arrival, up to the slots) \
     become one batch; nothing else is let in until the last of them has its last token. It doesn't wait for a batch \
     to fill up.",
    "Continuous batching: at every step, waiting requests take the slots that are free, in order of arrival.",
    "Latency: from a request's arrival to its own last token, also in a static batch that is not yet over. First \
     token: from arrival to the first token of the answer.",
    "Throughput: tokens of all outputs over the time from the first arrival to the last token. Occupancy: the share \
     of all slots and of this time in which a request was being worked on.",
    "A step gives every request whose prompt is read one token; the step that reads the end of a prompt gives the \
     first token. With steps as the unit, every step takes equally long, whatever is in it.",
];

/// Mean and percentiles of a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Times {
    /// The mean.
    pub mean: f64,
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 99th percentile.
    pub p99: f64,
}

impl Times {
    /// Summarizes values; all fields are zero where there are none.
    pub fn from_values(mut values: Vec<f64>) -> Self {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let mut at = |q| quantile(&mut values, q).unwrap_or(0.0);
        Times { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}

/// Figures of one policy on a trace. Times are in steps or seconds, as [`Schedule::unit`] says.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Figures {
    /// Output tokens for each unit of time.
    pub throughput: f64,
    /// From arrival to the last token.
    pub latency: Times,
    /// From arrival to the first token.
    pub first_token: Times,
    /// Share of slots and time in use.
    pub occupancy: f64,
    /// From the first arrival to the last token.
    pub duration: f64,
    /// Steps that were run.
    pub steps: u64,
    /// Every request, in the order of the trace.
    pub requests: Vec<Served>,
}

impl Figures {
    /// The figures of a run.
    pub fn from_run(run: Run, output_tokens: u64, slots: usize) -> Self {
        let served = &run.served;
        let begin = served.first().map_or(0.0, |s| s.arrival);
        let duration = served.iter().map(|s| s.finished).fold(begin, f64::max) - begin;
        let busy: f64 = served.iter().map(|s| s.finished - s.admitted).sum();
        let since_arrival =
            |of: fn(&Served) -> f64| Times::from_values(served.iter().map(|s| of(s) - s.arrival).collect());
        Figures {
            throughput: output_tokens as f64 / duration,
            latency: since_arrival(|s| s.finished),
            first_token: since_arrival(|s| s.first_token),
            occupancy: busy / (duration * slots as f64),
            duration,
            steps: run.steps,
            requests: run.served,
        }
    }
}

/// Both policies on the same requests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Contest {
    /// Static batching.
    #[serde(rename = "static")]
    pub fixed: Figures,
    /// Continuous batching.
    pub continuous: Figures,
    /// Throughput of continuous batching over that of static.
    pub throughput_gain: f64,
    /// Mean latency of static batching over that of continuous.
    pub latency_gain: f64,
}

impl Contest {
    /// Compares two runs.
    pub fn between(fixed: Figures, continuous: Figures) -> Self {
        Contest {
            throughput_gain: continuous.throughput / fixed.throughput,
            latency_gain: fixed.latency.mean / continuous.latency.mean,
            fixed,
            continuous,
        }
    }
}

/// Settings of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Setting {
    /// Requests that may be worked on at once.
    pub slots: usize,
    /// Prompt tokens that are read in one step at most.
    pub chunk: u32,
    /// Duration of a step.
    pub cost: Cost,
}

/// Results of a simulation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Schedule {
    /// Version of this structure.
    pub version: u32,
    /// The trace's name.
    pub trace: String,
    /// Summary of the trace.
    pub shape: Shape,
    /// Settings of the simulation.
    pub setting: Setting,
    /// The unit of all times.
    pub unit: Unit,
    /// Seconds that one step of the trace's arrivals was taken for, where they are in steps and
    /// times in seconds.
    pub seconds_per_step: Option<f64>,
    /// Both policies with the trace's arrivals.
    pub as_they_come: Contest,
    /// Both policies with all requests there at the start.
    pub at_once: Contest,
    /// The same trace replayed through a model, where one was named.
    pub through: Option<Through>,
    /// Definitions of the words in reports.
    pub definitions: Vec<String>,
}

/// Simulates both policies on a trace.
///
/// # Errors
/// [`Error::Protocol`] for slots out of range, and for arrivals in seconds where costs are in steps.
pub fn schedule(name: &str, trace: &Trace, setting: &Setting) -> Result<Schedule> {
    if !(1..=MAX_SLOTS).contains(&setting.slots) {
        return Err(Error::Protocol(format!("{} slots; 1 to {MAX_SLOTS} can be simulated", setting.slots)));
    }
    if setting.chunk == 0 {
        return Err(Error::Protocol("a chunk of 0 prompt tokens would never read a prompt".into()));
    }
    let seconds_per_step = match (&setting.cost, trace.unit) {
        (Cost::Measured(_), Unit::Steps) => Some(setting.cost.step(setting.slots, 0)),
        (Cost::Unit, Unit::Seconds) => {
            return Err(Error::Protocol(format!("{name}: arrivals are in seconds; say how long steps take")));
        }
        _ => None,
    };
    let contest = |trace: &Trace| {
        let scale = seconds_per_step.unwrap_or(1.0);
        let requests: Vec<Request> =
            trace.requests.iter().map(|r| Request { arrival: r.arrival * scale, ..*r }).collect();
        let run = |policy| {
            let run = simulate(&requests, policy, setting.slots, setting.chunk, &setting.cost);
            Figures::from_run(run, trace.shape().output_tokens, setting.slots)
        };
        Contest::between(run(Policy::Static), run(Policy::Continuous))
    };
    Ok(Schedule {
        version: VERSION,
        trace: name.into(),
        shape: trace.shape(),
        setting: setting.clone(),
        unit: if setting.cost == Cost::Unit { Unit::Steps } else { Unit::Seconds },
        seconds_per_step,
        as_they_come: contest(trace),
        at_once: contest(&trace.at_once()),
        through: None,
        definitions: DEFINITIONS.map(str::to_string).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const TRACE: &str = include_str!("../../data/trace.jsonl");

    fn unit(slots: usize) -> Setting {
        Setting { slots, chunk: 512, cost: Cost::Unit }
    }

    fn found(setting: &Setting) -> Schedule {
        let trace = Trace::parse(Path::new("trace.jsonl"), TRACE).expect("valid");
        schedule("trace.jsonl", &trace, setting).expect("runs")
    }

    #[test]
    fn continuous_batching_gives_1_6x_throughput_and_about_10x_lower_mean_latency() {
        let found = found(&unit(8));
        let shape = found.shape;
        let lengths = (shape.requests, shape.median_output, shape.longest_output, shape.output_tokens);
        assert_eq!(lengths, (64, 18.0, 231, 1874));
        // One arrival about every six steps.
        assert!((shape.last_arrival / 63.0 - 6.0).abs() < 1.5, "{shape:?}");
        let gains = |c: &Contest| format!("{:.1}x {:.1}x", c.throughput_gain, c.latency_gain);
        assert_eq!(gains(&found.as_they_come), "1.6x 9.2x");
        // All at once: more for throughput, less for latency.
        assert_eq!(gains(&found.at_once), "2.6x 3.2x");
    }

    #[test]
    fn the_trace_is_the_one_that_its_seed_draws() {
        let lines = draw(63, 6.0).to_json_lines();
        let (tool, requests) = lines.split_once('\n').expect("lines");
        assert!(tool.contains("qeval"), "{tool}");
        assert_eq!(requests, TRACE);
    }

    #[test]
    fn steps_stand_for_seconds_where_costs_do() {
        let decode = vec![DecodeCost { batch: 1, ms: 10.0 }, DecodeCost { batch: 8, ms: 10.0 }];
        let cost = Cost::Measured(StepCosts { decode, prompt_ms_per_token: 0.0 });
        // Where every step takes 10 ms, the figures are those in steps. A step in which prompts are
        // read and nothing decodes is free here; with a chunk this large that step comes once.
        let seconds = found(&Setting { cost, ..unit(8) });
        assert_eq!((seconds.unit, seconds.seconds_per_step), (Unit::Seconds, Some(0.01)));
        let gain = found(&unit(8)).as_they_come.throughput_gain;
        assert!((seconds.as_they_come.throughput_gain / gain - 1.0).abs() < 0.05);
        let per_second = seconds.as_they_come.continuous.throughput;
        let per_step = found(&unit(8)).as_they_come.continuous.throughput;
        assert!((per_second / per_step / 100.0 - 1.0).abs() < 0.05, "{per_second} {per_step}");
    }

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let trace = Trace::parse(Path::new("t"), r#"{"arrival_s": 0.5, "prompt": 1, "output": 1}"#).expect("valid");
        let refused = |setting: Setting| schedule("t", &trace, &setting).expect_err("refused").to_string();
        assert!(refused(unit(0)).contains("0 slots"));
        assert!(refused(unit(MAX_SLOTS + 1)).contains("1025 slots"));
        assert!(refused(Setting { chunk: 0, ..unit(1) }).contains("chunk of 0"));
        assert!(refused(unit(1)).contains("arrivals are in seconds"));
    }
}
