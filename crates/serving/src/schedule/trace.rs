//! Requests over time: read from JSON lines, or drawn.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use schemars::JsonSchema;
use scoring::battery::parse_lines;
use scoring::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;

/// Requests that a trace may have.
pub const MAX_REQUESTS: usize = 100_000;

/// Tokens that a trace may have, prompts and outputs together: a simulation takes a step for each
/// at worst.
pub const MAX_TOKENS: u64 = 50_000_000;

/// The latest arrival, in steps or seconds.
const MAX_ARRIVAL: f64 = 1e9;

/// Unit of arrivals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Unit {
    /// Decoding steps.
    Steps,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// In a word.
    pub fn name(self) -> &'static str {
        match self {
            Unit::Steps => "steps",
            Unit::Seconds => "seconds",
        }
    }
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Request {
    /// When it comes, in the trace's unit.
    pub arrival: f64,
    /// Tokens of its prompt; at least 1.
    pub prompt: u32,
    /// Tokens that it is answered with; at least 1.
    pub output: u32,
}

/// Requests in the order of their arrival.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// Unit of arrivals.
    pub unit: Unit,
    /// The requests.
    pub requests: Vec<Request>,
}

/// A line of a trace.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    arrival_step: Option<f64>,
    arrival_s: Option<f64>,
    prompt: u32,
    output: u32,
}

impl Line {
    fn arrival(&self) -> Option<(Unit, f64)> {
        match (self.arrival_step, self.arrival_s) {
            (Some(at), None) => Some((Unit::Steps, at)),
            (None, Some(at)) => Some((Unit::Seconds, at)),
            _ => None,
        }
    }

    fn problem(&self) -> Option<String> {
        let Some((_, at)) = self.arrival() else {
            return Some("a request needs one of arrival_step and arrival_s".into());
        };
        if !(0.0..=MAX_ARRIVAL).contains(&at) {
            return Some(format!("an arrival of {at:?} is not between 0 and {MAX_ARRIVAL:e}"));
        }
        (self.prompt == 0 || self.output == 0).then(|| "prompt and output need at least 1 token each".into())
    }
}

impl Trace {
    /// Reads JSON lines, each `{"arrival_step": 3, "prompt": 20, "output": 18}`, or all with
    /// `arrival_s` for seconds, in the order of arrival.
    ///
    /// # Errors
    /// Names the file and the line; or the file, where it is empty or too large.
    pub fn parse(path: &Path, text: &str) -> Result<Self> {
        // The first line may name the program that drew the trace; an empty one keeps the count of lines.
        let named = text.split_once('\n').filter(|(first, _)| first.starts_with("{\"tool\": "));
        let lines: Vec<Line> = match named {
            Some((_, rest)) => parse_lines(path, &format!("\n{rest}"), Line::problem)?,
            None => parse_lines(path, text, Line::problem)?,
        };
        let arrivals: Vec<(Unit, f64)> = lines.iter().filter_map(Line::arrival).collect();
        let wrong = |what: String| Err(Error::Text(format!("{}: {what}", path.display())));
        if lines.len() > MAX_REQUESTS {
            return wrong(format!("{} requests; at most {MAX_REQUESTS} can be simulated", lines.len()));
        }
        if let Some(pair) = arrivals.windows(2).find(|pair| pair[0].0 != pair[1].0) {
            let (one, other) = (pair[0].0.name(), pair[1].0.name());
            return wrong(format!("arrivals in {one} and in {other}; all must have one unit"));
        }
        if let Some(at) = arrivals.windows(2).position(|pair| pair[0].1 > pair[1].1) {
            let (before, after) = (arrivals[at].1, arrivals[at + 1].1);
            return wrong(format!(
                "request {} arrives at {after}, after one at {before}; sort them by arrival",
                at + 2
            ));
        }
        let tokens: u64 = lines.iter().map(|l| u64::from(l.prompt) + u64::from(l.output)).sum();
        if tokens > MAX_TOKENS {
            return wrong(format!("{tokens} tokens in prompts and outputs; at most {MAX_TOKENS} can be simulated"));
        }
        let unit = arrivals.first().map_or(Unit::Steps, |a| a.0);
        let request = |(line, (_, arrival)): (&Line, &(Unit, f64))| Request {
            arrival: *arrival,
            prompt: line.prompt,
            output: line.output,
        };
        Ok(Trace { unit, requests: lines.iter().zip(&arrivals).map(request).collect() })
    }

