//! One self-contained HTML page: nothing is loaded from elsewhere.
//!
//! A script inside the page sorts tables by a column, joins rows with the points of plots that have their name, and
//! copies listings. Without it the page says the same.

use minijinja::{AutoEscape, Environment, UndefinedBehavior, context};
use serde::Serialize;

use crate::Error;
use crate::chart::{self, Chart};
use crate::table::{Align, Cell, Column, Table, Tone};

mod inline;

/// A page: a header with facts, sections, footnotes.
///
/// Texts are plain: they are escaped. In [`lead`](Self::lead), prose, captions,
/// notes and footnotes, text between backquotes is shown as code, and `[^2]`
/// refers to the second footnote.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Page {
    /// The page's title.
    pub title: String,
    /// Message of the page in a sentence or two; may be empty.
    pub lead: String,
    /// Names and values at the head of the page, such as the reference and the texts.
    pub facts: Vec<Fact>,
    /// The sections.
    pub sections: Vec<Section>,
    /// The footnotes, in the order of their numbers.
    pub footnotes: Vec<String>,
    /// The last line, such as which program made the page; may be empty.
    pub colophon: String,
    /// The value of `<meta name="generator">`, by which a program knows its own pages.
    pub generator: String,
}

/// A fact in a page's header.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Fact {
    /// Name of the fact.
    pub name: String,
    /// Value of the fact.
    pub value: String,
}

impl Fact {
    /// A fact of this name.
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

/// A section of a [`Page`].
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Section {
    /// Heading of the section; may be empty.
    pub heading: String,
    /// Content of the section. Figures that follow each other stand side by side where
    /// there is room.
    pub blocks: Vec<Block>,
}

impl Section {
    /// An empty section.
    pub fn new(heading: impl Into<String>) -> Self {
        Self { heading: heading.into(), blocks: Vec::new() }
    }

    /// The section with prose added; blank lines separate paragraphs.
    #[must_use]
    pub fn prose(mut self, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Prose(text.into()));
        self
    }

    /// The section with reasons added to doubt what follows.
    #[must_use]
    pub fn warnings(mut self, warnings: Vec<String>) -> Self {
        self.blocks.push(Block::Warnings(warnings));
        self
    }

    /// The section with a table added.
    #[must_use]
    pub fn table(mut self, table: Table) -> Self {
        self.blocks.push(Block::Table(table));
        self
    }

    /// The section with a table added that is shown on request, behind `summary`.
    #[must_use]
    pub fn folded(mut self, summary: impl Into<String>, table: Table) -> Self {
        self.blocks.push(Block::Folded(summary.into(), table));
        self
    }

    /// The section with the text of a file added, to be copied.
    #[must_use]
    pub fn listing(mut self, name: impl Into<String>, text: impl Into<String>) -> Self {
        self.blocks.push(Block::Listing { name: name.into(), text: text.into() });
        self
    }

    /// The section with a plot added, drawn for wide and for narrow pages.
    #[must_use]
    pub fn chart(mut self, chart: &dyn Chart, caption: impl Into<String>) -> Self {
        self.blocks.push(Block::Figure(Figure::from_chart(chart, caption)));
        self
    }
}

/// A part of a [`Section`].
#[derive(Debug, Clone, PartialEq)]
pub enum Block {
    /// Paragraphs, separated by blank lines.
    Prose(String),
    /// Reasons to doubt what follows.
    Warnings(Vec<String>),
    /// A table, with its notes and explanations.
    Table(Table),
    /// A table that is shown on request, behind its summary.
    Folded(String, Table),
    /// Text of a file, to be copied.
    Listing {
        /// Name of the file.
        name: String,
        /// The file's text.
        text: String,
    },
    /// A plot with its caption.
    Figure(Figure),
}

/// A plot with its caption.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Figure {
    /// The SVG element. It is put into the page as it is.
    pub svg: String,
    /// The SVG element where less than 29 rem are available.
    pub narrow: Option<String>,
    /// Caption of the figure; may be empty.
    pub caption: String,
}

impl Figure {
    /// The plot drawn for wide and for narrow pages.
    pub fn from_chart(chart: &dyn Chart, caption: impl Into<String>) -> Self {
        Self { svg: chart.draw(chart::WIDE), narrow: Some(chart.draw(chart::NARROW)), caption: caption.into() }
    }
}

const TEMPLATE: &str = include_str!("../assets/page.html");
const STYLE: &str = include_str!("../assets/page.css");
const SCRIPT: &str = include_str!("../assets/page.js");

