use std::collections::BTreeSet;

use briquette_eval::{stats::Estimate, tasks::Question};

use super::super::{
    collect::Scores,
    figure::{Data, Figures, Tags},
    key::{Column, Row, Unit},
    measure::Measure,
};
use crate::plot::{LineChart, LinePoint, YAxis};

/// Scores against budgets; against turns and lengths where samples have them.
pub(in super::super) fn accuracy(data: &Data<'_>) -> Vec<Figures> {
    let mut charts: Vec<(Tags, LineChart)> = Vec::new();
    for model in &data.models {
        let all = [Question::Before, Question::After].map(|ask| Column::all(Some(ask)));
        for column in all.into_iter().chain(data.collected.columns()) {
            let (label, score) = (column.label(), Measure::Score);
            charts.extend(data.against_budget(model, &label, Some(&column), score));
        }
    }
    let mut figures = [
        data.figures(
            "accuracy",
            "Score against budget",
            "Mean score of the samples; whiskers are 95 % intervals. The dashed line is the full cache; another line across is a \
             policy without a budget.",
            charts,
        ),
        data.figures(
            "turns",
            "Score by turn",
            "Samples of several questions about one context, each behind those before.",
            turns(data),
        ),
        data.figures(
            "lengths",
            "Score against length",
            "Mean score of the samples of one length.",
            lengths(data),
        ),
    ];
    figures[1..].iter_mut().for_each(|figures| figures.folded = true);
    figures.into()
}

fn share() -> YAxis {
    YAxis { label: Measure::Score.label().into(), holds: vec![0.0, 1.0] }
}

fn turns(data: &Data<'_>) -> Vec<(Tags, LineChart)> {
    let mut charts = Vec::new();
    for model in &data.models {
        for column in data.collected.columns() {
            let points = |row: &Row| {
                let scores = data.collected.scores.get(row).and_then(|tasks| tasks.get(&column));
                let turns = scores.map_or(&[][..], |scores| &scores.by_turn);
                let lowest = scores.map_or(0.0, Scores::lowest);
                let turn =
                    |(turn, scores): (usize, &Vec<f64>)| point(turn as f64, "turn", lowest, scores);
                (1..).zip(turns).map(turn).collect()
            };
            let axes = ("turn", &share());
            charts.extend(data.by_budget(model, &column, &column.label(), axes, true, points));
        }
    }
    charts
}

fn lengths(data: &Data<'_>) -> Vec<(Tags, LineChart)> {
    let mut charts = Vec::new();
    for model in &data.models {
        for column in data.collected.columns() {
            let of = |row: &Row| data.collected.scores.get(row)?.get(&column);
            if data.collected.lengths(model, &column).is_empty() {
                continue;
            }
            let points = |row: &Row| {
                let Some(scores) = of(row) else { return Vec::new() };
                let point = |(length, units): (&u64, &BTreeSet<Unit>)| {
                    let of_length: Vec<f64> =
                        units.iter().filter_map(|unit| scores.by_unit.get(unit)).copied().collect();
                    point(*length as f64, "length", scores.lowest(), &of_length)
                };
                scores.lengths.iter().map(point).collect()
            };
            let label = format!("{} by length", column.label());
            let axes = ("length, tokens", &share());
            charts.extend(data.by_budget(model, &column, &label, axes, true, points));
        }
    }
    charts
}

fn point(x: f64, axis: &str, lowest: f64, scores: &[f64]) -> LinePoint {
    let estimate = Estimate::of_scores_from(lowest, scores);
    LinePoint {
        x,
        y: estimate.mean,
        interval: estimate.interval,
        tip: format!("{axis} {x}: {}", Measure::Score.tip(&estimate)),
    }
}
