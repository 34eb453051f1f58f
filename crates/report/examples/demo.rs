//! Writes a page with a table and every kind of plot to the file it is given.
//!
//! The numbers are made up: they only have the shape that real ones have.

use std::error::Error;
use std::fs::File;

use report::chart::{
    Axis, Bar, BarChart, Better, Distribution, Guide, HeatMap, Histogram, Line, LinePlot, Mark, Point, Ridge, Scale,
    Scatter,
};
use report::format;
use report::page::{Fact, Page, Section};
use report::table::{Cell, Column, Table, Tone};
use serde_json::json;

/// Scheme, family, bits per weight, MiB, perplexity, half its interval, mean KL,
/// tokens agreed of 960, verdict.
type Row = (&'static str, usize, f64, f64, f64, f64, f64, u64, &'static str, Tone);

const ROWS: [Row; 11] = [
    ("f16", 0, 16.0, 942.3, 23.08, 1.1, 0.0, 960, "reference", Tone::Muted),
    ("int8-row", 0, 8.018, 601.2, 22.96, 1.1, 0.0006, 947, "indistinguishable", Tone::Good),
    ("int8-absmax", 0, 8.0, 601.0, 23.58, 1.1, 0.0041, 921, "measurable", Tone::Warning),
    ("int8-outlier", 0, 8.11, 605.9, 22.99, 1.1, 0.0005, 949, "indistinguishable", Tone::Good),
    ("ggml-q6_k", 2, 6.5625, 537.1, 23.12, 1.1, 0.0019, 935, "indistinguishable", Tone::Good),
    ("nf4", 1, 4.25, 438.6, 24.55, 1.2, 0.045, 829, "measurable", Tone::Warning),
    ("int4-g64", 1, 4.25, 438.6, 27.41, 1.3, 0.098, 760, "worse", Tone::Warning),
    ("int4-g128", 1, 4.125, 433.3, 31.08, 1.5, 0.16, 711, "worse", Tone::Bad),
    ("ggml-q4_k", 2, 4.5, 449.3, 24.31, 1.2, 0.031, 848, "measurable", Tone::Warning),
    ("int4-row", 1, 4.018, 428.8, 46.18, 2.4, 0.61, 502, "worse", Tone::Bad),
    ("int4-absmax", 1, 4.0, 428.0, 365_416_000.0, 9e7, 16.2, 3, "destroyed", Tone::Bad),
];

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args().nth(1).ok_or("usage: demo FILE.html")?;
    let page = Page {
        title: "Eleven ways to store one model".to_owned(),
        lead: "Every scheme against the same reference, on the same tokens. \
               `int8-row` costs nothing that can be measured; below five bits the block \
               matters more than the bit.[^1]"
            .to_owned(),
        facts: facts(),
        sections: vec![
            Section::new("Quality and size")
                .prose(
                    "The change in perplexity is paired: each scheme is scored on the \
                        reference's own windows, and the interval is that of the difference.[^2]",
                )
                .table(comparison()?),
            Section::new("What a bit buys")
                .chart(
                    &front(Axis::log("Perplexity (lower is better), log scale")),
                    "With a log axis the scheme that fails altogether has its place.",
                )
                .chart(
                    &front(Axis::linear("Perplexity (lower is better)").to(50.0)),
                    "The same points; what lies beyond the axis is named with its value.",
                )
                .chart(&agreement(), "Wilson intervals of 95%.")
                .chart(&divergence(), "How far the next-token distribution moves, token by token."),
            Section::new("Where the error is")
                .chart(&errors(), "Relative error of each matrix under `int4-row`.")
                .chart(&loss(), "Bands: 95% of five seeds.")
                .chart(&weights(), "Weights of one matrix.")
                .chart(
                    &BarChart { title: "Nothing measured yet".to_owned(), ..BarChart::default() },
                    "What a plot without data looks like.",
                ),
        ],
        footnotes: vec![
            "Groups of 64 or 128 weights share one scale.".to_owned(),
            "Paired block bootstrap, 2,000 resamples of blocks of 64 tokens.".to_owned(),
        ],
        colophon: "Made by the report crate's example; the numbers are made up.".to_owned(),
        generator: String::new(),
    };
    page.write(&mut File::create(path)?)?;
    Ok(())
}

fn facts() -> Vec<Fact> {
    vec![
        Fact::new("Reference", "example-0.5b, FP16, 942 MiB"),
        Fact::new("Corpus", "prose.txt, 2,048 tokens scored"),
        Fact::new("Windows", "512 tokens, stride 256"),
        Fact::new("Agreement", "16 prompts × 60 tokens, greedy"),
        Fact::new("Machine", "8 cores, 2.6 GHz"),
        Fact::new("Time", format::duration(493.0)),
    ]
}

