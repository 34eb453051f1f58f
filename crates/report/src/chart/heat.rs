//! A grid of values as shades.

use super::Chart;
use super::axis::Scale;
use super::frame::Sheet;
use super::svg::{Anchor, Area, TEXT, shorten, text_width};
use crate::format;

/// A grid of values in nine shades, the darkest (on a light page) the highest.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeatMap {
    /// Title of the plot.
    pub title: String,
    /// Quantity of the values, with its unit.
    pub label: String,
    /// The names of the rows, from top to bottom.
    pub rows: Vec<String>,
    /// The names of the columns, from left to right.
    pub columns: Vec<String>,
    /// Label above the columns; may be empty.
    pub columns_label: String,
    /// The values of each row. What is missing, or has no place on the scale,
    /// is an empty cell.
    pub values: Vec<Vec<f64>>,
    /// Mapping from values to shades.
    pub scale: Scale,
}

const SHADES: usize = 9;

/// Positions of the cells.
struct Grid {
    left: f64,
    top: f64,
    cell: (f64, f64),
}

impl Chart for HeatMap {
    fn title(&self) -> &str {
        &self.title
    }

    fn draw(&self, width: f64) -> String {
        let mut sheet = Sheet::new(width, &self.title);
        let held = || self.cells().filter(|cell| self.scale.holds(cell.2));
        let low = held().map(|cell| cell.2).fold(f64::INFINITY, f64::min);
        let high = held().map(|cell| cell.2).fold(f64::NEG_INFINITY, f64::max);
        if low > high {
            sheet.nothing();
        } else {
            self.draw_key(&mut sheet, low, high);
            let grid = self.draw_names(&mut sheet);
            self.draw_cells(&mut sheet, &grid, low, high);
            self.describe(&mut sheet, low, high);
        }
        let empty = self.cells().count() - held().count();
        sheet.note_left_out(empty, "value");
        sheet.finish()
    }
}

impl HeatMap {
    /// Row, column and value of every cell; NaN where a value is missing.
    fn cells(&self) -> impl Iterator<Item = (usize, usize, f64)> {
        (0..self.rows.len()).flat_map(move |row| {
            (0..self.columns.len()).map(move |column| {
                let value = self.values.get(row).and_then(|values| values.get(column));
                (row, column, value.copied().unwrap_or(f64::NAN))
            })
        })
    }

    fn describe(&self, sheet: &mut Sheet, low: f64, high: f64) {
        let name = |value: f64| {
            let cell = self.cells().find(|cell| cell.2 == value);
            let (row, column) = cell.map_or((0, 0), |cell| (cell.0, cell.1));
            let value = format::significant(value, 3);
            format!("{value} in {}, {}", self.rows[row], self.columns[column])
        };
        sheet.describe(format!("Lowest: {}. Highest: {}.", name(low), name(high)));
    }

    /// The shades and the values at which they change.
    fn draw_key(&self, sheet: &mut Sheet, low: f64, high: f64) {
        let label = shorten(&self.label, TEXT, sheet.width);
        if !label.is_empty() {
            sheet.y += 16.0;
            sheet.svg.text("axis-label", (0.0, sheet.y), Anchor::Start, &label);
        }
        sheet.y += 8.0;
        let step = (sheet.width.min(360.0) - 20.0) / SHADES as f64;
        let (first, last) = (self.scale.even(low), self.scale.even(high));
        for shade in 0..SHADES {
            let x = 4.0 + step * shade as f64;
            let area = Area::new(x, sheet.y, x + step, sheet.y + 10.0);
            sheet.svg.rect(&format!("cell h{shade}"), area, "");
        }
        for edge in [0, 3, 6, 9] {
            let share = edge as f64 / SHADES as f64;
            let value = self.scale.value(first + (last - first) * share);
            let x = 4.0 + step * edge as f64;
            let text = format::significant(value, 2);
            let anchor = if edge == 0 { Anchor::Start } else { Anchor::Middle };
            let x = if edge == 0 { 0.0 } else { x };
            sheet.svg.text("tick", (x, sheet.y + 24.0), anchor, &text);
        }
        sheet.y += 34.0;
    }

