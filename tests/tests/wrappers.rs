//! Scorers around other scorers: what they ask of a cache, and their file form.

use briquette::{
    Budget, CacheConfig, CacheShape, Error, KvCache, LayerView, Policy,
    score::{ChunkKv, CriticalKv, EntropyGated, KeyDiff, Knorm, Scorer},
};
use briquette_tests::backends::host;
use burn::tensor::Tensor;

const SHAPE: CacheShape = CacheShape { layers: 2, query_heads: 4, kv_heads: 2, head_dim: 8 };

fn critical() -> Policy {
    let score = ChunkKv::of(3, CriticalKv::of(KeyDiff {}));
    Policy::knorm(Budget::Tokens(9)).with_scorer(score)
}

#[test]
fn output_projections_are_asked_for() {
    let device = host();
    let with = |shapes: &[[usize; 2]]| {
        let weights = shapes.iter().map(|shape| Tensor::<2>::ones(*shape, &device)).collect();
        let config = CacheConfig::default().with_output_weights(weights);
        KvCache::with_config(SHAPE, critical(), config, &device).err()
    };
    assert!(with(&[[32, 16], [32, 16]]).is_none());
    for wrong in [&[][..], &[[32, 16]], &[[32, 16], [16, 32]]] {
        match with(wrong) {
            Some(Error::OutputWeights { layers: 2, inputs: 32, found, .. }) => {
                assert_eq!(found, wrong);
            }
            other => panic!("{wrong:?}: {other:?}"),
        }
    }
    let error = KvCache::new(SHAPE, critical(), &device).unwrap_err().to_string();
    assert!(error.contains("with_output_weights") && error.contains("[32, hidden]"), "{error}");
}

#[test]
fn parameters_of_the_inner_scorer_are_checked() {
    let inner = ChunkKv::of(0, Knorm {});
    let policy = Policy::knorm(Budget::Tokens(9)).with_scorer(ChunkKv::of(3, inner));
    assert!(policy.check().unwrap_err().to_string().contains("score.length"));
    for few in [0, 3] {
        let gated = EntropyGated { length: 3, few, ..EntropyGated::of(Knorm {}) };
        let error = Policy::knorm(Budget::Tokens(9)).with_scorer(gated).check().unwrap_err();
        assert!(error.to_string().contains("score.few"), "{error}");
    }
    let critical = CriticalKv { first: 1.5, ..CriticalKv::of(Knorm {}) };
    let policy = Policy::knorm(Budget::Tokens(9)).with_scorer(critical);
    assert!(policy.check().unwrap_err().to_string().contains("score.first"));
}

#[test]
fn a_scorer_in_a_scorer_survives_the_file() {
    let text = critical().to_toml().unwrap();
    assert_eq!(Policy::from_toml(&text).unwrap().to_toml().unwrap(), text);
    let gated = critical().with_scorer(EntropyGated::of(CriticalKv::of(KeyDiff {})));
    let gated = gated.to_toml().unwrap();
    assert!(gated.contains("few = 4"), "{gated}");
    assert_eq!(Policy::from_toml(&gated).unwrap().to_toml().unwrap(), gated);
    let spoiled = text.replace("epsilon", "epsilom");
    assert!(Policy::from_toml(&spoiled).unwrap_err().to_string().contains("epsilom"));

    /// A user's own.
    #[derive(Debug)]
    struct Own;
    impl Scorer for Own {
        fn name(&self) -> &str {
            "own"
        }

        fn score(&self, view: &LayerView<'_>) -> briquette::Result<Tensor<3>> {
            Knorm {}.score(view)
        }
    }
    let policy = Policy::knorm(Budget::Tokens(9)).with_scorer(ChunkKv::of(3, Own));
    assert!(matches!(policy.to_toml(), Err(Error::NotSerializable { .. })));
}
