//! Errors of rendering.

/// Errors of drawing and writing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A row has another number of cells than the table has columns.
    #[error("table \"{table}\": a row of {cells} cells does not fit {columns} columns")]
    Row {
        /// The table's title.
        table: String,
        /// Number of cells in the row.
        cells: usize,
        /// Number of columns in the table.
        columns: usize,
    },
    /// The page template could not be filled in.
    #[error("the page could not be laid out: {0}")]
    Template(#[from] minijinja::Error),
    /// The result could not be written.
    #[error("the report could not be written: {0}")]
    Write(#[from] std::io::Error),
}
