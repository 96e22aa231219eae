use super::super::{
    figure::{Data, Figures, Tags},
    key::{Column, Row},
    measure::Measure,
};
use crate::plot::{LineChart, LinePoint, YAxis};

/// Points of a curve.
const POINTS: usize = 120;

/// Nats above the full cache against budgets, and the mean up to each position.
pub(in super::super) fn perplexity(data: &Data<'_>) -> Vec<Figures> {
    let (mut over, mut curves) = (Vec::new(), Vec::new());
    for model in &data.models {
        for column in data.measures.columns(Measure::Nats) {
            let has_full = data
                .rows(model)
                .into_iter()
                .any(|row| data.measures.get(row, Some(&column), Measure::NatsOverFull).is_some());
            let measure = if has_full { Measure::NatsOverFull } else { Measure::Nats };
            over.extend(data.against_budget(model, &column.task, Some(&column), measure));
            curves.extend(curves_of(data, model, &column));
        }
    }
    let figures = [
        data.figures(
            "perplexity",
            "Loss against budget",
            "Nats a token above the full cache in the same windows, less is better; whiskers are 95 % intervals over \
             windows.",
            over,
        ),
        data.figures(
            "perplexity-positions",
            "Loss against position",
            "The mean negative log likelihood of all tokens up to a position, as a text goes on. Perplexity is e to \
             this.",
            curves,
        ),
    ];
    figures.into()
}

fn curves_of(data: &Data<'_>, model: &str, column: &Column) -> Vec<(Tags, LineChart)> {
    let y = YAxis { label: "mean nats per token".into(), holds: Vec::new() };
    let points = |row: &Row| {
        let texts = data.collected.texts.get(row).and_then(|tasks| tasks.get(&column.task));
        let Some(texts) = texts else { return Vec::new() };
        let curve = texts.cumulative(POINTS);
        // The first tokens alone say little, and would set the range.
        let settled = curve.len() / 20;
        curve
            .into_iter()
            .skip(settled)
            .map(|(position, nats)| LinePoint {
                x: position as f64,
                y: nats,
                interval: None,
                tip: format!(
                    "{}: {nats:.3} nats per token up to token {position}, perplexity {:.2}",
                    row.label(),
                    nats.exp()
                ),
            })
            .collect()
    };
    data.by_budget(model, column, &column.task, ("tokens predicted", &y), false, points)
}
