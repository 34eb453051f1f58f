//! `qdistill selftest`.

use anyhow::{Result, bail};
use cli::{DeviceArgs, Provenance};
use distillation::selftest::run as check;
use report::format;
use report::table::{Cell, Column, Table};
use runtime::selftest::Checked;
use schemars::JsonSchema;
use serde::Serialize;

/// Arguments of `qdistill selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seed of the numbers; even ones test a student whose head is its embedding.
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// JSON output.
    #[command(flatten)]
    json: cli::JsonArgs,
    /// Treatment of an existing file.
    #[command(flatten)]
    overwrite: cli::OverwriteArgs,
    /// The device that is tested. On the CPU, the form that GPUs run is.
    #[command(flatten)]
    place: DeviceArgs,
}

/// Runs it; returns the result's text.
pub fn run(args: &Args) -> Result<String> {
    let device = super::device(&args.place)?;
    let name = runtime::device_name(&device);
    let found = check(&device, args.seed);
    let fields = || {
        let checks = found.iter().map(Check::new).collect();
        Ok(serde_json::to_value(SelfTest { device: name.clone(), seed: args.seed, checks })?)
    };
    let text = || Ok(report::stdout_form().render(&table(&name, device.is_cpu(), &found)?));
    let text = args.json.emit(("qdistill selftest", &Provenance::on(name.as_str()), args.overwrite), fields, text)?;
    let failed: Vec<String> = found.iter().filter(|c| !c.passed()).map(line).collect();
    if failed.is_empty() {
        return Ok(text);
    }
    cli::program::print_result(&text)?;
    bail!("{} of {} checks failed: {}", failed.len(), found.len(), failed.join("; "))
}

/// Results as `--json` prints them.
#[derive(Debug, Serialize, JsonSchema)]
pub struct SelfTest {
    /// Name of the device.
    device: String,
    /// Seed of the numbers.
    seed: u64,
    /// The checks.
    checks: Vec<Check>,
}

/// One operation on the device against the same on the CPU.
#[derive(Debug, Serialize, JsonSchema)]
struct Check {
    /// What was computed.
    what: String,
    /// Sizes of the case.
    case: String,
    /// Numbers that were compared.
    numbers: usize,
    /// Largest error as a share of the one that is allowed; none where only bits are compared.
    error: Option<f64>,
    /// Why it could not be computed.
    failure: Option<String>,
}

impl Check {
    fn new(Checked { what, case, numbers, error, failure, .. }: &Checked) -> Self {
        Check {
            what: what.to_string(),
            case: case.to_string(),
            numbers: *numbers,
            error: *error,
            failure: failure.clone(),
        }
    }
}

fn line(failed: &Checked) -> String {
    let how = failed.failure.as_deref().unwrap_or("beyond its tolerance");
    format!("{}, {}: {how}", failed.what, failed.case)
}

fn table(device: &str, on_cpu: bool, found: &[Checked]) -> Result<Table> {
    let columns = vec![
        Column::text("what", "Of"),
        Column::text("case", "Case"),
        Column::number("numbers", "Numbers"),
        Column::number("error", "Error\nof allowed"),
        Column::text("passed", ""),
    ];
    let mut table = Table::new(format!("Training, {device}"), columns);
    for check in found {
        table.push(vec![
            Cell::text(check.what.clone()),
            Cell::text(check.case.clone()),
            Cell::value(format::count(check.numbers as u64), check.numbers),
            check.error.map_or_else(Cell::absent, |e| Cell::value(format::percent(e, 1), e)),
            Cell::passed(check.passed()),
        ])?;
    }
    if on_cpu {
        table.note("No GPU was tested: what was is the form of the operations that GPUs run, on the CPU.");
    }
    table.note(
        "Error: the largest difference to the same in f64 (of training, to the CPU's loss in f32), as a share of what it \
         may be.",
    );
    Ok(table)
}
