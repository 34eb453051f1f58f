//! What a person or a script reads of plans and artifacts.

use crate::{Errors, Made, Plan, Source};
use report::format;
use report::table::{Cell, Column, Table, Tone};
use schemes::measure::WeightError;
use serde_json::{Value, json};
use std::fmt::Write;

/// Mean, worst (with its weight) and pooled relative error.
struct Summary {
    mean: f64,
    worst: f64,
    worst_weight: String,
    pooled: f64,
}

fn summary(errors: &Errors) -> Option<Summary> {
    let (worst_weight, worst) = errors.iter().map(|(n, e)| (n, e.relative())).max_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut pooled = WeightError::default();
    errors.values().for_each(|e| pooled.merge(e));
    let mean = errors.values().map(WeightError::relative).sum::<f64>() / errors.len() as f64;
    Some(Summary { mean, worst, worst_weight: worst_weight.clone(), pooled: pooled.relative() })
}

fn layouts(plan: &Plan) -> String {
    plan.layouts().iter().map(|(l, n)| format!("{l} ({n})")).collect::<Vec<_>>().join(", ")
}

/// The artifacts made, for people.
pub fn made_table(source: &Source<'_>, made: &[Made], verified: bool, warnings: &[String]) -> String {
    let columns = vec![
        Column::text("scheme", "scheme"),
        Column::text("path", "artifact"),
        Column::number("bytes", "size"),
        Column::number("bpw", "bits per weight"),
        Column::number("error_mean", "rel. error\nmean"),
        Column::number("error_worst", "rel. error\nworst"),
        Column::text("layout", "layout (weights)"),
    ];
    let mut table = Table::new("", columns);
    for m in made {
        let errors = summary(&m.errors);
        let number = |v: Option<f64>, digits| v.map_or_else(Cell::absent, |v| Cell::value(format::fixed(v, digits), v));
        table.rows.push(vec![
            Cell::text(m.plan.scheme.to_string()),
            Cell::text(m.path.display().to_string()),
            Cell::value(format::bytes(m.bytes), m.bytes),
            number(m.plan.bits_per_weight(source).map(|b| b.0), 3),
            number(errors.as_ref().map(|e| e.mean), 5),
            number(errors.as_ref().map(|e| e.worst), 5),
            Cell::text(layouts(&m.plan)),
        ]);
        if let Some(e) = errors {
            table.note(format!("{}: worst error {} in {}", m.plan.scheme, format::fixed(e.worst, 5), e.worst_weight));
        }
        m.plan.notes.iter().for_each(|n| table.note(n.clone()));
    }
    if verified {
        table.note("verified: every artifact was opened again and decodes, bit for bit, to what was encoded");
    }
    warnings.iter().for_each(|w| table.note(format!("warning: {w}")));
    terminal(&table)
}

/// The artifacts made, for scripts.
pub fn made_json(source: &Source<'_>, made: &[Made], verified: bool, warnings: &[String]) -> String {
    let artifacts: Vec<Value> = made
        .iter()
        .map(|m| {
            let errors = summary(&m.errors);
            json!({
                "scheme": m.plan.scheme.to_string(),
                "path": m.path,
                "bytes": m.bytes,
                "bpw": m.plan.bits_per_weight(source).map(|b| b.0),
                "stored_bpw": m.plan.bits_per_weight(source).map(|b| b.1),
                "quantized_weights": m.errors.len(),
                "relative_error": errors.map(|e| json!({"mean": e.mean, "worst": e.worst, "worst_weight": e.worst_weight, "pooled": e.pooled})),
                "layouts": layouts_json(&m.plan),
                "notes": m.plan.notes,
                "verified": verified,
            })
        })
        .collect();
    pretty(&json!({"source": source.model.path, "artifacts": artifacts, "warnings": warnings}))
}

fn layouts_json(plan: &Plan) -> Value {
    plan.layouts().into_iter().map(|(l, n)| (l.to_string(), json!(n))).collect::<serde_json::Map<_, _>>().into()
}

