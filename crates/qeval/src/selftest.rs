//! `qeval selftest`.

use crate::{builtin, sweep};
use anyhow::{Result, bail};
use clap::Args;
use cli::ComputeArgs;
use cli::OutputArgs;
use cli::{Findings, Provenance, output};
use cli::{Outcome, Usage};
use conversion::Choice;
use progress::Progress;
use report::format;
use report::page::{Page, Section};
use report::table::{Cell, Column, Table};
use runtime::{Math, selftest};
use scoring::load::{Compute, Loaded};
use scoring::selftest::{Agreement, Group, SENSITIVE, SelfTest, VERSION, agreement, groups, tolerance};
use scoring::{Bos, Protocol, Style};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// `qeval selftest`.
#[derive(Debug, Args)]
// Agreement is what is asked.
#[command(mut_arg("dtype", |dtype| dtype.default_value("f32")))]
pub struct SelfTestArgs {
    /// The checkpoint whose schemes are compared on both devices; by default the model that is built in.
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Schemes to compare, separated by commas; 'all' for every one.
    #[arg(long, value_delimiter = ',', default_value = "all", value_name = "SCHEME")]
    pub scheme: Vec<String>,
    /// Tokens of text to score with each.
    #[arg(long, default_value_t = 1024, value_name = "N")]
    pub tokens: usize,
    /// Seed of the numbers that kernels are given.
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub seed: u64,
    /// The device that is tested. Of the CPU, the mirrors of the kernels are.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Output.
    #[command(flatten)]
    pub output: OutputArgs,
}

/// `qeval selftest`.
pub fn run(args: &SelfTestArgs, progress: &dyn Progress) -> Result<Outcome> {
    let inputs: Vec<&Path> = args.model.iter().map(PathBuf::as_path).collect();
    output::check(&args.output, &inputs)?;
    let schemes = sweep::choices(&args.scheme)?;
    let compute = Compute::on(&args.compute.place.device, &args.compute.dtype, Math::Exact, None)?;
    let (device, dtype) = (&compute.device, compute.options.compute);
    if let (true, Some(model)) = (device.is_cpu(), &args.model) {
        bail!(Usage(format!(
            "{}: models are compared between the CPU and a GPU, and this is the CPU; leave the model out to test the \
             mirrors of the kernels, or name a GPU with --device cuda",
            model.display()
        )));
    }
    let protocol = protocol(args)?;
    let kernels = groups(&selftest::kernels(device, args.seed));
    let products = groups(&selftest::products::products(device, dtype, args.seed));
    // The CPU agrees with itself: that would show nothing.
    let (models, failed) =
        if device.is_cpu() { Default::default() } else { models(args, &schemes, &compute, &protocol, progress)? };
    let found = SelfTest {
        version: VERSION,
        device: runtime::device_name(device),
        dtype: dtype.to_string(),
        kernels,
        products,
        models,
        failed,
    };
    output::present(&View(found), &args.output, &Provenance::on(runtime::device_name(device)))
}

/// Protocol of the scores on both devices.
fn protocol(args: &SelfTestArgs) -> Result<Protocol> {
    let protocol = Protocol { style: Style::Plain, ctx: 512, stride: None, bos: Bos::Auto, tokens: Some(args.tokens) };
    protocol.check()?;
    Ok(protocol)
}

/// The checkpoint and its artifacts on both devices, and what could not be run.
fn models(
    args: &SelfTestArgs,
    schemes: &[Choice],
    compute: &Compute,
    protocol: &Protocol,
    progress: &dyn Progress,
) -> Result<(Vec<Agreement>, Vec<String>)> {
    let work = sweep::Work::new(args.model.as_deref())?;
    let cpu = Compute::on_cpu(None);
    let reference = Loaded::open(&work.model, &cpu, None)?;
    let calibration = sweep::Calibration { text: builtin::CALIBRATION.into(), tokens: 2048 };
    let paths =
        sweep::convert(&reference, schemes, (work.folder(), store::output::Existing::Refuse), &calibration, progress)?;
    let windows = reference.encoder.windows(&builtin::prose(), protocol)?.windows.windows;
    let dtype = compute.options.compute;
    let mut best = None;
    let (mut all, mut failed) = (Vec::with_capacity(1 + paths.len()), Vec::new());
    for path in std::iter::once(&work.model).chain(&paths) {
        let open = |compute: &Compute| Loaded::open(path, compute, Some(&reference));
        let on_cpu = open(&cpu)?;
        let found =
            open(compute).and_then(|on_device| agreement((&on_cpu, &on_device), &windows, dtype, best, progress));
        match found {
            Ok(found) => {
                best = best.or(Some(found.cpu));
                all.push(found);
            }
            Err(e) => failed.push(format!("{}: {e}", on_cpu.size.scheme)),
        }
    }
    Ok((all, failed))
}

/// The findings of `qeval selftest`, to be shown.
struct View(SelfTest);

