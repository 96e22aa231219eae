use plotters::style::RGBColor;

use super::{
    canvas::{Align, Canvas, Drawn, Marker, Picture},
    color::{GREY, GRID, INK, category},
    marked_axis::MarkedAxis,
};
use crate::stats::Proportion;

/// Shares of several series along axes, such as policies at budgets; one panel a measure and axis,
/// with error bars.
#[derive(Clone, Debug)]
pub struct Overview {
    /// Above everything.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Headings of the columns of panels.
    pub columns: Vec<String>,
    /// Axis labels of the rows of panels.
    pub rows: Vec<String>,
    /// The axes to the right, such as budgets in tokens and in per cent. Each has all rows of
    /// panels.
    pub axes: Vec<MarkedAxis>,
    /// The compared series.
    pub series: Vec<Series>,
    /// The full cache, one value a panel: `[row][column]`.
    pub full: Option<Vec<Vec<Proportion>>>,
}

/// One of the things compared.
#[derive(Clone, Debug)]
pub struct Series {
    /// Its label.
    pub name: String,
    /// Points along each axis.
    pub points: Vec<Vec<Point>>,
}

/// A series at a place.
#[derive(Clone, Debug)]
pub struct Point {
    /// The number on the axis.
    pub x: f64,
    /// One value a panel: `[row][column]`.
    pub values: Vec<Vec<Proportion>>,
}

/// Name of the full cache in the legend.
const FULL: &str = "full cache";
const LEFT: i32 = 80;
const LEGEND_TOP: i32 = 80;
const LEGEND_LINE: i32 = 24;
/// From the last line of the legend to the panels.
const BELOW_LEGEND: i32 = 50;
const PANEL: (i32, i32) = (390, 200);
const GAP: (i32, i32) = (36, 34);
/// From the panels of an axis to those of the next.
const AXIS_GAP: i32 = 92;
/// A character of a name below the axis takes so much at most.
const CHARACTER: f64 = 9.0;
const SERIES_GAP: i32 = 18;

impl Picture for Overview {
    fn size(&self) -> (u32, u32) {
        let axes = self.axes.len().max(1) as i32;
        let height = self.top() + axes * (self.height() + AXIS_GAP) - AXIS_GAP + 58;
        (self.width() as u32, height as u32)
    }

    fn draw(&self, canvas: &Canvas) -> Drawn {
        canvas.text((20, 24), Align::Left, 22, INK, &self.title)?;
        canvas.text((20, 50), Align::Left, 15, GREY, &self.subtitle)?;
        self.legend(canvas)?;
        for axis in 0..self.axes.len() {
            for r in 0..self.rows.len() {
                for c in 0..self.columns.len() {
                    self.panel(canvas, axis, r, c)?;
                }
            }
        }
        Ok(())
    }
}

impl Overview {
    fn width(&self) -> i32 {
        LEFT + self.columns.len() as i32 * (PANEL.0 + GAP.0) - GAP.0 + 24
    }

    /// Of the panels of one axis.
    fn height(&self) -> i32 {
        self.rows.len() as i32 * (PANEL.1 + GAP.1) - GAP.1
    }

    fn top(&self) -> i32 {
        self.legend_places().last().map_or(LEGEND_TOP, |place| place.1) + BELOW_LEGEND
    }

    /// Names in the legend: the full cache, if it was measured, and the policies.
    fn names(&self) -> impl Iterator<Item = &str> {
        let full = self.full.is_some().then_some(FULL);
        full.into_iter().chain(self.series.iter().map(|series| series.name.as_str()))
    }

    /// Where each name stands, in lines as wide as the picture. A character is given a generous
    /// width, since every viewer of an SVG has a font of its own.
    fn legend_places(&self) -> Vec<(i32, i32)> {
        let (mut x, mut y) = (LEFT, LEGEND_TOP);
        let place = |name: &str| {
            let width = 50 + 8 * name.chars().count() as i32;
            if x > LEFT && x + width > self.width() {
                (x, y) = (LEFT, y + LEGEND_LINE);
            }
            x += width;
            (x - width, y)
        };
        self.names().map(place).collect()
    }

