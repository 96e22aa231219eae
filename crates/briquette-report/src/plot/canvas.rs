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

use super::{
    color::PAPER,
    drawing::{Align, Drawing, Mark, Marker},
};

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

/// The result of a drawing operation: the text of the backend's error.
type Drawn = std::result::Result<(), String>;

/// Writes `DIR/STEM.svg` and `DIR/STEM.png`, which shows the SVG.
///
/// # Errors
/// [`Error::Write`].
pub(crate) fn save(drawing: &Drawing, dir: &Path, stem: &str) -> Result<[PathBuf; 2]> {
    let [svg, png] = ["svg", "png"].map(|ending| dir.join(format!("{stem}.{ending}")));
    let failed = |path: &PathBuf| {
        let path = path.clone();
        move |message| Error::Write { path, message }
    };
    let text = draw(drawing).map_err(failed(&svg))?;
    let pixels = render(&text).map_err(failed(&png))?;
    files::write(&svg, text)?;
    files::write(&png, pixels)?;
    Ok([svg, png])
}

fn draw(drawing: &Drawing) -> std::result::Result<String, String> {
    let mut text = String::new();
    let size = (drawing.width.ceil() as u32, drawing.height.ceil() as u32);
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    area.fill(&PAPER).map_err(|error| error.to_string())?;
    let canvas = Canvas { area };
    canvas.draw(&drawing.marks)?;
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

/// A surface in units of the drawing.
struct Canvas<'a> {
    area: DrawingArea<SVGBackend<'a>, Shift>,
}

fn whole((x, y): (f64, f64)) -> (i32, i32) {
    (x.round() as i32, y.round() as i32)
}

impl Canvas<'_> {
    /// Draws everything but the background.
    fn draw(&self, marks: &[Mark]) -> Drawn {
        for mark in marks {
            match mark {
                Mark::Line { points, ink, width, dash } => {
                    let (width, color) = ((width.round() as u32).max(1), ink.color());
                    match dash {
                        None => {
                            let points: Vec<_> = points.iter().copied().map(whole).collect();
                            self.line(&points, width, color)?;
                        }
                        Some(dash) => self.dashed(points, width, color, *dash)?,
                    }
                }
                Mark::Rect { at, size, ink } => {
                    let far = (at.0 + size.0, at.1 + size.1);
                    let shape = Rectangle::new([whole(*at), whole(far)], ink.color().filled());
                    self.area.draw(&shape).map_err(|error| error.to_string())?;
                }
                Mark::Point { at, marker, ink } => self.marker(whole(*at), *marker, ink.color())?,
                Mark::Text { at, align, size, ink, text, upward } => {
                    let horizontal = match align {
                        Align::Left => HPos::Left,
                        Align::Middle => HPos::Center,
                        Align::Right => HPos::Right,
                    };
                    let color = ink.color();
                    let turned =
                        if *upward { FontTransform::Rotate270 } else { FontTransform::None };
                    let style = TextStyle::from((FONT, *size).into_font())
                        .color(&color)
                        .transform(turned)
                        .pos(Pos::new(horizontal, VPos::Center));
                    let text: String = text.chars().map(drawn).collect();
                    let written = self.area.draw_text(&text, &style, whole(*at));
                    written.map_err(|error| error.to_string())?;
                }
                Mark::Group { marks, .. } => self.draw(marks)?,
            }
        }
        Ok(())
    }

    fn line(&self, points: &[(i32, i32)], width: u32, color: RGBColor) -> Drawn {
        let path = PathElement::new(points, color.stroke_width(width));
        self.area.draw(&path).map_err(|error| error.to_string())
    }

    /// A dashed path: `on` units drawn, `off` left out, along all of it.
    fn dashed(
        &self,
        points: &[(f64, f64)],
        width: u32,
        color: RGBColor,
        (on, off): (f64, f64),
    ) -> Drawn {
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
                    self.line(&[whole(at(way)), whole(at(end))], width, color)?;
                }
                phase = (phase + end - way) % (on + off);
                way = end;
            }
        }
        Ok(())
    }

    fn marker(&self, (x, y): (i32, i32), marker: Marker, color: RGBColor) -> Drawn {
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
}
