use std::path::{Path, PathBuf};

use briquette_eval::stats::Estimate;
use serde::Serialize;

use super::{
    collect::Collected,
    differences::Differences,
    key::{Column, FULL, NONE, Row, compare_budgets},
    measure::{Measure, Measures},
};
use crate::{
    Result,
    budget_axis::BudgetAxis,
    plot::{
        ColorScale, Drawing, Key, Line, LineChart, LinePoint, Style, Tiles, XAxis, YAxis, inline,
        save,
    },
};

/// Charts on one sheet of a file; more go to a second.
const SHEET: usize = 24;
const SHEET_COLUMNS: usize = 3;
/// Bytes of drawings on a whole page.
pub(super) const ROOM: usize = 2_800_000;
/// Bytes of charts of one kind.
const ROOM_OF_KIND: usize = 900_000;
/// Bytes of those that are closed at first.
const ROOM_FOLDED: usize = 300_000;

/// Charts of one kind under one legend.
#[derive(Debug)]
pub(super) struct Figures {
    /// The name of its files.
    pub(super) stem: String,
    pub(super) title: String,
    /// Explanation of what the charts show, and how.
    pub(super) note: String,
    pub(super) legend: Vec<Key>,
    /// The measure that the colours of maps show.
    pub(super) colors: Option<ColorScale>,
    pub(super) charts: Vec<Chart>,
    /// Whether it is closed until a reader asks.
    pub(super) folded: bool,
}

/// A chart, and by what a reader may filter it.
#[derive(Debug)]
pub(super) struct Chart {
    pub(super) drawing: Drawing,
    pub(super) tags: Tags,
}

/// Policy, budget, task and time of the question that a part of the page is about. A filter hides
/// a part about another one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Tags {
    pub(super) policy: Option<String>,
    pub(super) budget: Option<String>,
    pub(super) task: Option<String>,
    pub(super) ask: Option<&'static str>,
}

impl Tags {
    pub(super) fn of(column: &Column) -> Self {
        Self {
            task: Some(column.task.clone()).filter(|task| !task.is_empty()),
            ask: Some(column.question()).filter(|ask| !ask.is_empty()),
            ..Self::default()
        }
    }
}

/// The maps that a page may still take.
#[derive(Debug, Default)]
pub(super) struct MapRoom {
    /// Tiles drawn on all maps together.
    tiles: usize,
    /// Maps left out, so that the page stays small.
    pub(super) left: usize,
}

impl MapRoom {
    const TILES: usize = 12_000;

    /// A chart of each map, as far as there is room.
    pub(super) fn charts<'a>(
        &mut self,
        column: &Column,
        maps: impl IntoIterator<Item = (&'a Row, Tiles)>,
    ) -> Vec<Chart> {
        let mut charts = Vec::new();
        for (row, map) in maps {
            if self.tiles + map.len() > Self::TILES {
                self.left += 1;
                continue;
            }
            self.tiles += map.len();
            let (policy, budget) = (Some(row.policy.clone()), Some(row.budget.clone()));
            let tags = Tags { policy, budget, ..Tags::of(column) };
            charts.push(Chart { drawing: map.drawing(), tags });
        }
        charts
    }
}

/// Figures as the template takes them.
#[derive(Debug, Serialize)]
pub(super) struct FiguresView {
    title: String,
    note: String,
    legend: Vec<LegendView>,
    /// The scale of colours.
    colors: Option<String>,
    charts: Vec<ChartView>,
    /// Charts that the page has no room for.
    left: usize,
    stem: String,
    folded: bool,
}

#[derive(Debug, Serialize)]
struct LegendView {
    name: String,
    swatch: String,
}

#[derive(Debug, Serialize)]
struct ChartView {
    svg: String,
    tags: Tags,
}

impl Figures {
    /// As many charts as there is room for on the page, which has so many bytes left.
    pub(super) fn view(&self, room: &mut usize) -> FiguresView {
        let mut charts = Vec::new();
        let mut one = if self.folded { ROOM_FOLDED } else { ROOM_OF_KIND };
        for chart in &self.charts {
            let svg = inline::svg(&chart.drawing);
            if svg.len() > one.min(*room) {
                break;
            }
            one -= svg.len();
            *room -= svg.len();
            charts.push(ChartView { svg, tags: chart.tags.clone() });
        }
        let legend = |key: &Key| LegendView { name: key.name.clone(), swatch: inline::swatch(key) };
        FiguresView {
            title: self.title.clone(),
            note: self.note.clone(),
            legend: self.legend.iter().map(legend).collect(),
            colors: self.colors.as_ref().map(|colors| inline::svg(&colors.drawing())),
            left: self.charts.len() - charts.len(),
            charts,
            stem: self.stem.clone(),
            folded: self.folded,
        }
    }

