use super::{
    canvas::{Align, Canvas, Drawn, Marker, Picture},
    color::{GREY, GRID, INK, category},
};

/// Numbers from 0 on of several series at places in order, such as errors of policies by layer; one
/// panel a setting.
#[derive(Clone, Debug)]
pub struct Lines {
    /// Above everything.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Beside the panels.
    pub measure: String,
    /// Below the places.
    pub axis: String,
    /// The places along the axis, such as layers.
    pub places: Vec<String>,
    /// Names of the compared series.
    pub series: Vec<String>,
    /// One a setting.
    pub panels: Vec<LinePanel>,
}

/// One setting of [`Lines`].
#[derive(Clone, Debug)]
pub struct LinePanel {
    /// Above it.
    pub heading: String,
    /// For each series a number a place; `None` if it was not measured.
    pub values: Vec<Option<Vec<f64>>>,
}

const LEFT: i32 = 86;
const LEGEND_TOP: i32 = 80;
const LEGEND_LINE: i32 = 24;
/// From the last line of the legend to the panels.
const BELOW_LEGEND: i32 = 50;
const PANEL: (i32, i32) = (390, 230);
const GAP: (i32, i32) = (36, 92);
const COLUMNS: usize = 3;
/// Places whose labels stand beside one another without touching.
const LABELS: usize = 16;

impl Picture for Lines {
    fn size(&self) -> (u32, u32) {
        let rows = self.panels.len().div_ceil(COLUMNS).max(1) as i32;
        let height = self.top() + rows * (PANEL.1 + GAP.1) - GAP.1 + 58;
        (self.width() as u32, height as u32)
    }

    fn draw(&self, canvas: &Canvas) -> Drawn {
        canvas.text((20, 24), Align::Left, 22, INK, &self.title)?;
        canvas.text((20, 50), Align::Left, 15, GREY, &self.subtitle)?;
        for (i, (name, (x, y))) in self.series.iter().zip(self.legend_places()).enumerate() {
            canvas.line(&[(x, y), (x + 26, y)], 2, category(i))?;
            canvas.marker((x + 13, y), Marker::nth(i), category(i))?;
            canvas.text((x + 34, y), Align::Left, 15, INK, name)?;
        }
        self.panels.iter().enumerate().try_for_each(|(i, panel)| self.panel(canvas, i, panel))
    }
}

impl Lines {
    fn width(&self) -> i32 {
        // One panel is narrower than a title.
        let columns = self.panels.len().clamp(2, COLUMNS) as i32;
        LEFT + columns * (PANEL.0 + GAP.0) - GAP.0 + 24
    }

    fn top(&self) -> i32 {
        self.legend_places().last().map_or(LEGEND_TOP, |place| place.1) + BELOW_LEGEND
    }

    /// Where each name stands, in lines as wide as the picture. A character is given a generous
    /// width, since every viewer of an SVG has a font of its own.
    fn legend_places(&self) -> Vec<(i32, i32)> {
        let (mut x, mut y) = (LEFT, LEGEND_TOP);
        let place = |name: &String| {
            let width = 50 + 8 * name.chars().count() as i32;
            if x > LEFT && x + width > self.width() {
                (x, y) = (LEFT, y + LEGEND_LINE);
            }
            x += width;
            (x - width, y)
        };
        self.series.iter().map(place).collect()
    }

    /// The step between marks of the axis, and the end of it: the same for all panels.
    fn scale(&self) -> (f64, f64) {
        let values = self.panels.iter().flat_map(|panel| panel.values.iter().flatten().flatten());
        let most = values.copied().filter(|value| value.is_finite()).fold(0.0, f64::max);
        let step = nice_step(most / 5.0);
        (step, step * (most / step).ceil().max(1.0))
    }

    fn panel(&self, canvas: &Canvas, index: usize, panel: &LinePanel) -> Drawn {
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        let left = LEFT + column as i32 * (PANEL.0 + GAP.0);
        let top = self.top() + row as i32 * (PANEL.1 + GAP.1);
        let (right, bottom) = (left + PANEL.0, top + PANEL.1);
        let (step, end) = self.scale();
        let y = |value: f64| bottom - (value / end * f64::from(PANEL.1)).round() as i32;

        for mark in (0..=(end / step).round() as i32).map(|mark| f64::from(mark) * step) {
            canvas.line(&[(left, y(mark)), (right, y(mark))], 1, GRID)?;
            if column == 0 {
                canvas.text((left - 8, y(mark)), Align::Right, 14, INK, &label(mark, step))?;
            }
        }
        canvas.line(&[(left, top), (left, bottom), (right, bottom)], 1, GREY)?;
        canvas.text((left + PANEL.0 / 2, top - 18), Align::Middle, 16, INK, &panel.heading)?;
        if column == 0 {
            canvas.upward((22, top + PANEL.1 / 2), 15, INK, &self.measure)?;
        }
        let count = self.places.len().max(1);
        let x = |place: usize| left + PANEL.0 * (2 * place as i32 + 1) / (2 * count as i32);
        for (i, place) in self.places.iter().enumerate().step_by(count.div_ceil(LABELS)) {
            canvas.text((x(i), bottom + 14), Align::Middle, 14, INK, place)?;
        }
        canvas.text((left + PANEL.0 / 2, bottom + 38), Align::Middle, 15, INK, &self.axis)?;

        for (i, values) in panel.values.iter().enumerate() {
            let Some(values) = values else { continue };
            let path: Vec<_> =
                values.iter().enumerate().map(|(place, value)| (x(place), y(*value))).collect();
            if path.len() > 1 {
                canvas.line(&path, 2, category(i))?;
            }
            for at in path {
                canvas.marker(at, Marker::nth(i), category(i))?;
            }
        }
        Ok(())
    }
}

/// 1, 2 or 5 times a power of ten: the least that is not below `least`.
fn nice_step(least: f64) -> f64 {
    if !(least.is_finite() && least > 0.0) {
        return 0.2;
    }
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= least);
    factor.unwrap_or(10.0) * power
}

/// With as many digits behind the point as the step has.
fn label(mark: f64, step: f64) -> String {
    let digits = (-step.log10().floor()).max(0.0) as usize;
    format!("{mark:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_easy_to_read() {
        let steps = [0.013, 0.02, 0.3, 1.0, 70.0, 0.0].map(nice_step);
        for (found, expected) in steps.into_iter().zip([0.02, 0.02, 0.5, 1.0, 100.0, 0.2]) {
            assert!((found - expected).abs() < 1e-12, "{found} for {expected}");
        }
        assert_eq!(label(0.6, 0.2), "0.6");
        assert_eq!(label(40.0, 20.0), "40");
        assert_eq!(label(0.15, 0.05), "0.15");
    }
}