impl Findings for View {
    fn command(&self) -> &'static str {
        "qeval selftest"
    }

    fn json(&self) -> Result<Value> {
        Ok(serde_json::to_value(&self.0)?)
    }

    fn tables(&self, _verbose: bool) -> Result<Vec<Table>> {
        let on_cpu = self.0.models.is_empty() && self.0.failed.is_empty();
        let kernels = if on_cpu { "Mirrors of the kernels" } else { "Kernels" };
        let mut tables = vec![
            of_groups(&format!("{kernels}, {}", self.0.device), &self.0.kernels)?,
            of_groups(&format!("Products of layers, {}", self.0.device), &self.0.products)?,
        ];
        if !on_cpu {
            tables.push(of_models(&self.0)?);
        }
        if let Some(last) = tables.last_mut() {
            if on_cpu {
                last.note("No GPU was tested, and so no model compared: the device is the CPU.");
            }
            last.note(
                "Error: the largest difference to the definition in f64, as a share of what it may be. Bits: numbers \
                 that are not, bit for bit, what the kernel's mirror on the CPU gives.",
            );
        }
        Ok(tables)
    }

    fn page(&self) -> Result<Page> {
        let mut page = Page {
            title: "Self-test".into(),
            lead: format!("{}, products of {}", self.0.device, self.0.dtype),
            ..Page::default()
        };
        for mut table in self.tables(true)? {
            let title = std::mem::take(&mut table.title);
            page.sections.push(Section::new(title).table(table));
        }
        Ok(page)
    }

    fn problems(&self) -> Vec<String> {
        SelfTest::problems(&self.0)
    }
}

fn of_groups(title: &str, groups: &[Group]) -> Result<Table> {
    let columns = vec![
        Column::text("name", "Name"),
        Column::number("cases", "Cases"),
        Column::number("numbers", "Numbers"),
        Column::number("differing", "Bits\ndiffer"),
        Column::number("error", "Error\nof allowed"),
        Column::text("passed", ""),
    ];
    let mut table = Table::new(title, columns);
    let count = |n: usize| Cell::value(format::count(n as u64), n);
    for group in groups {
        table.push(vec![
            Cell::text(group.name.clone()),
            count(group.cases),
            count(group.numbers),
            group.differing.map_or_else(Cell::absent, count),
            group.error.map_or_else(Cell::absent, |e| Cell::value(format::percent(e, 1), e)),
            Cell::passed(group.failed.is_empty()),
        ])?;
    }
    Ok(table)
}

fn of_models(found: &SelfTest) -> Result<Table> {
    let columns = vec![
        Column::text("scheme", "Scheme"),
        Column::number("cpu", "Perplexity\nCPU"),
        Column::number("device", "device"),
        Column::number("difference", "Difference"),
        Column::number("decode_f16", "Decode\nf16 cache"),
        Column::number("decode_int8", "int8 cache"),
        Column::number("decoded", "Decoded\nmatrices"),
        Column::text("passed", ""),
    ];
    let mut table =
        Table::new(format!("Models on the CPU and on {}, products of {}", found.device, found.dtype), columns);
    for m in &found.models {
        let number = |v: f64| Cell::value(format::significant(v, 6), v);
        let share = |v: f64| Cell::value(format!("{v:.1e}"), v);
        table.push(vec![
            Cell::text(m.scheme.clone()),
            number(m.cpu),
            number(m.device),
            share(m.device / m.cpu - 1.0),
            share(m.decode_f16),
            share(m.decode_int8),
            Cell::value(m.decoded.to_string(), m.decoded),
            if m.destroyed { Cell::value("destroyed", m.passed) } else { Cell::passed(m.passed) },
        ])?;
    }
    let compute = found.dtype.parse().map(tolerance).unwrap_or_default();
    table.note(format!(
        "Perplexities may differ by {}; logits of single tokens, as a share of the largest, by 0.5% through an f16 \
         cache and by 2% through int8; all of it by {} where a scheme quantizes activations, since the last bit of a sum then decides \
         where a value is rounded to. Destroyed: beyond ten times the reference's perplexity, and not held to that.",
        format::percent(compute, 1),
        format::percent(SENSITIVE, 0)
    ));
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_shows() {
        let group = |name: &str, error, differing, failed: &[&str]| Group {
            name: name.into(),
            cases: 12,
            numbers: 3456,
            differing,
            error,
            failed: failed.iter().map(|s| s.to_string()).collect(),
        };
        let model = |scheme: &str, device, destroyed, passed| Agreement {
            scheme: scheme.into(),
            cpu: 57.62,
            device,
            decode_f16: 3.1e-4,
            decode_int8: 2.5e-3,
            destroyed,
            sensitive: false,
            decoded: 0,
            passed,
        };
        let found = SelfTest {
            version: VERSION,
            device: "cuda:0, some GPU".into(),
            dtype: "f32".into(),
            kernels: vec![
                group("gemv_i8_1x4", Some(0.031), Some(0), &[]),
                group("copy_block", None, Some(2), &["copy_block 3 x 5: beyond its tolerance"]),
            ],
            products: vec![group("I8 Row", Some(0.4), None, &[])],
            models: vec![
                model("f16", 57.621, false, true),
                model("int8-row", 58.0, false, false),
                model("int4-absmax", 70.0, true, true),
            ],
            failed: vec!["nf4: out of memory".into()],
        };
        let form = report::table::Terminal { width: 120, ..Default::default() };
        let found = View(found);
        let tables = found.tables(false).expect("fits");
        insta::assert_snapshot!(tables.iter().map(|t| form.render(t)).collect::<Vec<_>>().join("\n"));
        assert_eq!(found.problems().len(), 3);
    }
}
