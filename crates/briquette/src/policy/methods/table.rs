//! Table of the named methods.

use crate::{
    Error, Result,
    budget::{Budget, Protect, Recent},
    policy::{Policy, PositionMode, PrefillCompression},
};

/// Placeholder budget, where another one is set later or only the method's name counts.
const ANY: Budget = Budget::Tokens(1024);

/// A named method: its policy, whose name is its own, its title, its paper, and what it keeps.
type Method = (fn(Budget) -> Policy, &'static str, &'static str, &'static str);

const METHODS: &[Method] = &[
    (|_| Policy::full(), "Full cache", "-", "everything"),
    (Policy::local_window, "Local window", "Beltagy et al., 2020", "the last tokens"),
    (Policy::streaming_llm, "StreamingLLM", "Xiao et al., 2023", "the first and the last tokens"),
    (Policy::h2o, "H2O", "Zhang et al., 2023", "accumulated attention and recency"),
    (Policy::tova, "TOVA", "Oren et al., 2024", "what the last query attends to"),
    (Policy::roco, "RoCo", "Ren and Zhu, 2024", "highest mean or deviation of attention"),
    (Policy::snapkv, "SnapKV", "Li et al., 2024", "what the prompt's last queries attend to"),
    (Policy::pyramidkv, "PyramidKV", "Cai et al., 2024", "SnapKV's, budgets falling by layer"),
    (Policy::cake, "CAKE", "Qin et al., 2025", "SnapKV's, layer budgets by entropy"),
    (Policy::adakv, "AdaKV", "Feng et al., 2024", "SnapKV's, budgets by the heads' scores"),
    (Policy::headkv, "HeadKV", "Fu et al., 2024", "more for retrieval heads (profile)"),
    (Policy::cam, "CaM", "Zhang et al., 2024", "H2O's; evicted values are merged"),
    (Policy::kvmerger, "KVMerger", "Wang et al., 2024", "H2O's; runs of similar keys are merged"),
    (Policy::d2o, "D2O", "Wan et al., 2024", "H2O's, sinks; the evicted are merged"),
    (Policy::ems, "EMS", "Li et al., 2024", "global-local scores; others are merged"),
    (
        Policy::compresskv,
        "CompressKV",
        "Lin et al., 2025",
        "what semantic heads attend to (profile)",
    ),
    (|_| Policy::kivi(2), "KIVI", "Liu et al., 2024", "everything, in 2 bits"),
    (|_| Policy::fp8(), "FP8", "Micikevicius et al., 2022", "everything, in 8-bit floating point"),
    (
        Policy::compresskv_adakv,
        "CompressKV + AdaKV",
        "Lin et al., 2025",
        "CompressKV's, with budgets by head",
    ),
    (
        Policy::compresskv_headkv,
        "CompressKV + HeadKV",
        "Lin et al., 2025",
        "CompressKV's, more for retrieval heads",
    ),
    (Policy::compresskv_kivi, "CompressKV + KIVI", "Lin et al., 2025", "CompressKV's, in 2 bits"),
    (
        Policy::ems_pyramidkv,
        "EMS + PyramidKV",
        "Li et al., 2024",
        "EMS's, with budgets that fall by layer",
    ),
    (Policy::random, "Random", "-", "random tokens"),
    (Policy::knorm, "Knorm", "Devoto et al., 2024", "the shortest keys"),
    (Policy::keydiff, "KeyDiff", "Park et al., 2025", "keys least similar to the mean key"),
    (Policy::keydiff_adakv, "KeyDiff + AdaKV", "-", "KeyDiff's, with budgets by head"),
    (Policy::lagkv, "LagKV", "Liang et al., 2025", "deviation from the next tokens' range"),
    (Policy::curdkv, "CurDKV", "Sengupta et al., 2025", "long keys and values among neighbours"),
    (
        Policy::leverage,
        "Leverage",
        "Chari and Van Durme, 2025",
        "keys that stand out of the others' space",
    ),
    (
        Policy::non_causal,
        "Non-causal attention",
        "Chari and Van Durme, 2025",
        "what all queries of a chunk attend to",
    ),
    (
        Policy::compactor,
        "Compactor",
        "Chari and Van Durme, 2025",
        "leverage and chunk attention together",
    ),
    (
        Policy::expected_attention,
        "Expected Attention",
        "Devoto et al., 2025",
        "what later queries should attend to",
    ),
    (
        Policy::expected_attention_adakv,
        "Expected Attention + AdaKV",
        "Devoto et al., 2025",
        "Expected Attention's, budgets by head",
    ),
    (Policy::capkv, "CapKV", "arXiv 2604.25975", "values least predictable from the others"),
    (Policy::chunkkv, "ChunkKV", "Liu et al., 2025", "SnapKV's, in whole chunks"),
    (Policy::finch, "FINCH", "Corallo and Papotti, 2024", "what the question attends to"),
    (Policy::rkv, "R-KV", "Cai et al., 2025", "SnapKV's, less keys like many others"),
    (
        Policy::kvmerger_50,
        "KVMerger-50",
        "Wang et al., 2024",
        "KVMerger, as its paper sets it for 50 %",
    ),
    (
        Policy::kvmerger_35,
        "KVMerger-35",
        "Wang et al., 2024",
        "KVMerger, as its paper sets it for 35 %",
    ),
    (
        Policy::ems_needle,
        "EMS for needles",
        "Li et al., 2024",
        "EMS, as its paper sets it for needles",
    ),
    (Policy::kvzip, "KVzip", "Kim et al., 2025", "what repeating the prompt attends to"),
    (Policy::kvzip_plus, "KVzip+", "Kim et al., 2025", "KVzip's, by the size of what each adds"),
    (Policy::kvcompose, "KVCompose", "Akulov et al., 2025", "what a second reading attends to"),
    (Policy::dropkv, "DropKV", "OpenReview, 2026", "tokens whose loss changes outputs most"),
    (Policy::q_filter, "Q-Filter", "Godey et al., 2025", "keys along the queries (profile)"),
    (
        Policy::triattention,
        "TriAttention",
        "Mao et al., 2026",
        "what the mean query attends to (profile)",
    ),
    (Policy::simlayerkv, "SimLayerKV", "Zhang et al., 2024", "all; ends only in lazy layers"),
    (
        Policy::duoattention,
        "DuoAttention",
        "Xiao et al., 2024",
        "all; ends in streaming heads (profile)",
    ),
];

impl Policy {
    /// Returns the named method with this budget. Without a budget, set one later by
    /// [`with_budget`](Self::with_budget) or [`with_default_budget`](Self::with_default_budget).
    ///
    /// # Errors
    /// [`Error::UnknownMethod`]; [`Error::BudgetUnused`] for a budget of a method that takes none;
    /// or the method's own check of the budget.
    pub fn named(name: &str, budget: impl Into<Option<Budget>>) -> Result<Self> {
        let mut policies = METHODS.iter().map(|(build, ..)| build(ANY));
        let Some(mut policy) = policies.find(|policy| policy.name == name) else {
            let known = METHODS.iter().map(|(build, ..)| build(ANY).name).collect();
            return Err(Error::UnknownMethod { name: name.to_owned(), known });
        };
        policy.budget = budget.into();
        policy.check_parts()?;
        Ok(policy)
    }
}

/// A row of the table of methods.
#[derive(Clone, Debug, serde::Serialize)]
#[non_exhaustive]
pub struct MethodInfo {
    /// Name that [`Policy::named`] takes.
    pub name: String,
    /// Name that its paper gives it.
    pub title: String,
    /// Paper of the method.
    pub paper: String,
    /// The tokens that it keeps, in a few words.
    pub keeps: String,
    /// The scorer, with its parameters.
    pub score: String,
    /// The tokens that are kept whatever their scores.
    pub protect: String,
    /// The allocator, with its parameters.
    pub allocate: String,
    /// The reducer, with its parameters.
    pub reduce: String,
    /// The store, with its parameters.
    pub store: String,
    /// Schedule of the compressions.
    pub schedule: String,
    /// Positions at which entries are encoded.
    pub positions: String,
}

/// Returns every named method, as its own policy describes it.
pub fn methods() -> Vec<MethodInfo> {
    METHODS.iter().map(describe).collect()
}

fn describe(&(build, title, paper, keeps): &Method) -> MethodInfo {
    let policy = build(ANY);
    let keeps_all = !policy.takes_budget();
    let or_dash = |text: String| if keeps_all { "-".to_owned() } else { text };
    let score = policy.scorer().summary();
    let Protect { sinks, recent } = policy.protect;
    let recent = match recent {
        Recent::Tokens(0) => None,
        Recent::Tokens(tokens) => Some(format!("last {tokens}")),
        Recent::Share(share) => Some(format!("last {:.0}% of the budget", share * 100.0)),
        Recent::HeavyToRecent(heavy, recent) => {
            Some(format!("last {recent} of {}", heavy + recent))
        }
    };
    let sinks = (sinks > 0).then(|| format!("first {sinks}"));
    let protect = sinks.into_iter().chain(recent).collect::<Vec<_>>().join(", ");
    let prefill = match policy.schedule.prefill {
        PrefillCompression::Never => None,
        PrefillCompression::AtEnd => Some("prompt".to_owned()),
        PrefillCompression::FirstPrompt => Some("first prompt".to_owned()),
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
        name: policy.name().to_owned(),
        title: title.to_owned(),
        paper: paper.to_owned(),
        keeps: keeps.to_owned(),
        score: or_dash(score),
        protect: dash_if_empty(protect),
        allocate: if keeps_all { "all".to_owned() } else { policy.allocator().summary() },
        reduce: or_dash(policy.reducer().summary()),
        store: policy.store().summary(),
        schedule: dash_if_empty(schedule),
        positions: match policy.positions {
            PositionMode::Written => "as written".to_owned(),
            PositionMode::InCache => "re-counted in the cache".to_owned(),
            PositionMode::Deferred => "as written, encoded in every call".to_owned(),
        },
    }
}