fn comparison() -> Result<Table, report::Error> {
    let mut table = Table::new(
        "Comparison with the reference",
        vec![
            Column::text("scheme", "Scheme"),
            Column::number("bpw", "Bits per\nweight").help("Codes and scales, over quantized weights."),
            Column::number("size", "Size").unit("MiB"),
            Column::number("perplexity", "Perplexity\n95% CI").help("Lower is better."),
            Column::number("change", "Change\npaired 95% CI"),
            Column::number("kl", "Mean KL").unit("nats").help("From the reference's distribution."),
            Column::number("agreement", "Agreement"),
            Column::number("speed", "Decode").unit("tokens/s"),
            Column::text("verdict", "Verdict").help("`indistinguishable`: the paired interval holds 0."),
        ],
    );
    for (index, row) in ROWS.iter().enumerate() {
        let &(scheme, _, bpw, size, ppl, half, kl, agree, verdict, tone) = row;
        let change = ppl - ROWS[0].4;
        let spread = 0.15 + change.abs() * 0.2;
        let is_reference = index == 0;
        let change = if is_reference {
            Cell::absent()
        } else {
            Cell::value(
                format::signed_interval(change, change - spread, change + spread, 2),
                json!({"value": change, "ci95": [change - spread, change + spread]}),
            )
        };
        table.push(vec![
            Cell::text(scheme),
            Cell::value(format::fixed(bpw, 3), bpw),
            Cell::value(format::fixed(size, 1), size),
            Cell::value(
                format::interval(ppl, ppl - half, ppl + half, 4),
                json!({"value": ppl, "ci95": [ppl - half, ppl + half]}),
            ),
            change,
            if is_reference { Cell::absent() } else { Cell::value(format::significant(kl, 2), kl) },
            Cell::value(format::proportion(agree, 960), agree),
            Cell::value(format::fixed(30.0 + 200.0 / bpw, 1), 30.0 + 200.0 / bpw),
            Cell::text(verdict).tone(tone),
        ])?;
    }
    table.note("Sizes are of the whole file, embeddings included.");
    Ok(table)
}

fn front(y: Axis) -> Scatter {
    let points =
        ROWS.iter().map(|row| Point::new(row.0, row.2, row.4).interval(row.4 - row.5, row.4 + row.5).series(row.1));
    Scatter {
        title: "Perplexity against bits per weight".to_owned(),
        x: Axis::linear("Bits per weight"),
        y,
        series: vec!["8 bits".to_owned(), "4 bits".to_owned(), "ggml blocks".to_owned()],
        points: points.collect(),
        front: Some(Better::Lower),
        guides: vec![Guide { label: "reference".to_owned(), at: ROWS[0].4 }],
    }
}

fn agreement() -> BarChart {
    let bars = ROWS[1..].iter().map(|row| {
        let share = row.7 as f64 / 960.0;
        let half = 1.96 * (share * (1.0 - share) / 960.0).sqrt();
        Bar {
            label: row.0.to_owned(),
            value: share,
            interval: Some(((share - half).max(0.0), share + half)),
            text: format::percent(share, 1),
            tone: row.9,
        }
    });
    BarChart {
        title: "Greedy tokens that agree with the reference".to_owned(),
        axis: Axis::linear("Share of 960 tokens").to(1.0),
        bars: bars.collect(),
        guide: None,
    }
}

/// Pseudorandom numbers with a normal distribution.
struct Noise(u64);

impl Noise {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0
    }
}

fn divergence() -> Ridge {
    let mut noise = Noise(7);
    let series = ROWS[1..].iter().map(|row| {
        let mut values: Vec<f64> = (0..2048).map(|_| row.6 * 0.4 * 10f64.powf(noise.normal() * 0.55)).collect();
        values.sort_by(f64::total_cmp);
        let mark = |name: &str, at: usize| Mark { name: name.to_owned(), at: values[at] };
        Distribution {
            name: row.0.to_owned(),
            marks: vec![mark("median", 1024), mark("99th percentile", 2027)],
            histogram: Histogram::from_values(&values, 40, Scale::Log),
        }
    });
    Ridge {
        title: "KL divergence per token".to_owned(),
        axis: Axis::log("KL divergence in nats, log scale"),
        series: series.collect(),
        own_heights: false,
    }
}

fn errors() -> HeatMap {
    let mut noise = Noise(3);
    let rows = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"];
    let values = rows.iter().enumerate().map(|(row, _)| {
        (0..24)
            .map(|layer| {
                let base = 0.12 + 0.03 * row as f64 + if row == 6 && layer < 4 { 0.4 } else { 0.0 };
                base * (noise.normal() * 0.15).exp()
            })
            .collect()
    });
    HeatMap {
        title: "Relative error by layer and matrix".to_owned(),
        label: "Relative error, log scale".to_owned(),
        values: values.collect(),
        rows: rows.map(str::to_owned).to_vec(),
        columns: (0..24).map(|layer| layer.to_string()).collect(),
        columns_label: "Layer".to_owned(),
        scale: Scale::Log,
    }
}

fn loss() -> LinePlot {
    let mut noise = Noise(5);
    let mut line = |name: &str, floor: f64, speed: f64| {
        let points: Vec<(f64, f64)> = (1..=200)
            .map(|step| {
                let step = f64::from(step) * 10.0;
                (step, floor + 3.5 * (-step / speed).exp() + noise.normal() * 0.03)
            })
            .collect();
        let band = points.iter().map(|&(x, y)| (x, y - 0.15, y + 0.15)).collect();
        Line { name: name.to_owned(), points, band }
    };
    LinePlot {
        title: "Validation loss of the student".to_owned(),
        x: Axis::linear("Step"),
        y: Axis::linear("Loss in nats per token"),
        lines: vec![line("hard labels", 3.42, 420.0), line("soft, T=1", 3.31, 380.0), line("soft, T=2", 3.2, 330.0)],
        guides: vec![Guide { label: "teacher".to_owned(), at: 3.0 }],
    }
}

fn weights() -> Ridge {
    let mut noise = Noise(11);
    let values: Vec<f64> = (0..20_000).map(|_| noise.normal() * 0.018).collect();
    let series = vec![Distribution {
        name: "down_proj".to_owned(),
        histogram: Histogram::from_values(&values, 60, Scale::Linear),
        marks: vec![Mark { name: "mean".to_owned(), at: 0.0 }],
    }];
    Ridge {
        title: "Weights of layers.12.mlp.down_proj".to_owned(),
        axis: Axis::linear("Weight"),
        series,
        own_heights: false,
    }
}