    /// Writes them as SVG and PNG. Returns the files.
    pub(super) fn save(&self, dir: &Path) -> Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        let colors = self.colors.as_ref().map(ColorScale::drawing);
        for (number, charts) in (1..).zip(self.charts.chunks(SHEET)) {
            let drawings: Vec<Drawing> = charts.iter().map(|chart| chart.drawing.clone()).collect();
            let sheet = Drawing::sheet(
                &self.title,
                &self.legend,
                colors.as_ref(),
                &drawings,
                SHEET_COLUMNS,
            );
            let stem = match number {
                1 => self.stem.clone(),
                number => format!("{}-sheet-{number}", self.stem),
            };
            files.extend(save(&sheet, dir, &stem)?);
        }
        Ok(files)
    }
}

/// Data that every section draws from.
#[derive(Debug)]
pub(super) struct Data<'a> {
    pub(super) collected: &'a Collected,
    pub(super) measures: &'a Measures,
    pub(super) differences: &'a Differences,
    pub(super) models: Vec<&'a str>,
    /// Without the full cache.
    policies: Vec<&'a str>,
}

impl<'a> Data<'a> {
    pub(super) fn new(
        collected: &'a Collected,
        measures: &'a Measures,
        differences: &'a Differences,
    ) -> Self {
        let models = collected.each(|row| &row.model);
        let mut policies = collected.each(|row| &row.policy);
        policies.retain(|policy| *policy != FULL);
        policies.sort_by(|a, b| super::natural::compare(a, b));
        Self { collected, measures, differences, models, policies }
    }

    /// How a policy looks in every chart.
    pub(super) fn style(&self, policy: &str) -> Style {
        match self.policies.iter().position(|other| *other == policy) {
            Some(index) => Style::Series(index),
            None => Style::Reference,
        }
    }

    /// `MODEL: text` where there are several models.
    pub(super) fn titled(&self, model: &str, text: &str) -> String {
        if self.models.len() > 1 { format!("{model}: {text}") } else { text.to_owned() }
    }

