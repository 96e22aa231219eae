use crate::{ExpertsConfig, Routing};

/// Experts of a token and what weighs them. Of equal gates the first expert's wins.
pub(crate) fn choose(
    config: &ExpertsConfig,
    gates: &[f32],
    correction: &[f32],
) -> Vec<(usize, f32)> {
    let (weights, choice, scale) = match config.routing {
        Routing::Softmax => {
            let weights = softmax(gates);
            (weights.clone(), weights, 1.0)
        }
        Routing::InputSigmoid => (sigmoid(gates), gates.to_vec(), 1.0),
        Routing::Sigmoid { groups, groups_per_token, scale } => {
            let weights = sigmoid(gates);
            let choice = weights.iter().zip(correction).map(|(weight, more)| weight + more);
            let choice = of_best_groups(choice.collect(), groups, groups_per_token);
            (weights, choice, scale as f32)
        }
    };
    let chosen = highest(&choice, config.experts_per_token);
    let sum: f32 = chosen.iter().map(|expert| weights[*expert]).sum();
    let scale = if config.norm_topk_prob { scale / (sum + 1e-20) } else { scale };
    chosen.into_iter().map(|expert| (expert, weights[expert] * scale)).collect()
}

fn sigmoid(gates: &[f32]) -> Vec<f32> {
    gates.iter().map(|gate| 1.0 / (1.0 + (-gate).exp())).collect()
}

fn softmax(gates: &[f32]) -> Vec<f32> {
    let highest = gates.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let powers: Vec<f32> = gates.iter().map(|gate| (gate - highest).exp()).collect();
    let sum: f32 = powers.iter().sum();
    powers.into_iter().map(|power| power / sum).collect()
}

/// The same numbers, with 0 outside of the groups whose two highest numbers have the largest sums.
fn of_best_groups(mut choice: Vec<f32>, groups: usize, kept: usize) -> Vec<f32> {
    let size = choice.len() / groups;
    let two = |group: &[f32]| highest(group, 2).into_iter().map(|place| group[place]).sum::<f32>();
    let sums: Vec<f32> = choice.chunks(size).map(two).collect();
    let best = highest(&sums, kept);
    for (number, group) in choice.chunks_mut(size).enumerate() {
        if !best.contains(&number) {
            group.fill(0.0);
        }
    }
    choice
}

/// Places of the highest numbers, from the highest on.
fn highest(numbers: &[f32], count: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*b].total_cmp(&numbers[*a]));
    order.truncate(count);
    order
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn groups_are_chosen_by_their_two_best_and_weights_are_without_the_correction() {
        let routing = Routing::Sigmoid { groups: 3, groups_per_token: 2, scale: 2.0 };
        let config = ExpertsConfig {
            experts: 6,
            experts_per_token: 2,
            intermediate_size: 1,
            shared_intermediate_size: None,
            routing,
            norm_topk_prob: true,
            dense_layers: BTreeSet::new(),
        };
        // Sigmoids of 0.5, 0.75, 0.9, 0.1, 0.5 and 0.25.
        let odds = [1.0_f32, 3.0, 9.0, 1.0 / 9.0, 1.0, 1.0 / 3.0];
        let gates = odds.map(f32::ln);
        // Sums of groups are 1.25, 1.0 and 1.35: expert 2, the highest, is of the worst.
        let found = choose(&config, &gates, &[0.0, 0.0, 0.0, 0.0, 0.6, 0.0]);
        assert_eq!(found.iter().map(|(expert, _)| *expert).collect::<Vec<_>>(), [4, 1]);
        for ((_, weight), expected) in found.iter().zip([0.8, 1.2]) {
            assert!((weight - expected).abs() < 1e-6, "{weight}, {expected}");
        }
        let config = ExpertsConfig { norm_topk_prob: false, ..config };
        let (_, weight) = choose(&config, &gates, &[0.0; 6])[0];
        assert!((weight - 1.8).abs() < 1e-6, "{weight}");
    }
}
