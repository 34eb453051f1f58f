//! `qeval bench`.

use crate::args::{EngineArgs, KvArg};
use crate::builtin;
use crate::models;
use anyhow::{Result, bail};
use clap::Args;
use cli::OutputArgs;
use cli::{Findings, Provenance, output};
use cli::{Outcome, Usage};
use progress::Progress;
use report::chart::{Axis, Line, LinePlot};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Tone};
use schemes::Scheme;
use scoring::Failed;
use scoring::load::Loaded;
use serde_json::Value;
use serving::bench::{Bench, Cache, Gpu, Measured, Setting, Time, Work, bench, synthetic};
use std::path::{Path, PathBuf};

/// `qeval bench`.
#[derive(Debug, Args)]
pub struct BenchArgs {
    /// The models.
    #[arg(required_unless_present = "synthetic", value_name = "MODEL")]
    pub models: Vec<PathBuf>,
    /// Measure also a model of random codes in these schemes (f16, int8-*, int4-*), separated by commas: eight blocks
    /// of Llama 3 70B's shape, for speeds that a small model can't show. Takes up to 14 GB.
    #[arg(long, value_delimiter = ',', value_name = "SCHEME")]
    pub synthetic: Vec<String>,
    /// Tokens of the prompts that are read.
    #[arg(long, value_delimiter = ',', default_value = "16,64,256,512", value_name = "N,N")]
    pub prompts: Vec<usize>,
    /// Tokens of context that are decoded after.
    #[arg(long, value_delimiter = ',', default_value = "16,128,512", value_name = "N,N")]
    pub contexts: Vec<usize>,
    /// Sequences that decode together; rising.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32", value_name = "N,N")]
    pub batches: Vec<usize>,
    /// Tokens of context of each sequence of a batch.
    #[arg(long, default_value_t = 64, value_name = "N")]
    pub batch_context: usize,
    /// Tokens that a run of decoding writes.
    #[arg(long, default_value_t = 16, value_name = "N")]
    pub tokens: usize,
    /// Runs that count, after one that warms up.
    #[arg(long, default_value_t = 5, value_name = "N")]
    pub repeats: usize,
    /// Type of stored keys and values.
    #[arg(long, value_enum, default_value_t = KvArg::F16, value_name = "TYPE")]
    pub kv: KvArg,
    /// On a GPU, also time products of one large layer in every form, beside cuBLAS and candle's own.
    #[arg(long)]
    pub products: bool,
    /// Arithmetic and device.
    #[command(flatten)]
    pub engine: EngineArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval bench`.
pub fn run(args: &BenchArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<&Path> = args.models.iter().map(PathBuf::as_path).collect();
    output::check(&args.output, &inputs)?;
    let compute = args.engine.compute(Some(args.kv.ty()))?;
    if args.products && compute.device.is_cpu() {
        bail!(Usage(
            "--products are a GPU's, and this is the CPU; leave it out, or name a GPU with --device cuda".into()
        ));
    }
    let setting = Setting {
        prompts: args.prompts.clone(),
        contexts: args.contexts.clone(),
        batches: args.batches.clone(),
        batch_context: args.batch_context,
        tokens: args.tokens,
        repeats: args.repeats,
        kv: args.kv.ty(),
        engine_math: args.engine.engine_math.name(),
    };
    let drawn: Vec<(PathBuf, Scheme)> = match &args.synthetic[..] {
        [] => Vec::new(),
        names => Scheme::named(names.iter().map(String::as_str))
            .map_err(|e| Usage(e.to_string()))?
            .into_iter()
            .map(|s| (synthetic::path(s), s))
            .collect(),
    };
    let tokenizer = if drawn.is_empty() { None } else { Some(builtin::tokenizer()?) };
    let open = |path: &PathBuf| match drawn.iter().find(|(p, _)| p == path) {
        Some((path, scheme)) => {
            let (mut files, size) = synthetic::model(synthetic::LARGE, *scheme)?;
            files.side_files.extend(tokenizer.clone());
            Loaded::from_files(path, files, size, &compute, None)
        }
        None => Loaded::open(path, &compute, None),
    };
    let paths: Vec<PathBuf> = args.models.iter().chain(drawn.iter().map(|(path, _)| path)).cloned().collect();
    let gpu = Gpu::measure(&compute, args.products)?;
    let found = bench(&paths, &open, &setting, gpu, progress)?;
    if found.models.is_empty() {
        return Err(models::none_left(&found.failed));
    }
    let provenance = Provenance::on(runtime::device_name(&compute.device)).models("model", &args.models);
    output::present(&View(found), &args.output, &provenance)
}

/// The findings of `qeval bench`, to be shown.
struct View(Bench);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qeval bench"
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let mut batch = batch(&self.0)?;
        batch.notes = notes(&self.0);
        let products = self.0.gpu.iter().filter(|gpu| !gpu.products.is_empty()).map(products);
        let mut tables = vec![models(&self.0)?, prefill(&self.0)?, decode(&self.0)?];
        tables.extend(products.collect::<Result<Vec<_>>>()?);
        tables.push(batch);
        Ok(tables)
    }

    fn page(&self) -> Result<Page> {
        page(&self.0)
    }

    fn problems(&self) -> Vec<String> {
        let cache = |m: &Measured| {
            let Cache { formula, allocated } = m.cache;
            let what = || format!("{}: {formula} bytes of cache a token by formula, {allocated} allocated", m.name);
            (formula != allocated).then(what)
        };
        let differs = |m: &Measured| {
            m.decode.iter().any(|d| !d.equal).then(|| format!("{}: the cache changes the logits", m.name))
        };
        let models = || self.0.models.iter();
        let wrong = models().filter_map(cache).chain(models().filter_map(differs));
        self.0.failed.iter().map(Failed::to_string).chain(wrong).collect()
    }
}

/// A table with a row for each model and each of some measurements.
fn rows<T>(
    found: &Bench,
    title: String,
    columns: Vec<Column>,
    of: fn(&Measured) -> &[T],
    cells: impl Fn(&T) -> Vec<Cell>,
) -> Result<Table> {
    let mut table = Table::new(title, [vec![Column::text("model", "Model")], columns].concat());
    for model in &found.models {
        for item in of(model) {
            let name = Cell::value(models::file_name(&model.name), model.name.clone());
            table.push([vec![name], cells(item)].concat())?;
        }
    }
    Ok(table)
}

/// The columns of a time: what people see, and its range for machines.
fn time_columns(key: &str, header: &str) -> [Column; 2] {
    [
        Column::number(format!("{key}_ms"), header).unit("ms"),
        Column::number(format!("{key}_range"), "").parts(&["low", "high"]).machine_only(),
    ]
}

/// A median with the farthest of its runs; and the range.
fn time_cells(time: Time) -> [Cell; 2] {
    let text = format!("{} ±{}", format::significant(time.median, 3), format::percent(time.farthest(), 0));
    [Cell::value(text, time.median), Cell::value("", serde_json::json!(time.range))]
}

fn number(value: f64) -> Cell {
    Cell::value(format::significant(value, 3), value)
}

fn share(value: f64) -> Cell {
    Cell::value(format::percent(value, 0), value)
}

fn count(value: usize) -> Cell {
    Cell::value(format::count(value as u64), value)
}

/// The columns of the peaks of where models ran.
fn work_columns(found: &Bench) -> Vec<Column> {
    if found.gpu.is_some() {
        return vec![Column::number("matrix_share", "Of matrix\nrate")];
    }
    vec![Column::number("f32_share", "Of f32\npeak"), Column::number("int16_share", "Of int16\nrate")]
}

fn work_cells(work: Work) -> Vec<Cell> {
    match work {
        Work::Cpu { f32_share, int16_share } => vec![share(f32_share), share(int16_share)],
        Work::Gpu { matrix_share } => vec![share(matrix_share)],
    }
}

fn products(gpu: &Gpu) -> Result<Table> {
    let columns = vec![
        Column::text("what", "Weights"),
        Column::number("tokens", "Tokens"),
        Column::number("us", "Product").unit("us"),
        Column::number("bandwidth_share", "Of\nbandwidth"),
        Column::number("matrix_share", "Of matrix\nrate"),
    ];
    let (rows, cols) = gpu.shape;
    let mut table = Table::new(format!("Products of a layer of {rows} x {cols}"), columns);
    for p in &gpu.products {
        let us = 1e6 * p.seconds;
        let shares = [p.bandwidth_share, p.matrix_share].map(share);
        table.push([vec![Cell::text(p.what.clone()), count(p.tokens), number(us)], shares.into()].concat())?;
    }
    Ok(table)
}

fn models(found: &Bench) -> Result<Table> {
    let columns = vec![
        Column::text("scheme", "Scheme"),
        Column::number("weight_bytes", "Weights"),
        Column::number("resident", "Resident"),
        Column::number("peak", "Peak"),
        Column::number("cache_formula", "Cache\nformula").unit("bytes/token"),
        Column::number("cache_allocated", "allocated").unit("bytes/token"),
        Column::number("knee_expected", "Knee\nexpected").unit("batch"),
        Column::number("knee_measured", "measured").unit("batch"),
        Column::text("error", "Error").machine_only(),
    ];
    let bytes = |v: Option<u64>| v.map_or_else(Cell::absent, |v| Cell::value(format::bytes(v), v));
    let knee = |v: Option<f64>| v.map_or_else(Cell::absent, |v| Cell::value(format::fixed(v, 1), v));
    let mut table = rows(found, "Memory, and the knee".into(), columns, std::slice::from_ref, |m: &Measured| {
        let tone = if m.cache.formula == m.cache.allocated { Tone::Normal } else { Tone::Bad };
        vec![
            Cell::text(m.scheme.clone()),
            bytes(Some(m.weight_bytes)),
            bytes(m.memory.map(|memory| memory.resident)),
            bytes(m.memory.map(|memory| memory.peak)),
            count(m.cache.formula),
            count(m.cache.allocated).tone(tone),
            knee(m.knee.expected),
            knee(m.knee.measured),
            Cell::absent(),
        ]
    })?;
    models::push_failed(&mut table, &found.failed, "scheme")?;
    Ok(table)
}

fn prefill(found: &Bench) -> Result<Table> {
    let [ms, range] = time_columns("first_token", "First\ntoken");
    let columns = vec![
        Column::number("prompt", "Prompt").unit("tokens"),
        ms,
        range,
        Column::number("tokens_per_s", "Prefill").unit("tokens/s"),
    ];
    let columns = [columns, work_columns(found)].concat();
    let table = rows(
        found,
        "Reading a prompt".into(),
        columns,
        |m| &m.prefill,
        |p| {
            let [ms, range] = time_cells(p.ms);
            [vec![count(p.tokens), ms, range, number(p.tokens_per_s)], work_cells(p.work)].concat()
        },
    )?;
    // This is the first table of times: what doubts them stands above all of them.
    Ok(table.with_warnings(found.warnings.iter().map(|warning| format!("{warning}."))))
}

fn decode(found: &Bench) -> Result<Table> {
    let [ms, range] = time_columns("decode", "Decode");
    let [without, without_range] = time_columns("without_cache", "Without\ncache");
    let columns = vec![
        Column::number("context", "Context").unit("tokens"),
        ms,
        range,
        Column::number("tokens_per_s", "Decode").unit("tokens/s"),
        Column::number("bandwidth_share", "Of\nbandwidth"),
        without,
        without_range,
        Column::text("equal", "Output"),
    ];
    rows(
        found,
        "Decoding".into(),
        columns,
        |m| &m.decode,
        |d| {
            let [ms, range] = time_cells(d.ms);
            let [without, without_range] = time_cells(d.without_cache_ms);
            let (word, tone) = if d.equal { ("equal", Tone::Good) } else { ("differs", Tone::Bad) };
            let equal = Cell::value(word, d.equal).tone(tone);
            let rate = number(1e3 / d.ms.median);
            vec![count(d.context), ms, range, rate, share(d.bandwidth_share), without, without_range, equal]
        },
    )
}

fn batch(found: &Bench) -> Result<Table> {
    let [ms, range] = time_columns("step", "Step");
    let columns = vec![
        Column::number("batch", "Batch"),
        ms,
        range,
        Column::number("tokens_per_s", "Throughput").unit("tokens/s"),
        Column::number("bandwidth_share", "Of\nbandwidth"),
    ];
    let columns = [columns, work_columns(found)].concat();
    let title = format!("Decoding together, each after {} tokens", found.setting.batch_context);
    rows(
        found,
        title,
        columns,
        |m| &m.batch,
        |b| {
            let [ms, range] = time_cells(b.ms);
            let first = vec![count(b.batch), ms, range, number(b.tokens_per_s), share(b.bandwidth_share)];
            [first, work_cells(b.work)].concat()
        },
    )
}

fn notes(found: &Bench) -> Vec<String> {
    let m = &found.machine;
    let giga = |v: f64| format::significant(v / 1e9, 3);
    let machine = format!(
        "This machine, {} threads with {}, in this run: reads {} GB/s; {} GFLOP/s of f32; {} Gop/s of 16-bit dot products. {} \
         repeats; {}.",
        m.threads,
        m.instruction_set,
        giga(m.read_bytes_per_s),
        giga(m.f32_flop_per_s),
        giga(m.int16_op_per_s),
        found.setting.repeats,
        models::arithmetic(found.setting.kv, &found.setting.engine_math)
    );
    let gpu = found.gpu.as_ref().map(|gpu| {
        format!(
            "Models ran on {}, in this run: copies within its memory read and write {} GB/s; cuBLAS multiplies {} \
             TFLOP/s in {}. Shares are of these.",
            gpu.device,
            giga(gpu.copied_bytes_per_s),
            format::significant(gpu.flop_per_s / 1e12, 3),
            gpu.dtype
        )
    });
    let failed = found.failed.iter().map(|failed| format!("{failed}."));
    failed.chain([machine]).chain(gpu).chain(found.definitions.iter().cloned()).collect()
}

/// A line for each model.
fn lines(found: &Bench, points: impl Fn(&Measured) -> Vec<(f64, Time)>) -> Vec<Line> {
    let line = |m: &Measured| {
        let points = points(m);
        Line {
            name: models::file_name(&m.name).into(),
            points: points.iter().map(|(x, t)| (*x, t.median)).collect(),
            band: points.iter().map(|(x, t)| (*x, t.range.0, t.range.1)).collect(),
        }
    };
    found.models.iter().map(line).collect()
}

fn page(found: &Bench) -> Result<Page> {
    let rate = |tokens: usize, t: Time| {
        let of = |ms: f64| 1e3 * tokens as f64 / ms;
        Time { median: of(t.median), range: scoring::stats::Interval(of(t.range.1), of(t.range.0)) }
    };
    let plot = |title: &str, x: &str, y: &str, lines| LinePlot {
        title: title.into(),
        x: Axis::log(x),
        y: Axis::linear(y).from(0.0),
        lines,
        guides: Vec::new(),
    };
    let band = "Medians, with the range of all runs as a band.";
    let prefills = lines(found, |m| m.prefill.iter().map(|p| (p.tokens as f64, rate(p.tokens, p.ms))).collect());
    let decodes = lines(found, |m| m.decode.iter().map(|d| (d.context as f64, d.ms)).collect());
    let throughput = lines(found, |m| m.batch.iter().map(|b| (b.batch as f64, rate(b.batch, b.ms))).collect());
    let latency = lines(found, |m| m.batch.iter().map(|b| (b.batch as f64, b.ms)).collect());
    let bare = |table: Table| Table { title: String::new(), warnings: Vec::new(), ..table };
    let doubts = found.warnings.iter().map(|warning| format!("{warning}.")).collect();
    Ok(Page {
        title: "What serving costs".into(),
        lead: String::new(),
        facts: found.models.iter().map(|m| Fact::new(m.scheme.clone(), m.name.clone())).collect(),
        sections: vec![
            Section::new("Memory, and the knee").table(bare(models(found)?)),
            Section::new("Reading a prompt")
                .warnings(doubts)
                .chart(&plot("Prefill by prompt", "Tokens of the prompt, log scale", "Tokens/s", prefills), band)
                .table(bare(prefill(found)?)),
            Section::new("Decoding")
                .chart(&plot("A token by context", "Tokens of context, log scale", "ms", decodes), band)
                .table(bare(decode(found)?)),
            Section::new("Decoding together")
                .chart(&plot("Throughput by batch", "Sequences, log scale", "Tokens/s", throughput), band)
                .chart(&plot("A step by batch", "Sequences, log scale", "ms", latency), band)
                .table(bare(batch(found)?)),
            notes(found).into_iter().fold(Section::new("How it was measured"), Section::prose),
        ],
        ..Page::default()
    })
}

#[cfg(test)]
#[path = "bench_tests.rs"]
mod tests;
