use super::super::{
    figure::{Data, Figures, Tags},
    measure::Measure,
};
use crate::plot::LineChart;

/// The memory that a budget takes, and the time.
pub(in super::super) fn memory(data: &Data<'_>) -> Vec<Figures> {
    let mut charts = Vec::new();
    for model in &data.models {
        for (title, measure) in [
            ("held", Measure::HeldShare),
            ("spare room", Measure::SpareShare),
            ("prefill", Measure::Prefill),
            ("decode", Measure::Decode),
        ] {
            let found = data.against_budget(model, &data.titled(model, title), measure, |row| {
                data.measures.get(row, None, measure)
            });
            charts.extend(found.into_iter().map(|chart| (Tags::default(), from_zero(chart))));
        }
    }
    vec![data.figures(
        "speed",
        "Memory and time against budget",
        "Means over all samples; whiskers are 95 % intervals. Samples that ran beside others on one machine took longer for it. \
         A prefill that policies shared is no policy's (`--share-prefill 1` times each).",
        charts,
    )]
}

/// Times and sizes are compared with nothing.
fn from_zero(mut chart: LineChart) -> LineChart {
    chart.y.holds.push(0.0);
    chart
}