    /// Draws the names of rows and columns; says where the cells go.
    fn draw_names(&self, sheet: &mut Sheet) -> Grid {
        let widest = |names: &[String]| names.iter().map(|name| text_width(name, TEXT)).fold(0.0, f64::max);
        let names = widest(&self.rows).min(sheet.width * 0.3);
        let left = names + 8.0;
        let cell_width = ((sheet.width - left) / self.columns.len() as f64).min(90.0);
        let cell_height = if self.rows.len() <= 40 { 22.0 } else { 14.0 };
        if !self.columns_label.is_empty() {
            sheet.y += 14.0;
            let label = shorten(&self.columns_label, TEXT, sheet.width - left);
            sheet.svg.text("axis-label", (left, sheet.y), Anchor::Start, &label);
            sheet.y += 4.0;
        }
        let columns = widest(&self.columns);
        let flat = columns + 6.0 <= cell_width;
        let few_digits = columns <= 3.0 * TEXT * 0.6;
        let room = if flat || few_digits { 16.0 } else { columns.min(110.0) + 6.0 };
        let top = sheet.y + room;
        // Flat names that are too wide are thinned out, upright ones need a line each.
        let needed = if few_digits { columns + 6.0 } else { TEXT };
        let every = (needed / cell_width).ceil().max(1.0) as usize;
        for (index, name) in self.columns.iter().enumerate().step_by(every) {
            let x = left + cell_width * (index as f64 + 0.5);
            if flat || few_digits {
                sheet.svg.text("tick", (x, top - 5.0), Anchor::Middle, name);
            } else {
                let name = shorten(name, TEXT, 110.0);
                let at = (x + 4.0, top - 5.0);
                sheet.svg.turned_text("tick", at, Anchor::Start, &name, -90.0);
            }
        }
        for (index, name) in self.rows.iter().enumerate() {
            let y = top + cell_height * (index as f64 + 0.5) + 4.0;
            let name = shorten(name, TEXT, names + 1.0);
            sheet.svg.text("tick", (names, y), Anchor::End, &name);
        }
        sheet.y = top + cell_height * self.rows.len() as f64 + 4.0;
        Grid { left, top, cell: (cell_width, cell_height) }
    }

    fn draw_cells(&self, sheet: &mut Sheet, grid: &Grid, low: f64, high: f64) {
        let text = |value: f64| format::significant(value, 2);
        let held = |cell: &(usize, usize, f64)| self.scale.holds(cell.2);
        let widest = self.cells().filter(held).map(|cell| text_width(&text(cell.2), 11.0));
        let has_room = widest.fold(0.0, f64::max) + 4.0 <= grid.cell.0 && grid.cell.1 >= 18.0;
        for (row, column, value) in self.cells() {
            let x = grid.left + grid.cell.0 * column as f64;
            let y = grid.top + grid.cell.1 * row as f64;
            let area = Area::new(x, y, x + grid.cell.0, y + grid.cell.1);
            let tip = format!("{}, {}: {}", self.rows[row], self.columns[column], format::significant(value, 4));
            if !self.scale.holds(value) {
                sheet.svg.rect("cell missing", area, &tip);
                continue;
            }
            let shade = self.shade(value, low, high);
            sheet.svg.rect(&format!("cell h{shade}"), area, &tip);
            if has_room {
                let at = (x + grid.cell.0 / 2.0, y + grid.cell.1 / 2.0 + 4.0);
                let class = if shade < 5 { "cell-text low" } else { "cell-text high" };
                sheet.svg.text(class, at, Anchor::Middle, &text(value));
            }
        }
    }

    fn shade(&self, value: f64, low: f64, high: f64) -> usize {
        let (low, high) = (self.scale.even(low), self.scale.even(high));
        let share = (self.scale.even(value) - low) / (high - low);
        if share.is_nan() { 0 } else { ((share * SHADES as f64) as usize).min(SHADES - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors() -> HeatMap {
        HeatMap {
            title: "Relative error".to_owned(),
            label: "Relative error of the weights".to_owned(),
            rows: vec!["q_proj".to_owned(), "down_proj".to_owned()],
            columns: (0..3).map(|layer| layer.to_string()).collect(),
            columns_label: "Layer".to_owned(),
            values: vec![vec![0.09, 0.1, f64::NAN], vec![0.2, 0.99]],
            scale: Scale::Log,
        }
    }

    #[test]
    fn the_whole_plot() {
        insta::assert_snapshot!(errors().draw(super::super::WIDE).replace("><", ">\n<"));
    }

    #[test]
    fn both_ends_have_their_shade() {
        let map = errors();
        assert_eq!(map.shade(0.09, 0.09, 0.99), 0);
        assert_eq!(map.shade(0.99, 0.09, 0.99), 8);
        assert_eq!(map.shade(1.0, 1.0, 1.0), 0);
    }

    #[test]
    fn missing_values_are_counted() {
        let svg = errors().draw(360.0);
        assert_eq!(svg.matches("cell missing").count(), 2);
        assert!(svg.contains("2 values left out"), "{svg}");
        assert!(HeatMap::default().draw(360.0).contains("No data"));
    }
}