    /// Returns the same requests, all there at the start.
    #[must_use]
    pub fn at_once(&self) -> Self {
        let requests = self.requests.iter().map(|r| Request { arrival: 0.0, ..*r }).collect();
        Trace { unit: self.unit, requests }
    }

    /// Summarizes the trace.
    pub fn shape(&self) -> Shape {
        let mut outputs: Vec<f64> = self.requests.iter().map(|r| f64::from(r.output)).collect();
        let median = scoring::stats::quantile(&mut outputs, 0.5).unwrap_or(0.0);
        let sum = |of: fn(&Request) -> u32| self.requests.iter().map(|r| u64::from(of(r))).sum();
        Shape {
            requests: self.requests.len(),
            median_output: median,
            longest_output: self.requests.iter().map(|r| r.output).max().unwrap_or(0),
            output_tokens: sum(|r| r.output),
            prompt_tokens: sum(|r| r.prompt),
            last_arrival: self.requests.last().map_or(0.0, |r| r.arrival),
        }
    }

    /// JSON lines that [`Trace::parse`] reads.
    pub fn to_json_lines(&self) -> String {
        let name = match self.unit {
            Unit::Steps => "arrival_step",
            Unit::Seconds => "arrival_s",
        };
        let mut out = format!("{{\"tool\": \"qeval {}\"}}\n", env!("CARGO_PKG_VERSION"));
        for Request { arrival, prompt, output } in &self.requests {
            // Writing to a string does not fail.
            let _ = writeln!(out, r#"{{"{name}": {arrival}, "prompt": {prompt}, "output": {output}}}"#);
        }
        out
    }
}

/// Summary of a trace.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Shape {
    /// Requests.
    pub requests: usize,
    /// Median tokens of an output.
    pub median_output: f64,
    /// Tokens of the longest output.
    pub longest_output: u32,
    /// Tokens of all outputs.
    pub output_tokens: u64,
    /// Tokens of all prompts.
    pub prompt_tokens: u64,
    /// When the last one comes.
    pub last_arrival: f64,
}

/// Requests of [`draw`].
const REQUESTS: usize = 64;
/// Their median output.
const MEDIAN: u32 = 18;
/// Their longest output.
const LONGEST: u32 = 231;
/// Tokens of all outputs.
const TOTAL: u32 = 1874;

/// Draws a trace of 64 requests whose outputs have a median of 18 tokens, a longest of 231 and a
/// sum of 1,874, and whose arrivals are a Poisson process with `gap` steps between two on average,
/// on whole steps. Prompts have a median of 32 tokens.
///
/// Lengths are log-normal; those above the median are then moved by single tokens until the sum
/// is right.
pub fn draw(seed: u64, gap: f64) -> Trace {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut outputs: Vec<u32> =
        (0..REQUESTS).map(|_| log_normal(&mut rng, f64::from(MEDIAN), 1.0, LONGEST - 1)).collect();
    outputs.sort_unstable();
    let middle = REQUESTS / 2;
    outputs[REQUESTS - 1] = LONGEST;
    for (at, length) in outputs.iter_mut().enumerate() {
        *length = match at {
            _ if at < middle - 1 => (*length).min(MEDIAN),
            _ if at > middle => (*length).max(MEDIAN),
            _ => MEDIAN,
        };
    }
    while outputs.iter().sum::<u32>() != TOTAL {
        let short = outputs.iter().sum::<u32>() < TOTAL;
        let length = &mut outputs[rng.random_range(middle + 1..REQUESTS - 1)];
        match short {
            true if *length < LONGEST - 1 => *length += 1,
            false if *length > MEDIAN => *length -= 1,
            _ => {}
        }
    }
    let mut at = 0.0;
    let mut requests = Vec::with_capacity(REQUESTS);
    while !outputs.is_empty() {
        let output = outputs.swap_remove(rng.random_range(0..outputs.len()));
        requests.push(Request { arrival: f64::floor(at), prompt: log_normal(&mut rng, 32.0, 0.6, 200), output });
        at -= gap * (1.0 - rng.random::<f64>()).ln();
    }
    Trace { unit: Unit::Steps, requests }
}

