//! `qeval generate`.

use crate::args::{EngineArgs, KvArg};
use anyhow::{Result, bail};
use clap::Args;
use cli::Outcome;
use cli::Provenance;
use schemars::JsonSchema;
use scoring::load::{Compute, Loaded};
use scoring::{Bos, Error, Failed};
use serde::Serialize;
use serving::generate::{Defaults, Generated, Message, Settings, Template, generate};
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// `qeval generate`.
#[derive(Debug, Args)]
pub struct GenerateArgs {
    /// The model; several write one after the other.
    #[arg(required = true, value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    pub prompt: String,
    /// Put the prompt into the model's chat template, as a user's message.
    #[arg(long)]
    pub chat: bool,
    /// A system message before it.
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// JSON output.
    #[command(flatten)]
    pub json: cli::JsonArgs,
    /// Treatment of an existing file.
    #[command(flatten)]
    pub overwrite: cli::OverwriteArgs,
    /// Type of stored keys and values.
    #[arg(long, value_enum, value_name = "TYPE")]
    pub kv: Option<KvArg>,
    /// Arithmetic and device.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Sampling.
    #[command(flatten)]
    pub sampling: SamplingArgs,
}

/// Sampling options. An option that isn't given comes from the model's generation_config.json.
#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling (defaults: the model's generation_config.json, else the most likely token)")]
pub struct SamplingArgs {
    /// Divisor of the logits before a token is drawn, 0 or more; 0 takes the most likely token.
    #[arg(long, value_name = "T")]
    pub temperature: Option<f64>,
    /// Only the K most likely tokens; 0 for all.
    #[arg(long, value_name = "K")]
    pub top_k: Option<usize>,
    /// Only the fewest tokens that together have probability P.
    #[arg(long, value_name = "P")]
    pub top_p: Option<f64>,
    /// Only tokens at least P times as likely as the most likely one.
    #[arg(long, value_name = "P")]
    pub min_p: Option<f64>,
    /// Makes tokens that are there already less likely; 1 doesn't.
    #[arg(long, value_name = "R")]
    pub repetition_penalty: Option<f64>,
    /// Seed.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub seed: u64,
    /// Tokens at most.
    #[arg(long, default_value_t = 128, value_name = "N")]
    pub max_tokens: usize,
    /// Stop before this text (repeatable).
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
}

impl SamplingArgs {
    /// Refuses values out of range, before a model is opened.
    fn check(&self) -> Result<()> {
        self.settings(&Defaults::default()).sampler()?;
        Ok(())
    }

    /// For a model with these defaults.
    fn settings(&self, defaults: &Defaults) -> Settings {
        let asked = Defaults {
            do_sample: None,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
        };
        let settings = defaults.settings(&asked);
        Settings { seed: self.seed, max_tokens: self.max_tokens, stop: self.stop.clone(), ..settings }
    }
}

/// Version of the JSON.
const VERSION: u32 = 1;

/// Results as `--json` prints them.
#[derive(Serialize, JsonSchema)]
pub struct Report {
    /// Version of the JSON.
    version: u32,
    /// The prompt as it was given.
    prompt: String,
    /// True if it was put into the model's chat template.
    chat: bool,
    /// Texts, a model each.
    models: Vec<Written>,
    /// Models that could not be opened or run.
    failed: Vec<Failed>,
}

/// Text of one model.
#[derive(Serialize, JsonSchema)]
struct Written {
    /// Path of the model.
    model: String,
    /// Scheme of the model's weights.
    scheme: String,
    /// Settings of the sampling.
    settings: Settings,
    /// Tokens of the prompt.
    prompt_tokens: usize,
    #[serde(flatten)]
    generated: Generated,
    /// Time of prompt and text.
    seconds: f64,
}

