use super::{
    drawing::{About, Align, Drawing, Ink, Mark, Style},
    marked_axis::MarkedAxis,
    scale::{Scale, short},
};

/// Series over one axis, with whiskers where a value has an interval.
#[derive(Clone, Debug)]
pub(crate) struct LineChart {
    pub(crate) title: String,
    pub(crate) x: XAxis,
    pub(crate) y: YAxis,
    pub(crate) series: Vec<Line>,
}

/// The axis to the right.
#[derive(Clone, Debug)]
pub(crate) enum XAxis {
    /// Numbers with the marks it is given. Series stand beside one another there, so that no
    /// whisker hides another.
    Marked(MarkedAxis),
    /// Numbers.
    Numbers { label: String },
}

/// The axis upwards.
#[derive(Clone, Debug)]
pub(crate) struct YAxis {
    /// The measure, with its unit.
    pub(crate) label: String,
    /// Values that the axis reaches beside those of the series, as both ends of a share, or the
    /// range of other charts.
    pub(crate) holds: Vec<f64>,
}

/// One of the things compared.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) style: Style,
    pub(crate) points: Vec<LinePoint>,
    /// Whether single points are marked; a curve of many is not.
    pub(crate) marked: bool,
    /// Whether it is one value wherever one looks, and so a line across.
    pub(crate) across: bool,
}

/// A value of a series.
#[derive(Clone, Debug)]
pub(crate) struct LinePoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) interval: Option<[f64; 2]>,
    /// Shown to who points at it.
    pub(crate) tip: String,
}

const SIZE: (f64, f64) = (420.0, 270.0);
const LEFT: f64 = 62.0;
const TOP: f64 = 34.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 46.0;
/// A character of a name below the axis takes so much at most.
const CHARACTER: f64 = 7.5;
/// Markers along a curve of many points.
const CURVE_MARKS: usize = 4;

impl LineChart {
    /// Whether a policy has two points, and so a line.
    pub(crate) fn has_lines(&self) -> bool {
        let is_line = |line: &Line| {
            matches!(line.style, Style::Series(_)) && !line.across && line.points.len() > 1
        };
        self.series.iter().any(is_line)
    }

