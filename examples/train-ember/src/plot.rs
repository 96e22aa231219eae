//! The course of a training, drawn from its log.

use std::{
    collections::BTreeMap,
    ops::Range,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use plotters::{coord::Shift, prelude::*};

use crate::Line;

const FONT: &str = "sans-serif";
const SIZE: (u32, u32) = (900, 880);
/// Units of a marked measurement.
const POINT: u32 = 2;

const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
const GREY: RGBColor = RGBColor(0x90, 0x90, 0x90);
const GRID: RGBColor = RGBColor(0xe6, 0xe6, 0xe6);
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xb2);
const ORANGE: RGBColor = RGBColor(0xd5, 0x5e, 0x00);
const GREEN: RGBColor = RGBColor(0x00, 0x9e, 0x73);

/// Writes `DIR/STEM.svg`: loss, share of right answers and nats per token of the held-out text
/// against the tokens seen, with the stages told apart.
///
/// # Errors
/// If the log holds no step, or the file cannot be written.
pub fn plot(lines: &[Line], dir: &Path, stem: &str) -> Result<PathBuf> {
    let course = Course::new(lines)?;
    let svg = dir.join(format!("{stem}.svg"));
    course
        .draw(&SVGBackend::new(&svg, SIZE).into_drawing_area())
        .with_context(|| format!("{} cannot be drawn", svg.display()))?;
    Ok(svg)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// A number at so many million tokens.
type Points = Vec<(f64, f64)>;

/// The points of the curves.
#[derive(Debug, Default, PartialEq)]
struct Course {
    loss: Points,
    exact: Points,
    digits: Points,
    variables: Points,
    held_out: Points,
    /// Million tokens at which each stage begins.
    stages: BTreeMap<usize, f64>,
    /// Million tokens in all.
    end: f64,
}

/// One of the pictures below each other.
struct Panel<'a> {
    heading: String,
    range: Range<f64>,
    series: Vec<(&'a str, &'a Points, RGBColor, bool)>,
}

impl Course {
    fn new(lines: &[Line]) -> Result<Self> {
        let mut course = Self::default();
        for line in lines {
            let before = course.end;
            let (stage, tokens) = match line {
                Line::Steps { stage, tokens, loss, .. } => {
                    let at = *tokens as f64 / 1e6;
                    course.loss.push((at, *loss));
                    (stage, at)
                }
                Line::Probe { stage, tokens, exact, digits, variables, held_out, .. } => {
                    let at = *tokens as f64 / 1e6;
                    course.exact.push((at, *exact));
                    course.digits.push((at, *digits));
                    course.variables.extend(variables.map(|exact| (at, exact)));
                    course.held_out.push((at, *held_out));
                    (stage, at)
                }
            };
            // A line is written at the end of its steps: the stage began at the latest where the
            // line before ends.
            course.stages.entry(*stage).or_insert(before);
            course.end = tokens;
        }
        ensure!(!course.loss.is_empty(), "the log holds no steps to draw");
        Ok(course)
    }

    fn panels(&self) -> [Panel<'_>; 3] {
        let last = |points: &Points| points.last().map_or(f64::NAN, |point| point.1);
        [
            Panel {
                heading: format!(
                    "Training loss, nats by weight; last {:.3}; not comparable between stages",
                    last(&self.loss)
                ),
                range: around(&self.loss),
                series: vec![("loss", &self.loss, BLUE, false)],
            },
            Panel {
                heading: format!(
                    "Found, held-out words and text; last {:.3} of the hidden numbers exact",
                    last(&self.exact)
                ),
                // Room for the names of the stages.
                range: 0.0..1.12,
                series: vec![
                    ("variables, exact", &self.variables, GREEN, true),
                    ("numbers, digits", &self.digits, ORANGE, true),
                    ("numbers, exact", &self.exact, BLUE, true),
                ],
            },
            Panel {
                heading: format!("Held-out text, nats a token; last {:.3}", last(&self.held_out)),
                range: around(&self.held_out),
                series: vec![("held out", &self.held_out, BLUE, true)],
            },
        ]
    }

    fn draw(&self, area: &Area<'_>) -> Result<()> {
        area.fill(&WHITE)?;
        let parts = area.split_evenly((3, 1));
        for (panel, part) in self.panels().iter().zip(&parts) {
            self.panel(panel, part)?;
        }
        area.present()?;
        Ok(())
    }

