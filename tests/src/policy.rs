//! Translation of the reference's words into the library's: stage by stage, no names.

use std::sync::Arc;

use briquette::{
    Budget, CacheShape, HeadScoreKind, HeadScores, Policy, PrefillCompression, Profile,
    QueryStatistics, Schedule,
    allocate::{
        AboveThreshold, Composite, ErrorAware, HeadAdaptive, HeadProfile, LayerRatios, LazyLayers,
        OneThreshold, Preference, Pyramid, Share, StreamingHeads, Uniform, VarianceShare,
    },
    policy::{PositionMode, Recent},
    reduce::{
        Compare, EmaMerge, EmaWeights, Evict, EvictThenMerge, GaussianMerge, MergeWeights, Pivot,
        Redundancy, Rotate, Sigma, Threshold, ValueMerge,
    },
    score::{
        AccumulatedAttention, BlockWise, Cake, CapKv, ChunkKv, Compactor, CriticalKv, CurDkv,
        DropKv, Ems, EntropyGated, ExpectedAttention, Finch, HeadMean, KeyDiff, Knorm, KvCompose,
        KvZip, LagKv, Leverage, NonCausal, Normalize, Pick, Pool, QFilter, RKv, Random, Recency,
        RetrievalHeads, RoCo, ScoreFrom, Scorer, TriAttention, WindowAttention,
    },
    store::{Fp8, Quantized, Ragged},
};

use crate::reference::{
    self, Allocate, HeadScore, Heads, Inner, Method, Positions, Prefill, Reduce, Score, Store,
    Window,
};

/// The library's policy that stands for a method of the reference.
pub fn policy(
    method: &Method,
    budget: reference::Budget,
    prefill: Prefill,
    decode_every: Option<usize>,
) -> Policy {
    let budget = match budget {
        reference::Budget::Tokens(tokens) => Budget::Tokens(tokens),
        reference::Budget::Ratio(ratio) => Budget::Ratio(ratio),
    };
    let prefill = match prefill {
        Prefill::Never => PrefillCompression::Never,
        Prefill::AtEnd => PrefillCompression::AtEnd,
        Prefill::FirstPrompt => PrefillCompression::FirstPrompt,
        Prefill::EveryChunk => PrefillCompression::EveryChunk,
    };
    let schedule = Schedule::never().with_prefill(prefill).with_decode_every(decode_every);
    let policy = match method.allocate == Allocate::All || !schedule.compresses() {
        true => Policy::full(),
        false => Policy::local_window(budget).with_schedule(schedule),
    };
    let policy = policy
        .with_name(method.name)
        .with_sinks(method.sinks)
        .with_recent(match method.recent {
            reference::Recent::Tokens(tokens) => Recent::Tokens(tokens),
            reference::Recent::Share(share) => Recent::Share(share),
            reference::Recent::HeavyToRecent(heavy, recent) => Recent::HeavyToRecent(heavy, recent),
        })
        .with_positions(match method.positions {
            Positions::Written => PositionMode::Written,
            Positions::InCache => PositionMode::InCache,
            Positions::Deferred => PositionMode::Deferred,
        });
    let policy = with_store(policy, method.store);
    let policy = with_scorer(policy, method.score);
    let policy = with_reducer(policy, method.reduce);
    with_allocator(policy, method.allocate)
}

/// The library's profile that stands for one of the reference.
pub fn profile(profile: &reference::Profile, shape: CacheShape) -> Profile {
    let reference::Profile { semantic, copy_paste, headkv, layer_errors, .. } = profile.clone();
    let drawn = Profile::new(shape, HeadScores { semantic, copy_paste, headkv }, layer_errors);
    if profile.means.is_empty() {
        return drawn;
    }
    let reference::Profile { directions, means, lengths, reach, .. } = profile.clone();
    drawn.with_queries(QueryStatistics { directions, means, lengths, reach })
}

