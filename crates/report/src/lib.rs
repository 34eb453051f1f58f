//! What the programs draw: tables, plots, pages, progress bars.
//!
//! Nothing here knows what a model is. A program puts its findings into a
//! [`table::Table`] or a [`chart`] and gets back text: for a terminal, Markdown,
//! CSV, JSON, SVG, or one self-contained HTML [`page`].
//!
//! Three rules hold throughout:
//!
//! - Nothing is printed. Functions return strings or write to an
//!   [`std::io::Write`]; the exceptions are [`arguments`], [`print_result`],
//!   [`progress::Bars`], which draws on standard error while it is a terminal, and
//!   [`tidy_when_interrupted`].
//! - Nothing is said by colour alone: a [`table::Tone`] has a symbol and a word,
//!   a series has a marker of its own.
//! - Numbers that can't be shown (NaN, infinities, values that a log axis can't
//!   place) never break a drawing. They are left out, and a note says so.

pub mod chart;
mod device;
mod error;
pub mod format;
mod interrupt;
mod overwrite;
pub mod page;
pub mod progress;
pub mod spark;
pub mod table;
mod terminal;

pub use device::{ComputeArgs, DeviceArgs};
pub use error::Error;
pub use interrupt::tidy_when_interrupted;
pub use overwrite::OverwriteArgs;
pub use terminal::{arguments, error_line, print_result, stdout_form};
