use plotters::style::RGBColor;

use super::color::{GREY, GRID, INK, category, ink_on_ramp, ramp};

/// A picture as a list of marks, which becomes a file by [`save`](super::save), and a part of a
/// page by [`svg`](super::inline::svg).
#[derive(Clone, Debug, Default)]
pub(crate) struct Drawing {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// Description for those who cannot see it.
    pub(crate) title: String,
    pub(super) marks: Vec<Mark>,
}

/// Ink that a mark is drawn with. On a page its colour follows the reader's scheme.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Ink {
    Text,
    Muted,
    Grid,
    /// The colour of one of several unordered things.
    Category(usize),
    /// The colour of a share, 0 to 1.
    Ramp(f64),
    /// A colour that can be read on the [`Ramp`](Self::Ramp) of the same share.
    OnRamp(f64),
}

impl Ink {
    pub(super) fn color(self) -> RGBColor {
        match self {
            Self::Text => INK,
            Self::Muted => GREY,
            Self::Grid => GRID,
            Self::Category(index) => category(index),
            Self::Ramp(share) => ramp(share),
            Self::OnRamp(share) => ink_on_ramp(share),
        }
    }
}

/// Alignment of a text to its point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Align {
    Left,
    Middle,
    Right,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Marker {
    Circle,
    Square,
    Triangle,
    Diamond,
}

impl Marker {
    pub(super) fn nth(index: usize) -> Self {
        [Self::Circle, Self::Square, Self::Triangle, Self::Diamond][index % 4]
    }
}

/// Units drawn and left out; `None` for a whole line.
pub(super) type Dash = Option<(f64, f64)>;

#[derive(Clone, Debug)]
pub(super) enum Mark {
    Line {
        points: Vec<(f64, f64)>,
        ink: Ink,
        width: f64,
        dash: Dash,
    },
    Rect {
        at: (f64, f64),
        size: (f64, f64),
        ink: Ink,
    },
    Point {
        at: (f64, f64),
        marker: Marker,
        ink: Ink,
    },
    Text {
        at: (f64, f64),
        align: Align,
        size: i32,
        ink: Ink,
        text: String,
        /// Reads upwards.
        upward: bool,
    },
    /// Marks of one thing.
    Group {
        about: About,
        marks: Vec<Mark>,
    },
}

/// Subject of a group of marks.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct About {
    /// Shown to who points at them.
    pub(crate) tip: Option<String>,
    /// The label of the policy, so that a page can hide it.
    pub(crate) policy: Option<String>,
}

impl Drawing {
    pub(super) fn new(width: f64, height: f64, title: impl Into<String>) -> Self {
        Self { width, height, title: title.into(), marks: Vec::new() }
    }

    pub(super) fn line(&mut self, points: Vec<(f64, f64)>, width: f64, ink: Ink) {
        self.marks.push(Mark::Line { points, ink, width, dash: None });
    }

    pub(super) fn text(
        &mut self,
        at: (f64, f64),
        align: Align,
        size: i32,
        ink: Ink,
        text: impl Into<String>,
    ) {
        self.marks.push(Mark::Text { at, align, size, ink, text: text.into(), upward: false });
    }

    pub(super) fn upward(&mut self, at: (f64, f64), size: i32, ink: Ink, text: impl Into<String>) {
        let (align, text) = (Align::Middle, text.into());
        self.marks.push(Mark::Text { at, align, size, ink, text, upward: true });
    }