fn with_scorer(policy: Policy, score: Score) -> Policy {
    match score {
        Score::Recency => policy.with_scorer(Recency {}),
        Score::Accumulated { mean } => policy.with_scorer(AccumulatedAttention {
            normalize: if mean { Normalize::Mean } else { Normalize::Sum },
        }),
        Score::Robust { std_share } => policy.with_scorer(RoCo { std_share }),
        Score::Window(score) => policy.with_scorer(window(score)),
        Score::Variance { window, gamma, pool: smooth } => {
            policy.with_scorer(Cake { window, gamma, pool: smooth.map(pool) })
        }
        Score::GlobalLocal { window, pool: smooth, from, pool_window } => {
            let from = match from {
                reference::From::Both => ScoreFrom::Both,
                reference::From::All => ScoreFrom::All,
                reference::From::Window => ScoreFrom::Window,
            };
            policy.with_scorer(Ems { window, pool: smooth.map(pool), from, pool_window })
        }
        Score::KeyNorm => policy.with_scorer(Knorm {}),
        Score::KeyDifference => policy.with_scorer(KeyDiff {}),
        Score::Random { seed } => policy.with_scorer(Random { seed }),
        Score::LagRelative { lag } => policy.with_scorer(LagKv { lag }),
        Score::Cur { window } => policy.with_scorer(CurDkv { window }),
        Score::Leverage { ridge } => policy.with_scorer(leverage(ridge)),
        Score::Chunk { chunk, pool: smooth } => {
            policy.with_scorer(NonCausal { chunk, pool: smooth.map(pool) })
        }
        Score::Compactor { ridge, chunk, pool: smooth, blend } => policy.with_scorer(Compactor {
            leverage: leverage(ridge),
            attention: NonCausal { chunk, pool: smooth.map(pool) },
            blend,
        }),
        Score::Expected { future, epsilon } => {
            policy.with_scorer(ExpectedAttention { future, epsilon })
        }
        Score::Redundancy { window: of, lambda } => {
            policy.with_scorer(RKv { attention: window(of), lambda })
        }
        Score::Chunks { length, inner } => {
            policy.with_scorer(ChunkKv { length, of: scorer(inner) })
        }
        Score::Gated { length, few, inner } => {
            policy.with_scorer(EntropyGated { length, few, of: scorer(inner) })
        }
        Score::Critical { inner, first, epsilon } => {
            policy.with_scorer(CriticalKv { first, epsilon, of: scorer(inner) })
        }
        Score::Capacity { future, tau } => policy.with_scorer(CapKv { tau, future }),
        Score::Blocks { length, inner } => {
            policy.with_scorer(BlockWise { length, of: scorer(inner) })
        }
        Score::Drop { window, pool: smooth } => {
            policy.with_scorer(DropKv { window, pool: smooth.map(pool) })
        }
        Score::Direction => policy.with_scorer(QFilter {}),
        Score::Trigonometric { future } => policy.with_scorer(TriAttention { future }),
        Score::Question { window } => policy.with_scorer(Finch { window }),
        Score::Reread { tokens, layer_mean } => {
            policy.with_scorer(KvCompose { tokens, layer_mean })
        }
        Score::Repeat { tokens, normalize } => policy.with_scorer(KvZip { tokens, normalize }),
    }
}

fn with_allocator(policy: Policy, allocate: Allocate) -> Policy {
    match allocate {
        Allocate::All | Allocate::Uniform => policy.with_allocator(Uniform {}),
        Allocate::Pyramid { beta } => policy.with_allocator(Pyramid { beta }),
        Allocate::Preference { window, tau1, tau2 } => {
            policy.with_allocator(Preference { window, tau1, tau2 })
        }
        Allocate::VarianceShare { share, normalize } => {
            use reference::allocate::Share as Word;
            let share = match share {
                Word::Softmax => Share::Softmax,
                Word::Inverse => Share::Inverse,
                Word::ExponentialDecay => Share::ExponentialDecay,
            };
            policy.with_allocator(VarianceShare { share, normalize })
        }
        Allocate::HeadAdaptive { floor, by, layers } => policy.with_allocator(HeadAdaptive {
            floor,
            by: by.map(window),
            layers: layers.map(error_aware),
        }),
        Allocate::HeadProfile { beta, scores } => {
            policy.with_allocator(HeadProfile { beta, by: kind(scores) })
        }
        Allocate::LazyLayers { threshold, window } => {
            policy.with_allocator(LazyLayers { threshold, window }).with_store(Ragged {})
        }
        Allocate::StreamingHeads { tokens } => policy.with_allocator(StreamingHeads { tokens }),
        Allocate::LayerRatios(ratios) => {
            policy.with_allocator(LayerRatios { ratios: ratios.to_vec() })
        }
        Allocate::AboveThreshold(threshold) => policy.with_allocator(AboveThreshold { threshold }),
        Allocate::OneThreshold => policy.with_allocator(OneThreshold {}),
        Allocate::Composite => policy.with_allocator(Composite {}).with_store(Ragged {}),
        Allocate::ErrorAware(layers) => policy.with_allocator(error_aware(layers)),
    }
}

