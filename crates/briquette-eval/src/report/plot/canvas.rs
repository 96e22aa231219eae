use std::{
    fs,
    path::{Path, PathBuf},
};

use plotters::{
    coord::Shift,
    prelude::*,
    style::{
        FontStyle, register_font,
        text_anchor::{HPos, Pos, VPos},
    },
};

use super::color::PAPER;
use crate::{Error, Result, files};

/// The name a viewer of an SVG understands; in a PNG it is the font registered under it.
const FONT: &str = "sans-serif";
/// Pixels of a PNG for one unit of the drawing, so that text is sharp on dense screens.
const PNG_SCALE: i32 = 2;
/// What every PNG ends with: the type and the checksum of its last chunk.
const PNG_END: &[u8] = b"IEND\xaeB`\x82";

/// Something drawn in whole units, with the origin at the top left.
pub trait Picture {
    /// Width and height.
    fn size(&self) -> (u32, u32);
    /// Draws everything but the background.
    #[doc(hidden)]
    fn draw<DB: DrawingBackend>(&self, canvas: &Canvas<DB>) -> Drawn;
}

/// The result of a drawing operation. Backends have errors of different types, of which the text is kept.
pub(super) type Drawn = std::result::Result<(), String>;

/// Writes `DIR/STEM.svg` and `DIR/STEM.png`.
///
/// # Errors
/// [`Error::Write`].
pub fn save(picture: &impl Picture, dir: &Path, stem: &str) -> Result<[PathBuf; 2]> {
    let svg = dir.join(format!("{stem}.svg"));
    let png = dir.join(format!("{stem}.png"));
    let (width, height) = picture.size();
    let scale = PNG_SCALE as u32;
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT).map_err(|_| {
        Error::Write { path: png.clone(), message: "the built-in font cannot be read".into() }
    })?;
    // The backends that write files lose what a full disk refuses of the last block.
    let mut text = String::new();
    render(picture, SVGBackend::with_string(&mut text, (width, height)), 1)
        .map_err(|message| Error::Write { path: svg.clone(), message })?;
    files::write(&svg, text)?;
    files::write_by(&png, |path| {
        render(picture, BitMapBackend::new(path, (width * scale, height * scale)), PNG_SCALE)?;
        let whole = fs::read(path).is_ok_and(|bytes| bytes.ends_with(PNG_END));
        if whole { Ok(()) } else { Err("No space left on device".into()) }
    })?;
    Ok([svg, png])
}

fn render<DB: DrawingBackend>(picture: &impl Picture, backend: DB, scale: i32) -> Drawn {
    let area = backend.into_drawing_area();
    area.fill(&PAPER).map_err(|error| error.to_string())?;
    let canvas = Canvas { area, scale };
    picture.draw(&canvas)?;
    canvas.area.present().map_err(|error| error.to_string())
}

/// Where a text lies about its point.
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

/// A surface of either format, in units of the drawing.
#[allow(missing_debug_implementations)]
pub struct Canvas<DB: DrawingBackend> {
    area: DrawingArea<DB, Shift>,
    scale: i32,
}

impl<DB: DrawingBackend> Canvas<DB> {
    fn at(&self, (x, y): (i32, i32)) -> (i32, i32) {
        (x * self.scale, y * self.scale)
    }

    pub(super) fn fill(&self, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Drawn {
        let shape = Rectangle::new([self.at(from), self.at(to)], color.filled());
        self.area.draw(&shape).map_err(|error| error.to_string())
    }

    pub(super) fn line(&self, points: &[(i32, i32)], width: u32, color: RGBColor) -> Drawn {
        let points: Vec<_> = points.iter().map(|point| self.at(*point)).collect();
        let style = color.stroke_width(width * self.scale as u32);
        self.area.draw(&PathElement::new(points, style)).map_err(|error| error.to_string())
    }

    /// A horizontal dashed line.
    pub(super) fn dashes(&self, (from, y): (i32, i32), to: i32, color: RGBColor) -> Drawn {
        let mut x = from;
        while x < to {
            self.line(&[(x, y), ((x + 6).min(to), y)], 2, color)?;
            x += 11;
        }
        Ok(())
    }

    /// A dashed path: `on` units drawn, `off` left out, along all of it.
    pub(super) fn dashed(
        &self,
        points: &[(f64, f64)],
        width: u32,
        color: RGBColor,
        (on, off): (f64, f64),
    ) -> Drawn {
        let round = |(x, y): (f64, f64)| (x.round() as i32, y.round() as i32);
        // How far into a dash and its gap the path is.
        let mut phase = 0.0;
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let length = (x1 - x0).hypot(y1 - y0);
            let at = |way: f64| {
                let share = if length > 0.0 { way / length } else { 0.0 };
                (x0 + (x1 - x0) * share, y0 + (y1 - y0) * share)
            };
            let mut way = 0.0;
            while way < length {
                let drawn = phase < on;
                let next = if drawn { on - phase } else { on + off - phase };
                let end = (way + next).min(length);
                if drawn {
                    self.line(&[round(at(way)), round(at(end))], width, color)?;
                }
                phase = (phase + end - way) % (on + off);
                way = end;
            }
        }
        Ok(())
    }

    pub(super) fn marker(&self, at: (i32, i32), marker: Marker, color: RGBColor) -> Drawn {
        let (x, y) = self.at(at);
        let r = 5 * self.scale;
        let style = color.filled();
        let polygon = |points: Vec<(i32, i32)>| {
            self.area.draw(&Polygon::new(points, style)).map_err(|error| error.to_string())
        };
        match marker {
            Marker::Circle => {
                self.area.draw(&Circle::new((x, y), r, style)).map_err(|error| error.to_string())
            }
            Marker::Square => {
                let r = r * 9 / 10;
                polygon(vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)])
            }
            Marker::Triangle => {
                polygon(vec![(x, y - r - r / 5), (x + r + r / 5, y + r), (x - r - r / 5, y + r)])
            }
            Marker::Diamond => {
                let r = r + r / 4;
                polygon(vec![(x, y - r), (x + r, y), (x, y + r), (x - r, y)])
            }
        }
    }

    /// Text centred vertically on its point.
    pub(super) fn text(
        &self,
        at: (i32, i32),
        align: Align,
        size: i32,
        color: RGBColor,
        text: &str,
    ) -> Drawn {
        self.write(at, align, size, color, FontTransform::None, text)
    }

    /// Text that reads upwards, its middle on the point.
    pub(super) fn upward(&self, at: (i32, i32), size: i32, color: RGBColor, text: &str) -> Drawn {
        self.write(at, Align::Middle, size, color, FontTransform::Rotate270, text)
    }

    fn write(
        &self,
        at: (i32, i32),
        align: Align,
        size: i32,
        color: RGBColor,
        transform: FontTransform,
        text: &str,
    ) -> Drawn {
        let horizontal = match align {
            Align::Left => HPos::Left,
            Align::Middle => HPos::Center,
            Align::Right => HPos::Right,
        };
        let style = TextStyle::from((FONT, size * self.scale).into_font())
            .color(&color)
            .transform(transform)
            .pos(Pos::new(horizontal, VPos::Center));
        self.area.draw_text(text, &style, self.at(at)).map_err(|error| error.to_string())
    }
}