    /// Several drawings on one sheet, in rows of `columns`, under a title, a legend and a scale of
    /// colours.
    pub(crate) fn sheet(
        title: &str,
        legend: &[Key],
        colors: Option<&Drawing>,
        drawings: &[Drawing],
        columns: usize,
    ) -> Self {
        const MARGIN: f64 = 16.0;
        let columns = columns.clamp(1, drawings.len().max(1));
        let widest = |of: fn(&Drawing) -> f64| drawings.iter().map(of).fold(0.0, f64::max);
        let (width, height) =
            (widest(|drawing| drawing.width) + MARGIN, widest(|drawing| drawing.height) + MARGIN);
        // A character is given a generous width, since every viewer has a font of its own.
        let room = |text: &str, character: f64| character * text.chars().count() as f64;
        let total = (MARGIN + width * columns as f64)
            .max(2.0 * MARGIN + room(title, 12.0))
            .max(2.0 * MARGIN + colors.map_or(0.0, |colors| colors.width));
        let mut sheet = Self::new(total, 0.0, title);
        sheet.text((MARGIN, 24.0), Align::Left, 20, Ink::Text, title);
        let (mut x, mut y) = (MARGIN, 54.0);
        for key in legend {
            let wide = 50.0 + room(&key.name, 8.0);
            if x > MARGIN && x + wide > total {
                (x, y) = (MARGIN, y + 22.0);
            }
            sheet.marks.extend(moved(key.swatch(), (x, y)));
            sheet.text((x + 34.0, y), Align::Left, 14, Ink::Text, key.name.as_str());
            x += wide;
        }
        let mut top = if legend.is_empty() { 48.0 } else { y + 24.0 };
        if let Some(colors) = colors {
            sheet.marks.extend(moved(colors.marks.clone(), (MARGIN, top)));
            top += colors.height + 16.0;
        }
        for (i, drawing) in drawings.iter().enumerate() {
            let (row, column) = (i / columns, i % columns);
            let by = (MARGIN + width * column as f64, top + height * row as f64);
            sheet.marks.extend(moved(drawing.marks.clone(), by));
        }
        sheet.height = top + height * drawings.len().div_ceil(columns) as f64;
        sheet
    }
}

/// A name in a legend, and how its line looks.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) style: Style,
}

/// How a series looks: by colour, by marker, and beyond six also by dashes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Style {
    /// The series that the others are compared with.
    Reference,
    /// The best of all of them.
    Frontier,
    /// One of them.
    Series(usize),
}

impl Style {
    pub(super) fn ink(self) -> Ink {
        match self {
            Self::Reference | Self::Frontier => Ink::Muted,
            Self::Series(index) => Ink::Category(index),
        }
    }

    pub(super) fn dash(self) -> Dash {
        match self {
            Self::Reference => Some((6.0, 5.0)),
            Self::Frontier => None,
            Self::Series(index) => {
                [None, Some((8.0, 3.0)), Some((2.0, 3.0)), Some((12.0, 4.0))][index / 6 % 4]
            }
        }
    }

    pub(super) fn marker(self) -> Option<Marker> {
        match self {
            Self::Reference | Self::Frontier => None,
            Self::Series(index) => Some(Marker::nth(index)),
        }
    }
}

impl Key {
    /// A short piece of its line, 28 units from the origin to the right.
    pub(super) fn swatch(&self) -> Vec<Mark> {
        let (ink, dash) = (self.style.ink(), self.style.dash());
        let line = Mark::Line { points: vec![(0.0, 0.0), (28.0, 0.0)], ink, width: 2.0, dash };
        let point = self.style.marker().map(|marker| Mark::Point { at: (14.0, 0.0), marker, ink });
        [line].into_iter().chain(point).collect()
    }
}

fn moved(marks: Vec<Mark>, (dx, dy): (f64, f64)) -> Vec<Mark> {
    let by = |(x, y): (f64, f64)| (x + dx, y + dy);
    marks
        .into_iter()
        .map(|mark| match mark {
            Mark::Line { points, ink, width, dash } => {
                Mark::Line { points: points.into_iter().map(by).collect(), ink, width, dash }
            }
            Mark::Rect { at, size, ink } => Mark::Rect { at: by(at), size, ink },
            Mark::Point { at, marker, ink } => Mark::Point { at: by(at), marker, ink },
            Mark::Text { at, align, size, ink, text, upward } => {
                Mark::Text { at: by(at), align, size, ink, text, upward }
            }
            Mark::Group { about, marks } => Mark::Group { about, marks: moved(marks, (dx, dy)) },
        })
        .collect()
}
