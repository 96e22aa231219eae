//! A forward pass that fails in the middle of the layers.

mod common;
mod tiny;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use briquette::{
    Budget, LayerView, Policy, Schedule,
    score::{AttentionRequest, Knorm, Scorer},
};
use briquette_models::{Error, Model};
use burn::tensor::Tensor;
use common::row;
use serde_json::json;
use tiny::{Tiny, prompt};

const LAYERS: usize = 4;

/// Key norms, and an error in the third layer when it is told to.
#[derive(Debug)]
struct FailsInTheThird(Arc<AtomicBool>);

impl Scorer for FailsInTheThird {
    fn name(&self) -> &str {
        "fails-in-the-third"
    }

    fn observes(&self) -> AttentionRequest {
        Knorm {}.observes()
    }

    fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
        if view.layer == 2 && self.0.load(Ordering::Relaxed) {
            return Err(briquette::Error::Execution("told to".to_owned()));
        }
        Knorm {}.score(view)
    }
}

fn logits(model: &Model, cache: &mut briquette::KvCache, ids: &[u32]) -> Result<Vec<f32>, Error> {
    let run = |cache: &mut briquette::KvCache| model.forward(row(ids), cache);
    // A prompt is a step already.
    let logits = if ids.len() > 1 { run(cache) } else { cache.try_transaction(run) };
    Ok(logits?.try_into_vec_as()?)
}

/// Prompts that the third layer fails at, and tokens in a step, leave the cache as it was: it goes
/// on like one that never saw them.
#[test]
fn a_failed_forward_pass_leaves_the_cache_as_it_was() {
    let model = Tiny::with(json!({ "num_hidden_layers": LAYERS })).load();
    let fails = Arc::new(AtomicBool::new(false));
    let policy = Policy::knorm(Budget::Tokens(12))
        .with_scorer(FailsInTheThird(fails.clone()))
        .with_schedule(Schedule::always(1));
    let mut cache = model.cache(policy.clone()).unwrap();
    let mut other = model.cache(policy).unwrap();
    let ids = prompt(3, 60);
    let kept = |cache: &briquette::KvCache| -> Vec<_> {
        (0..LAYERS).map(|layer| cache.kept_positions(layer).unwrap()).collect()
    };
    for (call, piece) in [&ids[..30], &ids[30..31], &ids[31..32], &ids[32..50]].iter().enumerate() {
        fails.store(true, Ordering::Relaxed);
        for failing in [&ids[50..51], &ids[50..60]] {
            // Below its budget a cache has nothing to score.
            if call > 0 {
                let error = logits(&model, &mut cache, failing).unwrap_err();
                assert!(error.to_string().contains("told to"), "{error}");
            }
        }
        let error = logits(&model, &mut cache, &ids[..40]).unwrap_err();
        assert!(error.to_string().contains("told to"), "{error}");
        assert_eq!((cache.tokens_seen(), kept(&cache)), (other.tokens_seen(), kept(&other)));
        fails.store(false, Ordering::Relaxed);
        let found = logits(&model, &mut cache, piece).unwrap();
        assert_eq!(found, logits(&model, &mut other, piece).unwrap());
    }
    assert_eq!(kept(&cache), kept(&other));
}
