//! Pictures, drawn as SVG and shown as PNG.

mod canvas;
mod color;
mod drawing;
mod heatmap;
pub(super) mod inline;
mod line_chart;
mod lines;
mod marked_axis;
mod overview;
mod scale;
mod tiles;

pub use canvas::save;
pub(super) use drawing::{Drawing, Key, Style};
pub use heatmap::{HeatMap, Panel};
pub(super) use line_chart::{Line, LineChart, LinePoint, XAxis, YAxis};
pub use lines::{LinePanel, Lines};
pub use marked_axis::MarkedAxis;
pub use overview::{Overview, Point, Series};
pub(super) use scale::short;
pub(super) use tiles::{ColorScale, Tiles};