    /// All that the upward axis must hold.
    fn values(&self) -> impl Iterator<Item = f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        points
            .flat_map(|point| [point.y].into_iter().chain(point.interval.into_iter().flatten()))
            .chain(self.y.holds.iter().copied())
    }

    pub(crate) fn drawing(&self) -> Drawing {
        let (right, bottom) = (SIZE.0 - RIGHT, SIZE.1 - BOTTOM);
        let (wide, high) = (right - LEFT, bottom - TOP);
        let scale = Scale::around(self.values());
        let y = |value: f64| bottom - high * scale.place(value);
        let mut drawing = Drawing::new(SIZE.0, SIZE.1, format!("{}: {}", self.title, self.y.label));
        drawing.text((4.0, 13.0), Align::Left, 14, Ink::Text, self.title.as_str());
        for tick in &scale.ticks {
            drawing.line(vec![(LEFT, y(*tick)), (right, y(*tick))], 1.0, Ink::Grid);
            drawing.text((LEFT - 7.0, y(*tick)), Align::Right, 12, Ink::Muted, short(*tick));
        }
        drawing.upward((13.0, TOP + high / 2.0), 12, Ink::Muted, self.y.label.as_str());
        let (label, across) = self.across(&mut drawing, (LEFT, wide), bottom);
        drawing.line(vec![(LEFT, bottom), (right, bottom)], 1.0, Ink::Muted);
        drawing.text((LEFT + wide / 2.0, SIZE.1 - 11.0), Align::Middle, 12, Ink::Muted, label);

        let beside = self.series.iter().filter(|series| !series.across).count();
        let mut turn = 0;
        for series in &self.series {
            let aside = match &self.x {
                XAxis::Marked(axis) if !series.across => {
                    let gap = 0.8 * wide * axis.least_step() / beside.max(1) as f64;
                    let gap = gap.min(12.0);
                    turn += 1;
                    gap * (turn as f64 - (beside as f64 + 1.0) / 2.0)
                }
                _ => 0.0,
            };
            let x = |value: f64| across(value) + aside;
            drawing.marks.push(self.line(series, &x, &y, (LEFT, right)));
        }
        drawing
    }

    /// Draws the marks of the axis to the right, and returns its label and where its values stand.
    fn across<'a>(
        &'a self,
        drawing: &mut Drawing,
        (left, wide): (f64, f64),
        bottom: f64,
    ) -> (&'a str, Box<dyn Fn(f64) -> f64>) {
        match &self.x {
            XAxis::Marked(axis) => {
                for (place, name) in axis.named(CHARACTER / wide) {
                    let x = left + wide * place;
                    drawing.line(vec![(x, bottom), (x, bottom + 4.0)], 1.0, Ink::Muted);
                    drawing.text((x, bottom + 13.0), Align::Middle, 12, Ink::Muted, name);
                }
                let axis_of_points = axis.clone();
                (&axis.label, Box::new(move |value| left + wide * axis_of_points.place(value)))
            }
            XAxis::Numbers { label } => {
                let points = self.series.iter().flat_map(|series| &series.points);
                let scale = Scale::within(points.map(|point| point.x));
                for tick in &scale.ticks {
                    let x = left + wide * scale.place(*tick);
                    drawing.line(vec![(x, bottom), (x, bottom + 4.0)], 1.0, Ink::Muted);
                    drawing.text((x, bottom + 13.0), Align::Middle, 12, Ink::Muted, short(*tick));
                }
                (label, Box::new(move |value| left + wide * scale.place(value)))
            }
        }
    }

    fn line(
        &self,
        series: &Line,
        x: &impl Fn(f64) -> f64,
        y: &impl Fn(f64) -> f64,
        (left, right): (f64, f64),
    ) -> Mark {
        let ink = series.style.ink();
        let mut marks = Vec::new();
        let finite = |point: &&LinePoint| point.y.is_finite() && point.x.is_finite();
        let points: Vec<&LinePoint> = series.points.iter().filter(finite).collect();
        let mut path: Vec<_> = points.iter().map(|point| (x(point.x), y(point.y))).collect();
        if let (true, [(_, y)]) = (series.across, &path[..]) {
            path = vec![(left, *y), (right, *y)];
        }
        if let (Some(marker), false) = (series.style.marker(), series.marked) {
            // A few along a curve, so that it is known without its colour; each series has its own
            // places.
            let (count, every) = (path.len(), (path.len() / CURVE_MARKS).max(1));
            let first = match series.style {
                Style::Series(index) => every * (index % 6) / 6,
                Style::Reference | Style::Frontier => 0,
            };
            for at in (first..count).step_by(every).map(|place| path[place]) {
                marks.push(Mark::Point { at, marker, ink });
            }
        }
        let width = if series.style == Style::Frontier {
            1.0
        } else if series.marked {
            1.5
        } else {
            2.0
        };
        if path.len() > 1 {
            marks.push(Mark::Line { points: path, ink, width, dash: series.style.dash() });
        }
        for point in points {
            let at = (if series.across { right } else { x(point.x) }, y(point.y));
            let mut inner = Vec::new();
            if let (Some([low, high]), true) = (point.interval, series.marked) {
                let (low, high) = (y(low), y(high));
                let (left, right) = (at.0 - 3.0, at.0 + 3.0);
                let points = vec![
                    (left, low),
                    (right, low),
                    (at.0, low),
                    (at.0, high),
                    (left, high),
                    (right, high),
                ];
                inner.push(Mark::Line { points, ink, width: 1.0, dash: None });
            }
            if let (Some(marker), true) = (series.style.marker(), series.marked) {
                inner.push(Mark::Point { at, marker, ink });
            }
            if !inner.is_empty() {
                let tip = Some(point.tip.clone());
                marks.push(Mark::Group { about: About { tip, policy: None }, marks: inner });
            }
        }
        let tip = (!series.marked || series.style == Style::Reference)
            .then(|| series.points.last().map_or(series.name.clone(), |point| point.tip.clone()));
        Mark::Group { about: About { tip, policy: Some(series.name.clone()) }, marks }
    }
}