    pub(super) fn rows(&self, model: &str) -> Vec<&'a Row> {
        self.collected.rows().filter(|row| row.model == model).collect()
    }

    /// Budgets of a model's policies, in order; those of policies without one at the end.
    pub(super) fn budgets(&self, model: &str) -> Vec<&'a str> {
        let rows = self.rows(model);
        let mut budgets: Vec<&str> =
            rows.iter().filter(|row| !row.is_full()).map(|row| row.budget.as_str()).collect();
        budgets.sort_by(|a, b| (*a == NONE).cmp(&(*b == NONE)).then(compare_budgets(a, b)));
        budgets.dedup();
        budgets
    }

    /// Charts of one kind under one legend; without those whose lines would have one point each.
    pub(super) fn figures(
        &self,
        stem: &str,
        title: &str,
        note: &str,
        charts: Vec<(Tags, LineChart)>,
    ) -> Figures {
        let drawn = charts.into_iter().filter(|(_, chart)| chart.has_lines());
        let (tags, charts): (Vec<Tags>, Vec<LineChart>) = drawn.unzip();
        Figures {
            stem: stem.into(),
            title: title.into(),
            note: note.into(),
            legend: self.legend(&charts),
            colors: None,
            charts: charts
                .iter()
                .zip(tags)
                .map(|(chart, tags)| Chart { drawing: chart.drawing(), tags })
                .collect(),
            folded: false,
        }
    }

    /// The legend of these charts: every policy they draw.
    fn legend(&self, charts: &[LineChart]) -> Vec<Key> {
        let drawn = |name: &str| {
            charts
                .iter()
                .flat_map(|chart| &chart.series)
                .any(|series| series.name == name && !series.points.is_empty())
        };
        let names = [FULL].into_iter().chain(self.policies.iter().copied());
        names
            .filter(|name| drawn(name))
            .map(|name| Key { name: name.into(), style: self.style(name) })
            .collect()
    }

    /// A measure against the budget, a line a policy: a chart for each unit of budgets, since
    /// numbers of tokens and shares have no axis in common. All have one range upwards. None where
    /// no policy with a budget has the value.
    pub(super) fn against_budget(
        &self,
        model: &str,
        title: &str,
        column: Option<&Column>,
        measure: Measure,
    ) -> Vec<(Tags, LineChart)> {
        let title = self.titled(model, title);
        // From itself the full cache is at 0, and at 1.
        let is_distance = matches!(measure, Measure::Kl | Measure::Agreement);
        let rows = self.rows(model).into_iter().filter(|row| !(is_distance && row.is_full()));
        let found: Vec<(&Row, Estimate)> =
            rows.filter_map(|row| Some((row, self.measures.get(row, column, measure)?))).collect();
        if found.iter().all(|(row, _)| row.is_full()) {
            return Vec::new();
        }
        let mut holds = if measure.is_share() { vec![0.0, 1.0] } else { Vec::new() };
        for (_, Estimate { mean, interval, .. }) in &found {
            holds.extend([*mean].into_iter().chain(interval.iter().flatten().copied()));
        }
        let y = YAxis { label: measure.label().into(), holds };
        let with_budget = found.iter().map(|(row, _)| row.budget.as_str());
        let axes = BudgetAxis::each(with_budget.filter(|budget| *budget != NONE));
        let several = axes.len() > 1;
        let chart = |axis: &BudgetAxis| {
            let mut series: Vec<Line> = Vec::new();
            for (row, estimate) in &found {
                // One value whatever the budget of others.
                let across = row.budget == NONE;
                let place = if across { Some(0.0) } else { axis.place(&row.budget) };
                let Some(x) = place else { continue };
                let point = LinePoint {
                    x,
                    y: estimate.mean,
                    // A full cache has no whiskers in the way of others.
                    interval: estimate.interval.filter(|_| !row.is_full()),
                    tip: format!("{}: {}", row.label(), measure.tip(estimate)),
                };
                self.push(&mut series, row, across, point);
            }
            for line in &mut series {
                line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
            }
            let unit = axis.unit.label();
            let chart = LineChart {
                title: if several { format!("{title}; {unit}") } else { title.clone() },
                x: XAxis::Marked(axis.marked()),
                y: y.clone(),
                series,
            };
            (column.map(Tags::of).unwrap_or_default(), chart)
        };
        axes.iter().map(chart).collect()
    }

    /// Adds a point to the line of its policy.
    pub(super) fn push(&self, series: &mut Vec<Line>, row: &Row, across: bool, point: LinePoint) {
        let of_policy = |line: &&mut Line| line.name == row.policy && line.across == across;
        match series.iter_mut().find(of_policy) {
            Some(line) => line.points.push(point),
            None => series.push(Line {
                name: row.policy.clone(),
                style: self.style(&row.policy),
                points: vec![point],
                marked: true,
                across,
            }),
        }
    }

    /// One chart a budget, a line a policy, the full cache in each. All have one range upwards.
    pub(super) fn by_budget(
        &self,
        model: &str,
        column: &Column,
        title: &str,
        (x, y): (&str, &YAxis),
        marked: bool,
        points: impl Fn(&Row) -> Vec<LinePoint>,
    ) -> Vec<(Tags, LineChart)> {
        let rows: Vec<(&Row, Vec<LinePoint>)> =
            self.rows(model).into_iter().map(|row| (row, points(row))).collect();
        let mut holds = y.holds.clone();
        for point in rows.iter().flat_map(|(_, points)| points) {
            holds.push(point.y);
            if marked {
                holds.extend(point.interval.into_iter().flatten());
            }
        }
        let mut charts = Vec::new();
        for budget in self.budgets(model) {
            let here = |row: &Row| row.is_full() || row.budget == budget;
            let series: Vec<Line> = rows
                .iter()
                .filter(|(row, points)| here(row) && !points.is_empty())
                .map(|(row, points)| Line {
                    name: row.policy.clone(),
                    style: self.style(&row.policy),
                    points: points.clone(),
                    marked,
                    across: false,
                })
                .collect();
            if series.iter().all(|line| line.style == Style::Reference) {
                continue;
            }
            let named =
                if budget == NONE { "no budget".into() } else { format!("budget {budget}") };
            let chart = LineChart {
                title: self.titled(model, &format!("{title}, {named}")),
                x: XAxis::Numbers { label: x.into() },
                y: YAxis { label: y.label.clone(), holds: holds.clone() },
                series,
            };
            charts.push((Tags { budget: Some(budget.to_owned()), ..Tags::of(column) }, chart));
        }
        charts
    }
}

/// A folder and file name of any label.
pub(super) fn stem(label: &str) -> String {
    let safe = |c: char| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    label.chars().take(80).map(safe).collect()
}
