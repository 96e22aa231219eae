use super::{
    drawing::{About, Align, Drawing, Ink, Mark},
    scale::short,
};

/// Values over two axes, as coloured tiles.
#[derive(Clone, Debug)]
pub(crate) struct Tiles {
    pub(crate) title: String,
    /// The axis to the right, and what stands along it.
    pub(crate) x: (String, Vec<String>),
    /// The axis downwards.
    pub(crate) y: (String, Vec<String>),
    /// `[y][x]`; `None` where nothing was measured.
    pub(crate) values: Vec<Vec<Option<f64>>>,
    /// The values of the two ends of the colours.
    pub(crate) range: (f64, f64),
    /// Name of the values, for who points at a tile; empty for none.
    pub(crate) measure: String,
}

const LEFT: f64 = 62.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 12.0;
const WIDTH: f64 = 360.0;

/// The colours of the tiles from one end to the other: one for all maps of a kind.
#[derive(Clone, Debug)]
pub(crate) struct ColorScale {
    /// Name of the measure that the colours show.
    pub(crate) label: String,
    /// The values of the two ends.
    pub(crate) ends: [String; 2],
}

impl ColorScale {
    const STEPS: usize = 11;
    const STEP: f64 = 14.0;
    const HEIGHT: f64 = 20.0;

    pub(crate) fn drawing(&self) -> Drawing {
        // A character is given a generous width, since every viewer has a font of its own.
        let room = |text: &str| 7.0 * text.chars().count() as f64 + 8.0;
        let [low, high] = &self.ends;
        let left = room(&self.label) + room(low);
        let right = left + Self::STEPS as f64 * Self::STEP;
        let title = format!("Colours: {}, from {low} to {high}", self.label);
        let mut drawing = Drawing::new(right + room(high), Self::HEIGHT, title);
        let middle = Self::HEIGHT / 2.0;
        for step in 0..Self::STEPS {
            drawing.marks.push(Mark::Rect {
                at: (left + Self::STEP * step as f64, middle - 5.0),
                size: (Self::STEP, 10.0),
                ink: Ink::Ramp(step as f64 / (Self::STEPS - 1) as f64),
            });
        }
        drawing.text((0.0, middle), Align::Left, 12, Ink::Muted, self.label.as_str());
        drawing.text((left - 6.0, middle), Align::Right, 12, Ink::Muted, low.as_str());
        drawing.text((right + 6.0, middle), Align::Left, 12, Ink::Muted, high.as_str());
        drawing
    }
}

impl Tiles {
    /// Tiles it draws.
    pub(crate) fn len(&self) -> usize {
        self.values.iter().map(Vec::len).sum()
    }

    pub(crate) fn drawing(&self) -> Drawing {
        let (columns, rows) = (self.x.1.len().max(1), self.y.1.len().max(1));
        let wide = (WIDTH - LEFT - RIGHT) / columns as f64;
        let high = (230.0 / rows as f64).clamp(5.0, 26.0);
        let bottom = TOP + high * rows as f64;
        let mut drawing = Drawing::new(WIDTH, bottom + 42.0, self.title.as_str());
        drawing.text((4.0, 13.0), Align::Left, 14, Ink::Text, self.title.as_str());
        let every = |room: f64, size: f64| (room / size).ceil().max(1.0) as usize;
        let longest = self.x.1.iter().map(|name| name.chars().count()).max().unwrap_or(0);
        for (i, name) in
            self.x.1.iter().enumerate().step_by(every(7.0 * (longest as f64 + 1.0), wide))
        {
            let x = LEFT + wide * (i as f64 + 0.5);
            drawing.text((x, bottom + 12.0), Align::Middle, 12, Ink::Muted, name.as_str());
        }
        for (i, name) in self.y.1.iter().enumerate().step_by(every(14.0, high)) {
            let y = TOP + high * (i as f64 + 0.5);
            drawing.text((LEFT - 6.0, y), Align::Right, 12, Ink::Muted, name.as_str());
        }
        let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
        drawing.text((middle, bottom + 32.0), Align::Middle, 12, Ink::Muted, self.x.0.as_str());
        drawing.upward((12.0, (TOP + bottom) / 2.0), 12, Ink::Muted, self.y.0.as_str());
        // Numbers stand on tiles that are large enough for them.
        let said = wide >= 34.0 && high >= 15.0;
        for (r, row) in self.values.iter().enumerate() {
            for (c, value) in row.iter().enumerate() {
                let at = (LEFT + wide * c as f64, TOP + high * r as f64);
                let gap = if said { 1.0 } else { 0.0 };
                let size = (wide - gap, high - gap);
                match value {
                    Some(value) => self.tile(&mut drawing, (r, c), *value, at, size, said),
                    None => drawing.text(
                        (at.0 + wide / 2.0, at.1 + high / 2.0),
                        Align::Middle,
                        11,
                        Ink::Muted,
                        "–",
                    ),
                }
            }
        }
        drawing
    }

    fn tile(
        &self,
        drawing: &mut Drawing,
        (row, column): (usize, usize),
        value: f64,
        at: (f64, f64),
        size: (f64, f64),
        said: bool,
    ) {
        let (low, high) = self.range;
        let share = if high > low { ((value - low) / (high - low)).clamp(0.0, 1.0) } else { 0.5 };
        let tile = Mark::Rect { at, size, ink: Ink::Ramp(share) };
        if !said && self.measure.is_empty() {
            drawing.marks.push(tile);
            return;
        }
        let mut marks = vec![tile];
        if said {
            marks.push(Mark::Text {
                at: (at.0 + size.0 / 2.0, at.1 + size.1 / 2.0),
                align: Align::Middle,
                size: 11,
                ink: Ink::OnRamp(share),
                text: short((value * 100.0).round() / 100.0),
                upward: false,
            });
        }
        let tip = (!self.measure.is_empty()).then(|| {
            // Without the unit.
            let name = |axis: &str| axis.split(',').next().unwrap_or_default().to_owned();
            let (x, y) = (name(&self.x.0), name(&self.y.0));
            let (column, row) = (&self.x.1[column], &self.y.1[row]);
            format!("{x} {column}, {y} {row}: {} {}", self.measure, short(value))
        });
        drawing.marks.push(Mark::Group { about: About { tip, policy: None }, marks });
    }
}