    fn legend(&self, canvas: &Canvas) -> Drawn {
        let first = usize::from(self.full.is_some());
        for (i, (name, (x, y))) in self.names().zip(self.legend_places()).enumerate() {
            match i.checked_sub(first) {
                Some(series) => {
                    canvas.line(&[(x, y), (x + 26, y)], 2, category(series))?;
                    canvas.marker((x + 13, y), Marker::nth(series), category(series))?;
                }
                None => canvas.dashes((x, y), x + 28, GREY)?,
            }
            canvas.text((x + 34, y), Align::Left, 15, INK, name)?;
        }
        Ok(())
    }

    fn panel(&self, canvas: &Canvas, number: usize, row: usize, column: usize) -> Drawn {
        let axis = &self.axes[number];
        let left = LEFT + column as i32 * (PANEL.0 + GAP.0);
        let first = self.top() + number as i32 * (self.height() + AXIS_GAP);
        let top = first + row as i32 * (PANEL.1 + GAP.1);
        let (right, bottom) = (left + PANEL.0, top + PANEL.1);
        let y = |share: f64| bottom - (share * f64::from(PANEL.1)).round() as i32;

        for mark in [0.0, 0.25, 0.5, 0.75, 1.0] {
            canvas.line(&[(left, y(mark)), (right, y(mark))], 1, GRID)?;
            if column == 0 {
                canvas.text((left - 8, y(mark)), Align::Right, 14, INK, &format!("{mark}"))?;
            }
        }
        canvas.line(&[(left, top), (left, bottom), (right, bottom)], 1, GREY)?;
        if row == 0 {
            canvas.text(
                (left + PANEL.0 / 2, top - 18),
                Align::Middle,
                16,
                INK,
                &self.columns[column],
            )?;
        }
        if column == 0 {
            canvas.upward((22, top + PANEL.1 / 2), 15, INK, &self.rows[row])?;
        }

        let wide = f64::from(PANEL.0);
        let x = |place: f64| left + (wide * place).round() as i32;
        if row + 1 == self.rows.len() {
            for (place, name) in axis.named(CHARACTER / wide) {
                canvas.text((x(place), bottom + 14), Align::Middle, 14, INK, name)?;
            }
            canvas.text((left + PANEL.0 / 2, bottom + 38), Align::Middle, 15, INK, &axis.label)?;
        }

        if let Some(full) = &self.full {
            canvas.dashes((left, y(full[row][column].rate)), right, GREY)?;
        }
        let slot = (wide * axis.least_step()) as i32;
        let gap = SERIES_GAP.min(slot / (self.series.len() as i32 + 1));
        for (i, series) in self.series.iter().enumerate() {
            // Beside one another, so that no error bar hides another one.
            let aside = gap * (2 * i as i32 - (self.series.len() as i32 - 1)) / 2;
            let spot = |point: &Point| x(axis.place(point.x)) + aside;
            let points: Vec<_> = series.points[number]
                .iter()
                .map(|point| (spot(point), point.values[row][column]))
                .collect();
            let path: Vec<_> = points.iter().map(|(x, value)| (*x, y(value.rate))).collect();
            if path.len() > 1 {
                canvas.line(&path, 1, category(i))?;
            }
            for (x, value) in points {
                bar(canvas, x, y(value.low), y(value.high), category(i))?;
                canvas.marker((x, y(value.rate)), Marker::nth(i), category(i))?;
            }
        }
        Ok(())
    }
}

fn bar(canvas: &Canvas, x: i32, low: i32, high: i32, color: RGBColor) -> Drawn {
    canvas.line(&[(x, low), (x, high)], 1, color)?;
    for end in [low, high] {
        canvas.line(&[(x - 4, end), (x + 4, end)], 1, color)?;
    }
    Ok(())
}
