//! Plots as SVG text.
//!
//! A plot has no colour or font of its own: marks carry classes, and
//! [`stylesheet`] gives them their look, in light and dark. [`standalone`] puts
//! that stylesheet into a single plot, so that it can be a file.
//!
//! Values that an axis can't place (NaN, infinities, zero on a log axis) are
//! left out, and a note below the plot counts them. A plot without any data is
//! an empty frame that says so.

mod axis;
mod bars;
mod frame;
mod heat;
mod histogram;
mod label;
mod lines;
mod ridge;
mod scatter;
mod svg;
mod timeline;

pub use axis::{Axis, Scale};
pub use bars::{Bar, BarChart};
pub use frame::Guide;
pub use heat::HeatMap;
pub use histogram::Histogram;
pub use lines::{Line, LinePlot};
pub use ridge::{Distribution, Mark, Ridge};
pub use scatter::{Better, Point, Scatter};
pub(crate) use svg::escape;
pub use timeline::{Lane, Span, Timeline};

/// The width, in pixels, for a page on a desk.
pub const WIDE: f64 = 580.0;

/// The width, in pixels, for a page in a hand.
pub const NARROW: f64 = 360.0;

/// Something that can be drawn as SVG.
pub trait Chart: std::fmt::Debug {
    /// Title of the plot in a few words; also its name for screen readers.
    fn title(&self) -> &str;

    /// The SVG element at this width in pixels, at least 240.
    fn draw(&self, width: f64) -> String;
}

/// The colours that plots and pages share, for light and dark.
pub(crate) const PALETTE: &str = include_str!("../../assets/palette.css");

/// Style sheet of marks and texts of a plot.
pub(crate) const STYLE: &str = include_str!("../../assets/chart.css");

/// The CSS that plots need in the page that holds them.
#[must_use]
pub fn stylesheet() -> String {
    format!("{PALETTE}{STYLE}")
}

/// A drawn plot as a file of its own: with its stylesheet inside, and `mark`, an XML comment by which a program knows its
/// own plots.
///
/// ```
/// use report::chart::{self, Chart as _, LinePlot};
/// let svg = chart::standalone(&LinePlot::default().draw(chart::WIDE), "<!-- made by hand -->");
/// assert!(svg.contains("<style>"));
/// ```
#[must_use]
pub fn standalone(svg: &str, mark: &str) -> String {
    match svg.split_once('>') {
        Some((open, rest)) => format!("{open}>{mark}<style>{}</style>{rest}", stylesheet()),
        None => svg.to_owned(),
    }
}