/// From a log-normal distribution, between 1 and `most`.
fn log_normal(rng: &mut ChaCha8Rng, median: f64, sigma: f64, most: u32) -> u32 {
    // Twelve uniform numbers less six are normal enough.
    let normal = (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
    (median * (sigma * normal).exp()).round().clamp(1.0, f64::from(most)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Trace, String> {
        Trace::parse(Path::new("t.jsonl"), text).map_err(|e| e.to_string())
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_said_in_one_line() {
        let good = r#"{"arrival_step": 4, "prompt": 3, "output": 2}"#;
        let cases = [
            ("", "there are no items"),
            (r#"{"arrival_step": -1, "prompt": 3, "output": 2}"#, "t.jsonl:1: an arrival of -1.0"),
            (r#"{"arrival_step": 1e99, "prompt": 3, "output": 2}"#, "t.jsonl:1: an arrival of 1e99"),
            (r#"{"arrival_step": NaN, "prompt": 3, "output": 2}"#, "t.jsonl:1: "),
            (r#"{"arrival_step": 0, "prompt": 0, "output": 2}"#, "at least 1 token"),
            (r#"{"arrival_step": 0, "prompt": 3, "output": -2}"#, "t.jsonl:1: "),
            (r#"{"arrival_step": 0, "prompt": 3, "output": 99999999999}"#, "t.jsonl:1: "),
            (r#"{"arrival_step": 0, "prompt": 3, "output": 4294967295}"#, "at most 50000000"),
            (r#"{"prompt": 3, "output": 2}"#, "one of arrival_step and arrival_s"),
            (r#"{"arrival_step": 0, "arrival_s": 0, "prompt": 3, "output": 2}"#, "one of arrival_step and arrival_s"),
            (r#"{"arrival_step": 0, "prompt": 3, "ouput": 2}"#, "ouput"),
        ];
        for (text, what) in cases {
            let e = parse(text).expect_err(text);
            assert!(e.contains(what) && e.lines().count() == 1, "{text}: {e}");
        }
        let late = parse(&format!("{good}\n{}", good.replace('4', "3"))).expect_err("unsorted");
        assert_eq!(late, "t.jsonl: request 2 arrives at 3, after one at 4; sort them by arrival");
        let mixed = parse(&format!("{good}\n{}", good.replace("_step", "_s"))).expect_err("mixed");
        assert_eq!(mixed, "t.jsonl: arrivals in steps and in seconds; all must have one unit");
        let many = format!("{good}\n").repeat(MAX_REQUESTS + 1);
        assert!(parse(&many).expect_err("many").contains("at most 100000"));
    }

    #[test]
    fn a_drawn_trace_has_its_shape_and_comes_back_from_its_file() {
        for seed in 0..20 {
            let trace = draw(seed, 6.0);
            let shape = trace.shape();
            let found = (shape.requests, shape.median_output, shape.longest_output, shape.output_tokens);
            assert_eq!(found, (64, 18.0, 231, 1874), "seed {seed}");
            assert_eq!(parse(&trace.to_json_lines()).expect("valid"), trace);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[-{}\":a-z_0-9., \n]{0,80}") {
            let _ = parse(&text);
        }
    }
}
