//! From the reference's words to the library's: stage by stage, no names.

use briquette::{
    Budget, CacheShape, HeadScoreKind, HeadScores, Policy, PrefillCompression, Profile, Schedule,
    allocate::{
        ErrorAware, HeadAdaptive, HeadProfile, Preference, Pyramid, Share, Uniform, VarianceShare,
    },
    cache::store::Quantized,
    policy::{PositionMode, Recent},
    reduce::{EmaMerge, Evict, EvictThenMerge, GaussianMerge, Rotate, Sigma, ValueMerge},
    score::{
        AccumulatedAttention, GlobalLocal, HeadMean, Normalize, Pick, Pool, Recency,
        RetrievalHeads, RobustAttention, WindowAttention, WindowVariance,
    },
};

use crate::reference::{
    self, Allocate, HeadScore, Heads, Method, Positions, Prefill, Reduce, Score, Store, Window,
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
    let all = method.allocate == Allocate::All;
    let policy = if all { Policy::full() } else { Policy::local_window(budget) };
    let policy = policy
        .with_name(method.name)
        .with_sinks(method.sinks)
        .with_recent(match method.recent {
            reference::Recent::Tokens(tokens) => Recent::Tokens(tokens),
            reference::Recent::Share(share) => Recent::Share(share),
        })
        .with_positions(match method.positions {
            Positions::Written => PositionMode::Written,
            Positions::InCache => PositionMode::InCache,
            Positions::Deferred => PositionMode::Deferred,
        })
        .with_schedule(Schedule {
            prefill: match prefill {
                Prefill::Never => PrefillCompression::Never,
                Prefill::AtEnd => PrefillCompression::AtEnd,
                Prefill::EveryChunk => PrefillCompression::EveryChunk,
            },
            decode_every,
            append_only: None,
        });
    let policy = with_store(policy, method.store);
    let policy = with_score(policy, method.score);
    let policy = with_reduce(policy, method.reduce);
    with_allocate(policy, method.allocate)
}

/// The library's profile that stands for one of the reference.
pub fn profile(profile: &reference::Profile, shape: CacheShape) -> Profile {
    Profile {
        model: "drawn".to_owned(),
        made: "by a seed".to_owned(),
        weights: None,
        shape,
        heads: HeadScores {
            semantic: profile.semantic.clone(),
            copy_paste: profile.copy_paste.clone(),
            headkv: profile.headkv.clone(),
        },
        layer_errors: profile.layer_errors.clone(),
    }
}

fn with_score(policy: Policy, score: Score) -> Policy {
    match score {
        Score::Recency => policy.with_score(Recency {}),
        Score::Accumulated { mean } => policy.with_score(AccumulatedAttention {
            normalize: if mean { Normalize::Mean } else { Normalize::Sum },
        }),
        Score::Robust { std_share } => policy.with_score(RobustAttention { std_share }),
        Score::Window(score) => policy.with_score(window(score)),
        Score::Variance { window, gamma, pool: smooth } => {
            policy.with_score(WindowVariance { window, gamma, pool: smooth.map(pool) })
        }
        Score::GlobalLocal { window, pool: smooth } => {
            policy.with_score(GlobalLocal { window, pool: smooth.map(pool) })
        }
    }
}

fn with_allocate(policy: Policy, allocate: Allocate) -> Policy {
    match allocate {
        Allocate::All | Allocate::Uniform => policy.with_allocate(Uniform {}),
        Allocate::Pyramid { beta } => policy.with_allocate(Pyramid { beta }),
        Allocate::Preference { window, tau1, tau2 } => {
            policy.with_allocate(Preference { window, tau1, tau2 })
        }
        Allocate::VarianceShare { share, normalize } => {
            use reference::allocate::Share as Word;
            let share = match share {
                Word::Softmax => Share::Softmax,
                Word::Inverse => Share::Inverse,
                Word::ExponentialDecay => Share::ExponentialDecay,
            };
            policy.with_allocate(VarianceShare { share, normalize })
        }
        Allocate::HeadAdaptive { floor, by } => {
            policy.with_allocate(HeadAdaptive { floor, by: by.map(window) })
        }
        Allocate::HeadProfile { beta, scores } => {
            policy.with_allocate(HeadProfile { beta, by: kind(scores) })
        }
        Allocate::ErrorAware { least, most } => policy.with_allocate(ErrorAware { least, most }),
    }
}

fn with_reduce(policy: Policy, reduce: Reduce) -> Policy {
    match reduce {
        Reduce::Evict => policy.with_reduce(Evict {}),
        Reduce::EmaMerge { beta } => policy.with_reduce(EmaMerge { beta }),
        Reduce::ValueMerge { window, seed, prompts } => {
            policy.with_reduce(ValueMerge { window, seed, prompts })
        }
        Reduce::GaussianMerge { protect, threshold, sigma, scale_values } => {
            let sigma = match sigma {
                reference::Sigma::Fixed(sigma) => Sigma::Fixed(sigma),
                reference::Sigma::Adaptive => Sigma::Adaptive,
            };
            policy.with_reduce(GaussianMerge { protect, threshold, sigma, scale_values })
        }
        Reduce::EvictThenMerge { gamma, tau, rotate } => {
            let rotate = match rotate {
                reference::Rotate::Own => Rotate::Own,
                reference::Rotate::Center => Rotate::Center,
            };
            policy.with_reduce(EvictThenMerge { gamma, tau, rotate })
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
    }
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
