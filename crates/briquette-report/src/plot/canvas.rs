use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

use briquette_eval::{Error, Result, files, steering::steers};
use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};
use resvg::{
    tiny_skia::{Pixmap, Transform},
    usvg::{Options, Tree, fontdb::Database},
};

use super::color::PAPER;

/// The family that an SVG asks its viewer for. A PNG has [`FONTS`] in its place.
const FONT: &str = "sans-serif";
/// Pixels of a PNG for one unit of the drawing, so that text is sharp on dense screens.
const PNG_SCALE: u32 = 2;

/// The built-in font alone, so that a PNG is the same on every machine.
static FONTS: LazyLock<Arc<Database>> = LazyLock::new(|| {
    let mut fonts = Database::new();
    fonts.load_font_data(epaint_default_fonts::UBUNTU_LIGHT.to_vec());
    let family =
        fonts.faces().next().and_then(|face| face.families.first()).map(|(name, _)| name.clone());
    fonts.set_sans_serif_family(family.unwrap_or_default());
    Arc::new(fonts)
});

/// Something drawn in whole units, with the origin at the top left.
pub trait Picture {
    /// Width and height.
    fn size(&self) -> (u32, u32);
    /// Draws everything but the background.
    #[doc(hidden)]
    fn draw(&self, canvas: &Canvas) -> Drawn;
}

/// The result of a drawing operation: the text of the backend's error.
pub(super) type Drawn = std::result::Result<(), String>;

/// Writes `DIR/STEM.svg` and `DIR/STEM.png`, which shows the SVG.
///
/// # Errors
/// [`Error::Write`].
pub fn save(picture: &impl Picture, dir: &Path, stem: &str) -> Result<[PathBuf; 2]> {
    let svg = dir.join(format!("{stem}.svg"));
    let png = dir.join(format!("{stem}.png"));
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |message| Error::Write { path, message }
    };
    let text = draw(picture).map_err(failed(&svg))?;
    let pixels = render(&text).map_err(failed(&png))?;
    files::write(&svg, text)?;
    files::write(&png, pixels)?;
    Ok([svg, png])
}

fn draw(picture: &impl Picture) -> std::result::Result<String, String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, picture.size()).into_drawing_area();
    area.fill(&PAPER).map_err(|error| error.to_string())?;
    let canvas = Canvas { area };
    picture.draw(&canvas)?;
    canvas.area.present().map_err(|error| error.to_string())?;
    drop(canvas);
    Ok(text)
}

/// A PNG of an SVG, [`PNG_SCALE`] times its size.
fn render(svg: &str) -> std::result::Result<Vec<u8>, String> {
    let options = Options { fontdb: FONTS.clone(), ..Options::default() };
    let tree = Tree::from_str(svg, &options).map_err(|error| error.to_string())?;
    let size = tree.size().to_int_size();
    let pixmap = Pixmap::new(size.width() * PNG_SCALE, size.height() * PNG_SCALE);
    let mut pixmap = pixmap.ok_or("the picture is too large")?;
    let scale = Transform::from_scale(PNG_SCALE as f32, PNG_SCALE as f32);
    resvg::render(&tree, scale, &mut pixmap.as_mut());
    pixmap.encode_png().map_err(|error| error.to_string())
}

/// A character as a drawing has it: XML knows few control characters and no noncharacters, and a
/// mark of direction would turn the text around it.
pub(super) fn drawn(c: char) -> char {
    match c {
        '\t' | '\n' => c,
        '\u{fffe}' | '\u{ffff}' => char::REPLACEMENT_CHARACTER,
        c if steers(c) => char::REPLACEMENT_CHARACTER,
        c => c,
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

/// A surface in units of the drawing.
#[allow(missing_debug_implementations)]
pub struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

impl Canvas<'_> {
    pub(super) fn fill(&self, from: (i32, i32), to: (i32, i32), color: RGBColor) -> Drawn {
        let shape = Rectangle::new([from, to], color.filled());
        self.area.draw(&shape).map_err(|error| error.to_string())
    }

    pub(super) fn line(&self, points: &[(i32, i32)], width: u32, color: RGBColor) -> Drawn {
        let path = PathElement::new(points, color.stroke_width(width));
        self.area.draw(&path).map_err(|error| error.to_string())
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

    pub(super) fn marker(&self, (x, y): (i32, i32), marker: Marker, color: RGBColor) -> Drawn {
        let r = 5;
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
        let style = TextStyle::from((FONT, size).into_font())
            .color(&color)
            .transform(transform)
            .pos(Pos::new(horizontal, VPos::Center));
        let text: String = text.chars().map(drawn).collect();
        self.area.draw_text(&text, &style, at).map_err(|error| error.to_string())
    }
}
