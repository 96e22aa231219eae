use serde::Serialize;

use super::super::{
    collect::{KeptTexts, mean},
    figure::Data,
    key::Row,
};

/// Tokens shown of a text: of a longer one its beginning and its end.
const TOKENS: usize = 2_000;
/// Texts shown.
const TEXTS: usize = 3;
/// Shares on the page, for all policies together.
const SHARES: usize = 200_000;

/// Which tokens of one prompt each policy kept.
#[derive(Debug, Serialize)]
pub(in super::super) struct KeptView {
    model: String,
    task: String,
    sample: String,
    seed: u64,
    /// Tokens of the prompt.
    total: usize,
    /// Tokens between the beginning and the end that are shown.
    left: usize,
    policies: Vec<PolicyView>,
    /// Two panels, so that two policies can be compared.
    panels: Vec<PanelView>,
    /// `[policy][token]`: percent of the heads that hold it, as JSON.
    shares: String,
}

#[derive(Debug, Serialize)]
struct PolicyView {
    label: String,
    /// Percent of all tokens in all heads that are held.
    held: String,
}

#[derive(Debug, Serialize)]
struct PanelView {
    /// The policy it begins with.
    selected: usize,
    tokens: Vec<TokenView>,
}

#[derive(Debug, Serialize)]
struct TokenView {
    text: String,
    /// Tenths of the heads that hold it.
    level: u8,
    /// Whether tokens before it are not shown.
    after_gap: bool,
}

pub(in super::super) fn kept(data: &Data<'_>) -> Vec<KeptView> {
    let texts = data.collected.kept.iter().filter(|(_, kept)| !kept.tokens.is_empty());
    texts.take(TEXTS).map(|((model, task), kept)| view(model, task, kept)).collect()
}

fn view(model: &str, task: &str, kept: &KeptTexts) -> KeptView {
    let total = kept.tokens.len();
    let room = SHARES / TEXTS / kept.shares.len().max(1);
    let shown = room.clamp(200, TOKENS).min(total);
    let (head, left) = (shown - shown / 2, total - shown);
    let places: Vec<usize> = (0..head).chain(head + left..total).collect();
    let rows: Vec<(&Row, &Vec<f32>)> = kept.shares.iter().collect();
    let percent = |share: f32| (100.0 * share).round().clamp(0.0, 100.0) as u8;
    let shares: Vec<Vec<u8>> = rows
        .iter()
        .map(|(_, shares)| places.iter().map(|place| percent(shares[*place])).collect())
        .collect();
    // The first policies that drop something.
    let mut selected: Vec<usize> = (0..rows.len()).filter(|i| !rows[*i].0.is_full()).collect();
    // One of each method, if there are two.
    selected.sort_by_key(|i| {
        rows.iter().position(|(row, _)| row.policy == rows[*i].0.policy) != Some(*i)
    });
    selected.truncate(2);
    if selected.is_empty() {
        selected.push(0);
    }
    let panel = |selected: usize| PanelView {
        selected,
        tokens: places
            .iter()
            .zip(&shares[selected])
            .enumerate()
            .map(|(i, (place, share))| TokenView {
                text: kept.tokens[*place].clone(),
                level: level(*share),
                after_gap: left > 0 && i == head,
            })
            .collect(),
    };
    KeptView {
        model: model.into(),
        task: task.into(),
        sample: kept.unit.sample.clone(),
        seed: kept.unit.seed,
        total,
        left,
        policies: rows
            .iter()
            .map(|(row, shares)| PolicyView {
                label: row.label(),
                held: format!("{:.1}", 100.0 * mean(shares.iter().map(|share| f64::from(*share)))),
            })
            .collect(),
        panels: selected.into_iter().map(panel).collect(),
        shares: serde_json::to_string(&shares).unwrap_or_default(),
    }
}

/// 0 for no head at all, 10 for all of them; what few hold is seen.
fn level(percent: u8) -> u8 {
    percent.div_ceil(10)
}
