//! Whatever the input, plots and pages are well formed.

use proptest::prelude::*;
use report::chart::{
    self, Axis, Bar, BarChart, Better, Chart, Distribution, Guide, HeatMap, Histogram, Lane, Line, LinePlot, Mark,
    Point, Ridge, Scale, Scatter, Span, Timeline,
};
use report::page::{Block, Fact, Figure, Page, Section};
use report::table::{Align, Cell, Column, Table, Tone};

/// HTML elements that have no end.
const VOID: [&str; 2] = ["meta", "br"];

/// Checks nesting, quoting and escaping, as far as this crate's output goes.
fn check(text: &str) -> Result<(), String> {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    loop {
        let Some(start) = rest.find('<') else {
            check_text(rest)?;
            break;
        };
        // What is inside `style` and `script` is no markup.
        if !matches!(open.last(), Some(&("style" | "script"))) {
            check_text(&rest[..start])?;
        }
        let tag_text = &rest[start + 1..];
        let end = tag_end(tag_text).ok_or_else(|| format!("open tag: {tag_text:.40}"))?;
        let tag = &tag_text[..end];
        rest = &tag_text[end + 1..];
        if tag.starts_with('!') {
            continue;
        }
        if let Some(name) = tag.strip_prefix('/') {
            if open.pop() != Some(name) {
                return Err(format!("</{name}> closes another element"));
            }
            continue;
        }
        let (tag, closed) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let (name, attributes) = tag.split_once(' ').unwrap_or((tag, ""));
        check_attributes(attributes)?;
        if !closed && !VOID.contains(&name) {
            open.push(name);
        }
    }
    if open.is_empty() { Ok(()) } else { Err(format!("left open: {open:?}")) }
}

/// Finds the end of the tag: the first `>` outside of quotes.
fn tag_end(text: &str) -> Option<usize> {
    let mut quoted = false;
    text.find(|c| {
        quoted ^= c == '"';
        c == '>' && !quoted
    })
}

fn check_attributes(text: &str) -> Result<(), String> {
    let mut rest = text.trim();
    let mut seen: Vec<&str> = Vec::new();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").ok_or_else(|| format!("attribute: {rest}"))?;
        let (value, after) = after.split_once('"').ok_or_else(|| format!("quotes: {rest}"))?;
        if name.is_empty() || name.contains([' ', '<', '>', '"', '\'']) || seen.contains(&name) {
            return Err(format!("attribute name {name:?}"));
        }
        if value.contains('<') || value.contains("NaN") && name != "title" && name != "aria-label" {
            return Err(format!("attribute value {value:?}"));
        }
        check_text(value)?;
        seen.push(name);
        rest = after.trim_start();
    }
    Ok(())
}

fn check_text(text: &str) -> Result<(), String> {
    for (index, c) in text.char_indices() {
        let is_entity = || {
            let name = text[index + 1..].split_once(';').map_or("", |(name, _)| name);
            !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '#')
        };
        if c == '&' && !is_entity() {
            return Err(format!("bare ampersand in {text:.60}"));
        }
        if c.is_control() && c != '\n' || matches!(c, '\u{fffe}' | '\u{ffff}') {
            return Err(format!("control character {c:?}"));
        }
    }
    Ok(())
}

#[test]
fn the_checker_finds_faults() {
    assert_eq!(check("<a b=\"c\">x &amp; y<br></a>"), Ok(()));
    for wrong in ["<a>", "</a>", "<a><b></a></b>", "<a b=c></a>", "a & b", "<a b=\"<\"/>", "\u{1}"] {
        assert!(check(wrong).is_err(), "{wrong}");
    }
}

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9-]{0,12}",
        "[<>&\"'`\\[\\]^ a-z\n]{0,16}",
        proptest::collection::vec(any::<char>(), 0..8).prop_map(String::from_iter),
    ]
}

/// Numbers of every kind; half of them ordinary, so that there is something to draw.
fn number() -> impl Strategy<Value = f64> {
    prop_oneof![3 => -100.0..1000.0, 1 => any::<f64>(), 1 => Just(f64::NAN), 1 => Just(0.0)]
}

fn interval() -> impl Strategy<Value = Option<(f64, f64)>> {
    proptest::option::of((number(), number()))
}

fn axis() -> impl Strategy<Value = Axis> {
    let end = || proptest::option::weighted(0.3, number());
    (text(), any::<bool>(), end(), end(), any::<bool>()).prop_map(|(label, log, from, to, whole)| Axis {
        label,
        scale: if log { Scale::Log } else { Scale::Linear },
        from,
        to,
        whole,
    })
}

fn tone() -> impl Strategy<Value = Tone> {
    prop::sample::select(vec![Tone::Normal, Tone::Good, Tone::Warning, Tone::Bad, Tone::Muted])
}

fn guides() -> impl Strategy<Value = Vec<Guide>> {
    let guide = (text(), number()).prop_map(|(label, at)| Guide { label, at });
    proptest::collection::vec(guide, 0..3)
}

fn scatter() -> impl Strategy<Value = Scatter> {
    let point = (text(), number(), number(), interval(), 0usize..12)
        .prop_map(|(label, x, y, interval, series)| Point { label, x, y, interval, series });
    let front = prop::sample::select(vec![None, Some(Better::Lower), Some(Better::Higher)]);
    let points = proptest::collection::vec(point, 0..12);
    let series = proptest::collection::vec(text(), 0..4);
    (text(), axis(), axis(), series, points, front, guides())
        .prop_map(|(title, x, y, series, points, front, guides)| Scatter { title, x, y, series, points, front, guides })
}

