use super::super::{
    figure::{Data, Figures},
    measure::Measure,
};

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
            let mut found = data.against_budget(model, title, None, measure);
            // Times and sizes are compared with nothing.
            found.iter_mut().for_each(|(_, chart)| chart.y.holds.push(0.0));
            charts.extend(found);
        }
    }
    vec![data.figures(
        "speed",
        "Memory and time against budget",
        "Means over all samples; whiskers are 95 % intervals. Samples that ran beside others on one machine took longer for it. \
         A prefill that policies shared is no policy's (--share-prefill 1 times each).",
        charts,
    )]
}
