//! `qdistill selftest`.

use anyhow::{Result, bail};
use cli::{DeviceArgs, Provenance};
use distillation::selftest::run as check;
use report::format;
use report::table::{Cell, Column, Table};
use runtime::selftest::Checked;
use serde_json::{Value, json};

/// Arguments of `qdistill selftest`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Seed of the numbers; even ones test a student whose head is its embedding.
    #[arg(long, default_value_t = 1, value_name = "S")]
    seed: u64,
    /// JSON output.
    #[command(flatten)]
    json: cli::JsonArgs,
    /// Whether an existing file is replaced.
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
        let checks: Vec<Value> = found.iter().map(to_json).collect();
        Ok(json!({ "version": 1, "device": name, "seed": args.seed, "checks": checks }))
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

fn to_json(Checked { what, case, numbers, error, failure, .. }: &Checked) -> Value {
    json!({ "what": what, "case": case, "numbers": numbers, "error": error, "failure": failure })
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