fn bar_chart() -> impl Strategy<Value = BarChart> {
    let bar = (text(), number(), interval(), text(), tone()).prop_map(|(label, value, interval, text, tone)| Bar {
        label,
        value,
        interval,
        text,
        tone,
    });
    (text(), axis(), proptest::collection::vec(bar, 0..8), guides()).prop_map(|(title, axis, bars, guides)| BarChart {
        title,
        axis,
        bars,
        guide: guides.into_iter().next(),
    })
}

fn ridge() -> impl Strategy<Value = Ridge> {
    let mark = (text(), number()).prop_map(|(name, at)| Mark { name, at });
    let values = proptest::collection::vec(number(), 0..20);
    let row = (text(), values, proptest::collection::vec(mark, 0..4), any::<bool>()).prop_map(
        |(name, values, marks, log)| {
            let scale = if log { Scale::Log } else { Scale::Linear };
            Distribution { name, histogram: Histogram::from_values(&values, 8, scale), marks }
        },
    );
    (text(), axis(), proptest::collection::vec(row, 0..5), any::<bool>())
        .prop_map(|(title, axis, series, own_heights)| Ridge { title, axis, series, own_heights })
}

fn line_plot() -> impl Strategy<Value = LinePlot> {
    let points = proptest::collection::vec((number(), number()), 0..8);
    let band = proptest::collection::vec((number(), number(), number()), 0..8);
    let line = (text(), points, band).prop_map(|(name, points, band)| Line { name, points, band });
    (text(), axis(), axis(), proptest::collection::vec(line, 0..4), guides())
        .prop_map(|(title, x, y, lines, guides)| LinePlot { title, x, y, lines, guides })
}

fn heat_map() -> impl Strategy<Value = HeatMap> {
    let names = |most| proptest::collection::vec(text(), 0..most);
    let values = proptest::collection::vec(proptest::collection::vec(number(), 0..6), 0..6);
    (text(), names(6), names(30), values, any::<bool>()).prop_map(|(title, rows, columns, values, log)| HeatMap {
        label: title.clone(),
        columns_label: title.clone(),
        title,
        rows,
        columns,
        values,
        scale: if log { Scale::Log } else { Scale::Linear },
    })
}

fn timeline() -> impl Strategy<Value = Timeline> {
    let span = (text(), number(), number()).prop_map(|(label, from, to)| Span { label, from, to });
    let lane = (text(), proptest::collection::vec(span, 0..6)).prop_map(|(name, spans)| Lane { name, spans });
    (text(), axis(), proptest::collection::vec(lane, 0..5)).prop_map(|(title, axis, lanes)| Timeline {
        title,
        axis,
        lanes,
    })
}

fn any_chart() -> impl Strategy<Value = Box<dyn Chart>> {
    fn boxed<C: Chart + 'static>(chart: C) -> Box<dyn Chart> {
        Box::new(chart)
    }
    prop_oneof![
        scatter().prop_map(boxed),
        bar_chart().prop_map(boxed),
        ridge().prop_map(boxed),
        line_plot().prop_map(boxed),
        heat_map().prop_map(boxed),
        timeline().prop_map(boxed),
    ]
}

fn table() -> impl Strategy<Value = Table> {
    let column = (text(), text(), proptest::option::of(text())).prop_map(|(key, header, help)| Column {
        key,
        header,
        align: Align::Left,
        unit: help.clone(),
        help,
        ..Column::default()
    });
    let cell = (text(), tone()).prop_map(|(text, tone)| Cell::text(text).tone(tone));
    let rows = proptest::collection::vec(proptest::collection::vec(cell, 0..5), 0..4);
    (text(), proptest::collection::vec(column, 0..4), rows, text()).prop_map(|(title, columns, rows, note)| Table {
        title,
        columns,
        rows,
        warnings: vec![note.clone()],
        notes: vec![note],
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn plots(chart in any_chart(), width in prop_oneof![200.0..1000.0, any::<f64>()]) {
        let svg = chart.draw(width);
        prop_assert_eq!(check(&svg), Ok(()), "{}", svg);
        prop_assert_eq!(check(&chart::standalone(&svg, "<!-- made by a test -->")), Ok(()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn pages(chart in any_chart(), table in table(), words in text(), more in text()) {
        let page = Page {
            title: words.clone(),
            lead: more.clone(),
            facts: vec![Fact::new(words.clone(), more.clone())],
            sections: vec![Section {
                heading: words.clone(),
                blocks: vec![
                    Block::Prose(format!("{words}[^1]\n\n{more}")),
                    Block::Table(table.clone()),
                    Block::Figure(Figure::from_chart(chart.as_ref(), more.clone())),
                ],
            }],
            footnotes: vec![more],
            colophon: words,
            generator: String::new(),
        };
        let html = page.render().map_err(|error| TestCaseError::fail(error.to_string()))?;
        prop_assert_eq!(check(&html), Ok(()), "{}", html);
        // The other forms take the same table without a fault.
        prop_assert!(!table.to_markdown().is_empty());
        prop_assert!(table.to_csv().ends_with("\r\n"));
        prop_assert!(table.to_terminal(40, false).ends_with('\n'));
    }
}
