//! CAKE's published code.

use briquette::{
    Budget, Policy,
    allocate::Preference,
    policy::Recent,
    score::{Cake, Pool},
};
use serde::Deserialize;

use super::{Compressed, Prompt, cases};

#[derive(Deserialize)]
struct Case {
    params: Params,
    agrees: bool,
    preferences: Vec<f64>,
    /// Without the window, as the budgets here.
    layer_budgets: Vec<usize>,
    layer_budgets_here: Vec<usize>,
    kept_per_layer: Vec<usize>,
    #[serde(flatten)]
    prompt: Prompt,
}

#[derive(Debug, Deserialize)]
struct Params {
    cache_size: usize,
    window_size: usize,
    tau1: f64,
    tau2: f64,
    gamma: f64,
}

#[test]
fn cake_of_its_authors() {
    for case in cases::<Case>("cake.json", 5) {
        let place = format!("{:?}, {} tokens", case.params, case.prompt.tokens.len());
        let Params { cache_size, window_size: window, tau1, tau2, gamma } = case.params;
        let policy = Policy::cake(Budget::Tokens(cache_size))
            .with_recent(Recent::Tokens(window))
            .with_scorer(Cake { window, gamma, pool: Some(Pool::avg(5)) })
            .with_allocator(Preference { window, tau1, tau2 });
        let compressed = Compressed::new(&policy, &case.prompt.tokens);

        for (layer, expected) in case.preferences.iter().enumerate() {
            let found = compressed.cache.layer_measure(layer).unwrap().unwrap()[0];
            let off = (found - expected).abs() / expected;
            assert!(off <= 1e-5, "layer {layer} prefers {found}, expected {expected}, {place}");
        }
        let same = case.layer_budgets == case.layer_budgets_here;
        assert_eq!(same, case.agrees, "{place}");
        for (layer, heads) in compressed.counts().into_iter().enumerate() {
            let (there, here) = (case.layer_budgets[layer], case.layer_budgets_here[layer]);
            assert_eq!(case.kept_per_layer[layer], window + there, "{place}");
            assert_eq!(heads, vec![window + here; heads.len()], "layer {layer}, {place}");
            if here == there {
                compressed.assert_kept_in(layer, &case.prompt, &place);
                continue;
            }
            // Of two numbers the smaller one leaves a part of what the larger one does.
            let kept = compressed.kept(layer);
            for (found, expected) in kept.iter().zip(&case.prompt.kept[layer]) {
                let (few, many) = if here < there { (found, expected) } else { (expected, found) };
                assert!(few.iter().all(|position| many.contains(position)), "{layer}, {place}");
            }
        }
    }
}