/// `qeval generate`.
pub fn run(args: &GenerateArgs) -> Result<Outcome> {
    args.sampling.check()?;
    args.json.check(args.overwrite, &args.models.iter().map(PathBuf::as_path).collect::<Vec<_>>())?;
    let compute = args.engine.compute(args.kv.map(KvArg::ty))?;
    let (mut models, mut failed) = (Vec::new(), Vec::new());
    for path in &args.models {
        match write(path, args, &compute) {
            Ok(None) => return Ok(Outcome::default()),
            Ok(Some(written)) => models.push(written),
            Err(e) if args.models.len() == 1 || matches!(e.downcast_ref(), Some(Error::Protocol(_))) => return Err(e),
            Err(e) => failed.push(Failed::new(path, e.as_ref())),
        }
    }
    let problems = failed.iter().map(Failed::to_string).collect();
    let prompt = args.prompt.clone();
    let provenance = Provenance::on(runtime::device_name(&compute.device)).models("model", &args.models);
    let report = Report { version: VERSION, prompt, chat: args.chat, models, failed };
    let text = args.json.emit(
        ("qeval generate", &provenance, args.overwrite),
        || Ok(serde_json::to_value(&report)?),
        // The text was printed as it came.
        || Ok(String::new()),
    )?;
    Ok(Outcome { text, problems, ..Outcome::default() })
}

/// Lets one model write, on standard output as it goes unless that is for JSON; none if the reader
/// has gone.
fn write(path: &Path, args: &GenerateArgs, compute: &Compute) -> Result<Option<Written>> {
    let loaded = Loaded::open(path, compute, None)?;
    let name = path.display().to_string();
    crate::say_notes(&name, &loaded.files);
    let defaults = match loaded.files.side_file("generation_config.json") {
        Some(json) => Defaults::parse(&path.join("generation_config.json"), json)?,
        None => Defaults::default(),
    };
    let settings = args.sampling.settings(&defaults);
    let prompt = prompt(&loaded, args)?;
    let config = loaded.model.transformer().config();
    if prompt.is_empty() {
        bail!(Error::Protocol(format!("{name}: the prompt has no tokens")));
    }
    if prompt.len().saturating_add(settings.max_tokens) > config.max_position {
        let (n, new, most) = (prompt.len(), settings.max_tokens, config.max_position);
        bail!(Error::Protocol(format!(
            "{name}: a prompt of {n} tokens and {new} new ones exceed its context of {most}; set --max-tokens lower"
        )));
    }
    let mut out = Live { shown: !args.json.prints(), failed: None };
    if args.models.len() > 1 {
        out.show(&format!("== {name} ==\n"));
    }
    let start = Instant::now();
    let mut session = loaded.model.session(prompt.len() + settings.max_tokens)?;
    let see = &mut |piece: &str| {
        out.show(piece);
        if out.failed.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let generated = generate(&mut session, &loaded.encoder, &prompt, &config.eos_token_ids, &settings, see)?;
    let seconds = start.elapsed().as_secs_f64();
    out.show("\n");
    match out.failed {
        Some(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(None),
        Some(e) => bail!(anyhow::Error::from(e).context("cannot print the text")),
        None => Ok(Some(Written {
            model: name,
            scheme: loaded.size.scheme.clone(),
            settings,
            prompt_tokens: prompt.len(),
            generated,
            seconds,
        })),
    }
}

/// The prompt as tokens; with `--chat`, in the model's template.
fn prompt(loaded: &Loaded, args: &GenerateArgs) -> Result<Vec<u32>> {
    if !args.chat {
        return Ok(loaded.encoder.prompt(&args.prompt, Bos::Auto)?);
    }
    let message = |role, content| Message { role, content };
    let system = args.system.iter().map(|text| message("system", text.as_str()));
    let messages: Vec<Message<'_>> = system.chain([message("user", &args.prompt)]).collect();
    Ok(loaded.encoder.marked(&Template::from_model(&loaded.files)?.render(&messages)?)?)
}

/// Standard output while a model writes.
struct Live {
    shown: bool,
    failed: Option<io::Error>,
}

impl Live {
    fn show(&mut self, piece: &str) {
        if self.shown && self.failed.is_none() {
            let mut out = io::stdout().lock();
            self.failed = out.write_all(piece.as_bytes()).and_then(|()| out.flush()).err();
        }
    }
}
