use briquette_eval::stats::Estimate;

use super::super::{
    collect::{Fidelities, mean},
    figure::{Data, Figures, MapRoom, Tags, stem},
    key::Row,
    measure::Measure,
};
use crate::plot::{ColorScale, LineChart, LinePoint, Tiles, YAxis, short};

/// How far policies are from the full cache, layer by layer, and what their heads hold. With them,
/// how many maps of heads were left out for the page's sake.
pub(in super::super) fn fidelity(data: &Data<'_>) -> (Vec<Figures>, usize) {
    let mut distance = Vec::new();
    for model in &data.models {
        for column in data.measures.columns(Measure::Kl) {
            for measure in [Measure::Kl, Measure::Agreement] {
                let name = if measure == Measure::Kl { "KL" } else { "agreement" };
                let title = format!("{}, {name}", column.task);
                distance.extend(data.against_budget(model, &title, Some(&column), measure));
            }
        }
    }
    let layers = [
        (
            "output-error",
            "Output error by layer",
            "‖full − compressed‖ / ‖full‖ of each layer's attention output over the continued tokens (CompressKV, \
             Eq. 8). Less is better.",
            by_layer(data, "output error", "output error, share", |found| {
                found
                    .layer_error
                    .iter()
                    .map(|samples| Estimate::of(samples).within(0.0, f64::INFINITY))
                    .collect()
            }),
        ),
        (
            "overlap",
            "Overlap with the oracle by layer",
            "The share of the kept tokens that an oracle keeps too, which sees the attention of the continued tokens. \
             More is better.",
            by_layer(data, "overlap", "overlap, share", |found| {
                if found.overlap.is_empty() {
                    return Vec::new();
                }
                found.layer_overlap.iter().map(|samples| Estimate::of_scores(samples)).collect()
            }),
        ),
        (
            "held",
            "Tokens held by layer",
            "Tokens of the prompt that a head holds, the mean over the heads of a layer.",
            by_layer(data, "held", "tokens a head", |found| {
                let sure = |heads: &Vec<f64>| Estimate {
                    mean: mean(heads.iter().copied()),
                    interval: None,
                    count: found.held.1,
                };
                found.heads().iter().map(sure).collect()
            }),
        ),
    ];
    let mut all = vec![data.figures(
        "fidelity",
        "Distance from the full cache against budget",
        "Next-token distributions on the compressed and on the full cache, over the same continued tokens.",
        distance,
    )];
    for (stem, title, note, charts) in layers {
        all.push(data.figures(stem, title, note, charts));
    }
    let (maps, left) = heads(data);
    all.extend(maps);
    (all, left)
}

fn by_layer(
    data: &Data<'_>,
    what: &str,
    y: &str,
    layers: impl Fn(&Fidelities) -> Vec<Estimate>,
) -> Vec<(Tags, LineChart)> {
    let mut charts = Vec::new();
    for model in &data.models {
        for column in data.measures.columns(Measure::Kl) {
            let axis = YAxis { label: y.into(), holds: vec![0.0] };
            let points = |row: &Row| {
                let found = data.collected.fidelity.get(row).and_then(|all| all.get(&column.task));
                let layers = found.filter(|_| !row.is_full()).map(&layers).unwrap_or_default();
                let layer = |(layer, known): (usize, Estimate)| LinePoint {
                    x: layer as f64,
                    y: known.mean,
                    interval: known.interval,
                    tip: format!("{}, layer {layer}: {what} {}", row.label(), short(known.mean)),
                };
                (0..).zip(layers).filter(|(_, known)| known.count > 0).map(layer).collect()
            };
            let axes = ("layer", &axis);
            charts.extend(data.by_budget(model, &column, &column.task, axes, true, points));
        }
    }
    charts
}

/// Maps of what each head holds, for policies that give heads different budgets.
fn heads(data: &Data<'_>) -> (Vec<Figures>, usize) {
    let (mut all, mut room) = (Vec::new(), MapRoom::default());
    for model in &data.models {
        for column in data.measures.columns(Measure::Kl) {
            let (mut maps, mut even) = (Vec::new(), Vec::new());
            for row in data.rows(model) {
                let found = data.collected.fidelity.get(row).and_then(|all| all.get(&column.task));
                let Some(found) = found else { continue };
                let held = found.heads();
                let (low, high) =
                    held.iter().flatten().fold((f64::INFINITY, 0.0), |(low, high), held| {
                        (held.min(low), held.max(high))
                    });
                if held.is_empty() || low.is_infinite() {
                    continue;
                }
                if low == high {
                    even.push(format!("{} ({})", row.label(), short(low)));
                    continue;
                }
                maps.push((row, map(row, &held, high)));
            }
            let even = match even.len() {
                0 => String::new(),
                _ => format!(" The same in every head: {}.", even.join(", ")),
            };
            all.push(Figures {
                stem: stem(&data.titled(model, &format!("heads-{}", column.task))),
                title: data.titled(model, &format!("{}: tokens held by each head", column.task)),
                note: format!(
                    "The lightest tile of a map is the head that holds most; the number of its tokens is in the \
                     title.{even}"
                ),
                legend: Vec::new(),
                colors: Some(ColorScale {
                    label: "tokens held by a head".into(),
                    ends: ["0".into(), "the most in the map".into()],
                }),
                charts: room.charts(&column, maps),
                folded: false,
            });
        }
    }
    (all, room.left)
}

fn map(row: &Row, held: &[Vec<f64>], high: f64) -> Tiles {
    let heads = held.iter().map(Vec::len).max().unwrap_or(0);
    let text = |count: usize| (0..count).map(|i| i.to_string()).collect();
    Tiles {
        title: format!("{}, at most {}", row.label(), short(high)),
        x: ("KV head".into(), text(heads)),
        y: ("layer".into(), text(held.len())),
        values: held
            .iter()
            .map(|layer| (0..heads).map(|head| layer.get(head).copied()).collect())
            .collect(),
        range: (0.0, high),
        measure: if heads * held.len() <= 256 { "tokens".into() } else { String::new() },
    }
}
