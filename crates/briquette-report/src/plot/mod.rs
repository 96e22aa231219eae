//! Pictures, drawn as SVG and shown as PNG.

mod canvas;
mod color;
mod drawing;
pub(super) mod inline;
mod line_chart;
mod marked_axis;
mod scale;
mod tiles;

pub(super) use canvas::save;
pub(super) use drawing::{Drawing, Key, Style};
pub(super) use line_chart::{Line, LineChart, LinePoint, XAxis, YAxis};
pub(super) use marked_axis::MarkedAxis;
pub(super) use scale::short;
pub(super) use tiles::{ColorScale, Tiles};
