use briquette_eval::{stats::Estimate, tasks::Question};

use super::super::{
    figure::{Data, Figures, Tags},
    key::{Column, Row},
    measure::Measure,
};
use crate::plot::{Key, Line, LineChart, LinePoint, Style, XAxis, YAxis};

/// The name of the line of the best in the legend.
const FRONTIER: &str = "best so far";

/// Scores against the bytes that are held for them: the mean of the tasks, and each task.
pub(in super::super) fn pareto(data: &Data<'_>) -> Vec<Figures> {
    let mut charts = Vec::new();
    for model in &data.models {
        for ask in [Some(Question::Before), Some(Question::After), None] {
            let mut columns = data.collected.columns();
            columns.retain(|column| column.ask == ask);
            columns.insert(0, Column::all(ask));
            for column in &columns {
                let score = |row: &Row| data.measures.get(row, Some(column), Measure::Score);
                let chart = self::chart(data, model, &column.label(), score);
                charts.extend(chart.map(|chart| (Tags::of(column), chart)));
            }
        }
    }
    let mut figures = data.figures(
        "memory",
        "Score against bytes held",
        "Bytes of what is kept at the end of a sample, with its bookkeeping and without spare room, in per cent of the bytes of a \
         full cache's keys and values: further left is smaller, further up is better. The thin steps are the best score so far \
         from the left: no policy below them is the best for its bytes. The dashed line is the full cache.",
        charts,
    );
    figures.legend.push(Key { name: FRONTIER.into(), style: Style::Frontier });
    vec![figures]
}

fn chart(
    data: &Data<'_>,
    model: &str,
    what: &str,
    score: impl Fn(&Row) -> Option<Estimate>,
) -> Option<LineChart> {
    let mut series: Vec<Line> = Vec::new();
    for row in data.rows(model) {
        let (Some(estimate), Some(held)) =
            (score(row), data.measures.get(row, None, Measure::HeldShare))
        else {
            continue;
        };
        let point = LinePoint {
            x: 100.0 * held.mean,
            y: estimate.mean,
            interval: estimate.interval.filter(|_| !row.is_full()),
            tip: format!(
                "{}: {}; {}",
                row.label(),
                Measure::HeldShare.tip(&held),
                Measure::Score.tip(&estimate)
            ),
        };
        data.push(&mut series, row, false, point);
    }
    let mut points: Vec<&LinePoint> = Vec::new();
    for line in series.iter().filter(|line| line.style != Style::Reference) {
        points.extend(&line.points);
    }
    let most = points.iter().map(|point| point.x).reduce(f64::max)?;
    let frontier = frontier(points.iter().map(|point| (point.x, point.y)).collect(), most);
    for line in &mut series {
        line.points.sort_by(|a, b| a.x.total_cmp(&b.x));
        // The full cache is a line across, at its score, as far as the others go.
        if let (Style::Reference, [point]) = (line.style, &line.points[..]) {
            line.points = [0.0, most].map(|x| LinePoint { x, ..point.clone() }).to_vec();
        }
    }
    series.insert(0, frontier);
    Some(LineChart {
        title: data.titled(model, what),
        x: XAxis::Numbers { label: "held, % of a full cache".into() },
        y: YAxis { label: Measure::Score.label().into(), holds: vec![0.0, 1.0] },
        series,
    })
}

/// The best score of all that hold no more, from the smallest to `most` per cent: steps to the
/// right and up.
fn frontier(mut points: Vec<(f64, f64)>, most: f64) -> Line {
    points.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
    let mut steps: Vec<(f64, f64)> = Vec::new();
    for (x, y) in points {
        match steps.last() {
            Some((_, best)) if y <= *best => {}
            Some((_, best)) => {
                let best = *best;
                steps.extend([(x, best), (x, y)]);
            }
            None => steps.push((x, y)),
        }
    }
    if let Some((_, best)) = steps.last().copied() {
        steps.push((most, best));
    }
    let tip = "The best score so far from the left".to_owned();
    let point = |(x, y)| LinePoint { x, y, interval: None, tip: tip.clone() };
    Line {
        name: FRONTIER.into(),
        style: Style::Frontier,
        points: steps.into_iter().map(point).collect(),
        marked: false,
        across: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_frontier_is_the_best_for_its_bytes() {
        let points = vec![(20.0, 0.5), (10.0, 0.25), (10.0, 0.5), (30.0, 0.25), (25.0, 1.0)];
        let line = frontier(points, 40.0);
        let steps: Vec<(f64, f64)> = line.points.iter().map(|point| (point.x, point.y)).collect();
        assert_eq!(steps, [(10.0, 0.5), (25.0, 0.5), (25.0, 1.0), (40.0, 1.0)]);
    }
}
