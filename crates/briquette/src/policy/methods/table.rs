//! Table of the named methods.

use crate::{
    Error, Result,
    budget::{Budget, Protect, Recent},
    policy::{Policy, PositionMode, PrefillCompression},
};

/// Budget that a method is built with where another one follows, or only its name counts.
const ANY: Budget = Budget::Tokens(1024);

/// A named method. Its name is that of its policy.
struct Method {
    build: fn(Budget) -> Policy,
    title: &'static str,
    paper: &'static str,
}

const fn method(build: fn(Budget) -> Policy, title: &'static str, paper: &'static str) -> Method {
    Method { build, title, paper }
}

const METHODS: &[Method] = &[
    method(|_| Policy::full(), "Full cache", "-"),
    method(Policy::local_window, "Local window", "Beltagy et al., 2020 (Longformer)"),
    method(Policy::streaming_llm, "StreamingLLM", "Xiao et al., 2023"),
    method(Policy::h2o, "H2O", "Zhang et al., 2023"),
    method(Policy::tova, "TOVA", "Oren et al., 2024"),
    method(Policy::roco, "RoCo", "Ren and Zhu, 2024"),
    method(Policy::snapkv, "SnapKV", "Li et al., 2024"),
    method(Policy::pyramidkv, "PyramidKV", "Cai et al., 2024"),
    method(Policy::cake, "CAKE", "Qin et al., 2025"),
    method(Policy::adakv, "AdaKV", "Feng et al., 2024"),
    method(Policy::headkv, "HeadKV", "Fu et al., 2024"),
    method(Policy::cam, "CaM", "Zhang et al., 2024"),
    method(Policy::kvmerger, "KVMerger", "Wang et al., 2024"),
    method(Policy::d2o, "D2O", "Wan et al., 2024"),
    method(Policy::ems, "EMS", "Li et al., 2024"),
    method(Policy::compresskv, "CompressKV", "Lin et al., 2025"),
    method(|_| Policy::kivi(2), "KIVI", "Liu et al., 2024"),
    method(|_| Policy::fp8(), "FP8", "Micikevicius et al., 2022"),
    method(Policy::compresskv_adakv, "CompressKV + AdaKV", "Lin et al., 2025"),
    method(Policy::compresskv_headkv, "CompressKV + HeadKV", "Lin et al., 2025"),
    method(Policy::compresskv_kivi, "CompressKV + KIVI", "Lin et al., 2025"),
    method(Policy::ems_pyramidkv, "EMS + PyramidKV", "Li et al., 2024"),
    method(Policy::random, "Random", "-"),
    method(Policy::knorm, "Knorm", "Devoto et al., 2024"),
    method(Policy::keydiff, "KeyDiff", "Park et al., 2025"),
    method(Policy::keydiff_adakv, "KeyDiff + AdaKV", "-"),
    method(Policy::lagkv, "LagKV", "Liang et al., 2025"),
    method(Policy::cur, "CurDKV", "Sengupta et al., 2025"),
    method(Policy::leverage, "Leverage", "Chari and Van Durme, 2025"),
    method(Policy::chunk_attention, "Non-causal attention", "Chari and Van Durme, 2025"),
    method(Policy::compactor, "Compactor", "Chari and Van Durme, 2025"),
    method(Policy::expected_attention, "Expected Attention", "Devoto et al., 2025"),
    method(Policy::expected_attention_adakv, "Expected Attention + AdaKV", "Devoto et al., 2025"),
    method(Policy::capkv, "CapKV", "arXiv 2604.25975"),
    method(Policy::chunkkv, "ChunkKV", "Liu et al., 2025"),
    method(Policy::finch, "FINCH", "Corallo and Papotti, 2024"),
    method(Policy::rkv, "R-KV", "Cai et al., 2025"),
    method(Policy::kvmerger_50, "KVMerger-50", "Wang et al., 2024"),
    method(Policy::kvmerger_35, "KVMerger-35", "Wang et al., 2024"),
    method(Policy::ems_needle, "EMS for needles", "Li et al., 2024"),
    method(Policy::kvzip, "KVzip", "Kim et al., 2025"),
    method(Policy::kvzip_plus, "KVzip+", "Kim et al., 2025"),
    method(Policy::kvcompose, "KVCompose", "Akulov et al., 2025"),
    method(Policy::dropkv, "DropKV", "OpenReview, 2026"),
    method(Policy::q_filter, "Q-Filter", "Godey et al., 2025"),
    method(Policy::triattention, "TriAttention", "Mao et al., 2026"),
    method(Policy::simlayerkv, "SimLayerKV", "Zhang et al., 2024"),
    method(Policy::duoattention, "DuoAttention", "Xiao et al., 2024"),
];

impl Policy {
    /// The named method with this budget. Without one it gets its budget later, by
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

/// Every named method, read off the policies themselves.
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