impl Page {
    /// The page as HTML.
    ///
    /// # Errors
    ///
    /// [`Error::Template`] if the built-in template can't be filled in.
    pub fn render(&self) -> Result<String, Error> {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.add_template("page.html", TEMPLATE)?;
        let style = format!("{}{STYLE}", chart::stylesheet());
        let page = self.view();
        Ok(environment.get_template("page.html")?.render(context! {
            page,
            style,
            script => SCRIPT,
            generator => &self.generator
        })?)
    }

    /// Writes [`Page::render`].
    ///
    /// # Errors
    ///
    /// Renders the page into `out`, as [`Page::render`] does; [`Error::Write`] if `out` refuses it.
    pub fn write(&self, out: &mut impl std::io::Write) -> Result<(), Error> {
        Ok(out.write_all(self.render()?.as_bytes())?)
    }

    fn view(&self) -> PageView {
        let inline = |text: &str| inline::html(text, self.footnotes.len());
        PageView {
            language: "en",
            title: plain(&self.title),
            lead: inline(&self.lead),
            facts: self.facts.iter().map(|fact| Fact::new(plain(&fact.name), plain(&fact.value))).collect(),
            sections: self
                .sections
                .iter()
                .map(|section| SectionView {
                    heading: plain(&section.heading),
                    blocks: block_views(&section.blocks, &inline),
                })
                .collect(),
            footnotes: self.footnotes.iter().map(|note| inline(note)).collect(),
            colophon: plain(&self.colophon),
        }
    }
}

fn plain(text: &str) -> String {
    crate::format::printable(text)
}

/// Data that the template sees. Fields that the template takes as safe hold escaped HTML.
#[derive(Serialize)]
struct PageView {
    language: &'static str,
    title: String,
    lead: String,
    facts: Vec<Fact>,
    sections: Vec<SectionView>,
    footnotes: Vec<String>,
    colophon: String,
}