fn with_reducer(policy: Policy, reduce: Reduce) -> Policy {
    match reduce {
        Reduce::Evict => policy.with_reducer(Evict {}),
        Reduce::EmaMerge { beta, all, compare, average } => policy.with_reducer(EmaMerge {
            beta,
            threshold: if all { Threshold::None } else { Threshold::Ema },
            compare: match compare {
                reference::Compare::Keys => Compare::Keys,
                reference::Compare::Values => Compare::Values,
                reference::Compare::Each => Compare::Each,
            },
            weights: if average { EmaWeights::Average } else { EmaWeights::Cosine },
        }),
        Reduce::ValueMerge { window, seed, prompts } => {
            policy.with_reducer(ValueMerge { window, seed, prompts })
        }
        Reduce::GaussianMerge { protect, threshold, sigma, scale_values, pivot } => {
            let sigma = match sigma {
                reference::Sigma::Fixed(sigma) => Sigma::Fixed(sigma),
                reference::Sigma::Adaptive => Sigma::Adaptive,
                reference::Sigma::FixedPoint => Sigma::FixedPoint,
                reference::Sigma::Average => Sigma::Average,
            };
            let pivot = match pivot {
                reference::Pivot::Score => Pivot::Score,
                reference::Pivot::Last => Pivot::Last,
                reference::Pivot::Random(seed) => Pivot::Random(seed),
            };
            policy.with_reducer(GaussianMerge { protect, threshold, sigma, scale_values, pivot })
        }
        Reduce::EvictThenMerge { gamma, tau, rotate, redundancy, by_attention } => {
            let rotate = match rotate {
                reference::Rotate::Own => Rotate::Own,
                reference::Rotate::Center => Rotate::Center,
            };
            let redundancy = match redundancy {
                reference::Redundancy::Both => Redundancy::KeysAndValues,
                reference::Redundancy::Keys => Redundancy::Keys,
                reference::Redundancy::Values => Redundancy::Values,
            };
            let weights = if by_attention { MergeWeights::Attention } else { MergeWeights::Score };
            policy.with_reducer(EvictThenMerge { gamma, tau, rotate, redundancy, weights })
        }
    }
}

fn with_store(policy: Policy, store: Store) -> Policy {
    match store {
        // The library chooses one that holds what the other stages make.
        Store::Plain => policy,
        Store::Quantized { bits, group, residual } => {
            policy.with_store(Quantized { bits: bits as u8, group, residual })
        }
        Store::Fp8 => policy.with_store(Fp8 {}),
    }
}

fn scorer(inner: Inner) -> Arc<dyn Scorer> {
    match inner {
        Inner::KeyNorm => Arc::new(Knorm {}),
        Inner::KeyDifference => Arc::new(KeyDiff {}),
        Inner::Window(of) => Arc::new(window(of)),
    }
}

fn leverage(ridge: f64) -> Leverage {
    Leverage { ridge, ..Leverage::default() }
}

fn error_aware(reference::ErrorAware { least, most }: reference::ErrorAware) -> ErrorAware {
    ErrorAware { least, most }
}

fn window(Window { window, pool: smooth, heads }: Window) -> WindowAttention {
    let heads = match heads {
        Heads::Group => HeadMean::Group,
        Heads::Layer => HeadMean::Layer,
        Heads::Retrieval { scores, pick } => {
            let pick = match pick {
                reference::Pick::Top(count) => Pick::Top(count),
                reference::Pick::Adaptive { threshold, least } => {
                    Pick::Adaptive { threshold, least }
                }
            };
            HeadMean::Retrieval(RetrievalHeads { by: kind(scores), pick })
        }
    };
    WindowAttention { window, pool: smooth.map(pool), heads }
}

fn pool(pool: reference::Pool) -> Pool {
    match pool {
        reference::Pool::Average(kernel) => Pool::avg(kernel),
        reference::Pool::Max(kernel) => Pool::max(kernel),
    }
}

fn kind(scores: HeadScore) -> HeadScoreKind {
    match scores {
        HeadScore::Semantic => HeadScoreKind::Semantic,
        HeadScore::CopyPaste => HeadScoreKind::CopyPaste,
        HeadScore::HeadKv => HeadScoreKind::Headkv,
    }
}
