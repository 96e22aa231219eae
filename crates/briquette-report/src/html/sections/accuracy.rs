use briquette_eval::{stats::Estimate, tasks::Question};

use super::super::{
    collect::Scores,
    figure::{Data, Figures, Tags},
    key::{Column, Row},
    measure::Measure,
};
use crate::plot::{LineChart, LinePoint, YAxis};

/// Lengths of which a chart is drawn; more are the lengths of texts as they come, not an axis.
const LENGTHS: std::ops::RangeInclusive<usize> = 2..=24;

/// Scores against budgets; against turns and lengths where samples have them.
pub(in super::super) fn accuracy(data: &Data<'_>) -> Vec<Figures> {
    let mut charts: Vec<(Tags, LineChart)> = Vec::new();
    for model in &data.models {
        for ask in [Question::Before, Question::After].map(Some) {
            let all = Column { task: String::new(), ask };
            let title = data.titled(model, &format!("all tasks, asked {}", all.ask()));
            let chart = data.against_budget(model, &title, Measure::Score, |row| {
                data.measures.overall(row, ask)
            });
            let tags = Tags { ask: Some(all.ask().into()), ..Tags::default() };
            charts.extend(chart.into_iter().map(|chart| (tags.clone(), chart)));
        }
        for column in data.collected.columns() {
            let title = data.titled(model, &column.label());
            let chart = data.against_budget(model, &title, Measure::Score, |row| {
                data.measures.get(row, Some(&column), Measure::Score)
            });
            charts.extend(chart.into_iter().map(|chart| (tags(&column), chart)));
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
    figures.into_iter().filter(|figures| !figures.charts.is_empty()).collect()
}

fn tags(column: &Column) -> Tags {
    Tags {
        task: Some(column.task.clone()),
        ask: column.ask.is_some().then(|| column.ask().to_owned()),
        ..Tags::default()
    }
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
            for (budget, chart) in
                data.by_budget(model, &column.label(), "turn", &share(), true, points)
            {
                charts.push((Tags { budget: Some(budget), ..tags(&column) }, chart));
            }
        }
    }
    charts
}

fn lengths(data: &Data<'_>) -> Vec<(Tags, LineChart)> {
    let mut charts = Vec::new();
    for model in &data.models {
        for column in data.collected.columns() {
            let of = |row: &Row| data.collected.scores.get(row)?.get(&column);
            let rows = data.rows(model);
            let all = rows.iter().filter_map(|row| of(row));
            let lengths: std::collections::BTreeSet<u64> =
                all.flat_map(|scores| scores.lengths.keys().copied()).collect();
            if !LENGTHS.contains(&lengths.len()) {
                continue;
            }
            let points = |row: &Row| {
                let lowest = of(row).map_or(0.0, Scores::lowest);
                let lengths = of(row).into_iter().flat_map(|scores| &scores.lengths);
                let point = |(length, scores): (&u64, &Vec<f64>)| {
                    point(*length as f64, "length", lowest, scores)
                };
                lengths.map(point).collect()
            };
            let label = format!("{} by length", column.label());
            for (budget, chart) in
                data.by_budget(model, &label, "length, tokens", &share(), true, points)
            {
                charts.push((Tags { budget: Some(budget), ..tags(&column) }, chart));
            }
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
