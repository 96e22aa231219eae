use super::{
    canvas::{Align, Canvas, Drawn, Picture},
    color::{GREY, GRID, INK, ink_on_ramp, ramp},
};

/// Shares over prompt length (to the right) and needle depth (downwards), one panel a setting.
#[derive(Clone, Debug)]
pub struct HeatMap {
    /// Above everything.
    pub title: String,
    /// Below the title, smaller.
    pub subtitle: String,
    /// Headings of the columns of panels.
    pub columns: Vec<String>,
    /// Rows of panels, each with its heading.
    pub rows: Vec<(String, Vec<Panel>)>,
    /// Prompt lengths, in tokens.
    pub lengths: Vec<usize>,
    /// Depths, in percent.
    pub depths: Vec<u32>,
}

/// Shares by depth, then by length; `None` where nothing was measured.
pub type Panel = Vec<Vec<Option<f64>>>;

const CELL_HEIGHT: i32 = 30;
const CELL_WIDTH: i32 = 62;
/// Headings need this much, however few the lengths.
const PANEL_WIDTH: i32 = 230;
const LEFT: i32 = 76;
const TOP: i32 = 104;
const GAP: (i32, i32) = (34, 66);
const BAR: (i32, i32) = (14, 74);

impl HeatMap {
    fn cell(&self) -> (i32, i32) {
        let columns = self.lengths.len().max(1) as i32;
        (CELL_WIDTH.max(PANEL_WIDTH / columns), CELL_HEIGHT)
    }

    fn panel(&self) -> (i32, i32) {
        let (width, height) = self.cell();
        (width * self.lengths.len() as i32, height * self.depths.len() as i32)
    }

    fn origin(&self, column: usize, row: usize) -> (i32, i32) {
        let (width, height) = self.panel();
        (LEFT + column as i32 * (width + GAP.0), TOP + row as i32 * (height + GAP.1))
    }
}

impl Picture for HeatMap {
    fn size(&self) -> (u32, u32) {
        let (right, _) = self.origin(self.columns.len(), 0);
        let (_, bottom) = self.origin(0, self.rows.len());
        let title = 40 + 12 * self.title.chars().count() as i32;
        ((right + BAR.1).max(title) as u32, (bottom - GAP.1 + 62) as u32)
    }

    fn draw(&self, canvas: &Canvas) -> Drawn {
        canvas.text((20, 24), Align::Left, 22, INK, &self.title)?;
        canvas.text((20, 50), Align::Left, 15, GREY, &self.subtitle)?;
        let (width, height) = self.panel();
        let cell = self.cell();
        for (r, (label, panels)) in self.rows.iter().enumerate() {
            for (c, panel) in panels.iter().enumerate() {
                let (x, y) = self.origin(c, r);
                let heading = match (self.columns[c].as_str(), label.as_str()) {
                    (column, "") => column.to_owned(),
                    ("", label) => label.to_owned(),
                    (column, label) => format!("{label}, {column}"),
                };
                canvas.text((x + width / 2, y - 14), Align::Middle, 15, INK, &heading)?;
                self.cells(canvas, (x, y), panel)?;
                for (i, length) in self.lengths.iter().enumerate() {
                    let at = (x + cell.0 * i as i32 + cell.0 / 2, y + height + 12);
                    canvas.text(at, Align::Middle, 14, INK, &length.to_string())?;
                }
                if r + 1 == self.rows.len() {
                    let at = (x + width / 2, y + height + 34);
                    canvas.text(at, Align::Middle, 14, INK, "length (tokens)")?;
                }
                if c == 0 {
                    for (i, depth) in self.depths.iter().enumerate() {
                        let at = (x - 8, y + cell.1 * i as i32 + cell.1 / 2);
                        canvas.text(at, Align::Right, 14, INK, &depth.to_string())?;
                    }
                    canvas.upward((24, y + height / 2), 14, INK, "needle depth (%)")?;
                }
            }
        }
        self.bar(canvas)
    }
}

impl HeatMap {
    fn cells(&self, canvas: &Canvas, (x, y): (i32, i32), panel: &Panel) -> Drawn {
        let cell = self.cell();
        for (i, line) in panel.iter().enumerate() {
            for (j, share) in line.iter().enumerate() {
                let from = (x + cell.0 * j as i32, y + cell.1 * i as i32);
                let (to, middle) = (
                    (from.0 + cell.0 - 1, from.1 + cell.1 - 1),
                    (from.0 + cell.0 / 2, from.1 + cell.1 / 2),
                );
                match share {
                    Some(share) => {
                        canvas.fill(from, to, ramp(*share))?;
                        let text = format!("{share:.2}");
                        canvas.text(middle, Align::Middle, 15, ink_on_ramp(*share), &text)?;
                    }
                    None => canvas.fill(from, to, GRID)?,
                }
            }
        }
        Ok(())
    }

    /// The scale of colours, beside the first row.
    fn bar(&self, canvas: &Canvas) -> Drawn {
        let (x, y) = self.origin(self.columns.len(), 0);
        let (x, height) = (x - GAP.0 + 18, self.panel().1);
        for step in 0..height {
            let share = 1.0 - f64::from(step) / f64::from(height - 1).max(1.0);
            canvas.fill((x, y + step), (x + BAR.0, y + step + 1), ramp(share))?;
        }
        let marks: &[f64] =
            if height >= 3 * CELL_HEIGHT { &[0.0, 0.25, 0.5, 0.75, 1.0] } else { &[0.0, 1.0] };
        for mark in marks {
            let at = (x + BAR.0 + 6, y + ((1.0 - mark) * f64::from(height - 1)).round() as i32);
            canvas.text(at, Align::Left, 13, INK, &format!("{mark}"))?;
        }
        Ok(())
    }
}