/// What would be done, for people.
pub fn plans_table(source: &Source<'_>, plans: &[Plan]) -> String {
    let columns = vec![
        Column::text("scheme", "scheme"),
        Column::number("quantized", "quantized"),
        Column::number("kept", "kept"),
        Column::number("bytes", "tensor data"),
        Column::number("bpw", "bits per weight"),
        Column::text("layout", "layout (weights)"),
        Column::text("fits", "fits"),
    ];
    let mut table = Table::new("Dry run: nothing is written", columns);
    for plan in plans {
        let quantized = plan.weights.iter().filter(|w| w.scheme.is_some()).count();
        let fits = match plan.misfits.len() {
            0 => Cell::text("yes"),
            n => Cell::text(format!("no: {n} weights don't")).tone(Tone::Bad),
        };
        table.rows.push(vec![
            Cell::text(plan.scheme.to_string()),
            Cell::value(quantized.to_string(), quantized),
            Cell::value((plan.weights.len() - quantized).to_string(), plan.weights.len() - quantized),
            Cell::value(format::bytes(plan.data_bytes()), plan.data_bytes()),
            plan.bits_per_weight(source).map_or_else(Cell::absent, |b| Cell::value(format::fixed(b.0, 3), b.0)),
            Cell::text(layouts(plan)),
            fits,
        ]);
        plan.notes.iter().for_each(|n| table.note(n.clone()));
    }
    let mut text = terminal(&table);
    for plan in plans {
        for m in &plan.misfits {
            let _ = writeln!(text, "{}: {} {:?}: {}; {}", plan.scheme, m.weight, m.shape, m.why, m.instead);
        }
    }
    if let Some(plan) = plans.first() {
        kept(source, plan, &mut text);
    }
    text
}

/// Lists what stays, one line for each kind of tensor.
fn kept(source: &Source<'_>, plan: &Plan, text: &mut String) {
    let mut kinds: Vec<(String, usize)> = Vec::new();
    for w in plan.weights.iter().filter(|w| w.scheme.is_none()) {
        let name: String = source.weights[w.index]
            .name
            .split('.')
            .map(|p| if p.bytes().all(|b| b.is_ascii_digit()) { "N" } else { p })
            .collect::<Vec<_>>()
            .join(".");
        let dtype = w.laid.tensors.first().map_or_else(String::new, |t| t.dtype.to_string());
        let line = format!("{name} ({dtype})");
        match kinds.iter_mut().find(|k| k.0 == line) {
            Some(kind) => kind.1 += 1,
            None => kinds.push((line, 1)),
        }
    }
    if !kinds.is_empty() {
        let _ = writeln!(text, "Not quantized under {}:", plan.scheme);
        for (line, count) in kinds {
            let _ = writeln!(text, "  {count:>4} x {line}");
        }
    }
}

/// What would be done, for scripts.
pub fn plans_json(source: &Source<'_>, plans: &[Plan]) -> String {
    let plans: Vec<Value> = plans
        .iter()
        .map(|p| {
            let weights: Vec<Value> = p
                .weights
                .iter()
                .map(|w| {
                    json!({
                        "weight": source.weights[w.index].name,
                        "shape": source.weights[w.index].shape,
                        "scheme": w.scheme.map(|s| s.to_string()),
                        "layout": w.laid.layout.to_string(),
                        "bytes": w.laid.tensors.iter().map(|t| t.bytes).sum::<u64>(),
                    })
                })
                .collect();
            let misfits: Vec<Value> = p
                .misfits
                .iter()
                .map(|m| json!({"weight": m.weight, "shape": m.shape, "why": m.why, "instead": m.instead}))
                .collect();
            json!({
                "scheme": p.scheme.to_string(),
                "tensor_bytes": p.data_bytes(),
                "bpw": p.bits_per_weight(source).map(|b| b.0),
                "stored_bpw": p.bits_per_weight(source).map(|b| b.1),
                "weights": weights,
                "misfits": misfits,
                "notes": p.notes,
            })
        })
        .collect();
    pretty(&json!({"source": source.model.path, "plans": plans}))
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

fn terminal(table: &Table) -> String {
    report::stdout_form().render(table)
}
