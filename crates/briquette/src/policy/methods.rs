//! The named methods: one table, readable as the papers' table.

use super::{
    AccumulatedAttention, Budget, Policy, Pool, PositionMode, PrefillCompression, Protect, Recent,
    Schedule, ScorerSpec, Stage, WindowAttention,
};
use crate::{
    Error, Result,
    score::{HeadMean, Recency},
};

struct Method {
    name: &'static str,
    title: &'static str,
    paper: &'static str,
    build: fn(Budget) -> Policy,
}

const METHODS: &[Method] = &[
    Method { name: "full", title: "Full cache", paper: "-", build: |_| Policy::full() },
    Method {
        name: "local-window",
        title: "Local window",
        paper: "Beltagy et al., 2020 (Longformer)",
        build: Policy::local_window,
    },
    Method {
        name: "streaming-llm",
        title: "StreamingLLM",
        paper: "Xiao et al., 2023",
        build: Policy::streaming_llm,
    },
    Method { name: "h2o", title: "H2O", paper: "Zhang et al., 2023", build: Policy::h2o },
    Method { name: "tova", title: "TOVA", paper: "Oren et al., 2024", build: Policy::tova },
    Method { name: "snapkv", title: "SnapKV", paper: "Li et al., 2024", build: Policy::snapkv },
];

impl Policy {
    /// Keeps everything.
    pub fn full() -> Self {
        let mut policy = Self::local_window(Budget::Ratio(1.0)).with_name("full");
        policy.budget = None;
        policy.schedule = Schedule::never();
        policy
    }

    /// Local window: the last tokens of the budget.
    pub fn local_window(budget: Budget) -> Self {
        let score = Stage::Named(ScorerSpec::Recency(Recency {}));
        Self::evicting("local-window", budget, score)
    }

    /// StreamingLLM (Xiao et al., 2023): the first 4 tokens and the last ones; positions are re-counted inside
    /// the cache (section 3.2).
    pub fn streaming_llm(budget: Budget) -> Self {
        Self::local_window(budget)
            .with_name("streaming-llm")
            .with_sinks(4)
            .with_positions(PositionMode::InCache)
    }

    /// H2O (Zhang et al., 2023): half of the budget for the tokens with the most accumulated attention, half
    /// for the last ones.
    pub fn h2o(budget: Budget) -> Self {
        let score = ScorerSpec::AccumulatedAttention(AccumulatedAttention::default());
        Self::evicting("h2o", budget, Stage::Named(score)).with_recent(Recent::Share(0.5))
    }

    /// TOVA (Oren et al., 2024): the tokens the last query attends to, the mean over all heads, one set a
    /// layer. The last token itself is always kept.
    pub fn tova(budget: Budget) -> Self {
        let score = WindowAttention { window: 1, pool: None, heads: HeadMean::Layer };
        Self::evicting("tova", budget, Stage::Named(ScorerSpec::WindowAttention(score)))
            .with_recent(Recent::Tokens(1))
    }

    /// SnapKV (Li et al., 2024): the prompt's tokens that its last 32 queries attend to, mean-pooled over 5
    /// tokens, and the window itself. Decoded tokens are all kept, as in the paper.
    pub fn snapkv(budget: Budget) -> Self {
        let score =
            WindowAttention { window: 32, pool: Some(Pool::avg(5)), heads: HeadMean::Group };
        Self::evicting("snapkv", budget, Stage::Named(ScorerSpec::WindowAttention(score)))
            .with_recent(Recent::Tokens(32))
            .with_schedule(Schedule::prefill_only())
    }
}

/// A row of the table of methods.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct MethodInfo {
    /// The name [`Policy::named`] takes.
    pub name: String,
    /// The name its paper gives it.
    pub title: String,
    /// Its paper.
    pub paper: String,
    /// Stage one.
    pub score: String,
    /// What is kept whatever the scores.
    pub protect: String,
    /// Stage two.
    pub allocate: String,
    /// Stage three.
    pub reduce: String,
    /// Stage four.
    pub store: String,
    /// When it compresses.
    pub schedule: String,
    /// At which positions entries are encoded.
    pub positions: String,
}

/// Every named method, read off the policies themselves.
pub fn methods() -> Vec<MethodInfo> {
    METHODS.iter().map(describe).collect()
}

pub(super) fn build(name: &str, budget: Budget) -> Result<Policy> {
    match METHODS.iter().find(|method| method.name == name) {
        Some(method) => Ok((method.build)(budget)),
        None => Err(Error::UnknownMethod {
            name: name.to_owned(),
            known: METHODS.iter().map(|method| method.name).collect::<Vec<_>>().join(", "),
        }),
    }
}

fn describe(method: &Method) -> MethodInfo {
    let policy = (method.build)(Budget::Tokens(1024));
    let keeps_all = policy.budget.is_none();
    let or_dash = |text: String| if keeps_all { "-".to_owned() } else { text };
    let score = match &policy.score {
        Stage::Named(ScorerSpec::Recency(_)) => "recency".to_owned(),
        Stage::Named(ScorerSpec::AccumulatedAttention(_)) => "accumulated-attention".to_owned(),
        Stage::Named(ScorerSpec::WindowAttention(scorer)) => {
            let pool = scorer.pool.map_or(String::new(), |pool| {
                format!(", {} pool {}", format!("{:?}", pool.kind).to_lowercase(), pool.kernel)
            });
            let heads = match scorer.heads {
                HeadMean::Group => "",
                HeadMean::Layer => ", one set a layer",
            };
            format!("window-attention {}{pool}{heads}", scorer.window)
        }
        Stage::Custom(scorer) => scorer.name().to_owned(),
    };
    let Protect { sinks, recent } = policy.protect;
    let recent = match recent {
        Recent::Tokens(0) => None,
        Recent::Tokens(tokens) => Some(format!("last {tokens}")),
        Recent::Share(share) => Some(format!("last {}% of the budget", share * 100.0)),
    };
    let sinks = (sinks > 0).then(|| format!("first {sinks}"));
    let protect = sinks.into_iter().chain(recent).collect::<Vec<_>>().join(", ");
    let prefill = match policy.schedule.prefill {
        PrefillCompression::Never => None,
        PrefillCompression::AtEnd => Some("prompt".to_owned()),
        PrefillCompression::EveryChunk => Some("every chunk".to_owned()),
    };
    let decode = match policy.schedule.decode_every {
        None => None,
        Some(1) => Some("every decoded token".to_owned()),
        Some(every) => Some(format!("every {every} decoded tokens")),
    };
    let schedule = prefill.into_iter().chain(decode).collect::<Vec<_>>().join(", ");
    let dash_if_empty = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    MethodInfo {
        name: method.name.to_owned(),
        title: method.title.to_owned(),
        paper: method.paper.to_owned(),
        score: or_dash(score),
        protect: dash_if_empty(protect),
        allocate: if keeps_all { "all".to_owned() } else { policy.allocator().name().to_owned() },
        reduce: or_dash(policy.reducer().name().to_owned()),
        store: policy.store().name().to_owned(),
        schedule: dash_if_empty(schedule),
        positions: match policy.positions {
            PositionMode::Written => "as written".to_owned(),
            PositionMode::InCache => "re-counted in the cache".to_owned(),
        },
    }
}