    fn panel(&self, panel: &Panel<'_>, area: &Area<'_>) -> Result<()> {
        let text = |size: u32, color: &'static RGBColor| {
            TextStyle::from((FONT, size).into_font()).color(color)
        };
        let mut chart = ChartBuilder::on(area)
            .caption(&panel.heading, text(17, &INK))
            .margin(10)
            .margin_right(24)
            .x_label_area_size(44)
            .y_label_area_size(52)
            .build_cartesian_2d(0.0..self.end.max(1e-9), panel.range.clone())?;
        chart
            .configure_mesh()
            .bold_line_style(GRID.stroke_width(1))
            .light_line_style(TRANSPARENT)
            .axis_style(GREY.stroke_width(1))
            .label_style(text(14, &INK))
            .axis_desc_style(text(14, &INK))
            .x_desc("million tokens")
            .x_labels(10)
            .x_label_formatter(&|at| format!("{}", (at * 1e6).round() / 1e6))
            .y_labels(6)
            .draw()?;
        for (stage, from) in &self.stages {
            let ends = [(*from, panel.range.start), (*from, panel.range.end)];
            chart.draw_series(DashedLineSeries::new(ends, 4, 4, GREY.stroke_width(1)))?;
            let offset = (4, 2);
            let label = EmptyElement::at(ends[1])
                + Text::new(format!("stage {stage}"), offset, text(12, &GREY));
            chart.draw_series(std::iter::once(label))?;
        }
        for &(name, points, color, marked) in &panel.series {
            let style = color.stroke_width(2);
            let line = chart.draw_series(LineSeries::new(points.iter().copied(), style))?;
            line.label(name).legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
            if marked {
                let point = |at: &(f64, f64)| Circle::new(*at, POINT, color.filled());
                chart.draw_series(points.iter().map(point))?;
            }
        }
        if panel.series.len() > 1 {
            chart
                .configure_series_labels()
                .position(SeriesLabelPosition::LowerRight)
                .margin(12)
                .legend_area_size(26)
                .label_font(text(14, &INK))
                .background_style(WHITE.mix(0.9))
                .draw()?;
        }
        Ok(())
    }
}

/// A range from just below the least to just above the most.
fn around(points: &Points) -> Range<f64> {
    let values = || points.iter().map(|point| point.1);
    let (least, most) = (values().fold(f64::MAX, f64::min), values().fold(f64::MIN, f64::max));
    if least > most {
        return 0.0..1.0;
    }
    let margin = 0.06 * (most - least).max(1e-3);
    least - margin..most + margin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(stage: usize, tokens: u64, loss: f64) -> Line {
        Line::Steps { step: 1, stage, tokens, seconds: 1.0, loss, norm: 1.0, rate: 1.0, speed: 1.0 }
    }

    fn log() -> Vec<Line> {
        let probe = Line::Probe {
            step: 2,
            stage: 0,
            tokens: 2_000_000,
            length: 256,
            needles: 4,
            exact: 0.25,
            digits: 0.5,
            variables: Some(0.125),
            held_out: 5.0,
        };
        vec![steps(0, 1_000_000, 8.0), steps(0, 2_000_000, 6.0), probe, steps(1, 3_000_000, 4.0)]
    }

    #[test]
    fn a_log_is_told_apart_into_its_series() {
        let expected = Course {
            loss: vec![(1.0, 8.0), (2.0, 6.0), (3.0, 4.0)],
            exact: vec![(2.0, 0.25)],
            digits: vec![(2.0, 0.5)],
            variables: vec![(2.0, 0.125)],
            held_out: vec![(2.0, 5.0)],
            stages: [(0, 0.0), (1, 2.0)].into(),
            end: 3.0,
        };
        assert_eq!(Course::new(&log()).unwrap(), expected);
        assert!(Course::new(&[]).unwrap_err().to_string().contains("no steps"));
        assert_eq!(around(&vec![(0.0, 5.0)]), 5.0 - 6e-5..5.0 + 6e-5);
    }

    #[test]
    fn a_log_is_drawn() {
        let dir = tempfile::tempdir().unwrap();
        let svg = plot(&log(), dir.path(), "training").unwrap();
        let svg = std::fs::read_to_string(svg).unwrap();
        for text in [
            "Training loss",
            "last 4.000",
            "0.250 of the hidden numbers",
            "stage 1",
            "million tokens",
        ] {
            assert!(svg.contains(text), "{text} is not in {svg}");
        }
        // The chart's three lines and four points are there.
        assert!(svg.matches("<polyline").count() >= 5 && svg.matches("<circle").count() == 4);
        // Nothing is drawn where nothing can be written.
        assert!(plot(&log(), &dir.path().join("missing"), "training").is_err());
    }
}