#[derive(Serialize)]
struct SectionView {
    heading: String,
    blocks: Vec<BlockView>,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum BlockView {
    Prose { paragraphs: Vec<String> },
    Warnings { warnings: Vec<String> },
    Table { table: TableView, summary: Option<String> },
    Listing { name: String, text: String },
    Figures { figures: Vec<FigureView> },
}

#[derive(Serialize)]
struct FigureView {
    wide: String,
    narrow: Option<String>,
    caption: String,
}

#[derive(Serialize)]
struct TableView {
    title: String,
    columns: Vec<ColumnView>,
    rows: Vec<RowView>,
    warnings: Vec<String>,
    notes: Vec<String>,
    legend: Vec<(String, String)>,
}

#[derive(Serialize)]
struct ColumnView {
    lines: Vec<String>,
    unit: Option<String>,
    help: Option<String>,
    align: &'static str,
}

#[derive(Serialize)]
struct RowView {
    /// Text of the first cell, by which the script finds the row's points.
    name: String,
    cells: Vec<CellView>,
}

#[derive(Serialize)]
struct CellView {
    tag: &'static str,
    /// Header of the column, which stands before the cell where a row is shown as a card.
    label: String,
    class: String,
    symbol: &'static str,
    word: &'static str,
    /// The number to sort by; none for words.
    number: Option<f64>,
    text: String,
}

fn block_views(blocks: &[Block], inline: &impl Fn(&str) -> String) -> Vec<BlockView> {
    let mut views = Vec::new();
    for block in blocks {
        match block {
            Block::Prose(text) => {
                let paragraphs = inline::paragraphs(text).map(|text| inline(&text)).collect();
                views.push(BlockView::Prose { paragraphs });
            }
            Block::Warnings(warnings) => {
                views.push(BlockView::Warnings { warnings: warnings.iter().map(|text| inline(text)).collect() });
            }
            Block::Table(table) => {
                views.push(BlockView::Table { table: table_view(table, inline), summary: None });
            }
            Block::Folded(summary, table) => {
                views.push(BlockView::Table { table: table_view(table, inline), summary: Some(plain(summary)) });
            }
            Block::Listing { name, text } => {
                views.push(BlockView::Listing { name: plain(name), text: plain(text) });
            }
            Block::Figure(figure) => {
                let view = FigureView {
                    wide: figure.svg.clone(),
                    narrow: figure.narrow.clone(),
                    caption: inline(&figure.caption),
                };
                match views.last_mut() {
                    Some(BlockView::Figures { figures }) => figures.push(view),
                    _ => views.push(BlockView::Figures { figures: vec![view] }),
                }
            }
        }
    }
    views
}

fn table_view(table: &Table, inline: &impl Fn(&str) -> String) -> TableView {
    let table = &*table.shown();
    let columns = table.columns.iter().map(|column| ColumnView {
        lines: plain(&column.header).lines().map(str::to_owned).collect(),
        unit: column.unit.as_deref().map(plain),
        help: column.help.as_deref().map(plain),
        align: align_class(column.align),
    });
    let empty = Cell::default();
    let rows = table.rows.iter().map(|row| {
        let cells = table
            .columns
            .iter()
            .enumerate()
            .map(|(index, column)| cell_view(row.get(index).unwrap_or(&empty), column, index == 0));
        RowView { name: row.first().map(Cell::line).unwrap_or_default(), cells: cells.collect() }
    });
    TableView {
        title: plain(&table.title),
        columns: columns.collect(),
        rows: rows.collect(),
        warnings: table.warnings.iter().map(|warning| inline(warning)).collect(),
        notes: table.notes.iter().map(|note| inline(note)).collect(),
        legend: table.legend().into_iter().map(|(name, help)| (name, inline(&help))).collect(),
    }
}

/// A left-aligned cell this long may go onto several lines.
const LONG_TEXT: usize = 48;

fn cell_view(cell: &Cell, column: &Column, is_first: bool) -> CellView {
    let text = cell.line();
    let mut class = align_class(column.align).to_owned();
    if cell.tone != Tone::Normal {
        class = format!("{class} {}", cell.tone.word());
    }
    if column.align == Align::Left && text.chars().count() > LONG_TEXT {
        class.push_str(" wrap");
    }
    CellView {
        tag: if is_first { "th" } else { "td" },
        label: column.header_line(),
        class,
        symbol: cell.tone.symbol(),
        word: cell.tone.word(),
        number: cell.number(),
        text,
    }
}

fn align_class(align: Align) -> &'static str {
    match align {
        Align::Left => "left",
        Align::Right => "right",
        Align::Center => "center",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::samples;

    fn page() -> Page {
        Page {
            title: "Quality of <quantized> artifacts".to_owned(),
            lead: "What `int4` costs.[^1]".to_owned(),
            facts: vec![Fact::new("Reference", "fixture & tokenizer")],
            sections: vec![Section::new("Table").prose("First.\n\nSecond.").table(samples::schemes())],
            footnotes: vec!["Measured on 2,048 tokens.".to_owned()],
            colophon: "Made by a test".to_owned(),
            generator: String::new(),
        }
    }

    #[test]
    fn the_body() {
        let html = page().render().expect("the template is right");
        let body = html.split_once("<body>").and_then(|(_, rest)| rest.split_once("<script>")).unwrap_or_default().0;
        insta::assert_snapshot!(body);
    }

    #[test]
    fn nothing_is_loaded() {
        let html = page().render().expect("the template is right");
        assert_eq!(html.matches("<script>").count(), 1);
        for forbidden in
            ["<script ", "fetch", "XMLHttp", "import(", "eval", "innerHTML", "<link", "<img", "@import", "url(", "src="]
        {
            assert!(!html.contains(forbidden), "{forbidden}");
        }
        // Names of XML vocabularies aside, no address is in the page.
        assert!(!html.replace("http://www.w3.org/2000/svg", "").contains("://"));
    }

    #[test]
    fn neighbouring_figures_share_a_row() {
        let plot = chart::LinePlot::default();
        let section = Section::new("").chart(&plot, "one").chart(&plot, "two").prose("text");
        let html = Page { sections: vec![section], ..Page::default() }.render().expect("fits");
        assert_eq!(html.matches("<div class=\"figures\">").count(), 1);
        assert_eq!(html.matches("<svg").count(), 4);
    }

    #[test]
    fn an_empty_page_is_a_page() {
        let html = Page::default().render().expect("the template is right");
        assert!(html.starts_with("<!DOCTYPE html>") && html.trim_end().ends_with("</html>"));
    }

    #[test]
    fn writing_can_fail() {
        struct Full;
        impl std::io::Write for Full {
            fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
                Err(std::io::Error::other("no space"))
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let error = page().write(&mut Full).expect_err("nothing can be written");
        assert_eq!(error.to_string(), "the report could not be written: no space");
    }
}
