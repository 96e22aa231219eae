//! Table of the named methods.

use crate::{
    Error, Result,
    budget::{Budget, Protect, Recent},
    policy::{Policy, PositionMode, PrefillCompression},
};

/// Placeholder budget, where another one is set later or only the method's name counts.
const ANY: Budget = Budget::Tokens(1024);

/// A named method. Its name is that of its policy.
struct Method {
    build: fn(Budget) -> Policy,
    title: &'static str,
    paper: &'static str,
    keeps: &'static str,
}

const fn method(
    build: fn(Budget) -> Policy,
    title: &'static str,
    paper: &'static str,
    keeps: &'static str,
) -> Method {
    Method { build, title, paper, keeps }
}

const METHODS: &[Method] = &[
    method(|_| Policy::full(), "Full cache", "-", "everything"),
    method(Policy::local_window, "Local window", "Beltagy et al., 2020", "the last tokens"),
    method(
        Policy::streaming_llm,
        "StreamingLLM",
        "Xiao et al., 2023",
        "the first and the last tokens",
    ),
    method(Policy::h2o, "H2O", "Zhang et al., 2023", "accumulated attention and recency"),
    method(Policy::tova, "TOVA", "Oren et al., 2024", "what the last query attends to"),
    method(Policy::roco, "RoCo", "Ren and Zhu, 2024", "highest mean or deviation of attention"),
    method(Policy::snapkv, "SnapKV", "Li et al., 2024", "what the prompt's last queries attend to"),
    method(
        Policy::pyramidkv,
        "PyramidKV",
        "Cai et al., 2024",
        "SnapKV's, budgets falling by layer",
    ),
    method(Policy::cake, "CAKE", "Qin et al., 2025", "SnapKV's, layer budgets by entropy"),
    method(Policy::adakv, "AdaKV", "Feng et al., 2024", "SnapKV's, budgets by the heads' scores"),
    method(Policy::headkv, "HeadKV", "Fu et al., 2024", "more for retrieval heads (profile)"),
    method(Policy::cam, "CaM", "Zhang et al., 2024", "H2O's; evicted values are merged"),
    method(
        Policy::kvmerger,
        "KVMerger",
        "Wang et al., 2024",
        "H2O's; runs of similar keys are merged",
    ),
    method(Policy::d2o, "D2O", "Wan et al., 2024", "H2O's, sinks; the evicted are merged"),
    method(Policy::ems, "EMS", "Li et al., 2024", "global-local scores; others are merged"),
    method(
        Policy::compresskv,
        "CompressKV",
        "Lin et al., 2025",
        "what semantic heads attend to (profile)",
    ),
    method(|_| Policy::kivi(2), "KIVI", "Liu et al., 2024", "everything, in 2 bits"),
    method(
        |_| Policy::fp8(),
        "FP8",
        "Micikevicius et al., 2022",
        "everything, in 8-bit floating point",
    ),
    method(
        Policy::compresskv_adakv,
        "CompressKV + AdaKV",
        "Lin et al., 2025",
        "CompressKV's, with budgets by head",
    ),
    method(
        Policy::compresskv_headkv,
        "CompressKV + HeadKV",
        "Lin et al., 2025",
        "CompressKV's, more for retrieval heads",
    ),
    method(
        Policy::compresskv_kivi,
        "CompressKV + KIVI",
        "Lin et al., 2025",
        "CompressKV's, in 2 bits",
    ),
    method(
        Policy::ems_pyramidkv,
        "EMS + PyramidKV",
        "Li et al., 2024",
        "EMS's, with budgets that fall by layer",
    ),
    method(Policy::random, "Random", "-", "random tokens"),
    method(Policy::knorm, "Knorm", "Devoto et al., 2024", "the shortest keys"),
    method(Policy::keydiff, "KeyDiff", "Park et al., 2025", "keys least similar to the mean key"),
    method(Policy::keydiff_adakv, "KeyDiff + AdaKV", "-", "KeyDiff's, with budgets by head"),
    method(Policy::lagkv, "LagKV", "Liang et al., 2025", "deviation from the next tokens' range"),
    method(
        Policy::curdkv,
        "CurDKV",
        "Sengupta et al., 2025",
        "long keys and values among neighbours",
    ),
    method(
        Policy::leverage,
        "Leverage",
        "Chari and Van Durme, 2025",
        "keys that stand out of the others' space",
    ),
    method(
        Policy::non_causal,
        "Non-causal attention",
        "Chari and Van Durme, 2025",
        "what all queries of a chunk attend to",
    ),
    method(
        Policy::compactor,
        "Compactor",
        "Chari and Van Durme, 2025",
        "leverage and chunk attention together",
    ),
    method(
        Policy::expected_attention,
        "Expected Attention",
        "Devoto et al., 2025",
        "what later queries should attend to",
    ),
    method(
        Policy::expected_attention_adakv,
        "Expected Attention + AdaKV",
        "Devoto et al., 2025",
        "Expected Attention's, budgets by head",
    ),
    method(Policy::capkv, "CapKV", "arXiv 2604.25975", "values least predictable from the others"),
    method(Policy::chunkkv, "ChunkKV", "Liu et al., 2025", "SnapKV's, in whole chunks"),
    method(Policy::finch, "FINCH", "Corallo and Papotti, 2024", "what the question attends to"),
    method(Policy::rkv, "R-KV", "Cai et al., 2025", "SnapKV's, less keys like many others"),
    method(
        Policy::kvmerger_50,
        "KVMerger-50",
        "Wang et al., 2024",
        "KVMerger, as its paper sets it for 50 %",
    ),
    method(
        Policy::kvmerger_35,
        "KVMerger-35",
        "Wang et al., 2024",
        "KVMerger, as its paper sets it for 35 %",
    ),
    method(
        Policy::ems_needle,
        "EMS for needles",
        "Li et al., 2024",
        "EMS, as its paper sets it for needles",
    ),
    method(Policy::kvzip, "KVzip", "Kim et al., 2025", "what repeating the prompt attends to"),
    method(
        Policy::kvzip_plus,
        "KVzip+",
        "Kim et al., 2025",
        "KVzip's, by the size of what each adds",
    ),
    method(
        Policy::kvcompose,
        "KVCompose",
        "Akulov et al., 2025",
        "what a second reading attends to",
    ),
    method(Policy::dropkv, "DropKV", "OpenReview, 2026", "tokens whose loss changes outputs most"),
    method(Policy::q_filter, "Q-Filter", "Godey et al., 2025", "keys along the queries (profile)"),
    method(
        Policy::triattention,
        "TriAttention",
        "Mao et al., 2026",
        "what the mean query attends to (profile)",
    ),
    method(Policy::simlayerkv, "SimLayerKV", "Zhang et al., 2024", "all; ends only in lazy layers"),
    method(
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
        let mut policies = METHODS.iter().map(|method| (method.build)(ANY));
        let Some(mut policy) = policies.find(|policy| policy.name == name) else {
            let known = METHODS.iter().map(|method| (method.build)(ANY).name).collect();
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

fn describe(method: &Method) -> MethodInfo {
    let policy = (method.build)(ANY);
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
        title: method.title.to_owned(),
        paper: method.paper.to_owned(),
        keeps: method.keeps.to_owned(),
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
