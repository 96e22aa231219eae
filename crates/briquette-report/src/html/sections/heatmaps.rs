use std::collections::BTreeSet;

use super::super::{
    collect::{Scores, mean},
    figure::{Data, Figures, MapRoom, stem},
    key::Row,
    measure::Measure,
};
use crate::plot::{ColorScale, Tiles};

/// Scores over length and depth, a map a policy, for tasks whose samples have both. With them, how
/// many maps were left out for the page's sake.
pub(in super::super) fn heat_maps(data: &Data<'_>) -> (Vec<Figures>, usize) {
    let (mut all, mut room) = (Vec::new(), MapRoom::default());
    for model in &data.models {
        for column in data.collected.columns() {
            let of = |row: &&Row| data.collected.scores.get(*row)?.get(&column);
            let mut rows: Vec<(&Row, &Scores)> = data
                .rows(model)
                .into_iter()
                .filter_map(|row| Some((row, of(&row)?)))
                .filter(|(_, scores)| !scores.places.is_empty())
                .collect();
            // Policies at one budget stand together.
            let budgets = data.budgets(model);
            rows.sort_by_key(|(row, _)| {
                (!row.is_full(), budgets.iter().position(|budget| *budget == row.budget))
            });
            let places: BTreeSet<(u64, u64)> =
                rows.iter().flat_map(|(_, scores)| scores.places.keys().copied()).collect();
            let lengths: BTreeSet<u64> = places.iter().map(|(length, _)| *length).collect();
            let depths: BTreeSet<u64> = places.iter().map(|(_, depth)| *depth).collect();
            if places.len() < 2 {
                continue;
            }
            let map = |(row, scores)| (row, map(row, scores, &lengths, &depths));
            all.push(Figures {
                stem: stem(
                    &data.titled(model, &format!("heatmap-{}-{}", column.task, column.ask())),
                )
                .trim_end_matches('-')
                .to_owned(),
                title: data.titled(model, &column.label()),
                note: String::new(),
                legend: Vec::new(),
                colors: Some(ColorScale {
                    label: Measure::Score.label().into(),
                    ends: ["0".into(), "1".into()],
                }),
                charts: room.charts(&column, rows.into_iter().map(map)),
                folded: !all.is_empty(),
            });
        }
    }
    (all, room.left)
}

fn map(row: &Row, scores: &Scores, lengths: &BTreeSet<u64>, depths: &BTreeSet<u64>) -> Tiles {
    let text = |numbers: &BTreeSet<u64>| numbers.iter().map(ToString::to_string).collect();
    let value = |length: &u64, depth: &u64| {
        scores.places.get(&(*length, *depth)).map(|scores| mean(scores.iter().copied()))
    };
    Tiles {
        title: row.label(),
        x: ("length, tokens".into(), text(lengths)),
        y: ("depth, %".into(), text(depths)),
        values: depths
            .iter()
            .map(|depth| lengths.iter().map(|length| value(length, depth)).collect())
            .collect(),
        range: (0.0, 1.0),
        measure: "score".into(),
    }
}
